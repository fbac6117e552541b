// Queue pairs and shared receive queues: life and attributes. Posting is in post.cc.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs/soft/lib/objects.h"

namespace sluice::soft {
namespace {

// Enhanced connection establishment: both ends may use the options that both know.
constexpr uint32_t kEceVendor = 0x534c43;
constexpr uint32_t kEceOptions = 0x3;

constexpr uint64_t kSendOps = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                              IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                              IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

Qp* Create(ibv_context* context, ibv_pd* pd, ibv_qp_init_attr* attr) {
  Context* own_context = Own(context);
  if (attr->send_cq == nullptr || attr->recv_cq == nullptr) return Fail<Qp*>(EINVAL);
  Session& session = *own_context->session;
  auto qp = std::make_unique<Qp>();
  qp->context = own_context;
  qp->sq_sig_all = attr->sq_sig_all != 0;
  qp->handle = session.queue_pairs().Add(qp.get());
  if (qp->handle == 0) return Fail<Qp*>(ENOMEM);
  CallArguments arguments;
  arguments.cookie = reinterpret_cast<uint64_t>(qp.get());
  arguments.qp_init = {};
  arguments.qp_init.cap = attr->cap;
  arguments.qp_init.type = attr->qp_type;
  arguments.qp_init.pd = pd->handle;
  arguments.qp_init.send_cq = attr->send_cq->handle;
  arguments.qp_init.recv_cq = attr->recv_cq->handle;
  arguments.qp_init.srq = attr->srq != nullptr ? attr->srq->handle : 0;
  arguments.qp_init.sq_sig_all = qp->sq_sig_all;
  if (const int error = session.Invoke(Call::kCreateQp, own_context->nic, &arguments)) {
    session.queue_pairs().Remove(qp->handle);
    return Fail<Qp*>(error);
  }
  qp->cap = attr->cap = arguments.qp_init.cap;
  qp->send.Resize(qp->cap.max_send_wr);
  qp->send.max_sge = qp->cap.max_send_sge;
  qp->recv.Resize(attr->srq != nullptr ? 0 : qp->cap.max_recv_wr);
  qp->recv.max_sge = qp->cap.max_recv_sge;
  qp->ece.vendor_id = kEceVendor;
  qp->ece.options = kEceOptions;
  ibv_qp& base = qp->qp.qp_base;
  base.context = context;
  base.qp_context = attr->qp_context;
  base.pd = pd;
  base.send_cq = attr->send_cq;
  base.recv_cq = attr->recv_cq;
  base.srq = attr->srq;
  base.handle = arguments.id;
  base.qp_num = arguments.id;
  base.state = IBV_QPS_RESET;
  base.qp_type = attr->qp_type;
  pthread_mutex_init(&base.mutex, nullptr);
  pthread_cond_init(&base.cond, nullptr);
  std::lock_guard lock(own_context->objects_mutex);
  own_context->queue_pairs.insert(qp.get());
  return qp.release();
}

ibv_qp* CreateQpEx(ibv_context* context, ibv_qp_init_attr_ex* attr) {
  constexpr uint32_t kMask =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  if ((attr->comp_mask & ~kMask) != 0) return Fail(EOPNOTSUPP);
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || attr->pd == nullptr) return Fail(EINVAL);
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && attr->create_flags != 0)
    return Fail(EOPNOTSUPP);
  const bool extended = (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  if (extended && (attr->send_ops_flags & ~kSendOps) != 0) return Fail(EOPNOTSUPP);
  // The extended structure begins like the plain one.
  Qp* qp = Create(context, attr->pd, reinterpret_cast<ibv_qp_init_attr*>(attr));
  if (qp == nullptr) return nullptr;
  if (extended) {
    qp->extended = true;
    qp->send_ops = attr->send_ops_flags;
    InstallExtendedPost(qp);
  }
  return &qp->qp.qp_base;
}

int Invoke(Qp* qp, Call call, CallArguments* arguments) {
  arguments->id = qp->qp.qp_base.qp_num;
  return qp->context->session->Invoke(call, qp->context->nic, arguments);
}

int Invoke(Srq* srq, Call call, CallArguments* arguments) {
  arguments->id = srq->id;
  return srq->context->session->Invoke(call, srq->context->nic, arguments);
}

int GetSrqNum(ibv_srq* srq, uint32_t* number) {
  *number = Own(srq)->id;
  return 0;
}

// A queue pair in RESET has no work and no completions.
void Reset(Qp* qp) {
  ForgetQueuePair(Own(qp->qp.qp_base.send_cq), qp);
  if (qp->qp.qp_base.recv_cq != qp->qp.qp_base.send_cq) ForgetQueuePair(Own(qp->qp.qp_base.recv_cq), qp);
  for (WorkQueue* queue : {&qp->send, &qp->recv}) {
    queue->tail.store(queue->head);
    queue->completed.store(queue->head);
  }
}

bool OfQueuePair(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return true;
    default:
      return false;
  }
}

}  // namespace

