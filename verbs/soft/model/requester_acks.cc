// What acknowledgements, responses and silence do to the sending half of a queue pair.

#include <algorithm>

#include "verbs/soft/model/nic_impl.h"
#include "verbs/soft/model/qp.h"

namespace sluice::soft {
namespace {

constexpr uint8_t kInfiniteRnrRetry = 7;

// The table of the InfiniBand specification, in units of 10 us.
Picos RnrDelay(uint8_t code) {
  constexpr uint32_t kTens[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                  48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                  2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return Picos{kTens[code & 31]} * 10 * kPicosPerUs;
}

ibv_wc_status StatusOf(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::kInvalidRequest:
      return IBV_WC_REM_INV_REQ_ERR;
    case Syndrome::kRemoteAccessError:
      return IBV_WC_REM_ACCESS_ERR;
    default:
      return IBV_WC_REM_OP_ERR;
  }
}

}  // namespace

void Requester::OnAck(const Packet& packet) {
  const uint64_t psn = ExtendPsn(una_, packet.psn);
  if (packet.syndrome == Syndrome::kAck) {
    AckThrough(psn + 1);
    return;
  }
  AckThrough(psn);
  // A stale NAK, or one that a READ response must overtake first.
  if (!qp_.requests() || una_ != psn || psn >= max_sent_) return;
  switch (packet.syndrome) {
    case Syndrome::kSequenceError:
      ++qp_.counters().packet_seq_err;
      if (SpendRetry()) GoBack(psn);
      return;
    case Syndrome::kRnrNak:
      ++qp_.counters().rnr_nak_received;
      if (rnr_retries_left_ == 0) {
        FailFront(IBV_WC_RNR_RETRY_EXC_ERR);
        return;
      }
      if (rnr_retries_left_ != kInfiniteRnrRetry) --rnr_retries_left_;
      rnr_until_ = qp_.core.Now() + RnrDelay(packet.rnr_timer);
      GoBack(psn);
      qp_.nic.ScheduleRnr(rnr_until_, qp_.number);
      return;
    default:
      FailFront(StatusOf(packet.syndrome));
  }
}

void Requester::AckThrough(uint64_t end) {
  end = std::min(end, max_sent_);
  if (end <= una_) return;
  const uint64_t before = una_;
  bool response_missing = false;
  while (!wqes_.empty() && una_ < end) {
    const SendWqe& wqe = wqes_.front();
    if (wqe.read_like) {
      response_missing = true;
      break;
    }
    una_ = std::min(end, wqe.end_psn());
    if (una_ == wqe.end_psn()) CompleteFront();
  }
  AfterProgress(before);
  if (!response_missing || !qp_.requests()) return;
  // The peer went on, so the response was lost: as good as a NAK, and obeyed once.
  if (implied_nak_at_ == una_) return;
  implied_nak_at_ = una_;
  ++qp_.counters().implied_nak_seq_err;
  GoBack(una_);
}

void Requester::OnResponse(const Packet& packet) {
  const uint64_t psn = ExtendPsn(una_, packet.psn);
  AckThrough(psn);
  if (!qp_.requests() || psn != una_ || psn >= max_sent_ || wqes_.empty()) return;
  SendWqe& wqe = wqes_.front();
  if (!wqe.read_like || psn < wqe.first_psn) return;
  const bool atomic = packet.kind == PacketKind::kAtomicResponse;
  if (atomic != (wqe.opcode != IBV_WR_RDMA_READ)) return;

  uint64_t skip = (psn - wqe.first_psn) * qp_.mtu;
  const uint64_t expected = atomic ? 8 : std::min<uint64_t>(qp_.mtu, wqe.length - std::min(skip, wqe.length));
  if (packet.payload_bytes != expected) {
    FailFront(IBV_WC_BAD_RESP_ERR);
    return;
  }
  uint32_t done = 0;
  for (const ibv_sge& sge : wqe.sges) {
    if (done == packet.payload_bytes) break;
    if (skip >= sge.length) {
      skip -= sge.length;
      continue;
    }
    uint64_t local;
    if (!qp_.nic.ResolveLocal(qp_.pd, sge, IBV_ACCESS_LOCAL_WRITE, &local)) {
      FailFront(IBV_WC_LOC_PROT_ERR);
      return;
    }
    const auto part =
        static_cast<uint32_t>(std::min<uint64_t>(sge.length - skip, packet.payload_bytes - done));
    qp_.memory->Scatter(local + skip, packet.payload, packet.payload_offset + done, part);
    skip = 0;
    done += part;
  }
  const uint64_t before = una_;
  una_ = psn + 1;
  if (una_ == wqe.end_psn()) CompleteFront();
  AfterProgress(before);
}

ibv_wc_opcode Requester::CompletionOpcode(const SendWqe& wqe) const {
  switch (wqe.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

void Requester::CompleteFront() {
  const SendWqe& wqe = wqes_.front();
  // Once sent, a READ counts against max_rd_atomic until it is complete.
  if (wqe.read_like && wqes_.begin() < tx_wqe_) --reads_before_tx_;
  if (qp_.sq_sig_all || (wqe.flags & IBV_SEND_SIGNALED) != 0) {
    Completion completion;
    completion.wr_id = wqe.wr_id;
    completion.opcode = CompletionOpcode(wqe);
    completion.byte_len = static_cast<uint32_t>(wqe.length);
    qp_.PushCompletion(qp_.send_cq, completion);
  }
  wqes_.PopFront();
}

void Requester::AfterProgress(uint64_t una_before) {
  if (una_ == una_before) return;
  retries_left_ = qp_.attr.retry_cnt;
  rnr_retries_left_ = qp_.attr.rnr_retry;
  // An answer may come for packets that were about to be sent again.
  if (tx_psn_ < una_) GoBack(una_);
  if (!qp_.requests()) return;
  if (ack_expected_ > una_) {
    ArmTimer();
  } else {
    StopTimer();
  }
  CheckDrained();
  FailIfFrontInvalid();
  if (!qp_.requests()) return;
  PumpGathers();
  if (tx_wqe_ != wqes_.end()) qp_.Activate();
}

void Requester::GoBack(uint64_t psn) {
  StopTimer();
  ack_expected_ = 0;
  tx_psn_ = psn;
  reads_before_tx_ = 0;
  last_read_ = 0;
  tx_wqe_ = wqes_.begin();
  while (tx_wqe_ != wqes_.end() && wqes_[tx_wqe_].end_psn() <= psn) {
    if (wqes_[tx_wqe_++].read_like) {
      ++reads_before_tx_;
      last_read_ = tx_wqe_;
    }
  }
  DropSegments();
  gather_wqe_ = tx_wqe_;
  gather_offset_ = 0;
  if (tx_wqe_ == wqes_.end()) return;
  const SendWqe& wqe = wqes_[tx_wqe_];
  if (!wqe.read_like) gather_offset_ = (psn - wqe.first_psn) * qp_.mtu;
  PumpGathers();
  qp_.Activate();
}

bool Requester::SpendRetry() {
  if (retries_left_ == 0) {
    FailFront(IBV_WC_RETRY_EXC_ERR);
    return false;
  }
  --retries_left_;
  return true;
}

void Requester::ArmTimer() {
  if (qp_.attr.timeout == 0) return;
  const auto base = static_cast<double>(Picos{4'096'000} << qp_.attr.timeout);
  timer_deadline_ = qp_.core.Now() + static_cast<Picos>(base * qp_.nic.settings().timer_factor);
  ScheduleTimer();
}

// One event is outstanding per queue pair; it follows the deadline when it fires.
void Requester::ScheduleTimer() {
  if (timer_event_at_ <= timer_deadline_) return;
  timer_event_at_ = timer_deadline_;
  qp_.nic.ScheduleTimer(timer_deadline_, qp_.number);
}

void Requester::OnTransportTimer() {
  const Picos now = qp_.core.Now();
  // An event that a later, earlier one replaced.
  if (timer_event_at_ > now) return;
  timer_event_at_ = kNever;
  if (timer_deadline_ == kNever) return;
  if (timer_deadline_ > now) {
    ScheduleTimer();
    return;
  }
  const Qp* peer = qp_.nic.FindPeer(qp_);
  if (gathers_pending_ != 0 || waits_for_payload_ || (peer != nullptr && peer->responder.WaitsForHost())) {
    ArmTimer();
    return;
  }
  ++qp_.counters().local_ack_timeout_err;
  StopTimer();
  implied_nak_at_ = 0;
  if (!wqes_.empty() && SpendRetry()) GoBack(una_);
}

void Requester::OnRnrTimer() {
  if (qp_.core.Now() < rnr_until_) return;
  PumpGathers();
  qp_.Activate();
}

}  // namespace sluice::soft
