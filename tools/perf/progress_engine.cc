#include "tools/perf/progress_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "tools/perf/claim_check.h"
#include "tools/perf/lines.h"
#include "tools/perf/schedule_parts.h"

namespace sluice::perf {
namespace {

constexpr int kPassesBetweenLooks = 8;  // NCCL_PROGRESS_APPENDOP_FREQ

uint32_t FunctionBit(Op op, bool send) {
  switch (op) {
    case Op::kAllReduce:
      return 1u << nccl::kFuncAllReduce;
    case Op::kAllGather:
      return 1u << nccl::kFuncAllGather;
    case Op::kReduceScatter:
      return 1u << nccl::kFuncReduceScatter;
    case Op::kBroadcast:
      return 1u << nccl::kFuncBroadcast;
    case Op::kReduce:
      return 1u << nccl::kFuncReduce;
    case Op::kAllToAll:
      return 1u << nccl::kFuncAllToAll;
    case Op::kSendRecv:
      return 1u << (send ? nccl::kFuncSend : nccl::kFuncRecv);
  }
  return 0;
}

}  // namespace

void* UserHandle(const Connection& connection, const std::byte* address, size_t bytes) {
  for (const UserMemory& memory : connection.user) {
    if (address >= memory.begin && address + bytes <= memory.begin + memory.bytes) return memory.mhandle;
  }
  return nullptr;
}

void ProgressEngine::Post(const Operation& operation) {
  std::lock_guard lock(mutex_);
  posted_.push_back(operation);
}

bool ProgressEngine::HasPosted() {
  std::lock_guard lock(mutex_);
  return !posted_.empty();
}

Result<ProgressEngine::Outcome> ProgressEngine::Step() {
  bool idle = true;
  SLUICE_RETURN_IF_ERROR(ProgressAll(&idle));
  bool taken = false;
  if (idle || active_.empty() || ++passes_ == kPassesBetweenLooks) {
    passes_ = 0;
    taken = TakePosted();
  }
  if (!idle || taken) return Outcome::kMoved;
  return active_.empty() ? Outcome::kEmpty : Outcome::kIdle;
}

bool ProgressEngine::TakePosted() {
  std::deque<Operation> taken;
  {
    std::lock_guard lock(mutex_);
    taken.swap(posted_);
  }
  for (const Operation& op : taken) Append(op);
  return !taken.empty();
}

void ProgressEngine::Append(const Operation& op) {
  const Plan& plan = *op.plan;
  for (size_t s = 0; s < plan.schedule.strands.size(); ++s) {
    for (Connection* c : plan.receive[s]) AppendSub(op, false, s, c);
    for (Connection* c : plan.send[s]) AppendSub(op, true, s, c);
  }
}

void ProgressEngine::AppendSub(const Operation& op, bool send, size_t strand, Connection* connection) {
  const Strand& s = op.plan->schedule.strands[strand];
  const size_t messages = send ? s.sends() : s.receives();
  if (messages == 0) return;
  const bool shared = connection->shared;
  // Channels whose connections share one plugin connection must progress together.
  const int channel = shared && context_.max_recvs == 1 ? connection->edge.channel : -1;
  Queue& queue = queues_[Key{send, shared ? nullptr : connection, channel}];
  Args* args = queue.empty() ? nullptr : queue.back().get();
  if (!shared || args == nullptr || args->op.id != op.id || args->batch != s.batch) {
    queue.push_back(std::make_unique<Args>());
    args = queue.back().get();
    args->op = op;
    args->send = send;
    args->batch = s.batch;
    if (queue.size() == 1) active_.push_back(&queue);
  }
  Sub sub;
  sub.connection = connection;
  sub.strand = strand;
  sub.steps = static_cast<int64_t>(messages) * op.plan->schedule.slice_steps;
  if (context_.profiler != nullptr && op.events != nullptr) {
    const int peer = connection->edge.peer;
    sub.op_event =
        context_.profiler->StartProxyOp(context_.profiler_context, op.events->Of(send, peer), getpid(),
                                        connection->edge.channel, peer, static_cast<int>(messages), send);
  }
  args->subs.push_back(sub);
}

void ProgressEngine::StartStep(const Args& args, Sub& sub, int64_t step) {
  ProfilerHandle& handle = HandleOf(args, sub, step);
  handle.sub = &sub;
  if (sub.op_event != nullptr) {
    context_.profiler->StartStep(context_.profiler_context, sub.op_event, MessageOf(args, step),
                                 &handle.step_event);
  }
}

void ProgressEngine::StopStep(const Args& args, Sub& sub, int64_t step) {
  ProfilerHandle& handle = HandleOf(args, sub, step);
  if (handle.step_event != nullptr) context_.profiler->Stop(std::exchange(handle.step_event, nullptr));
}

void ProgressEngine::EndSub(Sub& sub) {
  if (sub.op_event != nullptr) context_.profiler->Stop(std::exchange(sub.op_event, nullptr));
}

Status ProgressEngine::ProgressAll(bool* idle) {
  for (size_t i = 0; i < active_.size();) {
    Args& args = *active_[i]->front();
    if (!args.started) Begin(args);
    SLUICE_RETURN_IF_ERROR(args.send ? ProgressSend(args, idle) : ProgressReceive(args, idle));
    if (args.subs_done == args.subs.size()) {
      active_[i]->pop_front();
      if (active_[i]->empty()) {
        active_.erase(active_.begin() + static_cast<ptrdiff_t>(i));
        continue;
      }
    }
    ++i;
  }
  return Status::Ok();
}

void ProgressEngine::Begin(Args& args) {
  const Schedule& schedule = args.op.plan->schedule;
  args.started = true;
  for (Sub& sub : args.subs) {
    Connection* c = sub.connection;
    sub.base = static_cast<int64_t>(
        RoundUp(static_cast<size_t>(c->progress_step), static_cast<size_t>(schedule.chunk_steps)));
    c->progress_step = sub.base + sub.steps;
    sub.index_in_channel = sub.subs_in_channel = 0;
    for (const Sub& other : args.subs) {
      if (other.connection->edge.channel != c->edge.channel) continue;
      if (&other < &sub) ++sub.index_in_channel;
      ++sub.subs_in_channel;
    }
    if (c->shared) args.depth = std::clamp(kSharedSteps / sub.subs_in_channel, 1, args.depth);
  }
  if (!args.send) FormGroups(args);
}

// Members of a group are neighbours that share a plugin connection; a group has at most max_recvs members.
void ProgressEngine::FormGroups(Args& args) {
  if (context_.max_recvs == 1) return;
  std::stable_sort(args.subs.begin(), args.subs.end(),
                   [](const Sub& a, const Sub& b) { return a.connection->comm < b.connection->comm; });
  for (size_t first = 0; first < args.subs.size();) {
    size_t end = first + 1;
    while (end < args.subs.size() && end - first < static_cast<size_t>(context_.max_recvs) &&
           args.subs[end].connection->comm == args.subs[first].connection->comm) {
      ++end;
    }
    args.subs[first].group = static_cast<int>(end - first);
    first = end;
  }
}

Status ProgressEngine::Announce(const Args& args) {
  if (!context_.plugin->has_set_attr()) return Status::Ok();
  const Plan& plan = *args.op.plan;
  const Shape& shape = plan.schedule.shape;
  nccl::NetAttr now = announced_;
  now.op = FunctionBit(shape.op, args.send);
  if (!IsPointToPoint(shape.op)) {  // otherwise the bits of the last collective stay
    now.algo = 1u << static_cast<int>(shape.algo);
    now.proto = 1u << static_cast<int>(shape.proto);
  }
  nccl::NetCommAttr& half = args.send ? now.sendCommAttr : now.recvCommAttr;
  half.maxConcurrentPeers = half.minConcurrentPeers = plan.peers;
  half.maxFlowsPerPeer = half.minFlowsPerPeer = plan.channels;
  const uint64_t foreign = context_.foreign_attributes->load(std::memory_order_relaxed);
  if (foreign == foreign_seen_ && std::memcmp(&now, &announced_, sizeof now) == 0) return Status::Ok();
  foreign_seen_ = foreign;
  announced_ = now;
  return context_.plugin->SetAttr(context_.net_context, now);
}

size_t ProgressEngine::SlotBytes(const Args& args) const {
  return args.op.plan->schedule.step_bytes * static_cast<size_t>(args.op.plan->schedule.slice_steps);
}

std::byte* ProgressEngine::SlotAddress(const Args& args, const Sub& sub, int64_t step) const {
  const Schedule& schedule = args.op.plan->schedule;
  const Connection& c = *sub.connection;
  if (c.shared && schedule.shape.proto == Proto::kSimple) {
    const int64_t slot = step % args.depth * sub.subs_in_channel + sub.index_in_channel;
    std::byte* begin = args.send ? context_.shared_send : context_.shared_receive;
    return begin + (static_cast<size_t>(c.edge.channel) * kSharedSteps + static_cast<size_t>(slot)) *
                       kPointToPointChunkBytes;
  }
  return c.buffers[static_cast<int>(schedule.shape.proto)] +
         static_cast<size_t>((sub.base + step) % kSteps) * schedule.step_bytes;
}

const Slice& ProgressEngine::ReceivedSlice(const Args& args, const Sub& sub, int64_t step) const {
  const Plan& plan = *args.op.plan;
  const auto message = static_cast<size_t>(step / plan.schedule.slice_steps);
  return plan.schedule.strands[sub.strand].slices[plan.received_slices[sub.strand][message]];
}

Status ProgressEngine::Explain(const char* what, const Connection& connection, size_t bytes,
                               const Status& cause) const {
  return RemoteError(std::string(what) + " rank " + std::to_string(connection.edge.peer) + " (channel " +
                     std::to_string(connection.edge.channel) + ", " + std::to_string(bytes) +
                     " bytes): " + cause.message());
}

Status ProgressEngine::ProgressSend(Args& args, bool* idle) {
  const int slice_steps = args.op.plan->schedule.slice_steps;
  const bool registered = args.op.plan->schedule.shape.registered;
  bool announced = false;
  for (Sub& sub : args.subs) {
    if (sub.done == sub.steps) continue;
    Connection& c = *sub.connection;
    if (sub.posted < sub.steps && sub.posted < sub.done + args.depth) {  // hand a free slot to the GPU
      if (c.shared && !registered)
        c.slots[static_cast<size_t>((sub.base + sub.posted) % kSteps)].address =
            SlotAddress(args, sub, sub.posted);
      StartStep(args, sub, sub.posted);
      sub.posted += slice_steps;
      if (c.shared) {
        c.head.store(sub.base + sub.posted - kSteps, std::memory_order_release);
        context_.doorbell->Ring();
      }
      *idle = false;
      continue;
    }
    if (sub.transmitted < sub.posted && sub.transmitted < sub.done + kSteps && ReadyToSend(args, sub)) {
      bool sent = false;
      SLUICE_RETURN_IF_ERROR(TrySend(args, sub, &announced, &sent));
      if (sent) {
        *idle = false;
        continue;
      }
    }
    if (sub.done < sub.transmitted) {
      const auto index = static_cast<size_t>((sub.base + sub.done) % kSteps);
      bool done = false;
      int size = 0;
      if (Status status = context_.plugin->Test(sub.requests[index], &done, &size); !status.ok()) {
        return Explain("sending to", c,
                       static_cast<size_t>(c.slots[index].size.load(std::memory_order_relaxed)), status);
      }
      if (done) {
        c.slots[index].size.store(-1,
                                  std::memory_order_release);  // before the head, which gives the slot back
        sub.requests[index] = nullptr;
        StopStep(args, sub, sub.done);
        sub.done += slice_steps;
        if (!c.shared) c.head.store(sub.base + sub.done, std::memory_order_release);
        context_.doorbell->Ring();
        *idle = false;
        if (sub.done == sub.steps) {
          EndSub(sub);
          ++args.subs_done;
        }
      }
    }
  }
  return Status::Ok();
}

bool ProgressEngine::ReadyToSend(const Args& args, const Sub& sub) const {
  const Connection& c = *sub.connection;
  const int64_t step = sub.base + sub.transmitted;
  const Connection::Slot& slot = c.slots[static_cast<size_t>(step % kSteps)];
  const Proto proto = args.op.plan->schedule.shape.proto;
  const int64_t size = slot.size.load(std::memory_order_acquire);
  if (size == -1) return false;
  if (proto != Proto::kLl && c.tail.load(std::memory_order_acquire) <= step) return false;
  if (proto == Proto::kSimple) return true;
  return LinesReady(proto, static_cast<uint64_t>(step), SlotAddress(args, sub, sub.transmitted),
                    static_cast<size_t>(size));
}

Status ProgressEngine::TrySend(Args& args, Sub& sub, bool* announced, bool* sent) {
  const Shape& shape = args.op.plan->schedule.shape;
  Connection& c = *sub.connection;
  const auto index = static_cast<size_t>((sub.base + sub.transmitted) % kSteps);
  const auto bytes = static_cast<size_t>(c.slots[index].size.load(std::memory_order_acquire));
  std::byte* data = shape.registered ? c.slots[index].address : SlotAddress(args, sub, sub.transmitted);
  void* mhandle =
      shape.registered ? UserHandle(c, data, bytes) : c.mhandles[static_cast<size_t>(shape.proto)];
  if (!*announced) {
    *announced = true;
    SLUICE_RETURN_IF_ERROR(Announce(args));
  }
  ProfilerHandle& phandle = HandleOf(args, sub, sub.transmitted);
  if (context_.profiler != nullptr)
    context_.profiler->BeforeSend(sub.op_event, phandle.step_event, MessageOf(args, sub.transmitted));
  void*& request = sub.requests[index];
  if (Status status = context_.plugin->Isend(c.comm, data, bytes, c.tag, mhandle, &phandle, &request);
      !status.ok()) {
    return Explain("sending to", c, bytes, status);
  }
  if (request == nullptr) return Status::Ok();
  if (context_.profiler != nullptr)
    context_.profiler->AfterSend(sub.op_event, phandle.step_event, MessageOf(args, sub.transmitted));
  if (context_.claims != nullptr) context_.claims->Sent(shape, c.edge.peer, bytes);
  sub.transmitted += args.op.plan->schedule.slice_steps;
  *sent = true;
  return Status::Ok();
}

std::vector<std::string> ProgressEngine::DescribeOpen() const {
  std::vector<std::string> lines;
  for (const Queue* queue : active_) {
    const Args& args = *queue->front();
    const Schedule& schedule = args.op.plan->schedule;
    for (const Sub& sub : args.subs) {
      if (sub.done == sub.steps) continue;
      const int slice = schedule.slice_steps;
      auto count = [&](const char* what, int64_t steps) {
        return ", " + std::to_string(std::min(steps, sub.steps) / slice) + " " + what;
      };
      std::string line = std::string(Name(schedule.shape.op)) + " " +
                         std::string(Name(schedule.shape.proto)) + " #" + std::to_string(args.op.id) +
                         (args.send ? " to rank " : " from rank ") +
                         std::to_string(sub.connection->edge.peer) + " channel " +
                         std::to_string(sub.connection->edge.channel) + ": of " +
                         std::to_string(sub.steps / slice) + " messages";
      line += args.send ? count("given to the plugin", sub.transmitted) + count("sent", sub.done)
                        : count("posted", sub.posted) + count("received", sub.received) +
                              count("consumed", sub.done);
      lines.push_back(line);
    }
  }
  return lines;
}

}  // namespace sluice::perf