void WorkQueue::Resize(uint32_t entries) {
  limit = entries;
  wr_ids.resize(RoundUpToPowerOfTwo(std::max(1u, entries)));
}

void FlushQueuePair(Qp* qp) {
  pthread_mutex_lock(&qp->send_mutex);
  pthread_mutex_lock(&qp->recv_mutex);
  Session& session = *qp->context->session;
  qp->qp.qp_base.state = IBV_QPS_ERR;
  session.LockCommands();
  for (const QueueKind kind : {QueueKind::kSend, QueueKind::kRecv}) {
    WorkQueue& queue = kind == QueueKind::kSend ? qp->send : qp->recv;
    Cq* cq = Own(kind == QueueKind::kSend ? qp->qp.qp_base.send_cq : qp->qp.qp_base.recv_cq);
    for (uint32_t index = queue.completed.load(); index != queue.head; ++index) {
      Cqe entry{};
      entry.wr_id = queue.place(index);
      entry.qp = qp;
      entry.kind = kind;
      entry.index = index;
      entry.status = IBV_WC_WR_FLUSH_ERR;
      entry.qp_num = qp->qp.qp_base.qp_num;
      PushCompletion(cq, entry, true);
      queue.completed.store(index + 1);
    }
  }
  session.UnlockCommands();
  pthread_mutex_unlock(&qp->recv_mutex);
  pthread_mutex_unlock(&qp->send_mutex);
}

int DestroyQp(Qp* qp) {
  CallArguments arguments;
  const int error = Invoke(qp, Call::kDestroyQp, &arguments);
  if (error != 0 && error != EIO) return error;
  ibv_qp& base = qp->qp.qp_base;
  {
    std::lock_guard lock(qp->context->objects_mutex);
    qp->context->queue_pairs.erase(qp);
  }
  qp->context->session->queue_pairs().Remove(qp->handle);
  ForgetQueuePair(Own(base.send_cq), qp);
  if (base.recv_cq != base.send_cq) ForgetQueuePair(Own(base.recv_cq), qp);
  qp->context->events.Remove([&](const ibv_async_event& event) {
    return OfQueuePair(event.event_type) && event.element.qp == &base;
  });
  pthread_mutex_lock(&base.mutex);
  while (base.events_completed != qp->async_events_taken.load()) pthread_cond_wait(&base.cond, &base.mutex);
  pthread_mutex_unlock(&base.mutex);
  pthread_cond_destroy(&base.cond);
  pthread_mutex_destroy(&base.mutex);
  delete qp;
  return 0;
}

int DestroySrq(Srq* srq) {
  CallArguments arguments;
  const int error = Invoke(srq, Call::kDestroySrq, &arguments);
  if (error != 0 && error != EIO) return error;
  Context* context = srq->context;
  {
    std::lock_guard lock(context->objects_mutex);
    if (error == EIO) {
      for (const Qp* qp : context->queue_pairs) {
        if (qp->qp.qp_base.srq == &srq->srq) return EBUSY;
      }
    }
    context->shared_receive_queues.erase(srq);
    for (Cq* cq : context->completion_queues) ForgetSharedQueue(cq, srq);
  }
  context->session->shared_receive_queues().Remove(srq->handle);
  context->events.Remove([&](const ibv_async_event& event) {
    return (event.event_type == IBV_EVENT_SRQ_ERR || event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) &&
           event.element.srq == &srq->srq;
  });
  pthread_mutex_lock(&srq->srq.mutex);
  while (srq->srq.events_completed != srq->async_events_taken.load()) {
    pthread_cond_wait(&srq->srq.cond, &srq->srq.mutex);
  }
  pthread_mutex_unlock(&srq->srq.mutex);
  pthread_cond_destroy(&srq->srq.cond);
  pthread_mutex_destroy(&srq->srq.mutex);
  delete srq;
  return 0;
}

