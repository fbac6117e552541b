// The engine's data path: polling, dispatch of completions, and work that waited for room.
#include <arpa/inet.h>

#include <algorithm>

#include "plugin/log.h"
#include "plugin/transport/engine.h"
#include "plugin/transport/path.h"
#include "plugin/transport/post.h"
#include "plugin/transport/teardown.h"
#include "verbs/completion.h"

namespace sluice {

// Nothing of it is under way: done, or what waits may go on.
void Engine::Settle(SendRequest& request) {
  share.Completed(request.service_class, request.outstanding_bytes);
  request.done = request.chunks_posted == request.chunks;
  if (!request.done) [[unlikely]]
    request.outstanding_bytes = 0;
}

void Engine::OnCompletions(uint32_t port_index, int count) noexcept {
  EnginePort& port = ports[port_index];
  if (count < 0) [[unlikely]] {
    return FailAll(SystemError("polling the completion queue of " + port.port.name +
                               " failed; the device was reset or removed, see dmesg"));
  }
  for (int i = 0; i < count; ++i) {
    const ibv_wc& wc = completions_[static_cast<size_t>(i)];
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
      OnError(port, wc);
    } else if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
      OnImmediate(port_index, wc);
    } else if (WorkId::Kind(wc.wr_id) == WorkKind::kData) {
      auto* request = WorkId::Owner<SendRequest>(wc.wr_id);
      const uint32_t retired = WorkId::Count(wc.wr_id);
      DataQueue& queue =
          static_cast<SendConnection*>(request->connection)->path->queues[WorkId::Index(wc.wr_id)];
      queue.free_wrs += retired;
      --queue.outstanding_chunks;
      port.cq_credits += retired;
      if (--request->chunks_pending == 0) [[likely]]
        Settle(*request);
    } else if (WorkId::Kind(wc.wr_id) == WorkKind::kControl) {
      const uint32_t retired = WorkId::Index(wc.wr_id);
      WorkId::Owner<ControlQueue>(wc.wr_id)->free_wrs += retired;
      port.cq_credits += retired;
    } else if (WorkId::Kind(wc.wr_id) == WorkKind::kPiece) {
      OnPiece(port, *WorkId::Owner<SendRequest>(wc.wr_id), WorkId::Index(wc.wr_id));
    } else {
      auto* request = WorkId::Owner<FlushRequest>(wc.wr_id);
      ++port.cq_credits;
      ++port.flush_free_wrs;
      if (--request->pending == 0) request->done = true;
    }
  }
  if (port.srq_consumed >= port.receive_batch) {
    if (Status status = RefillReceives(port); !status.ok()) [[unlikely]]
      FailAll(status);
  }
}

void Engine::OnPiece(EnginePort& port, SendRequest& request, uint32_t queue_index) {
  DataQueue& queue = static_cast<SendConnection*>(request.connection)->path->queues[queue_index];
  ++queue.free_wrs;
  --queue.outstanding_chunks;
  ++port.cq_credits;
  if (--request.chunks_pending == 0) return Settle(request);
  const uint32_t bytes = std::min(request.piece_bytes, request.outstanding_bytes);
  request.outstanding_bytes -= bytes;
  share.Completed(request.service_class, bytes);
}

void Engine::FinishPoll(int count) noexcept {
  if (quick_cq_ == nullptr) return Poll();
  if (count != 0) OnCompletions(0, count);
  if (waiting_) Progress();
}

void Engine::OnImmediate(uint32_t port_index, const ibv_wc& wc) {
  EnginePort& port = ports[port_index];
  --port.srq_posted;
  ++port.srq_consumed;
  const Immediate immediate = Immediate::Unpack(ntohl(wc.imm_data));
  RecvConnection* connection = receivers[immediate.connection];
  if (connection == nullptr) [[unlikely]]
    return OnStaleImmediate(wc, "no such connection");
  RecvGroup& group = connection->groups[immediate.slot];
  if (!group.open || group.epoch != immediate.epoch || immediate.sub >= group.n) [[unlikely]] {
    return OnStaleImmediate(wc, "no open receive");
  }
  RecvSub& sub = group.subs[immediate.sub];
  if (sub.done || sub.counted >= sub.granted) [[unlikely]]
    return OnStaleImmediate(wc, "more chunks than granted");
  --port.srq_reserved;
  ++sub.counted;
  ++sub.arrived[port_index];
  if (immediate.kind == ImmKind::kSingle) {
    sub.bytes = wc.byte_len;
    return FinishSub(group, sub);
  }
  if (immediate.kind == ImmKind::kLast) {
    const Record& record = group.records[immediate.sub];
    if (__atomic_load_n(&record.seq, __ATOMIC_ACQUIRE) != group.seq || record.chunks == 0) [[unlikely]] {
      return OnStaleImmediate(wc, "record of another group");
    }
    sub.bytes = record.bytes;
    sub.expected = record.chunks;
  }
  if (sub.counted == sub.expected) FinishSub(group, sub);
}

