#include <algorithm>

#include "verbs/soft/flows/random.h"
#include "verbs/soft/flows/uec_flow.h"

namespace sluice::soft {
namespace {

// A path is another 5-tuple.
uint32_t PathHash(uint32_t flow_hash, uint16_t path) {
  return flow_hash ^ (uint32_t{path} * 0x9E3779B1U + 0x7F4A7C15U);
}

NsccSettings WindowSettings(const UecSettings& settings, uint64_t rate_bps) {
  NsccSettings window;
  window.rate_bps = rate_bps;
  window.network_rtt = settings.network_rtt;
  window.packet_bytes = settings.packet_bytes;
  window.payload_bytes = settings.payload_bytes();
  window.initial_window_bytes = settings.window_bytes;
  return window;
}

uint64_t UnitsOf(uint64_t bytes) {
  return (bytes + kPullUnitBytes - 1) / kPullUnitBytes;
}

}  // namespace

UecFlow::UecFlow(FlowContext* context, const UecSettings& settings, FlowId id, const FlowSpec& spec,
                 uint8_t lane, Egress* source, Egress* sink, uint64_t rate_bps, UecPullPacer* pacer)
    : payload_bytes_(settings.payload_bytes()),
      source_(context, settings, id, spec, lane, source, rate_bps,
              pacer == nullptr ? 0 : settings.max_window_bytes(rate_bps)),
      sink_(context, settings, id, spec, sink, pacer) {}

void UecFlow::Post(uint64_t bytes) {
  posted_packets_ +=
      static_cast<uint32_t>(std::max<uint64_t>(1, (bytes + payload_bytes_ - 1) / payload_bytes_));
  sink_.ExpectMessage(posted_packets_);
  source_.Post(bytes);
}

void UecFlow::OnPacket(const Packet& packet, bool at_source) {
  if (at_source) {
    source_.OnPacket(packet);
  } else {
    sink_.OnPacket(packet);
  }
}

void UecFlow::OnTimer(FlowTimer timer) {
  if (timer == FlowTimer::kRetransmit) source_.OnRetransmitTimer();
}

UecSource::UecSource(FlowContext* context, const UecSettings& settings, FlowId id, const FlowSpec& spec,
                     uint8_t lane, Egress* egress, uint64_t rate_bps, uint64_t credit_bytes)
    : context_(*context),
      settings_(settings),
      id_(id),
      source_(spec.source),
      destination_(spec.destination),
      flow_hash_(spec.flow_hash != 0 ? spec.flow_hash
                                     : static_cast<uint32_t>(
                                           Random(context->seed, kRandomFlowHash, uint64_t{id} * 2).Next())),
      lane_(lane),
      egress_(egress),
      window_(WindowSettings(settings, rate_bps)),
      spray_(settings.paths, context->seed, id),
      credit_bytes_(static_cast<int64_t>(credit_bytes)),
      max_credit_bytes_(credit_bytes) {
  data_hook_.client = control_hook_.client = this;
  data_hook_.lane = lane;
  control_hook_.lane = settings.control_priority;
}

UecSource::~UecSource() {
  if (data_hook_.linked()) data_hook_.Unlink();
  if (control_hook_.linked()) control_hook_.Unlink();
}

void UecSource::Post(uint64_t bytes) {
  do {
    const auto part = static_cast<uint32_t>(std::min<uint64_t>(bytes, settings_.payload_bytes()));
    records_.emplace_back();
    records_.back().wire_bytes = part + settings_.header_bytes;
    backlog_bytes_ += records_.back().wire_bytes;
    bytes -= part;
  } while (bytes != 0);
  message_ends_.push_back(static_cast<uint32_t>(records_.size()));
  Activate();
}

bool UecSource::MaySend() const {
  if (to_repeat_.empty() && next_psn_ == records_.size()) return false;
  if (receiver_driven()) return credit_bytes_ > 0;
  const uint32_t psn = to_repeat_.empty() ? next_psn_ : *to_repeat_.begin();
  return in_flight_bytes_ + records_[psn].wire_bytes <= static_cast<int64_t>(window_.window_bytes());
}

void UecSource::Activate() {
  if (!MaySend()) return;
  egress_->AddData(&data_hook_);
  egress_->Kick();
}

uint64_t UecSource::PullTarget() const {
  if (!receiver_driven()) return 0;
  int64_t wanted =
      static_cast<int64_t>(std::min(backlog_bytes_ + repeat_bytes_, max_credit_bytes_)) - credit_bytes_;
  // A start always asks for a packet, however much credit it came with.
  const int64_t packet = settings_.packet_bytes;
  if (speculating_ && wanted < packet && backlog_bytes_ > 0) wanted = packet;
  return UnitsOf(static_cast<uint64_t>(
      std::max<int64_t>(0, wanted + static_cast<int64_t>(pull_units_ * kPullUnitBytes))));
}

Packet* UecSource::NextPacket() {
  if (!MaySend()) return nullptr;
  const bool repeat = !to_repeat_.empty();
  const uint32_t psn = repeat ? *to_repeat_.begin() : next_psn_++;
  Record& record = records_[psn];
  if (receiver_driven()) credit_bytes_ -= record.wire_bytes;
  if (repeat) {
    to_repeat_.erase(to_repeat_.begin());
    repeat_bytes_ -= record.wire_bytes;
    if (record.repeats < UINT8_MAX) ++record.repeats;
    ++context_.counters.retransmitted_packets;
  } else {
    backlog_bytes_ -= record.wire_bytes;
  }
  ++context_.counters.data_packets;
  record.state = State::kInFlight;
  record.sent_at = context_.Now();
  in_flight_bytes_ += record.wire_bytes;
  outstanding_.push_back({record.sent_at, psn});

  Packet* packet = context_.network->packets.New();
  packet->kind = PacketKind::kUecData;
  packet->psn = psn;
  packet->source = source_;
  packet->destination = destination_;
  packet->destination_qp = SinkNumber(id_);
  packet->lane = lane_;
  packet->ecn = kEcnCapable;
  packet->wire_bytes = record.wire_bytes;
  packet->payload_bytes = record.wire_bytes - settings_.header_bytes;
  const uint16_t path = spray_.Next();
  packet->imm_data = path;
  packet->flow = PathHash(flow_hash_, path);
  packet->compare_swap = repeat;
  packet->swap = PullTarget();
  // Whoever cannot go on asks for an answer.
  const bool stops = receiver_driven() ? credit_bytes_ <= 0
                                       : in_flight_bytes_ + record.wire_bytes >=
                                             static_cast<int64_t>(window_.window_bytes());
  if (repeat || backlog_bytes_ == 0 || stops) packet->flags |= kAckRequested;
  ArmTimer();
  return packet;
}

Packet* UecSource::TakeAck() {
  if (!request_due_) return nullptr;
  request_due_ = false;
  // A request to send: no payload, no sequence number of its own.
  Packet* packet = context_.network->packets.New();
  packet->kind = PacketKind::kUecData;
  packet->flags = kSolicited | kAckRequested;
  packet->psn = cumulative_;
  packet->source = source_;
  packet->destination = destination_;
  packet->destination_qp = SinkNumber(id_);
  packet->lane = settings_.control_priority;
  packet->wire_bytes = settings_.header_bytes;
  const uint16_t path = spray_.Next();
  packet->imm_data = path;
  packet->flow = PathHash(flow_hash_, path);
  packet->swap = PullTarget();
  return packet;
}

void UecSource::OnPacket(const Packet& packet) {
  switch (packet.kind) {
    case PacketKind::kUecAck:
      OnAck(packet);
      return;
    case PacketKind::kUecNack:
      OnNack(packet);
      return;
    default:
      OnPull(packet);
  }
}

void UecSource::StopSpeculating() {
  if (!speculating_) return;
  speculating_ = false;
  credit_bytes_ = std::min<int64_t>(credit_bytes_, 0);
}

void UecSource::Arrived(uint32_t psn) {
  Record& record = records_[psn];
  if (record.state == State::kToRepeat) {
    // Taken out of the bytes in flight when it was given up.
    to_repeat_.erase(psn);
    repeat_bytes_ -= record.wire_bytes;
    in_flight_bytes_ += record.wire_bytes;
  }
  record.state = State::kArrived;
}

void UecSource::OnAck(const Packet& packet) {
  const Picos now = context_.Now();
  const uint64_t received = packet.compare_or_add;
  const uint64_t fresh = received > received_bytes_ ? received - received_bytes_ : 0;
  received_bytes_ += fresh;
  window_.CountReceived(fresh);
  in_flight_bytes_ -= static_cast<int64_t>(fresh);

  const bool marked = packet.ecn == kEcnCongestion;
  const bool of_data = (packet.flags & kSolicited) == 0;
  // Only the answer to the one sending of a packet tells a round-trip time.
  Picos delay = window_.average_delay();
  if (of_data && packet.psn < records_.size()) {
    const Record& record = records_[packet.psn];
    if (record.state == State::kInFlight && record.repeats == (packet.compare_swap ? 1 : 0)) {
      delay = window_.OnDelaySample(now - record.sent_at, marked);
    }
  }
  for (const auto end = static_cast<uint32_t>(packet.length); cumulative_ < end; ++cumulative_)
    Arrived(cumulative_);
  uint64_t bitmap = packet.remote_address;
  for (uint32_t psn = packet.rkey; bitmap != 0 && psn < records_.size(); ++psn, bitmap >>= 1) {
    if ((bitmap & 1) != 0 && records_[psn].state != State::kArrived) Arrived(psn);
  }
  if (of_data) {
    spray_.OnFeedback(static_cast<uint16_t>(packet.imm_data),
                      marked ? PathFeedback::kMarked : PathFeedback::kGood);
  }
  if (!receiver_driven()) {
    window_.OnAck(now, marked, delay, fresh, static_cast<uint64_t>(std::max<int64_t>(0, in_flight_bytes_)));
  }
  StopSpeculating();
  CompleteMessages();
  Activate();
}

void UecSource::CompleteMessages() {
  while (!message_ends_.empty() && message_ends_.front() <= cumulative_) {
    message_ends_.pop_front();
    context_.observer->OnSent(id_, messages_done_++);
  }
}

void UecSource::OnNack(const Packet& packet) {
  Record& record = records_[packet.psn];
  if (record.state != State::kInFlight) return;
  ++context_.counters.naks;
  const Picos now = context_.Now();
  window_.OnRtt(now - record.sent_at);
  if (!receiver_driven()) {
    window_.OnTrim(now, record.wire_bytes, static_cast<uint64_t>(std::max<int64_t>(0, in_flight_bytes_)));
  }
  in_flight_bytes_ -= record.wire_bytes;
  record.state = State::kToRepeat;
  to_repeat_.insert(packet.psn);
  repeat_bytes_ += record.wire_bytes;
  StopSpeculating();
  // Nearly all trimming is at the receiver's own link, which says nothing against the path.
  spray_.OnFeedback(static_cast<uint16_t>(packet.imm_data), PathFeedback::kGood);
  Activate();
}

void UecSource::OnPull(const Packet& packet) {
  StopSpeculating();
  if (packet.swap > pull_units_) {
    const auto more = static_cast<int64_t>((packet.swap - pull_units_) * kPullUnitBytes);
    credit_bytes_ = std::min(credit_bytes_ + more, static_cast<int64_t>(max_credit_bytes_));
    pull_units_ = packet.swap;
  }
  Activate();
}

void UecSource::ArmTimer() {
  if (timer_event_at_ != kNever) return;
  timer_event_at_ = context_.Now() + settings_.retransmit_timeout;
  context_.SetTimer(timer_event_at_, FlowTimer::kRetransmit, id_);
}

void UecSource::OnRetransmitTimer() {
  timer_event_at_ = kNever;
  const Picos now = context_.Now();
  const auto out_of_date = [&](const Outstanding& entry) {
    const Record& record = records_[entry.psn];
    return record.state != State::kInFlight || record.sent_at != entry.sent_at;
  };
  bool expired = false;
  while (!outstanding_.empty()) {
    const Outstanding entry = outstanding_.front();
    if (!out_of_date(entry)) {
      if (entry.sent_at + settings_.retransmit_timeout > now) break;
      expired = true;
      ++context_.counters.timeouts;
      Record& record = records_[entry.psn];
      record.state = State::kToRepeat;
      in_flight_bytes_ -= record.wire_bytes;
      to_repeat_.insert(entry.psn);
      repeat_bytes_ += record.wire_bytes;
      window_.OnTimeout(record.wire_bytes);
    }
    outstanding_.pop_front();
  }
  if (expired) StopSpeculating();
  const bool blocked = !to_repeat_.empty() && !MaySend();
  if (blocked) {
    // The receiver may not know that there is something to send.
    request_due_ = true;
    egress_->AddAck(&control_hook_);
    egress_->Kick();
  }
  Activate();
  if (blocked) {
    ArmTimer();
  } else if (!outstanding_.empty() && timer_event_at_ == kNever) {
    timer_event_at_ = std::max(now + 1, outstanding_.front().sent_at + settings_.retransmit_timeout);
    context_.SetTimer(timer_event_at_, FlowTimer::kRetransmit, id_);
  }
}

}  // namespace sluice::soft
