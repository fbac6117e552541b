// READs and atomics at the receiving half of a queue pair: execution, responses in order, duplicates.

#include <algorithm>
#include <cstring>

#include "verbs/soft/model/nic_impl.h"
#include "verbs/soft/model/qp.h"

namespace sluice::soft {

void Responder::OnRead(const Packet& packet, uint64_t psn, bool duplicate) {
  if (!duplicate && message_ != Message::kNone) {
    Refuse(Syndrome::kInvalidRequest);
    return;
  }
  if (responses_.size() >= qp_.attr.max_dest_rd_atomic) {
    Refuse(Syndrome::kInvalidRequest);
    return;
  }
  uint64_t local = 0;
  if (packet.length > kMaxMessageBytes) {
    Refuse(Syndrome::kInvalidRequest);
    return;
  }
  if (packet.length != 0 &&
      !CheckRemote(packet.remote_address, packet.length, packet.rkey, IBV_ACCESS_REMOTE_READ, &local)) {
    Refuse(Syndrome::kRemoteAccessError);
    return;
  }
  ++qp_.counters().rx_read_requests;
  Response& response = responses_.PushBack();
  response = Response{};
  response.psn = psn;
  response.packets = std::max<uint64_t>(1, (packet.length + qp_.mtu - 1) / qp_.mtu);
  response.address = packet.remote_address;
  response.length = packet.length;
  response.rkey = packet.rkey;
  // The response acknowledges all that came before.
  if (ack_syndrome_ == Syndrome::kAck) ack_due_ = false;
  expected_ = std::max(expected_, psn + response.packets);
  PumpGathers();
  qp_.Activate();
}

void Responder::OnAtomicRequest(const Packet& packet) {
  if (message_ != Message::kNone || (packet.remote_address & 7) != 0 ||
      responses_.size() >= qp_.attr.max_dest_rd_atomic) {
    Refuse(Syndrome::kInvalidRequest);
    return;
  }
  uint64_t local;
  if (!CheckRemote(packet.remote_address, 8, packet.rkey, IBV_ACCESS_REMOTE_ATOMIC, &local)) {
    Refuse(Syndrome::kRemoteAccessError);
    return;
  }
  ++qp_.counters().rx_atomic_requests;
  const uint64_t psn = expected_++;
  Response& response = responses_.PushBack();
  response = Response{};
  response.psn = psn;
  response.packets = 1;
  response.atomic = true;
  if (ack_syndrome_ == Syndrome::kAck) ack_due_ = false;
  const uint64_t serial = ++segment_serial_;
  atomics_.push_back({psn, serial, 0, false});
  ++atomics_pending_;
  while (atomics_.size() > qp_.attr.max_dest_rd_atomic) {
    if (!atomics_.front().done) --atomics_pending_;
    atomics_.pop_front();
  }
  const DmaId id = qp_.core.dma.Open({&qp_.nic, qp_.number, qp_.process, DmaKind::kAtomic, serial});
  qp_.memory->Atomic(id, packet.compare_swap ? AtomicOp::kCompareSwap : AtomicOp::kFetchAdd, local,
                     packet.compare_or_add, packet.swap);
}

void Responder::OnAtomic(uint64_t serial, bool ok, uint64_t before) {
  const auto result = std::find_if(atomics_.begin(), atomics_.end(),
                                   [serial](const AtomicResult& a) { return a.serial == serial; });
  if (result == atomics_.end() || result->done) return;
  --atomics_pending_;
  const uint64_t psn = result->psn;
  if (!ok) {
    atomics_.erase(result);
    DropResponsesFrom(psn);
    Refuse(Syndrome::kRemoteOperationalError, psn);
    return;
  }
  result->done = true;
  result->before = before;
  for (uint64_t i = responses_.begin(); i != responses_.end(); ++i) {
    Response& response = responses_[i];
    if (!response.atomic || response.psn != psn) continue;
    response.ready = true;
    response.result = before;
  }
  qp_.Activate();
}

void Responder::OnDuplicate(const Packet& packet, uint64_t psn) {
  ++qp_.counters().duplicate_request;
  if (packet.kind == PacketKind::kReadRequest) {
    // The requester went back to this PSN and will repeat all that follows.
    DropResponsesFrom(psn);
    OnRead(packet, psn, true);
    return;
  }
  if (packet.kind == PacketKind::kAtomicRequest) {
    const auto result =
        std::find_if(atomics_.begin(), atomics_.end(), [psn](const AtomicResult& a) { return a.psn == psn; });
    // Older than what a device must remember: the requester cannot be waiting for it.
    if (result == atomics_.end()) return;
    DropResponsesFrom(psn);
    Response& response = responses_.PushBack();
    response = Response{};
    response.psn = psn;
    response.packets = 1;
    response.atomic = true;
    response.ready = result->done;
    response.result = result->before;
    qp_.Activate();
    return;
  }
  // A NAK that waits for its turn says more than an acknowledgement.
  if (!ack_due_ && (packet.flags & kAckRequested) != 0) Acknowledge();
}

void Responder::DropResponsesFrom(uint64_t psn) {
  while (!responses_.empty() && responses_.back().psn + responses_.back().packets > psn) {
    const uint64_t index = responses_.end() - 1;
    while (!segments_.empty() && segments_.back().owner == index) {
      Segment& segment = segments_.back();
      if (!segment.ready) --gathers_pending_;
      ahead_bytes_ -= segment.length;
      segment.payload = PayloadRef();
      segments_.PopBack();
    }
    responses_.PopBack();
  }
  gather_response_ = std::min(gather_response_, responses_.end());
}

void Responder::PumpGathers() {
  if (!qp_.responds() || waits_for_payload_) return;
  while (gather_response_ != responses_.end() && ahead_bytes_ < kGatherAheadBytes) {
    Response& response = responses_[gather_response_];
    if (response.atomic || response.gathered == response.length) {
      ++gather_response_;
      continue;
    }
    const auto length =
        static_cast<uint32_t>(std::min<uint64_t>(kSegmentBytes, response.length - response.gathered));
    uint64_t local;
    if (!CheckRemote(response.address + response.gathered, length, response.rkey, IBV_ACCESS_REMOTE_READ,
                     &local)) {
      const uint64_t psn = response.psn + response.sent;
      DropResponsesFrom(psn);
      Refuse(Syndrome::kRemoteAccessError, psn);
      return;
    }
    Payload* payload = qp_.core.pool->AcquireUrgent(length);
    if (payload == nullptr) {
      waits_for_payload_ = true;
      qp_.core.payload_waiters.Add(&qp_.nic, qp_.number);
      return;
    }
    Segment& segment = segments_.PushBack();
    const PayloadRef reference(payload);
    segment.payload = reference;
    segment.owner = gather_response_;
    segment.offset = response.gathered;
    segment.length = length;
    segment.ready = false;
    segment.serial = ++segment_serial_;
    response.gathered += length;
    ahead_bytes_ += length;
    ++gathers_pending_;
    const DmaId id =
        qp_.core.dma.Open({&qp_.nic, qp_.number, qp_.process, DmaKind::kResponseGather, segment_serial_});
    const MemoryRange range{local, length};
    qp_.memory->Gather(id, {&range, 1}, reference);
  }
}

void Responder::OnGathered(uint64_t serial, bool ok) {
  for (uint64_t i = segments_.begin(); i != segments_.end(); ++i) {
    Segment& segment = segments_[i];
    if (segment.serial != serial) continue;
    segment.ready = true;
    --gathers_pending_;
    if (ok) {
      qp_.Activate();
      return;
    }
    const Response& response = responses_[segment.owner];
    const uint64_t psn = response.psn + response.sent;
    DropResponsesFrom(psn);
    Refuse(Syndrome::kRemoteOperationalError, psn);
    return;
  }
}

void Responder::RetryPayload() {
  if (!waits_for_payload_) return;
  waits_for_payload_ = false;
  PumpGathers();
  qp_.Activate();
}

Packet* Responder::NextPacket() {
  if (responses_.empty() || !qp_.responds()) return nullptr;
  Response& response = responses_.front();
  Packet* packet;
  if (response.atomic) {
    if (!response.ready) return nullptr;
    Payload* payload = qp_.core.pool->AcquireUrgent(8);
    if (payload == nullptr) {
      if (!waits_for_payload_) {
        waits_for_payload_ = true;
        qp_.core.payload_waiters.Add(&qp_.nic, qp_.number);
      }
      return nullptr;
    }
    std::memcpy(payload->data, &response.result, 8);
    packet = qp_.NewPacket(PacketKind::kAtomicResponse, response.psn);
    packet->payload = PayloadRef(payload);
    packet->payload_bytes = 8;
    // The value travels in a header (AtomicAckETH) behind the AETH.
    Qp::AddBytes(packet, 0, 12);
  } else {
    const uint64_t offset = response.sent * qp_.mtu;
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(qp_.mtu, response.length - offset));
    if (bytes != 0 && (segments_.empty() || !segments_.front().ready)) return nullptr;
    packet = qp_.NewPacket(PacketKind::kReadResponse, response.psn + response.sent);
    const bool first = response.sent == 0;
    const bool last = response.sent + 1 == response.packets;
    if (first) packet->flags |= kFirstPacket;
    if (last) packet->flags |= kLastPacket;
    if (bytes != 0) {
      Segment& segment = segments_.front();
      packet->payload = segment.payload;
      packet->payload_offset = static_cast<uint32_t>(offset - segment.offset);
      if (offset + bytes == segment.offset + segment.length) {
        ahead_bytes_ -= segment.length;
        segment.payload = PayloadRef();
        segments_.PopFront();
      }
    }
    Qp::AddBytes(packet, bytes, first || last ? 4 : 0);
  }
  if (++response.sent == response.packets) {
    responses_.PopFront();
    gather_response_ = std::max(gather_response_, responses_.begin());
    if (responses_.empty() && ack_due_) qp_.ActivateAck();
  }
  PumpGathers();
  return packet;
}

}  // namespace sluice::soft