void Engine::FinishSub(RecvGroup& group, RecvSub& sub) {
  for (uint32_t i = 0; i < port_count; ++i) ports[i].srq_reserved -= sub.granted - sub.arrived[i];
  sub.done = true;
  if (--group.remaining == 0) group.done = true;
}

void Engine::OnStaleImmediate(const ibv_wc& wc, const char* what) {
  Path* path = FindPath(wc.qp_num);
  if (path == nullptr || path->failed) return;
  const Immediate immediate = Immediate::Unpack(ntohl(wc.imm_data));
  FailPath(
      *path,
      InternalError("protocol defect: immediate data for connection " + std::to_string(immediate.connection) +
                    " slot " + std::to_string(immediate.slot) + " sub " + std::to_string(immediate.sub) +
                    " from " + path->peer + ": " + what + "; nothing was delivered, please report it"));
}

void Engine::OnError(const EnginePort& port, const ibv_wc& wc) {
  Path* path = FindPath(wc.qp_num);
  if (const WorkKind kind = WorkId::Kind(wc.wr_id);
      wc.wr_id != 0 &&
      (kind == WorkKind::kData || kind == WorkKind::kPiece)) {  // bulk and record requests carry no id
    auto* request = WorkId::Owner<SendRequest>(wc.wr_id);
    --request->chunks_pending;   // whoever waits to release the message's memory counts these
    request->chunks_posted = 0;  // its other chunks may still succeed: the message never counts as done
  }
  if (path == nullptr) {
    ++flushed_completions;
    if (wc.qp_num == port.flush_qp.number() && WorkId::Kind(wc.wr_id) == WorkKind::kFlush) {
      WorkId::Owner<FlushRequest>(wc.wr_id)->connection->Fail(SystemError(DescribeCompletion(
          wc, {.device = port.port.name, .what = "flush of GPU memory", .local = {}, .remote = {}})));
    }
    return;
  }
  ++path->errors_seen;
  if (path->failed || IsFlush(wc.status)) {
    ++flushed_completions;
    if (path->failed) return;
  }
  const std::string what = std::string(path->outbound ? "data to " : "grants to ") + path->peer;
  std::string remote;
  for (const PortPair& pair : path->pairs) {
    if (pair.control.number() == wc.qp_num) remote = pair.control.remote();
    for (const QueuePair& queue : pair.data) {
      if (queue.number() == wc.qp_num) remote = queue.remote();
    }
  }
  const std::string local = FormatGid(port.gid.gid) + " index " + std::to_string(port.gid.index);
  const std::string message =
      DescribeCompletion(wc, {.device = port.port.name, .what = what, .local = local, .remote = remote});
  FailPath(*path,
           IsRemoteFailure(wc.status) || IsFlush(wc.status) ? RemoteError(message) : SystemError(message));
}

uint32_t Engine::ReceiveEntries() const {
  uint32_t entries = UINT32_MAX;
  for (uint32_t i = 0; i < port_count; ++i)
    entries = std::min(entries, ports[i].srq_posted + ports[i].srq_consumed);
  return entries;
}

Path* Engine::FindPath(uint32_t qp_number) {
  for (Path* path : live_paths) {
    for (const PortPair& pair : path->pairs) {
      if (pair.control.number() == qp_number) return path;
      for (const QueuePair& queue : pair.data) {
        if (queue.number() == qp_number) return path;
      }
    }
  }
  return nullptr;
}

