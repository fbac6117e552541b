#include "verbs/soft/model/egress.h"

#include <algorithm>
#include <bit>

#include "verbs/soft/model/dcqcn.h"

namespace sluice::soft {
namespace {

constexpr uint32_t kMaxPacketBytes = 4096 + 122;
constexpr uint32_t kAckBytes = 2 * kCreditBytes;  // at the most, and what else a NIC sends of itself

const SwitchSettings& DefaultSettings() {
  static const SwitchSettings* settings = new SwitchSettings;
  return *settings;
}

}  // namespace

Egress::Egress(NetworkContext* context, PortCounters* counters, HostInterface* host)
    : context_(context),
      counters_(counters),
      host_(host),
      arbiter_(&DefaultSettings(), false),
      gate_(context) {
  waiting_.previous = waiting_.next = &waiting_;
  for (Lane& lane : lanes_) {
    lane.acks.previous = lane.acks.next = &lane.acks;
    lane.data.previous = lane.data.next = &lane.data;
  }
}

void Egress::OnConnected(const EdgeLink& link) {
  transmitter_ = link.uplink;
  arbiter_ = LaneArbiter(link.settings, link.infiniband);
  staging_ = host_->stages() || link.credits;
  // Enough for a link that never waits for memory; with credits alone, the one packet whose size decides.
  stage_limit_bytes_ = 1;
  if (host_->stages()) {
    stage_limit_bytes_ =
        2 * kMaxPacketBytes +
        static_cast<uint32_t>(static_cast<unsigned __int128>(host_->settings().pcie_read) *
                              link.uplink->rate_bps() / 8 / static_cast<uint64_t>(kPicosPerSecond));
  }
}

void Egress::Append(RingHook* ring, RingHook* hook, uint32_t* lanes) {
  *lanes |= 1U << hook->lane;
  if (hook->linked()) return;
  hook->previous = ring->previous;
  hook->next = ring;
  ring->previous->next = hook;
  ring->previous = hook;
}

void Egress::SendNow(Packet* packet) {
  lanes_[packet->lane].own.Push(packet);
  own_lanes_ |= 1U << packet->lane;
  Kick();
}

void Egress::Count(const Packet& packet) {
  if (counters_ == nullptr) return;
  ++counters_->tx_packets;
  counters_->tx_bytes += packet.wire_bytes;
  counters_->tx_payload_bytes += packet.payload_bytes;
  counters_->tx_bytes_by_sl[packet.sl] += packet.wire_bytes;
  counters_->tx_bytes_by_traffic_class[packet.traffic_class] += packet.wire_bytes;
}

Packet* Egress::TakeAck(uint32_t lane) {
  RingHook& ring = lanes_[lane].acks;
  while (ring.next != &ring) {
    RingHook* hook = ring.next;
    hook->Unlink();
    if (Packet* packet = hook->client->TakeAck()) return packet;
  }
  ack_lanes_ &= ~(1U << lane);
  return nullptr;
}

Packet* Egress::TakeData(uint32_t lane) {
  RingHook& ring = lanes_[lane].data;
  while (ring.next != &ring) {
    RingHook* hook = ring.next;
    hook->Unlink();
    const Picos now = context_->scheduler.Now();
    if (hook->rate != nullptr && hook->due > now) {
      Postpone(hook);
      continue;
    }
    Packet* packet = hook->client->NextPacket();
    if (packet == nullptr) {
      hook->burst = 0;
      continue;
    }
    if (staging_ && host_->stages()) {
      Picos start = now;
      if ((packet->flags & kFirstPacket) != 0) start = host_->StartRequest(now, &hook->due);
      packet->arrival =
          std::max(start + host_->settings().pcie_read, host_->Read(now, packet->payload_bytes));
    }
    if (hook->rate != nullptr) {
      hook->rate->OnSent(now, packet->wire_bytes);
      hook->due = std::max(hook->due, now) + SerialisationTime(packet->wire_bytes, hook->rate->rate_bps(now));
    }
    // The client may have added its hook itself.
    if (hook->linked()) return packet;
    if (++hook->burst < host_->settings().burst_packets) {
      hook->next = ring.next;
      hook->previous = &ring;
      ring.next->previous = hook;
      ring.next = hook;
    } else {
      hook->burst = 0;
      Append(&ring, hook, &data_lanes_);
    }
    return packet;
  }
  data_lanes_ &= ~(1U << lane);
  return nullptr;
}

void Egress::Postpone(RingHook* hook) {
  // Sorted from the back: most come later than those that wait.
  RingHook* after = waiting_.previous;
  while (after != &waiting_ && after->due > hook->due) after = after->previous;
  hook->previous = after;
  hook->next = after->next;
  after->next->previous = hook;
  after->next = hook;
  if (waiting_.next != hook || due_wake_ <= hook->due) return;
  due_wake_ = hook->due;
  context_->scheduler.At(due_wake_, this, kDue);
}

void Egress::StageLane(uint32_t index) {
  Lane& lane = lanes_[index];
  while (lane.staged_bytes < stage_limit_bytes_) {
    Packet* packet = TakeData(index);
    if (packet == nullptr) return;
    if (!host_->stages()) packet->arrival = 0;
    lane.staged.Push(packet);
    lane.staged_bytes += packet->wire_bytes;
    staged_lanes_ |= 1U << index;
  }
}

void Egress::Stage() {
  // A client that is asked for a packet may kick.
  if (in_stage_) return;
  in_stage_ = true;
  // A lane is done when it is full, or its ring empty; a client that is asked may fill the ring of another lane.
  uint32_t full = 0;
  while (const uint32_t rest = data_lanes_ & ~full) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    StageLane(lane);
    if (lanes_[lane].staged_bytes >= stage_limit_bytes_) full |= 1U << lane;
  }
  in_stage_ = false;
}

