#include "verbs/soft/lib/session.h"

#include "verbs/soft/lib/objects.h"

namespace sluice::soft {

void Session::DeliverCompletion(const CompletionCommand& command) {
  auto* cq = reinterpret_cast<Cq*>(command.cq_cookie);
  Cqe entry{};
  entry.kind = WrIdKind(command.wr_id);
  entry.index = WrIdIndex(command.wr_id);
  const uint32_t handle = WrIdHandle(command.wr_id);
  if (entry.kind == QueueKind::kSharedRecv) {
    entry.srq = shared_receive_queues_.Get(handle);
    if (entry.srq == nullptr || entry.index >= entry.srq->wr_ids.size()) return;
    entry.wr_id = entry.srq->wr_ids[entry.index];
  } else {
    entry.qp = queue_pairs_.Get(handle);
    if (entry.qp == nullptr) return;
    WorkQueue& queue = entry.kind == QueueKind::kSend ? entry.qp->send : entry.qp->recv;
    entry.wr_id = queue.place(entry.index);
    queue.completed.store(entry.index + 1, std::memory_order_release);
  }
  entry.timestamp_ps = command.timestamp_ps;
  entry.status = static_cast<ibv_wc_status>(command.status);
  entry.opcode = static_cast<ibv_wc_opcode>(command.opcode);
  entry.vendor_err = command.vendor_err;
  entry.qp_num = command.qp_num;
  entry.byte_len = command.byte_len;
  entry.imm_data = command.imm_data;
  entry.src_qp = command.src_qp;
  entry.wc_flags = command.wc_flags;
  entry.slid = command.slid;
  entry.sl = command.sl;
  entry.full = command.full;
  PushCompletion(cq, entry, command.solicited);
}

void Session::DeliverEvent(const EventCommand& command) {
  ibv_async_event event{};
  event.event_type = static_cast<ibv_event_type>(command.type);
  Context* owner = nullptr;
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR: {
      auto* cq = reinterpret_cast<Cq*>(command.element);
      event.element.cq = reinterpret_cast<ibv_cq*>(&cq->cq);
      owner = cq->context;
      break;
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      auto* qp = reinterpret_cast<Qp*>(command.element);
      event.element.qp = &qp->qp.qp_base;
      owner = qp->context;
      break;
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      auto* srq = reinterpret_cast<Srq*>(command.element);
      event.element.srq = &srq->srq;
      owner = srq->context;
      break;
    }
    default:
      event.element.port_num = static_cast<int>(command.element);
      break;
  }
  if (owner != nullptr) {
    owner->events.Push(event);
  } else {
    ForEachContext(static_cast<int>(command.nic), [&](Context* context) { context->events.Push(event); });
  }
}

void Session::AddContext(Context* context) {
  std::lock_guard lock(contexts_mutex_);
  contexts_.push_back(context);
}

void Session::RemoveContext(Context* context) {
  std::lock_guard lock(contexts_mutex_);
  std::erase(contexts_, context);
}

}  // namespace sluice::soft