void InstallQueuePairOps(Context* context) {
  context->verbs.create_qp_ex = CreateQpEx;
  context->verbs.get_srq_num = GetSrqNum;
}

}  // namespace sluice::soft

using namespace sluice::soft;

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  Qp* qp = Create(pd->context, pd, attr);
  return qp == nullptr ? nullptr : &qp->qp.qp_base;
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  return Own(qp)->extended ? &Own(qp)->qp : nullptr;
}

int ibv_modify_qp(ibv_qp* base, ibv_qp_attr* attr, int mask) {
  Qp* qp = Own(base);
  CallArguments arguments;
  arguments.qp = *attr;
  arguments.index = static_cast<uint32_t>(mask);
  if (const int error = Invoke(qp, Call::kModifyQp, &arguments)) return error;
  if ((mask & IBV_QP_STATE) == 0) return 0;
  if (attr->qp_state == IBV_QPS_RESET) Reset(qp);
  base->state = attr->qp_state;
  return 0;
}

int ibv_query_qp(ibv_qp* base, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  Qp* qp = Own(base);
  CallArguments arguments;
  if (const int error = Invoke(qp, Call::kQueryQp, &arguments)) return error;
  *attr = arguments.qp;
  attr->cap = qp->cap;
  base->state = attr->qp_state;
  if (init != nullptr) {
    *init = {};
    init->qp_context = base->qp_context;
    init->send_cq = base->send_cq;
    init->recv_cq = base->recv_cq;
    init->srq = base->srq;
    init->cap = qp->cap;
    init->qp_type = base->qp_type;
    init->sq_sig_all = qp->sq_sig_all ? 1 : 0;
  }
  return 0;
}

int ibv_destroy_qp(ibv_qp* qp) {
  return DestroyQp(Own(qp));
}

// Payload is placed by ascending aligned stores.
int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t flags) {
  return flags == 0 ? 1 : 0;
}

int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  *ece = Own(qp)->ece;
  return 0;
}

int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  if (ece->comp_mask != 0) return EINVAL;
  if (ece->vendor_id == 0) return EOPNOTSUPP;
  Own(qp)->ece.options = ece->vendor_id == kEceVendor ? ece->options & kEceOptions : 0;
  return 0;
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  Context* context = Own(pd->context);
  Session& session = *context->session;
  auto srq = std::make_unique<Srq>();
  srq->context = context;
  srq->handle = session.shared_receive_queues().Add(srq.get());
  if (srq->handle == 0) return Fail(ENOMEM);
  CallArguments arguments;
  arguments.cookie = reinterpret_cast<uint64_t>(srq.get());
  arguments.index = pd->handle;
  arguments.srq = attr->attr;
  if (const int error = session.Invoke(Call::kCreateSrq, context->nic, &arguments)) {
    session.shared_receive_queues().Remove(srq->handle);
    return Fail(error);
  }
  srq->id = arguments.id;
  attr->attr.max_wr = arguments.srq.max_wr;
  attr->attr.max_sge = arguments.srq.max_sge;
  srq->max_sge = arguments.srq.max_sge;
  srq->wr_ids.resize(arguments.srq.max_wr);
  srq->free_places.reserve(arguments.srq.max_wr);
  for (uint32_t place = arguments.srq.max_wr; place-- > 0;) srq->free_places.push_back(place);
  srq->srq.context = pd->context;
  srq->srq.srq_context = attr->srq_context;
  srq->srq.pd = pd;
  srq->srq.handle = arguments.id;
  pthread_mutex_init(&srq->srq.mutex, nullptr);
  pthread_cond_init(&srq->srq.cond, nullptr);
  std::lock_guard lock(context->objects_mutex);
  context->shared_receive_queues.insert(srq.get());
  return &srq.release()->srq;
}

int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  if ((mask & IBV_SRQ_MAX_WR) != 0) return EOPNOTSUPP;  // queues are not resized
  CallArguments arguments;
  arguments.index = static_cast<uint32_t>(mask);
  arguments.srq = *attr;
  return Invoke(Own(srq), Call::kModifySrq, &arguments);
}

int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) {
  CallArguments arguments;
  if (const int error = Invoke(Own(srq), Call::kQuerySrq, &arguments)) return error;
  *attr = arguments.srq;
  return 0;
}

int ibv_destroy_srq(ibv_srq* srq) {
  return DestroySrq(Own(srq));
}

}  // extern "C"
