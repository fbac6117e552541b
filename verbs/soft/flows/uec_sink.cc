#include <algorithm>

#include "verbs/soft/flows/random.h"
#include "verbs/soft/flows/uec_flow.h"
#include "verbs/soft/flows/uec_pull_pacer.h"

namespace sluice::soft {
namespace {

constexpr uint32_t kBitmapPackets = 64;
constexpr uint32_t kPullPaths = 128;

}  // namespace

UecSink::UecSink(FlowContext* context, const UecSettings& settings, FlowId id, const FlowSpec& spec,
                 Egress* egress, UecPullPacer* pacer)
    : context_(*context),
      settings_(settings),
      id_(id),
      source_(spec.destination),
      destination_(spec.source),
      flow_hash_(
          spec.ack_hash != 0
              ? spec.ack_hash
              : static_cast<uint32_t>(Random(context->seed, kRandomFlowHash, uint64_t{id} * 2 + 1).Next())),
      egress_(egress),
      pacer_(pacer) {
  hook_.client = this;
  hook_.lane = settings.control_priority;
}

UecSink::~UecSink() {
  if (hook_.linked()) hook_.Unlink();
  while (!control_.empty()) context_.network->packets.Delete(control_.Pop());
}

Packet* UecSink::NewControl(PacketKind kind) {
  Packet* packet = context_.network->packets.New();
  packet->kind = kind;
  packet->source = source_;
  packet->destination = destination_;
  packet->destination_qp = SourceNumber(id_);
  packet->flow = flow_hash_;
  packet->lane = settings_.control_priority;
  packet->wire_bytes = settings_.header_bytes;
  return packet;
}

void UecSink::Queue(Packet* packet) {
  control_.Push(packet);
  egress_->AddAck(&hook_);
  egress_->Kick();
}

Packet* UecSink::TakeAck() {
  if (control_.empty()) return nullptr;
  Packet* packet = control_.Pop();
  if (!control_.empty()) egress_->AddAck(&hook_);
  return packet;
}

void UecSink::OnPacket(const Packet& packet) {
  if ((packet.flags & kSolicited) != 0) {
    // A request to send.
    Want(packet.swap);
    RequestPull();
    SendAck(packet, false);
  } else if (packet.trimmed) {
    OnTrimmed(packet);
  } else {
    OnData(packet);
  }
}

void UecSink::Want(uint64_t units) {
  if (pacer_ == nullptr || units <= wanted_units_) return;
  wanted_units_ = units;
  RequestPull();
}

void UecSink::RequestPull() {
  if (pacer_ == nullptr || in_pull_queue_) return;
  in_pull_queue_ = true;
  pacer_->Request(this);
}

void UecSink::OnTrimmed(const Packet& packet) {
  ++context_.counters.trimmed;
  if (Has(packet.psn)) {
    SendAck(packet, false);
    return;
  }
  Want(packet.swap);
  Packet* nack = NewControl(PacketKind::kUecNack);
  nack->psn = packet.psn;
  nack->imm_data = packet.imm_data;
  Queue(nack);
  RequestPull();
}

void UecSink::OnData(const Packet& packet) {
  const bool marked = packet.ecn == kEcnCongestion;
  unacknowledged_bytes_ += packet.wire_bytes;
  Want(packet.swap);
  if (Has(packet.psn)) {
    ++context_.counters.duplicates;
    SendAck(packet, marked);
    return;
  }
  bool answer = received_bytes_ == 0 || marked;
  received_bytes_ += packet.wire_bytes;
  const bool asked = (packet.flags & kAckRequested) != 0;
  if (asked) answer = ack_when_whole_ = true;
  if (packet.psn == expected_) {
    ++expected_;
    while (expected_ < here_.size() && here_[expected_] != 0) {
      here_[expected_++] = 0;
      --gaps_filled_late_;
    }
    if (gaps_filled_late_ == 0 && ack_when_whole_) {
      answer = true;
      ack_when_whole_ = false;
    }
    while (!message_ends_.empty() && message_ends_.front() <= expected_) {
      message_ends_.pop_front();
      context_.observer->OnReceived(id_, messages_done_++);
    }
  } else {
    if (here_.size() <= packet.psn + kBitmapPackets) here_.resize(packet.psn + 2 * kBitmapPackets, 0);
    here_[packet.psn] = 1;
    ++gaps_filled_late_;
    ++context_.counters.reordered;
  }
  if (answer || unacknowledged_bytes_ >= settings_.ack_bytes) SendAck(packet, marked || asked);
}

void UecSink::SendAck(const Packet& packet, bool selective) {
  unacknowledged_bytes_ = 0;
  const uint32_t base =
      selective
          ? packet.psn
          : std::max(packet.psn < kBitmapPackets ? 0 : packet.psn - (kBitmapPackets - 1), expected_ + 1);
  uint64_t bitmap = 0;
  for (uint32_t i = 0; i < kBitmapPackets && base + i < here_.size(); ++i) {
    if (here_[base + i] != 0) bitmap |= uint64_t{1} << i;
  }
  Packet* ack = NewControl(PacketKind::kUecAck);
  ack->psn = packet.psn;
  ack->length = expected_;
  ack->rkey = base;
  ack->remote_address = bitmap;
  ack->imm_data = packet.imm_data;
  ack->compare_or_add = received_bytes_;
  ack->compare_swap = packet.compare_swap;
  // The echo of the mark. Switches mark only what is capable of it.
  ack->ecn = packet.ecn == kEcnCongestion ? kEcnCongestion : kEcnNotCapable;
  if ((packet.flags & kSolicited) != 0) ack->flags |= kSolicited;
  Queue(ack);
}

uint64_t UecSink::Pull() {
  const uint64_t units = std::min(demand_units(), kPullUnits);
  granted_units_ += units;
  SendPull();
  return units;
}

void UecSink::PullInAdvance(uint64_t units) {
  granted_units_ += units;
  SendPull();
}

void UecSink::SendPull() {
  Packet* pull = NewControl(PacketKind::kUecPull);
  pull->swap = granted_units_;
  pull->flow ^= (++pulls_ % kPullPaths) * 0x9E3779B1U;
  Queue(pull);
}

}  // namespace sluice::soft
