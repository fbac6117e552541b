#include "verbs/soft/virtual/direct_session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "verbs/soft/lib/objects.h"
#include "verbs/soft/lib/placed_copy.h"

namespace sluice::soft {

DirectSession::DirectSession(VirtualCore* core, uint32_t host, uint32_t number, const char* sysfs_root)
    : core_(core), host_(host), number_(number) {
  process_ = core->fabric->AttachProcess(host, this);
  calls_ = std::make_unique<VerbCalls>(core->fabric.get(), host, process_, this);
  DescribeHost(core->fabric.get(), host, sysfs_root, &welcome_);
}

DirectSession::~DirectSession() {
  std::lock_guard lock(core_->mutex);
  core_->fabric->DetachProcess(process_);
}

void DirectSession::DeclareData(const void* begin, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(begin);
  std::lock_guard lock(core_->mutex);
  data_[address] = address + bytes;
}

void DirectSession::ForgetData(const void* begin) {
  std::lock_guard lock(core_->mutex);
  data_.erase(reinterpret_cast<uint64_t>(begin));
}

// ---- requests

int DirectSession::Invoke(Call call, uint32_t nic, CallArguments* arguments) {
  std::lock_guard lock(core_->mutex);
  if (call == Call::kModelTime) {
    arguments->value =
        static_cast<uint64_t>(core_->fabric->Now() + core_->spent.load(std::memory_order_relaxed));
    return 0;
  }
  // A call takes effect behind what was posted before it.
  ExecuteDue(kNever);
  return calls_->Dispatch(nic, call, arguments);
}

RecordHeader* DirectSession::ReserveRequest(uint16_t type, size_t bytes) {
  Take();
  const uint32_t size = RoundRecord(bytes);
  reserved_.resize(
      std::max(reserved_.size(), (size + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t)));
  auto* record = reinterpret_cast<RecordHeader*>(reserved_.data());
  record->size_bytes = size;
  record->type = type;
  record->count = 0;
  has_reserved_ = true;
  return record;
}

void DirectSession::Take() {
  if (!has_reserved_) return;
  has_reserved_ = false;
  const Picos spent = core_->spent.load(std::memory_order_relaxed);
  if (spent == 0 && posted_.empty()) {
    Execute(reinterpret_cast<const RecordHeader*>(reserved_.data()));
    return;
  }
  Posted& posted = posted_.emplace_back();
  posted.at = core_->fabric->Now() + spent;
  if (!spare_records_.empty()) {
    posted.record = std::move(spare_records_.back());
    spare_records_.pop_back();
  }
  posted.record.swap(reserved_);
  core_->fabric->CallAt(posted.at, [this] { ExecuteDue(core_->fabric->Now()); });
}

void DirectSession::ExecuteDue(Picos now) {
  while (!posted_.empty() && posted_.front().at <= now) {
    std::vector<std::max_align_t> record = std::move(posted_.front().record);
    posted_.pop_front();
    Execute(reinterpret_cast<const RecordHeader*>(record.data()));
    spare_records_.push_back(std::move(record));
  }
}

// What the NIC refuses ends as an error completion of the program's.
void DirectSession::Execute(const RecordHeader* record) {
  switch (record->type) {
    case kRequestPostSend:
      calls_->PostSend(*reinterpret_cast<const PostSendRequest*>(record));
      return;
    case kRequestPostRecv:
      calls_->PostRecv(*reinterpret_cast<const PostRecvRequest*>(record));
      return;
    case kRequestPostSrqRecv:
      calls_->PostSrqRecv(*reinterpret_cast<const PostRecvRequest*>(record));
      return;
    default:
      return;
  }
}

std::atomic<uint64_t>* DirectSession::TakenCounter(Cq* cq) {
  return &cq->taken_here;
}

// ---- memory

void DirectSession::Gather(DmaId id, std::span<const MemoryRange> ranges, const PayloadRef& into) {
  ReferencePool::Fill(into.get(), ranges);
  core_->fabric->DmaDone(id, true, 0);
}

void DirectSession::Scatter(uint64_t address, const PayloadRef& from, uint32_t offset, uint32_t length) {
  if (length == 0) return;
  std::memcpy(reinterpret_cast<void*>(address), from->data + offset, length);
  auto range = data_.upper_bound(address);
  const bool is_data = range != data_.begin() && address < (--range)->second;
  core_->MarkTouched(number_, is_data ? kTouchedData : kTouchedControl);
}

void DirectSession::Atomic(DmaId id, AtomicOp op, uint64_t address, uint64_t compare_or_add, uint64_t swap) {
  void* word = reinterpret_cast<void*>(address);
  const uint64_t before = op == AtomicOp::kCompareSwap ? CompareSwapWord(word, compare_or_add, swap)
                                                       : FetchAddWord(word, compare_or_add);
  core_->MarkTouched(number_, kTouchedControl);
  core_->fabric->DmaDone(id, true, before);
}

void DirectSession::PushCompletion(CqId cq, const Completion& completion) {
  CompletionCommand command{};
  if (!calls_->Translate(cq, completion, &command)) return;
  DeliverCompletion(command);
  core_->MarkTouched(number_, kTouchedControl);
}

void DirectSession::PushAsyncEvent(const AsyncEvent& event) {
  EventCommand command{};
  if (!calls_->Translate(event, &command)) return;
  DeliverEvent(command);
  core_->MarkTouched(number_, kTouchedControl);
}

uint64_t DirectSession::CompletionsTaken(CqId cq) {
  const VerbCalls::CqRecord* record = calls_->FindCq(cq);
  if (record == nullptr) return 0;
  return reinterpret_cast<const Cq*>(record->cookie)->taken_here.load(std::memory_order_acquire);
}

}  // namespace sluice::soft