void Egress::WakeAt(Picos at) {
  if (staged_wake_ <= at) return;
  staged_wake_ = at;
  context_->scheduler.At(at, this, kStaged);
}

uint32_t Egress::Eligible(Picos now, uint32_t* ready) {
  uint32_t small = ack_lanes_ | own_lanes_;
  uint32_t large = data_lanes_;
  if (staging_) {
    large = 0;
    for (uint32_t rest = staged_lanes_; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
      const Packet& head = *lanes_[lane].staged.front();
      if (head.arrival <= now) {
        large |= 1U << lane;
      } else {
        WakeAt(head.arrival);
      }
    }
  }
  const uint32_t heads = large;
  *ready = small | heads;
  small &= ~gate_.paused();
  large &= ~gate_.paused();
  if (!gate_.has_credits()) return small | large;
  for (uint32_t rest = small; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    if (gate_.Allows(lane, kAckBytes)) continue;
    small &= ~(1U << lane);
    // Nothing waits where the clients have left.
    if (lanes_[lane].own.empty() && lanes_[lane].acks.next == &lanes_[lane].acks) {
      ack_lanes_ &= ~(1U << lane);
      *ready = ack_lanes_ | own_lanes_ | heads;
    }
  }
  for (uint32_t rest = large; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    if (!gate_.Allows(lane, lanes_[lane].staged.front()->wire_bytes)) large &= ~(1U << lane);
  }
  return small | large;
}

Packet* Egress::TakeFrom(uint32_t index, Picos now) {
  Lane& lane = lanes_[index];
  // Credits for a short data packet may be too few for an acknowledgement.
  const bool small = gate_.Allows(index, kAckBytes);
  if (small && !lane.own.empty()) {
    Packet* packet = lane.own.Pop();
    if (lane.own.empty()) own_lanes_ &= ~(1U << index);
    return packet;
  }
  if (small && (ack_lanes_ >> index & 1) != 0) {
    // Not first: in turn with data.
    lane.ack_turn = !lane.ack_turn || host_->settings().acks_first;
    const uint32_t data = staging_ ? staged_lanes_ : data_lanes_;
    if (lane.ack_turn || (data >> index & 1) == 0) {
      if (Packet* packet = TakeAck(index)) return packet;
    }
  }
  if (!staging_) {
    Packet* packet = (data_lanes_ >> index & 1) != 0 ? TakeData(index) : nullptr;
    return packet != nullptr || (ack_lanes_ >> index & 1) == 0 ? packet : TakeAck(index);
  }
  if (lane.staged.empty() || lane.staged.front()->arrival > now ||
      !gate_.Allows(index, lane.staged.front()->wire_bytes)) {
    return small && (ack_lanes_ >> index & 1) != 0 ? TakeAck(index) : nullptr;
  }
  Packet* packet = lane.staged.Pop();
  lane.staged_bytes -= packet->wire_bytes;
  if (lane.staged.empty()) staged_lanes_ &= ~(1U << index);
  return packet;
}

Packet* Egress::NextPacket() {
  const Picos now = context_->scheduler.Now();
  if (staging_) Stage();
  for (;;) {
    uint32_t ready = 0;
    const uint32_t eligible = Eligible(now, &ready);
    const uint32_t lane = eligible == 0 ? kLanes : arbiter_.Pick(eligible);
    if (lane == kLanes) {
      // What waited may have gone: an acknowledgement that others make unnecessary.
      if (ready != 0) {
        gate_.Block();
      } else {
        gate_.Unblock();
      }
      return nullptr;
    }
    Packet* packet = TakeFrom(lane, now);
    if (packet == nullptr) continue;
    gate_.Unblock();
    gate_.Take(lane, packet->wire_bytes);
    arbiter_.Sent(lane, packet->wire_bytes);
    Count(*packet);
    return packet;
  }
}

void Egress::OnLost(const Packet& packet) {
  if (!gate_.has_credits()) return;
  gate_.ReturnCredits(packet.lane, CreditsOf(packet.wire_bytes),
                      context_->scheduler.Now() + 2 * transmitter_->delay());
}

void Egress::OnEvent(uint32_t kind, uint64_t) {
  const Picos now = context_->scheduler.Now();
  if (kind == kStaged) {
    if (staged_wake_ != now) return;
    staged_wake_ = kNever;
    transmitter_->Kick();
    return;
  }
  if (due_wake_ != now) return;
  due_wake_ = kNever;
  while (waiting_.next != &waiting_ && waiting_.next->due <= now) {
    RingHook* hook = waiting_.next;
    hook->Unlink();
    AddData(hook);
  }
  if (waiting_.next != &waiting_) {
    due_wake_ = waiting_.next->due;
    context_->scheduler.At(due_wake_, this, kDue);
  }
  Kick();
}

}  // namespace sluice::soft
