#include "verbs/soft/model/switch_port.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "verbs/soft/model/network.h"
#include "verbs/soft/model/switch.h"

namespace sluice::soft {

SwitchPort::SwitchPort(NetworkContext* context, Switch* owner, uint32_t index, const SwitchSettings* settings,
                       bool infiniband, bool credits)
    : context_(context),
      owner_(owner),
      index_(index),
      credits_(credits),
      arbiter_(settings, infiniband),
      gate_(context),
      pauses_(context, settings) {}

void SwitchPort::Connect(Transmitter* transmitter, SendGate* upstream) {
  transmitter_ = transmitter;
  upstream_ = upstream;
  gate_.set_transmitter(transmitter);
  pauses_.set_transmitter(transmitter);
}

Packet* SwitchPort::NextPacket() {
  const Picos now = context_->scheduler.Now();
  Settle(now);
  uint32_t eligible = nonempty_ & ~gate_.paused();
  if (gate_.has_credits()) {
    for (uint32_t rest = eligible; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
      if (!gate_.Allows(lane, queues_[lane].packets.front()->wire_bytes)) eligible &= ~(1U << lane);
    }
  }
  const uint32_t lane = eligible == 0 ? kLanes : arbiter_.Pick(eligible);
  if (lane == kLanes) {
    if (nonempty_ != 0) {
      gate_.Block();
    } else {
      gate_.Unblock();
    }
    return nullptr;
  }
  gate_.Unblock();
  Packet* packet = Dequeue(lane, now);
  const uint32_t bytes = packet->wire_bytes;
  arbiter_.Sent(lane, bytes);
  gate_.Take(lane, bytes);
  if (owner_->marks_at_dequeue()) owner_->MaybeMark(&queues_[lane], transmitter_->rate_bps(), packet);
  SwitchPort* in = owner_->port(packet->ingress);
  if (in->credits_) {
    in->ReturnCredits(lane, bytes, now + transmitter_->TimeOf(bytes));
  } else if (owner_->settings().queue == QueueMode::kLossless) {
    in_service_ = {bytes, packet->ingress, static_cast<uint8_t>(lane)};
    release_wanted_ = (in->pauses_.paused() >> lane & 1) != 0;
  }
  return packet;
}

Packet* SwitchPort::Dequeue(uint32_t lane, Picos now) {
  LaneQueue& queue = queues_[lane];
  if (queue.packets.empty()) return nullptr;
  Packet* packet = queue.packets.Pop();
  if (queue.packets.empty()) nonempty_ &= ~(1U << lane);
  Account(&queue, now);
  queue.bytes -= packet->wire_bytes;
  total_bytes_ -= packet->wire_bytes;
  owner_->network()->LeftSwitch(*packet);
  return packet;
}

void SwitchPort::ReleaseInService() {
  const InService done = in_service_;
  in_service_.bytes = 0;
  release_wanted_ = false;
  owner_->Release(done.ingress, done.lane, done.bytes);
}

void SwitchPort::WatchRelease(uint32_t ingress) {
  if (in_service_.bytes == 0 || in_service_.ingress != ingress) return;
  release_wanted_ = true;
  transmitter_->KickWhenIdle();
}

void SwitchPort::Enqueue(Packet* packet, Picos now) {
  LaneQueue& queue = queues_[packet->lane];
  Account(&queue, now);
  queue.packets.Push(packet);
  queue.bytes += packet->wire_bytes;
  queue.peak_bytes = std::max(queue.peak_bytes, queue.bytes);
  ++queue.joined;
  total_bytes_ += packet->wire_bytes;
  nonempty_ |= 1U << packet->lane;
}

void SwitchPort::ReplaceNewest(Packet* packet, Picos now) {
  LaneQueue& queue = queues_[packet->lane];
  Packet* newest = queue.packets.back();
  Account(&queue, now);
  queue.bytes += packet->wire_bytes - uint64_t{newest->wire_bytes};
  total_bytes_ += packet->wire_bytes - uint64_t{newest->wire_bytes};
  owner_->network()->LeftSwitch(*newest);
  owner_->network()->JoinedSwitch(*packet);
  packet->next = nullptr;  // as that of the newest
  std::swap(*packet, *newest);
}

void SwitchPort::Receive(Packet* packet) {
  if (packet->kind == PacketKind::kPfcPause) {
    gate_.OnPause(*packet, owner_->settings().pause_response);
    context_->packets.Delete(packet);
    return;
  }
  owner_->Forward(this, packet);
}

uint32_t SwitchPort::StoredBlocks(uint32_t lane) const {
  return tails_[lane] + owner_->QueuedBlocks(index_, lane);
}

void SwitchPort::ReturnCredits(uint32_t lane, uint32_t wire_bytes, Picos at) {
  const Picos leaves = std::max(at + owner_->settings().credit_processing, transmitter_->busy_until());
  upstream_->ReturnCredits(lane, CreditsOf(wire_bytes), leaves + transmitter_->delay());
}

void SwitchPort::OnLost(const Packet& packet) {
  if (!gate_.has_credits()) return;
  // The counters of the two ends are absolute: the next update includes what was lost.
  gate_.ReturnCredits(
      packet.lane, CreditsOf(packet.wire_bytes),
      context_->scheduler.Now() + 2 * transmitter_->delay() + owner_->settings().credit_processing);
}

}  // namespace sluice::soft
