// Asynchronous events as programs read and acknowledge them.
#include <cerrno>

#include "verbs/soft/lib/objects.h"

using namespace sluice::soft;

namespace {

// The counter and the acknowledgement of the object that an event belongs to; null for port and device
// events.
struct Accounts {
  std::atomic<uint32_t>* taken = nullptr;
  uint32_t* completed = nullptr;
  pthread_mutex_t* mutex = nullptr;
  pthread_cond_t* cond = nullptr;
};

Accounts AccountsOf(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR: {
      ibv_cq* cq = event.element.cq;
      return {&Own(cq)->async_events_taken, &cq->async_events_completed, &cq->mutex, &cq->cond};
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      ibv_qp* qp = event.element.qp;
      return {&Own(qp)->async_events_taken, &qp->events_completed, &qp->mutex, &qp->cond};
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      ibv_srq* srq = event.element.srq;
      return {&Own(srq)->async_events_taken, &srq->events_completed, &srq->mutex, &srq->cond};
    }
    default:
      return {};
  }
}

}  // namespace

extern "C" {

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  const auto count = [](const ibv_async_event& taken) {
    if (std::atomic<uint32_t>* counter = AccountsOf(taken).taken) counter->fetch_add(1);
  };
  return Own(context)->events.Pop(event, count) ? 0 : -1;
}

void ibv_ack_async_event(ibv_async_event* event) {
  const Accounts accounts = AccountsOf(*event);
  if (accounts.mutex == nullptr) return;
  pthread_mutex_lock(accounts.mutex);
  ++*accounts.completed;
  pthread_cond_signal(accounts.cond);
  pthread_mutex_unlock(accounts.mutex);
}

}  // extern "C"
