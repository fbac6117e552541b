// The receiving half of the progress engine.
#include <algorithm>
#include <string>

#include "tools/perf/claim_check.h"
#include "tools/perf/progress_engine.h"
#include "tools/perf/schedule_parts.h"

namespace sluice::perf {

// NCCL goes on to the next stage only when the one before had nothing to do.
Status ProgressEngine::ProgressReceive(Args& args, bool* idle) {
  bool quiet = true;
  for (auto stage : {&ProgressEngine::PostReceives, &ProgressEngine::TestReceives,
                     &ProgressEngine::PublishReceived, &ProgressEngine::RetireReceived}) {
    SLUICE_RETURN_IF_ERROR((this->*stage)(args, &quiet));
    if (!quiet) break;
  }
  if (!quiet) *idle = false;
  return Status::Ok();
}

Status ProgressEngine::PostReceives(Args& args, bool* idle) {
  bool announced = false;
  for (size_t first = 0; first < args.subs.size(); first += static_cast<size_t>(args.subs[first].group)) {
    SLUICE_RETURN_IF_ERROR(PostGroup(args, first, &announced, idle));
  }
  return Status::Ok();
}

Status ProgressEngine::PostGroup(Args& args, size_t first, bool* announced, bool* idle) {
  const Schedule& schedule = args.op.plan->schedule;
  const Shape& shape = schedule.shape;
  Sub& head = args.subs[first];
  void* data[kMaxSubs];
  size_t sizes[kMaxSubs];
  int tags[kMaxSubs];
  void* mhandles[kMaxSubs];
  void* phandles[kMaxSubs];
  int n = 0;
  for (int i = 0; i < head.group; ++i) {
    Sub& sub = args.subs[first + static_cast<size_t>(i)];
    Connection& c = *sub.connection;
    if (sub.posted >= sub.steps) continue;
    if (sub.posted >= sub.done + args.depth) return Status::Ok();  // the group waits for its slowest member
    if (shape.registered) {
      if (c.opened.load(std::memory_order_acquire) < args.op.id)
        return Status::Ok();  // the user's buffer is not ours yet
      const Slice& slice = ReceivedSlice(args, sub, sub.posted);
      data[n] = WireAddress(args.op, slice);
      sizes[n] = slice.bytes;
      mhandles[n] = UserHandle(c, static_cast<std::byte*>(data[n]), sizes[n]);
    } else {
      data[n] = SlotAddress(args, sub, sub.posted);
      sizes[n] = SlotBytes(args);
      mhandles[n] = c.shared && shape.proto == Proto::kSimple
                        ? c.mhandles[static_cast<size_t>(Proto::kSimple)]
                        : c.mhandles[static_cast<size_t>(shape.proto)];
    }
    tags[n] = c.tag;
    StartStep(args, sub, sub.posted);
    phandles[n] = &HandleOf(args, sub, sub.posted);
    ++n;
  }
  if (n == 0) return Status::Ok();
  void*& request = head.requests[static_cast<size_t>(head.posted / schedule.slice_steps % kSteps)];
  if (shape.proto != Proto::kSimple && n == 1) request = nccl::OptionalReceiveCompletion();
  if (!*announced) {
    *announced = true;
    SLUICE_RETURN_IF_ERROR(Announce(args));
  }
  if (Status status =
          context_.plugin->Irecv(head.connection->comm, n, data, sizes, tags, mhandles, phandles, &request);
      !status.ok()) {
    return Explain("receiving from", *head.connection, sizes[0], status);
  }
  if (request == nullptr) return Status::Ok();
  head.consumed[static_cast<size_t>(head.posted / schedule.slice_steps % kSteps)] = request;
  head.group_posted = n;
  for (int i = 0; i < head.group; ++i) {
    Sub& sub = args.subs[first + static_cast<size_t>(i)];
    if (sub.posted < sub.steps) {
      if (context_.profiler != nullptr) {
        context_.profiler->ReceivePosted(sub.op_event, HandleOf(args, sub, sub.posted).step_event,
                                         MessageOf(args, sub.posted));
      }
      if (!shape.registered) {
        const auto slot = static_cast<size_t>((sub.base + sub.posted) % kSteps);
        sub.connection->slots[slot].address = SlotAddress(args, sub, sub.posted);
      } else {
        const auto slot = static_cast<size_t>((sub.base + sub.posted) % kSteps);
        sub.connection->slots[slot].address = WireAddress(args.op, ReceivedSlice(args, sub, sub.posted));
      }
    }
    sub.posted += schedule.slice_steps;
  }
  *idle = false;
  return Status::Ok();
}

Status ProgressEngine::TestReceives(Args& args, bool* idle) {
  const Schedule& schedule = args.op.plan->schedule;
  const bool simple = schedule.shape.proto == Proto::kSimple;
  for (size_t first = 0; first < args.subs.size(); first += static_cast<size_t>(args.subs[first].group)) {
    Sub& head = args.subs[first];
    if (head.posted <= head.received) continue;
    const auto index = static_cast<size_t>(head.received / schedule.slice_steps % kSteps);
    bool done = false;
    int sizes[kMaxSubs] = {};
    if (Status status = context_.plugin->Test(head.requests[index], &done, sizes); !status.ok()) {
      return Explain("receiving from", *head.connection, SlotBytes(args), status);
    }
    if (!done) continue;
    int members = 0;
    void* data[kMaxSubs];
    void* mhandles[kMaxSubs];
    int64_t total = 0;
    if (context_.claims != nullptr)
      context_.claims->Received(schedule.shape, head.connection->edge.peer, head.group_posted);
    for (int i = 0; i < head.group; ++i) {
      Sub& sub = args.subs[first + static_cast<size_t>(i)];
      const int64_t step = head.received;
      if (step >= sub.steps) continue;
      const Slice& slice = ReceivedSlice(args, sub, step);
      if (simple && static_cast<size_t>(sizes[members]) != slice.bytes) {
        return Explain("receiving from", *sub.connection, slice.bytes,
                       InternalError("test reports " + std::to_string(sizes[members]) + " bytes"));
      }
      total += sizes[members];
      if (context_.profiler != nullptr)
        context_.profiler->Received(sub.op_event, HandleOf(args, sub, step).step_event,
                                    MessageOf(args, step));
      data[members] = sub.connection->slots[static_cast<size_t>((sub.base + step) % kSteps)].address;
      mhandles[members] =
          schedule.shape.registered
              ? UserHandle(*sub.connection, static_cast<std::byte*>(data[members]), slice.bytes)
              : sub.connection->mhandles[static_cast<size_t>(schedule.shape.proto)];
      ++members;
    }
    for (int i = members; i < kMaxSubs; ++i) {
      if (sizes[i] != 0) {
        return Explain("receiving from", *head.connection, 0,
                       InternalError("test wrote the size of buffer " + std::to_string(i) +
                                     " of an irecv of " + std::to_string(members)));
      }
    }
    for (int i = 0; i < head.group; ++i)
      args.subs[first + static_cast<size_t>(i)].received += schedule.slice_steps;
    head.requests[index] = nullptr;
    if (context_.flush && simple && total > 0) {
      if (Status status = context_.plugin->Iflush(head.connection->comm, members, data, sizes, mhandles,
                                                  &head.requests[index]);
          !status.ok()) {
        return Explain("flushing what came from", *head.connection, static_cast<size_t>(total), status);
      }
    }
    *idle = false;
  }
  return Status::Ok();
}

Status ProgressEngine::PublishReceived(Args& args, bool* idle) {
  const int slice_steps = args.op.plan->schedule.slice_steps;
  for (size_t first = 0; first < args.subs.size(); first += static_cast<size_t>(args.subs[first].group)) {
    Sub& head = args.subs[first];
    if (head.received <= head.transmitted) continue;
    const auto index = static_cast<size_t>(head.transmitted / slice_steps % kSteps);
    bool done = true;
    if (head.requests[index] != nullptr) {
      if (Status status = context_.plugin->Test(head.requests[index], &done, nullptr); !status.ok()) {
        return Explain("flushing what came from", *head.connection, 0, status);
      }
    }
    if (!done) continue;
    head.requests[index] = nullptr;
    for (int i = 0; i < head.group; ++i) {
      Sub& sub = args.subs[first + static_cast<size_t>(i)];
      sub.transmitted += slice_steps;
      if (sub.transmitted <= sub.steps) {
        sub.connection->tail.store(sub.base + sub.transmitted, std::memory_order_release);
      }
    }
    context_.doorbell->Ring();
    *idle = false;
  }
  return Status::Ok();
}

Status ProgressEngine::RetireReceived(Args& args, bool* idle) {
  const int slice_steps = args.op.plan->schedule.slice_steps;
  for (size_t first = 0; first < args.subs.size(); first += static_cast<size_t>(args.subs[first].group)) {
    Sub& head = args.subs[first];
    for (int i = 0; i < head.group; ++i) {
      Sub& sub = args.subs[first + static_cast<size_t>(i)];
      if (sub.done == sub.steps || sub.transmitted <= sub.done) continue;
      const int64_t consumed = sub.connection->head.load(std::memory_order_acquire);
      // A GPU that polls flags may be ahead of what the plugin has reported.
      while (consumed > sub.base + sub.done && sub.transmitted > sub.done) {
        void*& request = head.consumed[static_cast<size_t>(sub.done / slice_steps % kSteps)];
        if (request != nullptr) {
          if (Status status =
                  context_.plugin->IrecvConsumed(head.connection->comm, head.group_posted, request);
              !status.ok()) {
            return Explain("receiving from", *head.connection, 0, status);
          }
          request = nullptr;
        }
        StopStep(args, sub, sub.done);
        sub.done += slice_steps;
        *idle = false;
        if (sub.done == sub.steps) {
          EndSub(sub);
          ++args.subs_done;
          break;
        }
      }
    }
  }
  return Status::Ok();
}

}  // namespace sluice::perf
