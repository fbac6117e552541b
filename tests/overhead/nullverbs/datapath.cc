// Posting and polling: a work request is executed inside the call that posts it.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "tests/overhead/nullverbs/objects.h"

namespace nullverbs {
namespace {

// The local address of a range that a key covers, or nullptr when key, bounds or access forbid it.
char* Translate(uint32_t key, uint64_t addr, uint32_t length, bool remote, int needed) {
  const Mr* mr = mr_table.Find(key >> 8);
  if (!mr || (remote ? mr->rkey : mr->lkey) != key || (mr->access & needed) != needed) return nullptr;
  if (addr < mr->iova || addr - mr->iova + length > mr->length) return nullptr;
  return static_cast<char*>(mr->addr) + (addr - mr->iova);
}

// ---- completion queues

void PushCqe(Cq* cq, Qp* qp, uint64_t retires, uint64_t wr_id, ibv_wc_status status, ibv_wc_opcode opcode,
             uint32_t length, unsigned flags = 0, __be32 imm = 0) {
  SpinGuard guard(cq->lock);
  if (cq->ring.full()) {
    fprintf(stderr, "nullverbs: completion queue overrun (%zu entries)\n", cq->ring.capacity());
    abort();
  }
  Cqe& e = cq->ring.Claim();
  e.wc = ibv_wc{};
  e.wc.wr_id = wr_id;
  e.wc.status = status;
  e.wc.opcode = opcode;
  e.wc.byte_len = length;
  e.wc.wc_flags = flags;
  e.wc.imm_data = imm;
  e.wc.qp_num = qp->qp_num;
  e.qp = qp;
  e.retires = retires;
}

bool Delayed(Cq* cq) {
  if (cq->polls_waited < cqe_delay.load(std::memory_order_relaxed)) {
    ++cq->polls_waited;
    return true;
  }
  cq->polls_waited = 0;
  return false;
}

int PollCq(ibv_cq* ibcq, int num, ibv_wc* wc) {
  Cq* cq = CqOf(ibcq);
  SpinGuard guard(cq->lock);
  Count(stats.poll_calls);
  if (cq->ring.empty() || Delayed(cq)) {
    Count(stats.empty_polls);
    return 0;
  }
  int n = 0;
  for (num = std::min(num, config().poll_max); n < num && !cq->ring.empty(); ++n) {
    const Cqe& e = cq->ring.Take();
    wc[n] = e.wc;
    if (e.retires && e.qp) e.qp->sq_retired.store(e.retires, std::memory_order_relaxed);
  }
  Count(stats.cqes, static_cast<uint64_t>(n));
  return n;
}

int ReqNotifyCq(ibv_cq*, int) {
  return EOPNOTSUPP;
}

// ---- execution

ibv_wc_opcode WcOpcode(ibv_wr_opcode op) {
  switch (op) {
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return IBV_WC_SEND;
    default:
      return IBV_WC_RDMA_WRITE;
  }
}

// Copies between the gather list of `wr` and one contiguous range.
ibv_wc_status Move(const ibv_send_wr& wr, char* remote, uint32_t length, bool to_remote) {
  const bool skip = length > config().copy_max;
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& s = wr.sg_list[i];
    char* local = reinterpret_cast<char*>(s.addr);
    if (!(wr.send_flags & IBV_SEND_INLINE) && s.length) {
      local = Translate(s.lkey, s.addr, s.length, false, to_remote ? 0 : IBV_ACCESS_LOCAL_WRITE);
      if (!local) return IBV_WC_LOC_PROT_ERR;
    }
    if (!skip) memcpy(to_remote ? remote : local, to_remote ? local : remote, s.length);
    remote += s.length;
  }
  return IBV_WC_SUCCESS;
}

ibv_wc_status ScatterSend(const ibv_send_wr& wr, const RecvWqe& into, uint32_t length) {
  std::vector<char> data(length);
  if (const ibv_wc_status bad = Move(wr, data.data(), length, true)) return bad;
  uint32_t at = 0;
  for (int i = 0; i < into.num_sge && at < length; ++i) {
    const uint32_t n = std::min(into.sge[i].length, length - at);
    char* to = Translate(into.sge[i].lkey, into.sge[i].addr, n, false, IBV_ACCESS_LOCAL_WRITE);
    if (!to) return IBV_WC_REM_OP_ERR;
    if (length <= config().copy_max) memcpy(to, data.data() + at, n);
    at += n;
  }
  return at < length ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_SUCCESS;
}

uint32_t LengthOf(const ibv_send_wr& wr) {
  uint32_t length = 0;
  for (int i = 0; i < wr.num_sge; ++i) length += wr.sg_list[i].length;
  return length;
}

// Carries out the transfer of one work request into `fault`. False: it has to wait for a receive at the peer.
bool Transfer(Qp* qp, const ibv_send_wr& wr, uint32_t length, ibv_wc_status& fault) {
  const bool sends = wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM;
  const bool imm = wr.opcode == IBV_WR_SEND_WITH_IMM || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  Qp* peer = qp_table.Find(qp->attr.dest_qp_num);
  if (!peer || (peer->state != IBV_QPS_RTR && peer->state != IBV_QPS_RTS)) {
    fault = IBV_WC_RETRY_EXC_ERR;
    return true;
  }
  char* remote = nullptr;
  if (!sends && length) {
    const int need = wr.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    remote = Translate(wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, length, true, need);
    if (!remote || !(peer->attr.qp_access_flags & static_cast<unsigned>(need))) {
      fault = IBV_WC_REM_ACCESS_ERR;
      return true;
    }
  }
  RecvWqe wqe;
  wqe.wr_id = 0;
  if (sends || imm) {
    SpinGuard guard(peer->rq->lock);
    if (peer->rq->ring.empty()) {
      peer->rq->waiting.push_back(qp);
      Count(stats.rnr_waits);
      return false;
    }
    wqe = peer->rq->ring.Take();
  }
  fault = sends ? ScatterSend(wr, wqe, length) : Move(wr, remote, length, wr.opcode != IBV_WR_RDMA_READ);
  Count(stats.bytes, length);
  if (sends || imm) {
    PushCqe(CqOf(peer->recv_cq), peer, 0, wqe.wr_id, fault ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS,
            sends ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM, length, imm ? unsigned{IBV_WC_WITH_IMM} : 0u,
            wr.imm_data);
  }
  return true;
}

// Runs one work request. False: it has to wait for a receive at the peer.
bool Execute(Qp* qp, const ibv_send_wr& wr, uint64_t position) {
  const uint32_t length = LengthOf(wr);
  ibv_wc_status fault = IBV_WC_SUCCESS;
  if (qp->state != IBV_QPS_RTS) {
    fault = IBV_WC_WR_FLUSH_ERR;
  } else if (!Transfer(qp, wr, length, fault)) {
    return false;
  }
  if (fault && fault != IBV_WC_WR_FLUSH_ERR) EnterError(qp);
  if (fault || (wr.send_flags & IBV_SEND_SIGNALED) || qp->init.sq_sig_all) {
    PushCqe(CqOf(qp->send_cq), qp, position, wr.wr_id, fault, WcOpcode(wr.opcode), length);
  }
  return true;
}

void Hold(Qp* qp, const ibv_send_wr& wr, uint64_t position) {
  Pending& p = qp->held.emplace_back();
  p.wr = wr;
  p.wr.next = nullptr;
  p.position = position;
  p.sge.assign(wr.sg_list, wr.sg_list + wr.num_sge);
  if (wr.send_flags & IBV_SEND_INLINE) {
    p.data.reserve(kMaxInline);  // one block, so that the addresses below stay valid
    for (ibv_sge& s : p.sge) {
      const char* from = reinterpret_cast<const char*>(s.addr);
      s.addr = reinterpret_cast<uint64_t>(p.data.data() + p.data.size());
      p.data.insert(p.data.end(), from, from + s.length);
    }
  }
  p.wr.sg_list = p.sge.data();
}

void Resume(Qp* qp) {
  SpinGuard guard(qp->sq_lock);
  while (!qp->held.empty() && Execute(qp, qp->held.front().wr, qp->held.front().position))
    qp->held.pop_front();
}

// ---- posting

int CheckSend(const Qp* qp, const ibv_send_wr& wr) {
  if (qp->state < IBV_QPS_RTS) return EINVAL;
  if (wr.num_sge < 0 || wr.num_sge > static_cast<int>(qp->init.cap.max_send_sge)) return EINVAL;
  if (wr.opcode > IBV_WR_RDMA_READ) return EOPNOTSUPP;
  if ((wr.send_flags & IBV_SEND_INLINE) && LengthOf(wr) > qp->init.cap.max_inline_data) return EINVAL;
  const uint64_t in_queue = qp->sq_posted - qp->sq_retired.load(std::memory_order_relaxed);
  return in_queue >= qp->init.cap.max_send_wr ? ENOMEM : 0;
}

int PostSend(ibv_qp* ibqp, ibv_send_wr* wr, ibv_send_wr** bad) {
  Qp* qp = QpOf(ibqp);
  SpinGuard guard(qp->sq_lock);
  Count(stats.post_send_calls);
  for (; wr; wr = wr->next) {
    if (const int rc = CheckSend(qp, *wr)) {
      *bad = wr;
      return rc;
    }
    Count(stats.send_wrs);
    const uint64_t position = ++qp->sq_posted;
    if (!qp->held.empty() || !Execute(qp, *wr, position)) Hold(qp, *wr, position);
  }
  return 0;
}

int PostToQueue(RecvQueue* rq, uint32_t max_sge, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  std::vector<Qp*> wake;
  {
    SpinGuard guard(rq->lock);
    Count(stats.post_recv_calls);
    for (; wr; wr = wr->next) {
      const bool too_many_sge = wr->num_sge < 0 || wr->num_sge > static_cast<int>(max_sge);
      if (rq->ring.full() || too_many_sge) {
        *bad = wr;
        return rq->ring.full() ? ENOMEM : EINVAL;  // nobody can be waiting on a full queue
      }
      Count(stats.recv_wrs);
      RecvWqe& e = rq->ring.Claim();
      e.wr_id = wr->wr_id;
      e.num_sge = wr->num_sge;
      std::copy_n(wr->sg_list, wr->num_sge, e.sge);
    }
    wake.swap(rq->waiting);
  }
  for (Qp* sender : wake) Resume(sender);
  return 0;
}

int PostRecv(ibv_qp* ibqp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Qp* qp = QpOf(ibqp);
  if (qp->rq != &qp->own_rq || qp->state == IBV_QPS_RESET) {
    *bad = wr;
    return EINVAL;
  }
  if (qp->state != IBV_QPS_ERR) return PostToQueue(qp->rq, qp->init.cap.max_recv_sge, wr, bad);
  for (; wr; wr = wr->next) PushCqe(CqOf(qp->recv_cq), qp, 0, wr->wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0);
  return 0;
}

int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return PostToQueue(&SrqOf(srq)->rq, kMaxSge, wr, bad);
}

}  // namespace

void EnterError(Qp* qp) {
  qp->state = IBV_QPS_ERR;
  if (qp->rq != &qp->own_rq) return;
  SpinGuard guard(qp->own_rq.lock);
  while (!qp->own_rq.ring.empty()) {
    PushCqe(CqOf(qp->recv_cq), qp, 0, qp->own_rq.ring.Take().wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0);
  }
}

void SetDataPath(ibv_context_ops& ops) {
  ops.poll_cq = PollCq;
  ops.req_notify_cq = ReqNotifyCq;
  ops.post_send = PostSend;
  ops.post_recv = PostRecv;
  ops.post_srq_recv = PostSrqRecv;
}

}  // namespace nullverbs
