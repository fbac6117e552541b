// Posting work: plain lists, shared receive queues, and the extended interface (ibv_wr_*).
#include <cerrno>
#include <cstring>

#include "verbs/soft/lib/objects.h"

namespace sluice::soft {
namespace {

class Lock {
 public:
  explicit Lock(pthread_mutex_t* mutex) : mutex_(mutex) { pthread_mutex_lock(mutex_); }
  ~Lock() { pthread_mutex_unlock(mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  pthread_mutex_t* mutex_;
};

// A program may have written any number there.
uint32_t OpcodeOf(const ibv_send_wr& wr) {
  uint32_t opcode;
  memcpy(&opcode, &wr.opcode, sizeof(opcode));
  return opcode;
}

bool IsAtomic(uint32_t opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

bool MayBeInline(uint32_t opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
      return true;
    default:
      return false;
  }
}

bool Known(uint32_t opcode) {
  return MayBeInline(opcode) || opcode == IBV_WR_RDMA_READ || IsAtomic(opcode);
}

// 0 or the errno value with which a device refuses the request.
int CheckSend(const Qp* qp, const ibv_send_wr& wr, uint32_t outstanding, size_t* inline_bytes) {
  const ibv_qp_state state = qp->qp.qp_base.state;
  if (state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR) return EINVAL;
  if (!Known(OpcodeOf(wr))) return EINVAL;
  if (outstanding >= qp->send.limit) return ENOMEM;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp->send.max_sge) return EINVAL;
  *inline_bytes = 0;
  if ((wr.send_flags & IBV_SEND_INLINE) == 0) return 0;
  if (!MayBeInline(OpcodeOf(wr))) return EINVAL;
  for (int i = 0; i < wr.num_sge; ++i) *inline_bytes += wr.sg_list[i].length;
  return *inline_bytes > qp->cap.max_inline_data ? ENOMEM : 0;
}

// Writes the request into the ring; both mutexes are held. False: the fabric process is dead.
bool WriteSend(Session& session, Qp* qp, const ibv_send_wr& wr, size_t inline_bytes) {
  const bool is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0;
  const size_t tail = is_inline ? inline_bytes : static_cast<size_t>(wr.num_sge) * sizeof(ibv_sge);
  auto* request = reinterpret_cast<PostSendRequest*>(
      session.ReserveRequest(kRequestPostSend, sizeof(PostSendRequest) + tail));
  if (request == nullptr) return false;
  request->nic = qp->context->nic;
  request->qp_num = qp->qp.qp_base.qp_num;
  request->wr_id = PackWrId(QueueKind::kSend, qp->handle, qp->send.head);
  request->opcode = OpcodeOf(wr);
  request->flags = wr.send_flags;
  request->imm_data = wr.imm_data;
  request->inline_bytes = static_cast<uint32_t>(inline_bytes);
  if (IsAtomic(OpcodeOf(wr))) {
    request->remote_address = wr.wr.atomic.remote_addr;
    request->rkey = wr.wr.atomic.rkey;
    request->compare_or_add = wr.wr.atomic.compare_add;
    request->swap = wr.wr.atomic.swap;
  } else {
    request->remote_address = wr.wr.rdma.remote_addr;
    request->rkey = wr.wr.rdma.rkey;
    request->compare_or_add = 0;
    request->swap = 0;
  }
  auto* bytes = reinterpret_cast<uint8_t*>(request + 1);
  if (!is_inline) {
    request->header.count = static_cast<uint16_t>(wr.num_sge);
    if (tail != 0) memcpy(bytes, wr.sg_list, tail);
    return true;
  }
  for (int i = 0; i < wr.num_sge; ++i) {
    memcpy(bytes, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
    bytes += wr.sg_list[i].length;
  }
  return true;
}

// Posts one request; both mutexes are held.
int PostOne(Session& session, Qp* qp, const ibv_send_wr& wr) {
  WorkQueue& queue = qp->send;
  size_t inline_bytes = 0;
  const uint32_t outstanding = queue.head - queue.tail.load(std::memory_order_acquire);
  if (const int error = CheckSend(qp, wr, outstanding, &inline_bytes)) return error;
  queue.place(queue.head) = wr.wr_id;
  // On a dead device the request is accepted and flushed.
  WriteSend(session, qp, wr, inline_bytes);
  ++queue.head;
  return 0;
}

int PostSend(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad) {
  Qp* qp = Own(base);
  Session& session = *qp->context->session;
  int error = 0;
  {
    Lock lock(&qp->send_mutex);
    session.LockRequests();
    for (; wr != nullptr; wr = wr->next) {
      error = PostOne(session, qp, *wr);
      if (error != 0) {
        *bad = wr;
        break;
      }
    }
    session.PublishRequests();
    session.UnlockRequests();
  }
  if (session.dead()) FlushQueuePair(qp);
  return error;
}

bool WriteRecv(Session& session, RequestType type, uint32_t nic, uint32_t id, uint64_t wr_id,
               const ibv_recv_wr& wr) {
  const size_t tail = static_cast<size_t>(wr.num_sge) * sizeof(ibv_sge);
  auto* request = reinterpret_cast<PostRecvRequest*>(
      session.ReserveRequest(static_cast<uint16_t>(type), sizeof(PostRecvRequest) + tail));
  if (request == nullptr) return false;
  request->header.count = static_cast<uint16_t>(wr.num_sge);
  request->nic = nic;
  request->id = id;
  request->wr_id = wr_id;
  if (tail != 0) memcpy(request + 1, wr.sg_list, tail);
  return true;
}

int PostRecv(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Qp* qp = Own(base);
  Session& session = *qp->context->session;
  WorkQueue& queue = qp->recv;
  int error = 0;
  {
    Lock lock(&qp->recv_mutex);
    session.LockRequests();
    for (; wr != nullptr; wr = wr->next) {
      if (base->state == IBV_QPS_RESET || wr->num_sge < 0 ||
          static_cast<uint32_t>(wr->num_sge) > queue.max_sge) {
        error = EINVAL;
      } else if (queue.head - queue.tail.load(std::memory_order_acquire) >= queue.limit) {
        error = ENOMEM;
      }
      if (error != 0) {
        *bad = wr;
        break;
      }
      queue.place(queue.head) = wr->wr_id;
      const uint64_t wr_id = PackWrId(QueueKind::kRecv, qp->handle, queue.head);
      WriteRecv(session, kRequestPostRecv, qp->context->nic, base->qp_num, wr_id, *wr);
      ++queue.head;
    }
    session.PublishRequests();
    session.UnlockRequests();
  }
  if (session.dead()) FlushQueuePair(qp);
  return error;
}

int PostSrqRecv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Srq* srq = Own(base);
  Session& session = *srq->context->session;
  Lock lock(&srq->mutex);
  session.LockRequests();
  int error = 0;
  for (; wr != nullptr; wr = wr->next) {
    if (wr->num_sge < 0 || static_cast<uint32_t>(wr->num_sge) > srq->max_sge) {
      error = EINVAL;
    } else if (srq->free_places.empty()) {
      error = ENOMEM;
    }
    if (error != 0) {
      *bad = wr;
      break;
    }
    const uint32_t place = srq->free_places.back();
    srq->free_places.pop_back();
    srq->wr_ids[place] = wr->wr_id;
    const uint64_t wr_id = PackWrId(QueueKind::kSharedRecv, srq->handle, place);
    WriteRecv(session, kRequestPostSrqRecv, srq->context->nic, srq->id, wr_id, *wr);
  }
  session.PublishRequests();
  session.UnlockRequests();
  return error;
}

// ---- extended posting

StagedSend* Stage(ibv_qp_ex* base, ibv_wr_opcode opcode, uint64_t needed) {
  Qp* qp = Own(base);
  if ((qp->send_ops & needed) == 0) qp->staging_error = EOPNOTSUPP;
  StagedSend& staged = qp->staged.emplace_back();
  staged = {};
  staged.first_sge = static_cast<uint32_t>(qp->staged_sges.size());
  staged.first_byte = static_cast<uint32_t>(qp->staged_bytes.size());
  staged.wr.wr_id = base->wr_id;
  staged.wr.opcode = opcode;
  staged.wr.send_flags = base->wr_flags;
  return &staged;
}

void WrRdma(ibv_qp_ex* qp, ibv_wr_opcode opcode, uint64_t needed, uint32_t rkey, uint64_t address) {
  StagedSend* staged = Stage(qp, opcode, needed);
  staged->wr.wr.rdma.rkey = rkey;
  staged->wr.wr.rdma.remote_addr = address;
}
void WrRdmaRead(ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
  WrRdma(qp, IBV_WR_RDMA_READ, IBV_QP_EX_WITH_RDMA_READ, rkey, address);
}
void WrRdmaWrite(ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
  WrRdma(qp, IBV_WR_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE, rkey, address);
}
void WrRdmaWriteImm(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, __be32 imm) {
  WrRdma(qp, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, rkey, address);
  Own(qp)->staged.back().wr.imm_data = imm;
}
void WrSend(ibv_qp_ex* qp) {
  Stage(qp, IBV_WR_SEND, IBV_QP_EX_WITH_SEND);
}
void WrSendImm(ibv_qp_ex* qp, __be32 imm) {
  Stage(qp, IBV_WR_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_IMM)->wr.imm_data = imm;
}
void WrAtomic(ibv_qp_ex* qp, ibv_wr_opcode opcode, uint64_t needed, uint32_t rkey, uint64_t address,
              uint64_t value, uint64_t swap) {
  StagedSend* staged = Stage(qp, opcode, needed);
  staged->wr.wr.atomic.rkey = rkey;
  staged->wr.wr.atomic.remote_addr = address;
  staged->wr.wr.atomic.compare_add = value;
  staged->wr.wr.atomic.swap = swap;
}
void WrCompareSwap(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t compare, uint64_t swap) {
  WrAtomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, rkey, address, compare, swap);
}
void WrFetchAdd(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t add) {
  WrAtomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, rkey, address, add, 0);
}

void WrSetSgeList(ibv_qp_ex* base, size_t count, const ibv_sge* sges) {
  Qp* qp = Own(base);
  if (qp->staged.empty()) return;
  qp->staged_sges.insert(qp->staged_sges.end(), sges, sges + count);
  qp->staged.back().sge_count += static_cast<uint32_t>(count);
}
void WrSetSge(ibv_qp_ex* qp, uint32_t lkey, uint64_t address, uint32_t length) {
  const ibv_sge sge{address, length, lkey};
  WrSetSgeList(qp, 1, &sge);
}
void WrSetInlineDataList(ibv_qp_ex* base, size_t count, const ibv_data_buf* buffers) {
  Qp* qp = Own(base);
  if (qp->staged.empty()) return;
  StagedSend& staged = qp->staged.back();
  staged.wr.send_flags |= IBV_SEND_INLINE;
  for (size_t i = 0; i < count; ++i) {
    const auto* bytes = static_cast<const uint8_t*>(buffers[i].addr);
    qp->staged_bytes.insert(qp->staged_bytes.end(), bytes, bytes + buffers[i].length);
    staged.byte_count += static_cast<uint32_t>(buffers[i].length);
  }
}
void WrSetInlineData(ibv_qp_ex* qp, void* address, size_t length) {
  const ibv_data_buf buffer{address, length};
  WrSetInlineDataList(qp, 1, &buffer);
}

void ClearStaged(Qp* qp) {
  qp->staged.clear();
  qp->staged_sges.clear();
  qp->staged_bytes.clear();
  qp->staging_error = 0;
}
void WrStart(ibv_qp_ex* base) {
  Qp* qp = Own(base);
  pthread_mutex_lock(&qp->send_mutex);
  ClearStaged(qp);
}
void WrAbort(ibv_qp_ex* base) {
  ClearStaged(Own(base));
  pthread_mutex_unlock(&Own(base)->send_mutex);
}

// All requests since WrStart are posted, or none.
int WrComplete(ibv_qp_ex* base) {
  Qp* qp = Own(base);
  Session& session = *qp->context->session;
  WorkQueue& queue = qp->send;
  int error = qp->staging_error;
  const uint32_t outstanding = queue.head - queue.tail.load(std::memory_order_acquire);
  for (size_t i = 0; i < qp->staged.size() && error == 0; ++i) {
    StagedSend& staged = qp->staged[i];
    size_t inline_bytes = 0;
    staged.wr.num_sge = static_cast<int>(staged.sge_count);
    staged.wr.sg_list = qp->staged_sges.data() + staged.first_sge;
    const ibv_sge inline_sge{reinterpret_cast<uint64_t>(qp->staged_bytes.data() + staged.first_byte),
                             staged.byte_count, 0};
    ibv_send_wr checked = staged.wr;
    if ((staged.wr.send_flags & IBV_SEND_INLINE) != 0) {
      checked.num_sge = 1;
      checked.sg_list = const_cast<ibv_sge*>(&inline_sge);
    }
    error = CheckSend(qp, checked, outstanding + static_cast<uint32_t>(i), &inline_bytes);
  }
  if (error == 0) {
    session.LockRequests();
    for (StagedSend& staged : qp->staged) {
      ibv_sge inline_sge{reinterpret_cast<uint64_t>(qp->staged_bytes.data() + staged.first_byte),
                         staged.byte_count, 0};
      if ((staged.wr.send_flags & IBV_SEND_INLINE) != 0) {
        staged.wr.num_sge = 1;
        staged.wr.sg_list = &inline_sge;
      }
      PostOne(session, qp, staged.wr);
    }
    session.PublishRequests();
    session.UnlockRequests();
  }
  WrAbort(base);
  if (session.dead()) FlushQueuePair(qp);
  return error;
}

}  // namespace

void InstallExtendedPost(Qp* qp) {
  ibv_qp_ex& base = qp->qp;
  base.wr_start = WrStart;
  base.wr_complete = WrComplete;
  base.wr_abort = WrAbort;
  base.wr_rdma_read = WrRdmaRead;
  base.wr_rdma_write = WrRdmaWrite;
  base.wr_rdma_write_imm = WrRdmaWriteImm;
  base.wr_send = WrSend;
  base.wr_send_imm = WrSendImm;
  base.wr_atomic_cmp_swp = WrCompareSwap;
  base.wr_atomic_fetch_add = WrFetchAdd;
  base.wr_set_sge = WrSetSge;
  base.wr_set_sge_list = WrSetSgeList;
  base.wr_set_inline_data = WrSetInlineData;
  base.wr_set_inline_data_list = WrSetInlineDataList;
}

void InstallPostOps(Context* context) {
  ibv_context_ops& ops = context->verbs.context.ops;
  ops.post_send = PostSend;
  ops.post_recv = PostRecv;
  ops.post_srq_recv = PostSrqRecv;
}

}  // namespace sluice::soft
