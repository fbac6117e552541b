// The sending half of a queue pair: work requests, reading their data, packets, and what a failure means.
// What answers do is in requester_acks.cc.

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs/soft/model/nic_impl.h"
#include "verbs/soft/model/qp.h"

namespace sluice::soft {
namespace {

// Half of the PSN space separates old from new; a quarter leaves room for READs that take many PSNs at once.
constexpr uint64_t kPsnWindow = uint64_t{1} << 22;

bool IsRead(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ;
}
bool IsAtomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
bool IsWrite(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool IsSend(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV;
}
bool HasImmediate(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

}  // namespace

void Requester::Start(uint32_t psn) {
  post_psn_ = una_ = tx_psn_ = max_sent_ = StartPsn(psn);
  ack_expected_ = implied_nak_at_ = 0;
  tx_wqe_ = gather_wqe_ = started_ = wqes_.end();
  retries_left_ = qp_.attr.retry_cnt;
  rnr_retries_left_ = qp_.attr.rnr_retry;
}

void Requester::Clear() {
  StopTimer();
  rnr_until_ = 0;
  draining_ = false;
  DropSegments();
  wqes_.Clear();
  tx_wqe_ = gather_wqe_ = started_ = wqes_.end();
  gather_offset_ = last_read_ = 0;
  reads_before_tx_ = 0;
}

void Requester::Flush() {
  while (!wqes_.empty()) {
    Completion completion;
    completion.wr_id = wqes_.front().wr_id;
    completion.status = IBV_WC_WR_FLUSH_ERR;
    ++qp_.counters().req_cqe_flush_error;
    wqes_.PopFront();
    qp_.PushCompletion(qp_.send_cq, completion);
  }
  Clear();
}

int Requester::Post(const SendWork& work) {
  if (!IsSend(work.opcode) && !IsWrite(work.opcode) && !IsRead(work.opcode) && !IsAtomic(work.opcode))
    return EINVAL;
  if (work.sges.size() > qp_.attr.cap.max_send_sge) return EINVAL;
  if (work.inline_data.size() > qp_.attr.cap.max_inline_data) return EINVAL;
  if ((work.flags & IBV_SEND_INLINE) != 0 && (IsRead(work.opcode) || IsAtomic(work.opcode))) return EINVAL;
  if (wqes_.size() >= qp_.attr.cap.max_send_wr) return ENOMEM;
  SendWqe& wqe = wqes_.PushBack();
  wqe.wr_id = work.wr_id;
  wqe.opcode = work.opcode;
  wqe.flags = work.flags;
  wqe.imm_data = work.imm_data;
  wqe.rkey = work.rkey;
  wqe.remote_address = work.remote_address;
  wqe.compare_or_add = work.compare_or_add;
  wqe.swap = work.swap;
  wqe.sges.assign(work.sges.begin(), work.sges.end());
  wqe.inline_data.assign(work.inline_data.begin(), work.inline_data.end());
  Prepare(&wqe);
  const Picos doorbell = qp_.nic.settings().doorbell;
  wqe.visible_at = qp_.core.Now() + doorbell;
  if (qp_.state == IBV_QPS_ERR) {
    Flush();
    return 0;
  }
  PumpGathers();
  if (doorbell == 0) {
    qp_.Activate();
  } else {
    qp_.nic.ScheduleDoorbell(wqe.visible_at, qp_.number);
  }
  return 0;
}

void Requester::Prepare(SendWqe* wqe) {
  wqe->failure = IBV_WC_SUCCESS;
  wqe->read_like = IsRead(wqe->opcode) || IsAtomic(wqe->opcode);
  wqe->length = wqe->inline_data.size();
  for (const ibv_sge& sge : wqe->sges) wqe->length += sge.length;
  wqe->first_psn = post_psn_;
  // A message that is too long fails before any packet: it takes no more PSNs than a legal one.
  const uint64_t length = std::min(wqe->length, kMaxMessageBytes);
  wqe->packets = IsAtomic(wqe->opcode) ? 1 : std::max<uint64_t>(1, (length + qp_.mtu - 1) / qp_.mtu);
  post_psn_ += wqe->packets;
}

ibv_wc_status Requester::Validate(const SendWqe& wqe) const {
  if (wqe.length > kMaxMessageBytes) return IBV_WC_LOC_LEN_ERR;
  if (wqe.read_like && qp_.attr.max_rd_atomic == 0) return IBV_WC_LOC_QP_OP_ERR;
  if (IsAtomic(wqe.opcode) && wqe.length != 8) return IBV_WC_LOC_LEN_ERR;
  for (const ibv_sge& sge : wqe.sges) {
    uint64_t local;
    if (!qp_.nic.ResolveLocal(qp_.pd, sge, wqe.read_like ? IBV_ACCESS_LOCAL_WRITE : 0, &local)) {
      return IBV_WC_LOC_PROT_ERR;
    }
  }
  return IBV_WC_SUCCESS;
}

void Requester::PumpGathers() {
  if (!qp_.requests() || waits_for_payload_ || qp_.core.Now() < rnr_until_) return;
  while (gather_wqe_ != wqes_.end() && ahead_bytes_ < kGatherAheadBytes &&
         segments_.size() < kGatherAheadSegments) {
    SendWqe& wqe = wqes_[gather_wqe_];
    if (wqe.failure != IBV_WC_SUCCESS) return;
    if (gather_offset_ == 0) {
      // A fenced request may carry what an earlier READ brings: its data is read when that is complete.
      if ((wqe.flags & IBV_SEND_FENCE) != 0 && last_read_ > wqes_.begin()) return;
      wqe.failure = Validate(wqe);
      if (wqe.failure != IBV_WC_SUCCESS) {
        FailIfFrontInvalid();
        return;
      }
    }
    if (wqe.read_like || wqe.length == 0) {
      ++gather_wqe_;
      if (wqe.read_like) last_read_ = gather_wqe_;
      continue;
    }
    const auto length = static_cast<uint32_t>(std::min<uint64_t>(kSegmentBytes, wqe.length - gather_offset_));
    if (!Gather(wqe, gather_offset_, length)) return;
  }
}

bool Requester::ListRanges(const SendWqe& wqe, uint64_t offset, uint32_t length) const {
  std::vector<MemoryRange>& ranges = qp_.core.ranges;
  ranges.clear();
  for (const ibv_sge& sge : wqe.sges) {
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    uint64_t local;
    if (!qp_.nic.ResolveLocal(qp_.pd, sge, 0, &local)) return false;
    const auto part = static_cast<uint32_t>(std::min<uint64_t>(sge.length - offset, length));
    ranges.push_back({local + offset, part});
    offset = 0;
    length -= part;
    if (length == 0) break;
  }
  return true;
}

bool Requester::Gather(SendWqe& wqe, uint64_t offset, uint32_t length) {
  if (wqe.inline_data.empty() && !ListRanges(wqe, offset, length)) {
    wqe.failure = IBV_WC_LOC_PROT_ERR;
    FailIfFrontInvalid();
    return false;
  }
  Payload* payload = qp_.core.pool->Acquire(length);
  if (payload == nullptr) {
    waits_for_payload_ = true;
    qp_.core.payload_waiters.Add(&qp_.nic, qp_.number);
    return false;
  }
  const PayloadRef reference(payload);
  Segment& segment = segments_.PushBack();
  segment.payload = reference;
  segment.owner = gather_wqe_;
  segment.offset = offset;
  segment.serial = ++segment_serial_;
  segment.length = length;
  segment.ready = !wqe.inline_data.empty();
  ahead_bytes_ += length;
  gather_offset_ += length;
  if (gather_offset_ == wqe.length) {
    gather_offset_ = 0;
    ++gather_wqe_;
  }
  if (segment.ready) {
    std::memcpy(payload->data, wqe.inline_data.data() + offset, length);
    return true;
  }
  ++gathers_pending_;
  const DmaId id =
      qp_.core.dma.Open({&qp_.nic, qp_.number, qp_.process, DmaKind::kSendGather, segment_serial_});
  qp_.memory->Gather(id, qp_.core.ranges, reference);
  return true;
}

void Requester::DropSegments() {
  while (!segments_.empty()) {
    segments_.front().payload = PayloadRef();
    segments_.PopFront();
  }
  ahead_bytes_ = 0;
  gathers_pending_ = 0;
}

void Requester::OnGathered(uint64_t serial, bool ok) {
  for (uint64_t i = segments_.begin(); i != segments_.end(); ++i) {
    Segment& segment = segments_[i];
    if (segment.serial != serial) continue;
    --gathers_pending_;
    segment.ready = true;
    if (ok) {
      qp_.Activate();
    } else {
      wqes_[segment.owner].failure = IBV_WC_LOC_PROT_ERR;
      FailIfFrontInvalid();
    }
    return;
  }
}

void Requester::RetryPayload() {
  if (!waits_for_payload_) return;
  waits_for_payload_ = false;
  PumpGathers();
  qp_.Activate();
}

bool Requester::MayStart(const SendWqe& wqe) const {
  if (tx_psn_ != wqe.first_psn || tx_wqe_ < started_) return true;
  return qp_.state != IBV_QPS_SQD;
}

Packet* Requester::NextPacket() {
  if (!qp_.requests() || tx_wqe_ == wqes_.end() || qp_.core.Now() < rnr_until_) return nullptr;
  SendWqe& wqe = wqes_[tx_wqe_];
  if (wqe.failure != IBV_WC_SUCCESS || !MayStart(wqe)) return nullptr;
  if (wqe.visible_at > qp_.core.Now()) return nullptr;
  if (tx_psn_ - una_ >= kPsnWindow) return nullptr;
  Packet* packet;
  if (wqe.read_like) {
    if (gather_wqe_ <= tx_wqe_ || reads_before_tx_ >= qp_.attr.max_rd_atomic) return nullptr;
    packet = MakeReadLike(wqe);
    ++reads_before_tx_;
    Sent(wqe.end_psn(), true);
  } else {
    if (wqe.length == 0 ? gather_wqe_ <= tx_wqe_ : segments_.empty() || !segments_.front().ready) {
      return nullptr;
    }
    packet = MakeData(wqe);
    Sent(tx_psn_ + 1, (packet->flags & kAckRequested) != 0);
  }
  return packet;
}

Packet* Requester::MakeReadLike(const SendWqe& wqe) {
  const uint64_t offset = (tx_psn_ - wqe.first_psn) * qp_.mtu;
  Packet* packet =
      qp_.NewPacket(IsRead(wqe.opcode) ? PacketKind::kReadRequest : PacketKind::kAtomicRequest, tx_psn_);
  packet->flags = kFirstPacket | kLastPacket | kAckRequested;
  packet->remote_address = wqe.remote_address + offset;
  packet->rkey = wqe.rkey;
  packet->length = wqe.length - std::min(offset, wqe.length);
  if (IsRead(wqe.opcode)) {
    Qp::AddBytes(packet, 0, 16);
  } else {
    packet->compare_swap = wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    packet->compare_or_add = wqe.compare_or_add;
    packet->swap = wqe.swap;
    Qp::AddBytes(packet, 0, 28);
  }
  return packet;
}

Packet* Requester::MakeData(const SendWqe& wqe) {
  const bool write = IsWrite(wqe.opcode);
  Packet* packet = qp_.NewPacket(write ? PacketKind::kWrite : PacketKind::kSend, tx_psn_);
  const uint64_t index = tx_psn_ - wqe.first_psn;
  const uint64_t offset = index * qp_.mtu;
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(qp_.mtu, wqe.length - offset));
  uint32_t extension = 0;
  if (index == 0) {
    packet->flags |= kFirstPacket;
    if (write) extension += 16;
  }
  packet->remote_address = wqe.remote_address;
  packet->rkey = wqe.rkey;
  packet->length = wqe.length;
  packet->compare_or_add = offset;
  if (index + 1 == wqe.packets) {
    packet->flags |= kLastPacket | kAckRequested;
    packet->imm_data = wqe.imm_data;
    if (HasImmediate(wqe.opcode)) packet->flags |= kWithImmediate;
    if (wqe.opcode == IBV_WR_SEND_WITH_INV) packet->flags |= kWithInvalidate;
    if ((wqe.flags & IBV_SEND_SOLICITED) != 0) packet->flags |= kSolicited;
    if ((packet->flags & (kWithImmediate | kWithInvalidate)) != 0) extension += 4;
  } else if (index % kAckInterval == kAckInterval - 1) {
    packet->flags |= kAckRequested;
  }
  if (bytes != 0) {
    const Segment& segment = segments_.front();
    packet->payload = segment.payload;
    packet->payload_offset = static_cast<uint32_t>(offset - segment.offset);
  }
  Qp::AddBytes(packet, bytes, extension);
  return packet;
}

void Requester::Sent(uint64_t psn_end, bool ack_expected) {
  const SendWqe& wqe = wqes_[tx_wqe_];
  started_ = std::max(started_, tx_wqe_ + 1);
  if (tx_psn_ < max_sent_) ++qp_.counters().retransmitted_packets;
  max_sent_ = std::max(max_sent_, psn_end);
  tx_psn_ = psn_end;
  if (ack_expected) {
    ack_expected_ = psn_end;
    if (timer_deadline_ == kNever) ArmTimer();
  }
  if (!wqe.read_like && wqe.length != 0) {
    // The packets hold the buffer from here. What must be repeated is read again.
    Segment& segment = segments_.front();
    if ((psn_end - wqe.first_psn) * qp_.mtu >= segment.offset + segment.length) {
      ahead_bytes_ -= segment.length;
      segment.payload = PayloadRef();
      segments_.PopFront();
    }
  }
  if (psn_end == wqe.end_psn()) ++tx_wqe_;
  PumpGathers();
}

void Requester::FailFront(ibv_wc_status status) {
  Completion completion;
  completion.wr_id = wqes_.front().wr_id;
  completion.status = status;
  ++qp_.counters().req_cqe_error;
  if (status == IBV_WC_REM_ACCESS_ERR) ++qp_.counters().req_remote_access_errors;
  if (status == IBV_WC_REM_INV_REQ_ERR) ++qp_.counters().req_remote_invalid_request;
  wqes_.PopFront();
  qp_.PushCompletion(qp_.send_cq, completion);
  qp_.EnterError();
}

void Requester::FailIfFrontInvalid() {
  if (!wqes_.empty() && wqes_.front().failure != IBV_WC_SUCCESS) FailFront(wqes_.front().failure);
}

void Requester::BeginDrain() {
  draining_ = true;
  CheckDrained();
}

void Requester::Resume() {
  draining_ = false;
  PumpGathers();
  qp_.Activate();
}

void Requester::CheckDrained() {
  if (!draining_ || wqes_.begin() < started_) return;
  draining_ = false;
  if (qp_.attr.en_sqd_async_notify != 0) qp_.PushEvent(IBV_EVENT_SQ_DRAINED);
}

}  // namespace sluice::soft
