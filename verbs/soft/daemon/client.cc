#include "verbs/soft/daemon/client.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "verbs/soft/daemon/log.h"

namespace sluice::soft {
namespace {

// A thread that looked at its completion queue this recently will look again soon.
constexpr uint64_t kPollingCycles = 100'000;
// It gets this long before the service thread is woken all the same.
constexpr int64_t kPollerGraceNs = 40'000;
// A peer that has not placed its data for this long is stopped, not slow.
constexpr int64_t kPlacementPatienceNs = 1'000'000'000;

}  // namespace

Client::~Client() {
  if (process_ != 0) {
    fabric_->DetachProcess(process_);
    neighbours_->erase(process_);
  }
  if (header_ != nullptr) munmap(header_, kSessionBytes);
}

Status Client::Attach(std::vector<UniqueFd> fds, uint32_t host) {
  if (fds.size() != 2) {
    return SystemError("the fabric process has no descriptors left for this program's memory", EMFILE,
                       "raise the hard limit of open files (ulimit -Hn)");
  }
  memory_ = std::move(fds[0]);
  wake_ = std::move(fds[1]);
  struct stat status {};
  if (fstat(memory_.get(), &status) != 0 || status.st_size < static_cast<off_t>(kSessionBytes)) {
    return InvalidArgument("fabric process: the program's shared memory is too small");
  }
  void* memory = mmap(nullptr, kSessionBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  if (memory == MAP_FAILED) {
    return SystemError("fabric process: cannot map the program's shared memory", errno, "end some programs");
  }
  header_ = static_cast<SessionHeader*>(memory);
  auto* bytes = static_cast<std::byte*>(memory);
  requests_ = RingConsumer(&header_->requests, bytes + kRequestRingOffset, kRequestRingBytes);
  commands_ = RingProducer(&header_->commands, bytes + kCommandRingOffset, kCommandRingBytes);
  host_ = host;
  process_ = fabric_->AttachProcess(host, this);
  calls_ = std::make_unique<VerbCalls>(fabric_, host_, process_, this);
  neighbours_->emplace(process_, this);
  return Status::Ok();
}

void Client::Wake() {
  const uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

// ---- commands

void Client::Track(DmaId dma, const PayloadRef& payload, AtomicCommand* atomic) {
  InFlight in_flight{commands_.tail(), dma, payload, atomic};
  if (deferred_.empty()) {
    in_flight_.push_back(std::move(in_flight));
  } else {
    deferred_.back().tracked = true;
    deferred_.back().in_flight = std::move(in_flight);
  }
}

void Client::DrainDeferred() {
  while (!deferred_.empty()) {
    Deferred& deferred = deferred_.front();
    const auto* waiting = reinterpret_cast<const RecordHeader*>(deferred.bytes.data());
    RecordHeader* record = commands_.Reserve(waiting->type, deferred.bytes.size(), false);
    if (record == nullptr) return;
    const uint32_t size = record->size_bytes;
    memcpy(record, waiting, deferred.bytes.size());
    record->size_bytes = size;
    if (deferred.tracked) {
      deferred.in_flight.end = commands_.tail();
      if (deferred.in_flight.atomic != nullptr)
        deferred.in_flight.atomic = reinterpret_cast<AtomicCommand*>(record);
      in_flight_.push_back(std::move(deferred.in_flight));
    }
    deferred_.pop_front();
  }
}

void Client::Flush(int64_t now_ns) {
  if (commands_.unpublished()) {
    open_scatter_ = nullptr;
    if (commands_.Publish() && wake_due_ns_ == 0) {
      if (CycleCount() - header_->last_poll_cycles.load(std::memory_order_relaxed) < kPollingCycles) {
        wake_due_ns_ = now_ns + kPollerGraceNs;
      } else {
        Wake();
      }
    }
  }
  if (wake_due_ns_ != 0) {
    if (commands_.consumer_position() == commands_.tail()) {
      wake_due_ns_ = 0;
    } else if (now_ns >= wake_due_ns_) {
      wake_due_ns_ = 0;
      Wake();
    }
  }
}

bool Client::ReapExecuted() {
  const uint64_t executed = commands_.Refresh();
  if (executed == executed_) return false;
  executed_ = executed;
  while (!in_flight_.empty() && in_flight_.front().end <= executed) {
    const InFlight done = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (done.dma == 0) {
      ++scatters_done_;
    } else {
      fabric_->DmaDone(done.dma, true, done.atomic != nullptr ? done.atomic->before : 0);
    }
  }
  DrainDeferred();
  return true;
}

bool Client::PrepareSleep() {
  requests_.SetSleeps(true);
  return requests_.Empty() && commands_.consumer_position() == executed_;
}

void Client::EndSleep() {
  requests_.SetSleeps(false);
}

void Client::SetStarves(bool starves) {
  starves |= awaited_scatters_ > scatters_done_;
  if (starves == starves_) return;
  starves_ = starves;
  header_->fabric_starves.store(starves ? 1 : 0, std::memory_order_seq_cst);
}

void Client::ReleaseHeld(int64_t now_ns) {
  while (!held_.empty()) {
    Held& first = held_.front();
    if (first.behind != 0) {
      const auto peer = neighbours_->find(first.behind);
      const bool waits = peer != neighbours_->end() && peer->second->scatters_done_ < first.scatters;
      if (first.give_up_ns == 0) first.give_up_ns = now_ns + kPlacementPatienceNs;
      if (waits && now_ns < first.give_up_ns) return;
      if (waits)
        Log("pid %d completes before pid %d has its data: it does not run", pid_, peer->second->pid_);
    }
    if (const auto* completion = std::get_if<CompletionCommand>(&first.command)) {
      Emit(kCommandCompletion, *completion);
    } else if (const auto* event = std::get_if<EventCommand>(&first.command)) {
      Emit(kCommandEvent, *event);
    } else {
      Emit(kCommandAnswer, std::get<AnswerCommand>(first.command));
    }
    held_.pop_front();
  }
}

Client* Client::PeerBehind(uint32_t nic, const Completion& completion) {
  if (completion.status != IBV_WC_SUCCESS || WrIdKind(completion.wr_id) != QueueKind::kSend) return nullptr;
  // A READ or an atomic was executed by the peer, behind everything that came before.
  if (completion.opcode != IBV_WC_SEND && completion.opcode != IBV_WC_RDMA_WRITE) return nullptr;
  const auto peer = neighbours_->find(fabric_->nic(host_, nic)->PeerProcess(completion.qp_num));
  if (peer == neighbours_->end() || peer->second == this) return nullptr;
  return peer->second->scatters_done_ < peer->second->scatters_issued_ ? peer->second : nullptr;
}

// ---- ProcessMemory

void Client::Gather(DmaId id, std::span<const MemoryRange> ranges, const PayloadRef& into) {
  auto* command = NewCommand<GatherCommand>(kCommandGather, ranges.size() * sizeof(GatherCommand::Range));
  command->header.count = static_cast<uint16_t>(ranges.size());
  command->pool_offset = into->tag;
  auto* out = reinterpret_cast<GatherCommand::Range*>(command + 1);
  for (const MemoryRange& range : ranges) *out++ = {range.address, range.length};
  Track(id, into, nullptr);
}

void Client::Scatter(uint64_t address, const PayloadRef& from, uint32_t offset, uint32_t length) {
  if (length == 0) return;
  const uint64_t pool_offset = from->tag + offset;
  if (open_scatter_ != nullptr && open_scatter_->address + open_scatter_->length == address &&
      open_scatter_->pool_offset + open_scatter_->length == pool_offset &&
      in_flight_.back().payload.get() == from.get()) {
    open_scatter_->length += length;
    return;
  }
  auto* command = NewCommand<ScatterCommand>(kCommandScatter);
  command->address = address;
  command->pool_offset = pool_offset;
  command->length = length;
  ++scatters_issued_;
  Track(0, from, nullptr);
  if (deferred_.empty()) open_scatter_ = command;
}

void Client::Atomic(DmaId id, AtomicOp op, uint64_t address, uint64_t compare_or_add, uint64_t swap) {
  auto* command = NewCommand<AtomicCommand>(kCommandAtomic);
  command->address = address;
  command->compare_or_add = compare_or_add;
  command->swap = swap;
  command->before = 0;
  command->is_compare_swap = op == AtomicOp::kCompareSwap ? 1 : 0;
  Track(id, PayloadRef(), command);
}

void Client::PushCompletion(CqId cq, const Completion& completion) {
  CompletionCommand command{};
  if (!calls_->Translate(cq, completion, &command)) return;
  if (Client* peer = PeerBehind(calls_->FindCq(cq)->nic, completion)) {
    peer->awaited_scatters_ = peer->scatters_issued_;
    held_.push_back({command, peer->process_, peer->scatters_issued_, 0});
  } else {
    EmitInOrder(kCommandCompletion, command);
  }
}

void Client::PushAsyncEvent(const AsyncEvent& event) {
  EventCommand command{};
  if (calls_->Translate(event, &command)) EmitInOrder(kCommandEvent, command);
}

uint64_t Client::CompletionsTaken(CqId cq) {
  const VerbCalls::CqRecord* record = calls_->FindCq(cq);
  if (record == nullptr) return 0;
  return header_->completions_taken[record->slot].load(std::memory_order_acquire);
}

}  // namespace sluice::soft
