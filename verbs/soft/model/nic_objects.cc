// Protection domains, memory regions and queue pairs of a NIC.
#include <algorithm>
#include <cerrno>

#include "verbs/soft/model/nic_impl.h"

namespace sluice::soft {
namespace {

constexpr uint32_t kKeyGenerations = 256;
constexpr unsigned kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                  IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |
                                  IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;
// Flags above may be ignored by a device that does not know them.
constexpr unsigned kOptionalAccess = IBV_ACCESS_OPTIONAL_RANGE;

}  // namespace

NicImpl::ProtectionDomain* NicImpl::FindPd(ProcessId process, PdId pd) {
  const auto found = pds_.find(pd);
  return found == pds_.end() || found->second.process != process ? nullptr : &found->second;
}

int NicImpl::AllocPd(ProcessId process, PdId* pd) {
  if (dead_) return EIO;
  if (core_.FindProcess(process) == nullptr) return EINVAL;
  if (pds_.size() >= limits_.max_pd) return ENOMEM;
  *pd = core_.next_object++;
  pds_[*pd].process = process;
  return 0;
}

int NicImpl::DeallocPd(ProcessId process, PdId pd) {
  const ProtectionDomain* found = FindPd(process, pd);
  if (found == nullptr) return EINVAL;
  if (found->users != 0) return EBUSY;
  pds_.erase(pd);
  return 0;
}

int NicImpl::RegMr(ProcessId process, PdId pd, uint64_t address, uint64_t length, uint64_t iova,
                   unsigned access, uint32_t* key) {
  if (dead_) return EIO;
  ProtectionDomain* domain = FindPd(process, pd);
  if (domain == nullptr) return EINVAL;
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return EOPNOTSUPP;
  if ((access & ~(kKnownAccess | kOptionalAccess)) != 0) return EINVAL;
  if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
      (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return EINVAL;
  }
  if (length == 0 || length > limits_.max_mr_size || address + length < address || iova + length < iova)
    return EINVAL;
  if (mrs_.size() - 1 - free_mrs_.size() >= limits_.max_mr) return ENOMEM;
  if (free_mrs_.empty()) {
    free_mrs_.push_back(static_cast<uint32_t>(mrs_.size()));
    mrs_.emplace_back();
  }
  const uint32_t index = free_mrs_.back();
  free_mrs_.pop_back();
  MemoryRegion& mr = mrs_[index];
  mr.pd = pd;
  mr.process = process;
  mr.generation = (mr.generation + 1) % kKeyGenerations;
  mr.access = access;
  mr.address = address;
  mr.length = length;
  mr.iova = iova;
  ++domain->users;
  *key = index * kKeyGenerations + mr.generation;
  return 0;
}

void NicImpl::FreeMr(uint32_t index) {
  MemoryRegion& mr = mrs_[index];
  --pds_[mr.pd].users;
  mr.pd = 0;
  ++memory_epoch_;
  free_mrs_.push_back(index);
}

int NicImpl::DeregMr(ProcessId process, uint32_t key) {
  const uint32_t index = key / kKeyGenerations;
  if (index >= mrs_.size() || mrs_[index].pd == 0 || mrs_[index].process != process ||
      mrs_[index].generation != key % kKeyGenerations) {
    return EINVAL;
  }
  FreeMr(index);
  return 0;
}

const NicImpl::MemoryRegion* NicImpl::FindMr(PdId pd, uint32_t key) const {
  const uint32_t index = key / kKeyGenerations;
  if (index >= mrs_.size()) return nullptr;
  const MemoryRegion& mr = mrs_[index];
  return mr.pd == 0 || mr.pd != pd || mr.generation != key % kKeyGenerations ? nullptr : &mr;
}

bool NicImpl::ResolveLocal(PdId pd, const ibv_sge& sge, unsigned access, uint64_t* local) const {
  *local = sge.addr;
  if (sge.length == 0) return true;
  return ResolveRemote(pd, sge.lkey, sge.addr, sge.length, access, local);
}

bool NicImpl::ResolveRemote(PdId pd, uint32_t key, uint64_t address, uint64_t length, unsigned access,
                            uint64_t* local) const {
  const MemoryRegion* mr = FindMr(pd, key);
  if (mr == nullptr || (mr->access & access) != access) return false;
  if (address < mr->iova || length > mr->length || address - mr->iova > mr->length - length) return false;
  *local = mr->address + (address - mr->iova);
  return true;
}

// Only memory windows and fast registrations can be invalidated by the peer; this NIC has neither.
bool NicImpl::InvalidateKey(PdId, uint32_t) {
  return false;
}

Qp* NicImpl::FindOwnQp(ProcessId process, uint32_t qp_num) {
  Qp* qp = FindQp(qp_num);
  return qp == nullptr || qp->process != process ? nullptr : qp;
}

int NicImpl::CreateQp(ProcessId process, QpInit* init, uint32_t* qp_num) {
  if (dead_) return EIO;
  if (init->type != IBV_QPT_RC) return EOPNOTSUPP;
  ProtectionDomain* domain = FindPd(process, init->pd);
  CompletionQueue* send_cq = FindCq(process, init->send_cq);
  CompletionQueue* recv_cq = FindCq(process, init->recv_cq);
  SharedReceiveQueue* srq = init->srq == 0 ? nullptr : FindSrq(process, init->srq);
  if (domain == nullptr || send_cq == nullptr || recv_cq == nullptr || (init->srq != 0 && srq == nullptr)) {
    return EINVAL;
  }
  ibv_qp_cap& cap = init->cap;
  if (srq != nullptr) cap.max_recv_wr = cap.max_recv_sge = 0;
  if (cap.max_send_wr > limits_.max_qp_wr || cap.max_recv_wr > limits_.max_qp_wr ||
      cap.max_send_sge > limits_.max_sge || cap.max_recv_sge > limits_.max_sge ||
      cap.max_inline_data > limits_.max_inline) {
    return EINVAL;
  }
  if (qps_.size() >= limits_.max_qp) return ENOMEM;
  *qp_num = NextQpNumber();
  auto qp = std::make_unique<Qp>(this, &core_, process, *qp_num);
  qp->pd = init->pd;
  qp->send_cq = send_cq;
  qp->recv_cq = recv_cq;
  qp->srq = srq;
  qp->sq_sig_all = init->sq_sig_all;
  qp->attr.cap = cap;
  qp->receive_queue.max_wr = cap.max_recv_wr;
  qp->receive_queue.max_sge = cap.max_recv_sge;
  ++domain->users;
  ++send_cq->users;
  ++recv_cq->users;
  if (srq != nullptr) ++srq->users;
  qps_.emplace(*qp_num, std::move(qp));
  return 0;
}

int NicImpl::ModifyQp(ProcessId process, uint32_t qp_num, const ibv_qp_attr& attr, int mask) {
  Qp* qp = FindOwnQp(process, qp_num);
  if (qp == nullptr) return EINVAL;
  return dead_ ? EIO : qp->Modify(attr, mask);
}

int NicImpl::QueryQp(ProcessId process, uint32_t qp_num, ibv_qp_attr* attr) {
  const Qp* qp = FindOwnQp(process, qp_num);
  if (qp == nullptr) return EINVAL;
  qp->Query(attr);
  return 0;
}

void NicImpl::FreeQp(uint32_t qp_num) {
  const Qp& qp = *qps_[qp_num];
  --pds_[qp.pd].users;
  --qp.send_cq->users;
  --qp.recv_cq->users;
  if (qp.srq != nullptr) --qp.srq->users;
  qps_.erase(qp_num);
}

int NicImpl::DestroyQp(ProcessId process, uint32_t qp_num) {
  if (FindOwnQp(process, qp_num) == nullptr) return EINVAL;
  FreeQp(qp_num);
  return 0;
}

int NicImpl::PostSend(uint32_t qp_num, const SendWork& work) {
  Qp* qp = FindQp(qp_num);
  return qp == nullptr ? EINVAL : qp->PostSend(work);
}

int NicImpl::PostRecv(uint32_t qp_num, const RecvWork& work) {
  Qp* qp = FindQp(qp_num);
  return qp == nullptr ? EINVAL : qp->PostRecv(work);
}

void NicImpl::Detach(ProcessId process) {
  std::vector<uint32_t> numbers;
  for (const auto& [number, qp] : qps_) {
    if (qp->process == process) numbers.push_back(number);
  }
  for (const uint32_t number : numbers) FreeQp(number);
  std::erase_if(srqs_, [&](const auto& entry) {
    if (entry.second->process != process) return false;
    --pds_[entry.second->pd].users;
    return true;
  });
  std::erase_if(cqs_, [&](const auto& entry) { return entry.second->process == process; });
  for (uint32_t i = 1; i < mrs_.size(); ++i) {
    if (mrs_[i].pd != 0 && mrs_[i].process == process) FreeMr(i);
  }
  std::erase_if(pds_, [&](const auto& entry) { return entry.second.process == process; });
}

}  // namespace sluice::soft
