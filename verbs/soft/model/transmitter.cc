#include "verbs/soft/model/transmitter.h"

namespace sluice::soft {
namespace {

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value;
  hash *= 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}

}  // namespace

Transmitter::Transmitter(NetworkContext* context, uint32_t id, uint64_t rate_bps, Picos delay,
                         PacketSource* source, PacketSink* sink)
    : context_(context), source_(source), sink_(sink), rate_bps_(rate_bps), delay_(delay), id_(id) {}

void Transmitter::Kick() {
  if (kicking_) return;
  Scheduler& scheduler = context_->scheduler;
  if (busy_until_ > scheduler.Now()) {
    if (!idle_event_) {
      idle_event_ = true;
      scheduler.At(busy_until_, this, kIdle);
    }
    return;
  }
  kicking_ = true;
  Packet* packet = source_->NextPacket();
  kicking_ = false;
  if (packet == nullptr) return;
  Send(packet);
  if (source_->MayHavePacket() && !idle_event_) {
    idle_event_ = true;
    scheduler.At(busy_until_, this, kIdle);
  }
}

void Transmitter::Send(Packet* packet) {
  if (packet->wire_bytes != cached_bytes_) {
    cached_bytes_ = packet->wire_bytes;
    cached_time_ = SerialisationTime(cached_bytes_, rate_bps_);
  }
  Scheduler& scheduler = context_->scheduler;
  busy_until_ = scheduler.Now() + cached_time_;
  if (counted_) ++context_->statistics.packet_hops;
  const PacketFate fate = up_ ? FateOf(*packet) : PacketFate::kDrop;
  if (fate == PacketFate::kDrop) {
    ++context_->statistics.dropped_packets;
    context_->packets.Delete(packet);
    return;
  }
  if (fate == PacketFate::kCorrupt) packet->corrupted = true;
  packet->arrival = busy_until_ + delay_;
  wire_.Push(packet);
  if (!arrival_event_) {
    arrival_event_ = true;
    scheduler.At(packet->arrival, this, kArrival);
  }
}

PacketFate Transmitter::FateOf(const Packet& packet) const {
  if (!context_->fault_hook || !counted_) return PacketFate::kDeliver;
  PacketView view;
  view.link = id_;
  view.from_host = from_host_;
  view.source_endpoint = packet.source;
  view.destination_endpoint = packet.destination;
  view.destination_qp = packet.destination_qp;
  view.psn = packet.psn;
  view.is_ack = packet.kind == PacketKind::kAck;
  view.is_nak = view.is_ack && packet.syndrome != Syndrome::kAck;
  view.is_read_response =
      packet.kind == PacketKind::kReadResponse || packet.kind == PacketKind::kAtomicResponse;
  view.payload_bytes = packet.payload_bytes;
  view.wire_bytes = packet.wire_bytes;
  return context_->fault_hook(view);
}

void Transmitter::SetUp(bool up) {
  up_ = up;
  if (up) return;
  while (!wire_.empty()) {
    ++context_->statistics.dropped_packets;
    context_->packets.Delete(wire_.Pop());
  }
}

void Transmitter::Deliver() {
  Scheduler& scheduler = context_->scheduler;
  // The wire may have been emptied and filled again since the event was scheduled.
  if (!wire_.empty() && wire_.front()->arrival <= scheduler.Now()) {
    Packet* packet = wire_.Pop();
    uint64_t& hash = context_->statistics.trace_hash;
    hash = Mix(hash, static_cast<uint64_t>(scheduler.Now()));
    hash = Mix(hash, (uint64_t{id_} << 40) ^ (uint64_t{packet->destination_qp} << 24) ^ packet->psn);
    hash = Mix(hash, (uint64_t{packet->wire_bytes} << 8) ^ static_cast<uint64_t>(packet->kind));
    // Before Receive: it may send on this very link.
    if (!wire_.empty()) {
      scheduler.At(wire_.front()->arrival, this, kArrival);
    } else {
      arrival_event_ = false;
    }
    sink_->Receive(packet);
    return;
  }
  if (!wire_.empty()) {
    scheduler.At(wire_.front()->arrival, this, kArrival);
  } else {
    arrival_event_ = false;
  }
}

void Transmitter::OnEvent(uint32_t kind, uint64_t) {
  if (kind == kIdle) {
    idle_event_ = false;
    if (source_->MayHavePacket()) Kick();
  } else {
    Deliver();
  }
}

}  // namespace sluice::soft
