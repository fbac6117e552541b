#include "verbs/soft/model/queues.h"

#include <cerrno>

namespace sluice::soft {

int ReceiveQueue::Post(const RecvWork& work) {
  if (work.sges.size() > max_sge) return EINVAL;
  if (wqes.size() >= max_wr) return ENOMEM;
  ReceiveWqe& wqe = wqes.PushBack();
  wqe.wr_id = work.wr_id;
  wqe.sges.assign(work.sges.begin(), work.sges.end());
  return 0;
}

bool ReceiveQueue::Take(ReceiveWqe* wqe) {
  if (wqes.empty()) return false;
  std::swap(*wqe, wqes.front());
  wqes.PopFront();
  return true;
}

}  // namespace sluice::soft