void Engine::FailPath(Path& path, const Status& cause) noexcept {
  if (path.failed) return;
  path.failed = true;
  path.failure = cause;
  if (path.outbound) {
    for (SendConnection* connection : static_cast<OutPath&>(path).connections) connection->Fail(cause);
  } else {
    for (RecvConnection* connection : static_cast<InPath&>(path).connections) {
      connection->Fail(cause);
      ReleaseReservations(*connection);
    }
  }
  for (WaitingList<SendRequest>& list : sends_) {
    for (SendRequest* request = list.head; request != nullptr;) {
      SendRequest* next = request->next;
      if (request->connection->error.load(std::memory_order_relaxed) != nullptr) Remove(request);
      request = next;
    }
  }
  for (RecvGroup* group = groups_.head; group != nullptr;) {
    RecvGroup* next = group->next;
    if (group->connection->error.load(std::memory_order_relaxed) != nullptr) Remove(group);
    group = next;
  }
  NotifyPathFailed(path);
}

// Late immediates of such a group then count as stale, which a failed path ignores.
void Engine::ReleaseReservations(RecvConnection& connection) {
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    RecvGroup& group = connection.groups[slot];
    if (!group.open || group.done || group.waiting) continue;
    for (uint32_t i = 0; i < group.n; ++i) {
      RecvSub& sub = group.subs[i];
      if (sub.done) continue;
      for (uint32_t port = 0; port < port_count; ++port)
        ports[port].srq_reserved -= sub.granted - sub.arrived[port];
      sub.granted = 0;
      sub.done = true;
    }
  }
}

void Engine::FailAll(const Status& cause) noexcept {
  for (Path* path : live_paths) FailPath(*path, cause);
}

template <typename T>
void Engine::WaitingList<T>::Append(T* item) {
  item->next = nullptr;
  item->previous = tail;
  (tail == nullptr ? head : tail->next) = item;
  tail = item;
  item->waiting = true;
}

template <typename T>
void Engine::WaitingList<T>::Unlink(T* item) {
  if (!item->waiting) return;
  (item->previous == nullptr ? head : item->previous->next) = item->next;
  (item->next == nullptr ? tail : item->next->previous) = item->previous;
  item->waiting = false;
}

void Engine::UpdateWaiting() {
  waiting_ = groups_.head != nullptr ||
             std::any_of(sends_.begin(), sends_.end(), [](const auto& list) { return list.head != nullptr; });
}

void Engine::Enqueue(SendRequest* request) noexcept {
  sends_[request->service_class].Append(request);
  waiting_ = true;
}

void Engine::Enqueue(RecvGroup* group) noexcept {
  groups_.Append(group);
  waiting_ = true;
}

void Engine::Remove(SendRequest* request) noexcept {
  sends_[request->service_class].Unlink(request);
  UpdateWaiting();
}

void Engine::Remove(RecvGroup* group) noexcept {
  groups_.Unlink(group);
  UpdateWaiting();
}

void Engine::ProgressSends(uint32_t service_class) noexcept {
  for (SendRequest* request = sends_[service_class].head; request != nullptr;) {
    SendRequest* next = request->next;
    if (PostChunks(*request)) {
      Remove(request);
      next = sends_[service_class].head;
    }
    request = next;
  }
}

void Engine::Progress() noexcept {
  // The most urgent class first, in it the oldest message; a full queue holds back only its own path's later work. PostCts and PostChunks may fail a
  // path, which removes other items: restart then.
  if (groups_.head != nullptr) {
    // Every entry counts now: do not wait for a batch to come together.
    for (uint32_t i = 0; i < port_count; ++i) {
      if (Status status = RefillReceives(ports[i]); !status.ok()) [[unlikely]]
        return FailAll(status);
    }
  }
  for (RecvGroup* group = groups_.head; group != nullptr;) {
    RecvGroup* next = group->next;
    const CtsOutcome outcome = PostCts(*group);
    // A smaller group must not overtake: its sender may wait for this one, and then never gives the entries
    // back.
    if (outcome == CtsOutcome::kNoReceives) break;
    if (outcome == CtsOutcome::kDone) {
      Remove(group);
      next = groups_.head;
    }
    group = next;
  }
  for (const uint8_t service_class : send_order_) ProgressSends(service_class);
}

}  // namespace sluice
