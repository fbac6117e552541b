// The receiving half of a queue pair: sequence, requests, receive entries, and refusals. Answers with data
// are in responder_responses.cc.

#include <algorithm>

#include "verbs/soft/model/nic_impl.h"
#include "verbs/soft/model/qp.h"

namespace sluice::soft {

void Responder::Start(uint32_t psn) {
  expected_ = StartPsn(psn);
  nak_sent_ = ack_due_ = established_ = refusing_ = false;
}

void Responder::Clear() {
  message_ = Message::kNone;
  has_receive_ = false;
  qp_.receive_queue.wqes.Clear();
  DropResponsesFrom(0);
  atomics_.clear();
  atomics_pending_ = 0;
  ack_due_ = false;
  early_.clear();
}

void Responder::Flush() {
  // The NAK that tells the peer why may still wait for its turn.
  const bool nak_due = ack_due_ && ack_syndrome_ != Syndrome::kAck;
  ReceiveWqe wqe;
  const auto flush = [&](const ReceiveWqe& entry) {
    Completion completion;
    completion.wr_id = entry.wr_id;
    completion.status = IBV_WC_WR_FLUSH_ERR;
    completion.opcode = IBV_WC_RECV;
    ++qp_.counters().resp_cqe_flush_error;
    qp_.PushCompletion(qp_.recv_cq, completion);
  };
  if (has_receive_) flush(receive_);
  has_receive_ = false;
  while (qp_.receive_queue.Take(&wqe)) flush(wqe);
  Clear();
  ack_due_ = nak_due;
}

void Responder::OnRequest(const Packet& packet) {
  if (!established_) {
    established_ = true;
    if (qp_.state == IBV_QPS_RTR) qp_.PushEvent(IBV_EVENT_COMM_EST);
  }
  if (refusing_) return;
  const uint64_t psn = ExtendPsn(expected_, packet.psn);
  if (psn > expected_) {
    if (PlaceEarly(packet, psn)) return;
    ++qp_.counters().out_of_sequence;
    if (!nak_sent_) {
      nak_sent_ = true;
      Nak(Syndrome::kSequenceError, expected_);
    }
    return;
  }
  if (psn < expected_) {
    OnDuplicate(packet, psn);
    return;
  }
  nak_sent_ = false;
  // A NAK that still waits for its turn is out of date.
  if (ack_due_ && ack_syndrome_ != Syndrome::kAck) ack_due_ = false;
  OnInOrder(packet, psn);
  // Those that had come early, while they are accepted: a refusal or a missing receive entry stops it.
  while (!early_.empty() && !refusing_ && !nak_sent_ && qp_.responds()) {
    const auto next = early_.begin();
    if (next->first > expected_) return;
    const bool fits = next->first == expected_;
    const Packet early = next->second;
    early_.erase(next);
    if (!fits) continue;
    placed_early_ = true;
    OnInOrder(early, expected_);
    placed_early_ = false;
  }
}

bool Responder::PlaceEarly(const Packet& packet, uint64_t psn) {
  const uint64_t limit = qp_.nic.settings().reorder_packets;
  if (packet.kind != PacketKind::kWrite || nak_sent_ || psn - expected_ >= limit) return false;
  if (early_.count(psn) != 0) {
    ++qp_.counters().duplicate_request;
    return true;
  }
  uint64_t local = 0;
  if (packet.payload_bytes != 0) {
    // What is not allowed is refused in its turn.
    if (packet.compare_or_add + packet.payload_bytes > packet.length ||
        !CheckRemote(packet.remote_address, packet.length, packet.rkey, IBV_ACCESS_REMOTE_WRITE, &local)) {
      return false;
    }
    qp_.memory->Scatter(local + packet.compare_or_add, packet.payload, packet.payload_offset,
                        packet.payload_bytes);
  }
  Packet& kept = early_[psn];
  kept = packet;
  kept.payload = PayloadRef();
  return true;
}

void Responder::OnInOrder(const Packet& packet, uint64_t psn) {
  switch (packet.kind) {
    case PacketKind::kSend:
      OnSend(packet);
      return;
    case PacketKind::kWrite:
      OnWrite(packet);
      return;
    case PacketKind::kReadRequest:
      OnRead(packet, psn, false);
      return;
    default:
      OnAtomicRequest(packet);
  }
}

void Responder::Accept(const Packet& packet) {
  ++expected_;
  if ((packet.flags & kAckRequested) != 0) Acknowledge();
}

void Responder::Acknowledge() {
  ack_due_ = true;
  ack_syndrome_ = Syndrome::kAck;
  qp_.ActivateAck();
}

void Responder::Nak(Syndrome syndrome, uint64_t psn) {
  ack_due_ = true;
  ack_syndrome_ = syndrome;
  nak_psn_ = psn;
  qp_.ActivateAck();
}

void Responder::Refuse(Syndrome syndrome, uint64_t psn) {
  refusing_ = true;
  if (syndrome == Syndrome::kRemoteAccessError) {
    ++qp_.counters().resp_remote_access_errors;
    qp_.PushEvent(IBV_EVENT_QP_ACCESS_ERR);
  } else if (syndrome == Syndrome::kInvalidRequest) {
    qp_.PushEvent(IBV_EVENT_QP_REQ_ERR);
  } else {
    qp_.PushEvent(IBV_EVENT_QP_FATAL);
  }
  Nak(syndrome, psn);
  // Earlier READs still get their responses; the queue pair fails with the NAK behind them.
  if (responses_.empty()) qp_.EnterError();
}

bool Responder::TakeReceive() {
  const bool taken =
      qp_.srq != nullptr ? qp_.nic.TakeShared(qp_.srq, &receive_) : qp_.receive_queue.Take(&receive_);
  if (taken) {
    has_receive_ = true;
    return true;
  }
  nak_sent_ = true;
  ++qp_.counters().rnr_nak_sent;
  Nak(Syndrome::kRnrNak, expected_);
  return false;
}

bool Responder::ReceiveIsValid(uint64_t* capacity) {
  *capacity = 0;
  for (const ibv_sge& sge : receive_.sges) {
    uint64_t local;
    if (!qp_.nic.ResolveLocal(qp_.pd, sge, IBV_ACCESS_LOCAL_WRITE, &local)) return false;
    *capacity += sge.length;
  }
  return true;
}

void Responder::CompleteReceive(const Packet& packet, ibv_wc_opcode opcode, uint64_t length) {
  Completion completion;
  completion.wr_id = receive_.wr_id;
  completion.opcode = opcode;
  completion.byte_len = static_cast<uint32_t>(length);
  completion.solicited = (packet.flags & kSolicited) != 0;
  completion.sl = packet.sl;
  completion.slid = PortLid(packet.source);
  if ((packet.flags & kWithImmediate) != 0) {
    completion.wc_flags |= IBV_WC_WITH_IMM;
    completion.imm_data = packet.imm_data;
  }
  if ((packet.flags & kWithInvalidate) != 0) {
    completion.wc_flags |= IBV_WC_WITH_INV;
    completion.imm_data = packet.imm_data;
  }
  has_receive_ = false;
  qp_.PushCompletion(qp_.recv_cq, completion);
}

void Responder::FailReceive(ibv_wc_status status) {
  Completion completion;
  completion.wr_id = receive_.wr_id;
  completion.status = status;
  completion.opcode = IBV_WC_RECV;
  ++qp_.counters().resp_cqe_error;
  if (status == IBV_WC_LOC_LEN_ERR) ++qp_.counters().resp_local_length_error;
  has_receive_ = false;
  qp_.PushCompletion(qp_.recv_cq, completion);
}

void Responder::ScatterToReceive(uint64_t offset, const Packet& packet) {
  uint32_t done = 0;
  for (const ibv_sge& sge : receive_.sges) {
    if (done == packet.payload_bytes) return;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    uint64_t local;
    const auto part =
        static_cast<uint32_t>(std::min<uint64_t>(sge.length - offset, packet.payload_bytes - done));
    if (qp_.nic.ResolveLocal(qp_.pd, sge, IBV_ACCESS_LOCAL_WRITE, &local)) {
      qp_.memory->Scatter(local + offset, packet.payload, packet.payload_offset + done, part);
    }
    offset = 0;
    done += part;
  }
}

void Responder::OnSend(const Packet& packet) {
  const bool first = (packet.flags & kFirstPacket) != 0;
  if (first != (message_ == Message::kNone) || (!first && message_ != Message::kSend)) {
    Refuse(Syndrome::kInvalidRequest);
    return;
  }
  if (first) {
    if (!TakeReceive()) return;
    message_ = Message::kSend;
    received_ = 0;
    write_epoch_ = qp_.nic.memory_epoch() - 1;
  }
  if (write_epoch_ != qp_.nic.memory_epoch()) {
    write_epoch_ = qp_.nic.memory_epoch();
    if (!ReceiveIsValid(&receive_capacity_)) {
      FailReceive(IBV_WC_LOC_PROT_ERR);
      Refuse(Syndrome::kRemoteOperationalError);
      return;
    }
  }
  if (received_ + packet.payload_bytes > receive_capacity_) {
    FailReceive(IBV_WC_LOC_LEN_ERR);
    Refuse(Syndrome::kInvalidRequest);
    return;
  }
  if (packet.payload_bytes != 0) ScatterToReceive(received_, packet);
  received_ += packet.payload_bytes;
  if ((packet.flags & kLastPacket) != 0) {
    message_ = Message::kNone;
    if ((packet.flags & kWithInvalidate) != 0 && !qp_.nic.InvalidateKey(qp_.pd, packet.imm_data)) {
      FailReceive(IBV_WC_LOC_QP_OP_ERR);
      Refuse(Syndrome::kRemoteAccessError);
      return;
    }
    CompleteReceive(packet, IBV_WC_RECV, received_);
  }
  Accept(packet);
}

bool Responder::CheckRemote(uint64_t address, uint64_t length, uint32_t rkey, unsigned access,
                            uint64_t* local) const {
  return (qp_.attr.qp_access_flags & access) != 0 &&
         qp_.nic.ResolveRemote(qp_.pd, rkey, address, length, access, local);
}

void Responder::OnWrite(const Packet& packet) {
  const bool first = (packet.flags & kFirstPacket) != 0;
  const bool last = (packet.flags & kLastPacket) != 0;
  if (first != (message_ == Message::kNone) || (!first && message_ != Message::kWrite)) {
    Refuse(Syndrome::kInvalidRequest);
    return;
  }
  if (first) {
    received_ = 0;
    message_length_ = packet.length;
    write_remote_ = packet.remote_address;
    write_rkey_ = packet.rkey;
    write_epoch_ = qp_.nic.memory_epoch() - 1;
    ++qp_.counters().rx_write_requests;
  }
  // The key is looked at again only when a region of this NIC has gone meanwhile. A write of no bytes needs
  // no key.
  if (write_epoch_ != qp_.nic.memory_epoch() && message_length_ != 0) {
    if (!CheckRemote(write_remote_, message_length_, write_rkey_, IBV_ACCESS_REMOTE_WRITE, &write_address_)) {
      Refuse(Syndrome::kRemoteAccessError);
      return;
    }
    write_epoch_ = qp_.nic.memory_epoch();
  }
  const uint64_t end = received_ + packet.payload_bytes;
  if (end > message_length_ || (last && end != message_length_)) {
    Refuse(Syndrome::kInvalidRequest);
    return;
  }
  if (last && (packet.flags & kWithImmediate) != 0 && !TakeReceive()) return;
  if (packet.payload_bytes != 0 && !placed_early_) {
    qp_.memory->Scatter(write_address_ + received_, packet.payload, packet.payload_offset,
                        packet.payload_bytes);
  }
  received_ = end;
  message_ = last ? Message::kNone : Message::kWrite;
  if (last && (packet.flags & kWithImmediate) != 0) {
    CompleteReceive(packet, IBV_WC_RECV_RDMA_WITH_IMM, received_);
  }
  Accept(packet);
}

Packet* Responder::TakeAck() {
  // An answer implies that of everything before it, so it may not overtake a READ response.
  if (!ack_due_ || !responses_.empty() || qp_.state < IBV_QPS_RTR) return nullptr;
  ack_due_ = false;
  const bool ack = ack_syndrome_ == Syndrome::kAck;
  Packet* packet = qp_.NewPacket(PacketKind::kAck, ack ? expected_ - 1 : nak_psn_);
  packet->syndrome = ack_syndrome_;
  packet->rnr_timer = qp_.attr.min_rnr_timer;
  Qp::AddBytes(packet, 0, 4);
  if (refusing_ && qp_.state != IBV_QPS_ERR) qp_.EnterError();
  return packet;
}

}  // namespace sluice::soft
