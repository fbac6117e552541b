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
    : context_(context), source_(source), sink_(sink), rate_bps_(0), delay_(delay), id_(id) {
  set_rate_bps(rate_bps);
}

void Transmitter::set_rate_bps(uint64_t rate_bps) {
  rate_bps_ = rate_bps;
  constexpr uint64_t kBitPicos = 8 * static_cast<uint64_t>(kPicosPerSecond);
  picos_per_byte_ = kBitPicos % rate_bps == 0 ? static_cast<Picos>(kBitPicos / rate_bps) : 0;
}

void Transmitter::KickWhenIdle() {
  if (idle_event_) return;
  idle_event_ = true;
  context_->scheduler.At(busy_until_, this, kIdle);
}

void Transmitter::Kick() {
  if (kicking_ || in_progress_) return;
  if (busy_until_ > context_->scheduler.Now()) {
    KickWhenIdle();
    return;
  }
  Packet* packet;
  if (!control_.empty()) {
    packet = control_.Pop();
  } else {
    kicking_ = true;
    packet = source_->NextPacket();
    kicking_ = false;
    // Looking for a packet may have freed a buffer for which a neighbour on this very link waits.
    if (packet == nullptr && !control_.empty()) packet = control_.Pop();
    if (packet == nullptr) return;
  }
  Send(packet);
  if (!control_.empty() || source_->MayHavePacket()) KickWhenIdle();
}

void Transmitter::SendControl(Packet* packet) {
  control_.Push(packet);
  Kick();
}

void Transmitter::SendBeside(Packet* packet) {
  packet->arrival = context_->scheduler.Now() + delay_;
  // Staged: the next one's event is scheduled when this one has arrived.
  const bool first = beside_.empty();
  beside_.Push(packet);
  if (first || !context_->staged_events) context_->scheduler.At(packet->arrival, this, kBeside);
}

void Transmitter::DeliverBeside() {
  Packet* packet = beside_.Pop();
  if (up_) {
    sink_->Receive(packet);
  } else {
    context_->packets.Delete(packet);
  }
  if (context_->staged_events && !beside_.empty()) {
    context_->scheduler.At(beside_.front()->arrival, this, kBeside);
  }
}

void Transmitter::Send(Packet* packet) {
  Scheduler& scheduler = context_->scheduler;
  const Picos time = TimeOf(packet->wire_bytes);
  busy_until_ = scheduler.Now() + time;
  truth_.busy_time += time;
  const bool control = packet->kind == PacketKind::kPfcPause;
  if (!control) {
    if (counted_) ++context_->statistics.packet_hops;
    truth_.bytes[packet->lane] += packet->wire_bytes;
    ++truth_.packets;
  }
  if (context_->staged_events) {
    in_progress_ = true;
    lost_ = false;
    KickWhenIdle();
  }
  const PacketFate fate = !up_ ? PacketFate::kDrop : control ? PacketFate::kDeliver : FateOf(*packet);
  if (fate == PacketFate::kDrop) {
    Lose(packet);
    return;
  }
  if (fate == PacketFate::kCorrupt) packet->corrupted = true;
  packet->arrival = busy_until_ + delay_ - (control ? 0 : TailTime(packet->wire_bytes));
  wire_.Push(packet);
  if (!arrival_event_ && !context_->staged_events) {
    arrival_event_ = true;
    scheduler.At(packet->arrival, this, kArrival);
  }
}

void Transmitter::Left() {
  in_progress_ = false;
  source_->OnLeft();
  if (lost_) return;
  ++left_;
  if (arrival_event_) return;
  arrival_event_ = true;
  context_->scheduler.At(context_->scheduler.Now() + delay_, this, kArrival);
}

void Transmitter::Lose(Packet* packet) {
  lost_ = true;
  if (packet->kind != PacketKind::kPfcPause) {
    ++context_->statistics.dropped_packets;
    ++truth_.dropped;
    source_->OnLost(*packet);
  }
  context_->packets.Delete(packet);
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
  view.is_cnp = packet.kind == PacketKind::kCnp;
  view.is_read_response =
      packet.kind == PacketKind::kReadResponse || packet.kind == PacketKind::kAtomicResponse;
  view.payload_bytes = packet.payload_bytes;
  view.wire_bytes = packet.wire_bytes;
  return context_->fault_hook(view);
}

void Transmitter::SetUp(bool up) {
  up_ = up;
  if (up) return;
  left_ = 0;
  while (!wire_.empty()) Lose(wire_.Pop());
}

void Transmitter::Deliver() {
  Scheduler& scheduler = context_->scheduler;
  // The wire may have been emptied and filled again since the event was scheduled.
  Packet* packet = nullptr;
  if (!wire_.empty() && wire_.front()->arrival <= scheduler.Now()) packet = wire_.Pop();
  const bool staged = context_->staged_events;
  // Before Receive: it may send on this very link.
  if (!staged) ScheduleArrival(!wire_.empty());
  if (packet == nullptr) {
    if (staged) ScheduleArrival(left_ != 0);
    return;
  }
  uint64_t& hash = context_->statistics.trace_hash;
  hash = Mix(hash, static_cast<uint64_t>(scheduler.Now()));
  hash = Mix(hash, (uint64_t{id_} << 40) ^ (uint64_t{packet->destination_qp} << 24) ^ packet->psn);
  hash = Mix(hash, (uint64_t{packet->wire_bytes} << 8) ^ static_cast<uint64_t>(packet->kind));
  if (staged) --left_;
  sink_->Receive(packet);
  if (staged) ScheduleArrival(left_ != 0);
}

void Transmitter::ScheduleArrival(bool more) {
  arrival_event_ = more;
  if (more) context_->scheduler.At(wire_.front()->arrival, this, kArrival);
}

void Transmitter::OnEvent(uint32_t kind, uint64_t) {
  if (kind == kArrival) {
    Deliver();
  } else if (kind == kIdle) {
    idle_event_ = false;
    if (in_progress_) Left();
    // A packet sent meanwhile, at this very moment, asks again behind it.
    if (!control_.empty() || source_->MayHavePacket()) Kick();
  } else {
    DeliverBeside();
  }
}

}  // namespace sluice::soft
