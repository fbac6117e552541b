// Completion queues and shared receive queues of a NIC.
#include <algorithm>
#include <cerrno>
#include <vector>

#include "verbs/soft/model/nic_impl.h"

namespace sluice::soft {

CompletionQueue* NicImpl::FindCq(ProcessId process, CqId cq) {
  const auto found = cqs_.find(cq);
  return found == cqs_.end() || found->second->process != process ? nullptr : found->second.get();
}

int NicImpl::CreateCq(ProcessId process, uint32_t cqe, CqId* cq, uint32_t* depth) {
  if (dead_) return EIO;
  if (core_.FindProcess(process) == nullptr || cqe == 0 || cqe > limits_.max_cqe) return EINVAL;
  if (cqs_.size() >= limits_.max_cq) return ENOMEM;
  auto queue = std::make_unique<CompletionQueue>();
  queue->id = *cq = core_.next_object++;
  queue->process = process;
  queue->depth = *depth = cqe;
  cqs_.emplace(*cq, std::move(queue));
  return 0;
}

int NicImpl::ResizeCq(ProcessId process, CqId cq, uint32_t cqe, uint32_t* depth) {
  CompletionQueue* queue = FindCq(process, cq);
  if (queue == nullptr || cqe == 0 || cqe > limits_.max_cqe) return EINVAL;
  queue->taken = core_.FindProcess(process)->memory->CompletionsTaken(cq);
  if (queue->pushed - queue->taken > cqe) return EINVAL;
  queue->depth = *depth = cqe;
  return 0;
}

int NicImpl::DestroyCq(ProcessId process, CqId cq) {
  const CompletionQueue* queue = FindCq(process, cq);
  if (queue == nullptr) return EINVAL;
  if (queue->users != 0) return EBUSY;
  cqs_.erase(cq);
  return 0;
}

void NicImpl::PushCompletion(CompletionQueue* cq, ProcessMemory* memory, Completion* completion) {
  if (cq->overrun) return;
  if (cq->pushed - cq->taken >= cq->depth) {
    cq->taken = memory->CompletionsTaken(cq->id);
    if (cq->pushed - cq->taken >= cq->depth) {
      cq->overrun = true;
      // The queue pair that pushes is in the middle of its work: it fails a moment later.
      core_.network.scheduler.At(core_.Now(), this, kCqOverrun, cq->id);
      return;
    }
  }
  ++cq->pushed;
  completion->timestamp = core_.Now();
  memory->PushCompletion(cq->id, *completion);
}

void NicImpl::OnCqOverrun(CqId cq) {
  const auto found = cqs_.find(cq);
  if (found == cqs_.end()) return;
  const CompletionQueue* queue = found->second.get();
  std::vector<uint32_t> numbers;
  for (const auto& [number, qp] : qps_) {
    if (qp->send_cq == queue || qp->recv_cq == queue) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  core_.FindProcess(queue->process)->memory->PushAsyncEvent({IBV_EVENT_CQ_ERR, info_.index, cq});
  for (const uint32_t number : numbers) {
    Qp* qp = FindQp(number);
    if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_RESET) continue;
    qp->PushEvent(IBV_EVENT_QP_FATAL);
    qp->EnterError();
  }
}

SharedReceiveQueue* NicImpl::FindSrq(ProcessId process, SrqId srq) {
  const auto found = srqs_.find(srq);
  return found == srqs_.end() || found->second->process != process ? nullptr : found->second.get();
}

int NicImpl::CreateSrq(ProcessId process, PdId pd, const ibv_srq_attr& attr, SrqId* srq,
                       ibv_srq_attr* actual) {
  if (dead_) return EIO;
  ProtectionDomain* domain = FindPd(process, pd);
  if (domain == nullptr || attr.max_wr == 0 || attr.max_wr > limits_.max_srq_wr ||
      attr.max_sge > limits_.max_srq_sge) {
    return EINVAL;
  }
  if (srqs_.size() >= limits_.max_srq) return ENOMEM;
  auto queue = std::make_unique<SharedReceiveQueue>();
  queue->id = *srq = core_.next_object++;
  queue->process = process;
  queue->pd = pd;
  queue->queue.max_wr = attr.max_wr;
  queue->queue.max_sge = attr.max_sge;
  *actual = attr;
  actual->srq_limit = 0;
  ++domain->users;
  srqs_.emplace(*srq, std::move(queue));
  return 0;
}

int NicImpl::ModifySrq(ProcessId process, SrqId srq, const ibv_srq_attr& attr, int mask) {
  SharedReceiveQueue* queue = FindSrq(process, srq);
  if (queue == nullptr || (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0) return EINVAL;
  uint32_t max_wr = queue->queue.max_wr;
  if ((mask & IBV_SRQ_MAX_WR) != 0) {
    if (attr.max_wr == 0 || attr.max_wr > limits_.max_srq_wr || attr.max_wr < queue->queue.wqes.size())
      return EINVAL;
    max_wr = attr.max_wr;
  }
  if ((mask & IBV_SRQ_LIMIT) != 0) {
    if (attr.srq_limit > max_wr) return EINVAL;
    queue->limit = attr.srq_limit;
  }
  queue->queue.max_wr = max_wr;
  return 0;
}

int NicImpl::QuerySrq(ProcessId process, SrqId srq, ibv_srq_attr* attr) {
  const SharedReceiveQueue* queue = FindSrq(process, srq);
  if (queue == nullptr) return EINVAL;
  *attr = {queue->queue.max_wr, queue->queue.max_sge, queue->limit};
  return 0;
}

int NicImpl::DestroySrq(ProcessId process, SrqId srq) {
  const SharedReceiveQueue* queue = FindSrq(process, srq);
  if (queue == nullptr) return EINVAL;
  if (queue->users != 0) return EBUSY;
  --pds_[queue->pd].users;
  srqs_.erase(srq);
  return 0;
}

int NicImpl::PostSrqRecv(SrqId srq, const RecvWork& work) {
  const auto found = srqs_.find(srq);
  return found == srqs_.end() ? EINVAL : found->second->queue.Post(work);
}

bool NicImpl::TakeShared(SharedReceiveQueue* srq, ReceiveWqe* wqe) {
  if (!srq->queue.Take(wqe)) return false;
  if (srq->queue.wqes.size() < srq->limit) {
    srq->limit = 0;
    core_.FindProcess(srq->process)
        ->memory->PushAsyncEvent({IBV_EVENT_SRQ_LIMIT_REACHED, info_.index, srq->id});
  }
  return true;
}

}  // namespace sluice::soft
