#include "verbs/soft/flows/rc_flow.h"

#include <algorithm>

#include "verbs/soft/flows/random.h"
#include "verbs/soft/model/psn.h"

namespace sluice::soft {
namespace {

constexpr uint32_t kFirstPsn = 1;
// Half of the PSN space separates old from new.
constexpr uint64_t kPsnWindow = uint64_t{1} << 22;

uint32_t HashOf(uint32_t given, const FlowContext& context, FlowId id, uint32_t direction) {
  if (given != 0) return given;
  return static_cast<uint32_t>(Random(context.seed, kRandomFlowHash, uint64_t{id} * 2 + direction).Next());
}

}  // namespace

RcFlow::RcFlow(FlowContext* context, FlowId id, const FlowSpec& spec, uint8_t lane, Egress* source,
               Egress* sink, uint64_t link_rate_bps)
    : sender_(context, id, spec, lane, source, link_rate_bps), receiver_(context, id, spec, lane, sink) {}

void RcFlow::OnPacket(const Packet& packet, bool at_source) {
  if (packet.kind == PacketKind::kCnp) {
    sender_.OnCongestion();
  } else if (at_source) {
    sender_.OnAnswer(packet);
  } else {
    receiver_.OnData(packet);
  }
}

void RcFlow::OnTimer(FlowTimer timer) {
  if (timer == FlowTimer::kRetransmit) {
    sender_.OnRetransmitTimer();
  } else if (timer == FlowTimer::kPace) {
    sender_.pacing_event_ = false;
    sender_.Activate();
  }
}

RcSender::RcSender(FlowContext* context, FlowId id, const FlowSpec& spec, uint8_t lane, Egress* egress,
                   uint64_t link_rate_bps)
    : context_(*context),
      egress_(egress),
      control_(spec.control == nullptr ? nullptr : spec.control->Make()),
      post_psn_(StartPsn(kFirstPsn)),
      una_(post_psn_),
      tx_psn_(post_psn_),
      max_sent_(post_psn_),
      una_first_(post_psn_),
      tx_first_(post_psn_),
      source_(spec.source),
      destination_(spec.destination),
      flow_hash_(HashOf(spec.flow_hash, *context, id, 0)),
      id_(id),
      lane_(lane),
      sl_(spec.sl),
      traffic_class_(spec.traffic_class),
      retries_left_(context->rc.retry_count) {
  hook_.client = this;
  hook_.lane = lane;
  if (context->nic->rate_control == RateControl::kDcqcn) {
    rate_ = std::make_unique<DcqcnRate>(&context->nic->dcqcn, link_rate_bps);
    hook_.rate = rate_.get();
  }
}

void RcSender::OnCongestion() {
  if (rate_ != nullptr) rate_->OnCnp(context_.Now());
}

void RcSender::Post(uint64_t bytes) {
  const uint64_t packets =
      std::max<uint64_t>(1, (bytes + context_.rc.payload_bytes - 1) / context_.rc.payload_bytes);
  Message& message = messages_.PushBack();
  message.bytes = bytes;
  post_psn_ += packets;
  message.end_psn = post_psn_;
  Activate();
}

void RcSender::Activate() {
  if (tx_psn_ == post_psn_ || failed_) return;
  egress_->AddData(&hook_);
  egress_->Kick();
}

bool RcSender::HeldBack(uint32_t bytes) {
  if (!control_->MaySend(tx_bytes_ - BytesAt(una_), bytes)) return true;
  const Picos not_before = control_->NotBefore();
  if (not_before <= context_.Now()) return false;
  if (!pacing_event_) {
    pacing_event_ = true;
    context_.SetTimer(not_before, FlowTimer::kPace, id_);
  }
  return true;
}

Packet* RcSender::NextPacket() {
  if (tx_psn_ == post_psn_ || failed_ || tx_psn_ - una_ >= kPsnWindow) return nullptr;
  const RcSettings& rc = context_.rc;
  const Message& message = messages_[tx_message_];
  const uint64_t index = tx_psn_ - tx_first_;
  const auto bytes =
      static_cast<uint32_t>(std::min<uint64_t>(rc.payload_bytes, message.bytes - index * rc.payload_bytes));
  if (control_ != nullptr && HeldBack(bytes)) return nullptr;

  Packet* packet = context_.network->packets.New();
  packet->kind = PacketKind::kWrite;
  packet->psn = static_cast<uint32_t>(tx_psn_ & 0xFFFFFF);
  packet->source = source_;
  packet->destination = destination_;
  packet->destination_qp = context_.first_number + SinkNumber(id_);
  packet->flow = flow_hash_;
  packet->lane = lane_;
  packet->sl = sl_;
  packet->traffic_class = traffic_class_;
  packet->payload_bytes = bytes;
  packet->wire_bytes = rc.header_bytes + bytes;
  packet->ecn = rate_ != nullptr ? kEcnCapable : kEcnNotCapable;
  if (index == 0) {
    packet->flags |= kFirstPacket;
    packet->wire_bytes += rc.first_bytes;
  }
  ++context_.counters.data_packets;
  if (tx_psn_ < max_sent_) {
    ++context_.counters.retransmitted_packets;
  } else {
    packet->length = static_cast<uint64_t>(context_.Now());
  }
  tx_bytes_ += bytes;
  if (++tx_psn_ == message.end_psn) {
    packet->flags |= kLastPacket | kAckRequested;
    packet->wire_bytes += rc.last_bytes;
    tx_first_ = tx_psn_;
    ++tx_message_;
  } else if (index % rc.ack_interval_packets == rc.ack_interval_packets - 1) {
    packet->flags |= kAckRequested;
  }
  max_sent_ = std::max(max_sent_, tx_psn_);
  if (control_ != nullptr) {
    control_->OnSent(context_.Now(), packet->wire_bytes);
    // Nobody else would ask for the answer that opens the window again.
    if (!control_->MaySend(tx_bytes_ - BytesAt(una_), rc.payload_bytes)) packet->flags |= kAckRequested;
  }
  if ((packet->flags & kAckRequested) != 0) {
    ack_expected_ = tx_psn_;
    if (timer_deadline_ == kNever) ArmTimer();
  }
  return packet;
}

uint64_t RcSender::BytesAt(uint64_t psn) const {
  if (messages_.empty()) return una_bytes_;
  const uint64_t bytes = (psn - una_first_) * context_.rc.payload_bytes;
  return una_bytes_ + std::min(bytes, messages_[messages_.begin()].bytes);
}

void RcSender::OnAnswer(const Packet& packet) {
  if (failed_) return;
  const uint64_t psn = ExtendPsn(una_, packet.psn);
  const Picos sent_at = static_cast<Picos>(packet.length);
  const Picos rtt = sent_at == 0 ? 0 : context_.Now() - sent_at;
  if (packet.syndrome == Syndrome::kAck) {
    AckThrough(psn + 1, rtt);
    return;
  }
  AckThrough(psn, rtt);
  // A NAK for what has been sent again meanwhile.
  if (una_ != psn || psn >= max_sent_) return;
  ++context_.counters.naks;
  if (control_ != nullptr) control_->OnLoss(context_.Now());
  if (SpendRetry()) GoBack();
}

void RcSender::AckThrough(uint64_t end, Picos rtt) {
  end = std::min(end, max_sent_);
  if (end <= una_) return;
  const uint64_t before = BytesAt(una_);
  una_ = end;
  retries_left_ = context_.rc.retry_count;
  while (!messages_.empty() && messages_.front().end_psn <= una_) {
    una_first_ = messages_.front().end_psn;
    una_bytes_ += messages_.front().bytes;
    const uint64_t number = messages_.begin();
    messages_.PopFront();
    context_.observer->OnSent(id_, number);
  }
  // An answer may come for packets that were about to be sent again.
  if (tx_psn_ < una_) {
    tx_psn_ = una_;
    tx_message_ = messages_.begin();
    tx_first_ = una_first_;
    tx_bytes_ = BytesAt(una_);
  }
  if (control_ != nullptr) {
    const uint64_t acked = BytesAt(una_);
    control_->OnAck({context_.Now(), acked - before, tx_bytes_ - acked, rtt});
  }
  timer_deadline_ = kNever;
  if (ack_expected_ > una_) ArmTimer();
  Activate();
}

void RcSender::GoBack() {
  timer_deadline_ = kNever;
  ack_expected_ = 0;
  tx_psn_ = una_;
  tx_message_ = messages_.begin();
  tx_first_ = una_first_;
  tx_bytes_ = BytesAt(una_);
  Activate();
}

bool RcSender::SpendRetry() {
  if (retries_left_ != 0) {
    --retries_left_;
    return true;
  }
  failed_ = true;
  timer_deadline_ = kNever;
  ++context_.counters.failed_flows;
  if (hook_.linked()) hook_.Unlink();
  context_.observer->OnFailed(id_);
  return false;
}

void RcSender::ArmTimer() {
  const RcSettings& rc = context_.rc;
  if (rc.timeout == 0) return;
  const Picos base = Picos{4'096'000} << rc.timeout;
  timer_deadline_ = context_.Now() + static_cast<Picos>(static_cast<double>(base) * rc.timer_factor);
  if (timer_event_at_ <= timer_deadline_) return;
  timer_event_at_ = timer_deadline_;
  context_.SetTimer(timer_deadline_, FlowTimer::kRetransmit, id_);
}

// One event is outstanding; it follows the deadline when it fires.
void RcSender::OnRetransmitTimer() {
  const Picos now = context_.Now();
  if (timer_event_at_ > now) return;
  timer_event_at_ = kNever;
  if (timer_deadline_ == kNever || failed_) return;
  if (timer_deadline_ > now) {
    timer_event_at_ = timer_deadline_;
    context_.SetTimer(timer_deadline_, FlowTimer::kRetransmit, id_);
    return;
  }
  ++context_.counters.timeouts;
  if (control_ != nullptr) control_->OnLoss(now);
  if (SpendRetry()) GoBack();
}

RcReceiver::RcReceiver(FlowContext* context, FlowId id, const FlowSpec& spec, uint8_t lane, Egress* egress)
    : context_(*context),
      egress_(egress),
      expected_(StartPsn(kFirstPsn)),
      source_(spec.destination),
      destination_(spec.source),
      flow_hash_(HashOf(spec.ack_hash, *context, id, 1)),
      id_(id),
      lane_(lane),
      sl_(spec.sl),
      traffic_class_(spec.traffic_class) {
  hook_.client = this;
  hook_.lane = lane;
}

void RcReceiver::OnData(const Packet& packet) {
  const uint64_t psn = ExtendPsn(expected_, packet.psn);
  if (packet.ecn == kEcnCongestion) Notify();
  const bool ask = (packet.flags & kAckRequested) != 0;
  const auto sent_at = static_cast<Picos>(packet.length);
  if (psn < expected_) {
    ++context_.counters.duplicates;
    if (ask) Answer(Syndrome::kAck, 0, 0);
    return;
  }
  if (psn > expected_) {
    if (Store(packet, psn)) return;
    if (nak_sent_) return;
    nak_sent_ = true;
    Answer(Syndrome::kSequenceError, expected_, sent_at);
    return;
  }
  nak_sent_ = false;
  nak_due_ = false;
  Accept((packet.flags & kLastPacket) != 0);
  bool answer = ask;
  while (stored_ != 0) {
    const uint64_t slot = expected_ % kReorderPackets;
    const uint64_t bit = uint64_t{1} << (slot % 64);
    if ((here_[slot / 64] & bit) == 0) break;
    here_[slot / 64] &= ~bit;
    --stored_;
    const bool last = (last_[slot / 64] & bit) != 0;
    last_[slot / 64] &= ~bit;
    Accept(last);
    answer = answer || ack_pending_;
  }
  if (answer) {
    ack_pending_ = ack_pending_ && stored_ != 0;
    Answer(Syndrome::kAck, 0, sent_at);
  }
}

bool RcReceiver::Store(const Packet& packet, uint64_t psn) {
  if (psn - expected_ >= std::min(context_.rc.reorder_packets, kReorderPackets)) return false;
  const uint64_t slot = psn % kReorderPackets;
  const uint64_t bit = uint64_t{1} << (slot % 64);
  if ((here_[slot / 64] & bit) != 0) {
    ++context_.counters.duplicates;
    return true;
  }
  ++context_.counters.reordered;
  ++stored_;
  here_[slot / 64] |= bit;
  if ((packet.flags & kLastPacket) != 0) last_[slot / 64] |= bit;
  if ((packet.flags & kAckRequested) != 0) ack_pending_ = true;
  return true;
}

void RcReceiver::Accept(bool last) {
  ++expected_;
  if (last) context_.observer->OnReceived(id_, messages_++);
}

void RcReceiver::Answer(Syndrome syndrome, uint64_t psn, Picos sent_at) {
  if (syndrome == Syndrome::kAck) {
    acks_due_ = context_.rc.ack_interval_packets == 1 ? acks_due_ + 1 : 1;
  } else {
    nak_due_ = true;
    nak_psn_ = psn;
  }
  sent_at_ = sent_at;
  egress_->AddAck(&hook_);
  egress_->Kick();
}

Packet* RcReceiver::NewPacket(PacketKind kind) const {
  Packet* packet = context_.network->packets.New();
  packet->kind = kind;
  packet->source = source_;
  packet->destination = destination_;
  packet->destination_qp = context_.first_number + SourceNumber(id_);
  packet->flow = flow_hash_;
  packet->lane = lane_;
  packet->sl = sl_;
  packet->traffic_class = traffic_class_;
  packet->wire_bytes = context_.rc.ack_bytes;
  return packet;
}

void RcReceiver::Notify() {
  const NicSettings& nic = *context_.nic;
  if (nic.rate_control != RateControl::kDcqcn || !notifier_.Due(context_.Now(), nic.dcqcn.cnp_interval))
    return;
  Packet* packet = NewPacket(PacketKind::kCnp);
  packet->lane = nic.cnp_priority;
  // An acknowledgement carries 4 bytes behind the base transport header, a CNP 16.
  packet->wire_bytes += kCnpExtensionBytes - 4;
  egress_->SendNow(packet);
}

Packet* RcReceiver::TakeAck() {
  if (acks_due_ == 0 && !nak_due_) return nullptr;
  Packet* packet = NewPacket(PacketKind::kAck);
  packet->length = static_cast<uint64_t>(sent_at_);
  if (nak_due_) {
    // It also acknowledges all that came before.
    nak_due_ = false;
    acks_due_ = 0;
    packet->syndrome = Syndrome::kSequenceError;
    packet->psn = static_cast<uint32_t>(nak_psn_ & 0xFFFFFF);
    return packet;
  }
  packet->syndrome = Syndrome::kAck;
  packet->psn = static_cast<uint32_t>((expected_ - 1) & 0xFFFFFF);
  if (--acks_due_ != 0) egress_->AddAck(&hook_);
  return packet;
}

}  // namespace sluice::soft
