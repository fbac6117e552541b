#include "verbs/soft/model/port.h"

namespace sluice::soft {
namespace {

// Through the NIC and back over its own host interface.
constexpr Picos kLoopDelay = 300 * kPicosPerNs;
constexpr uint32_t kLoopLinkId = UINT32_MAX;

const SwitchSettings& UnconnectedSettings() {
  static const SwitchSettings* settings = new SwitchSettings;
  return *settings;
}

}  // namespace

Port::Port(NetworkContext* context, PortOwner* owner, uint32_t number, uint32_t endpoint,
           const PortSpec& spec, HostInterface* host)
    : context_(context),
      owner_(owner),
      host_(host),
      number_(number),
      endpoint_(endpoint),
      spec_(spec),
      gids_(InitialGids(endpoint, spec.link_layer)),
      wire_(context, &counters_, host),
      loop_(context, nullptr, host),
      loop_sink_(this),
      loop_transmitter_(context, kLoopLinkId, spec.rate_bps, kLoopDelay, &loop_, &loop_sink_),
      pauses_(context, &UnconnectedSettings()) {
  loop_transmitter_.set_counted(false);
  loop_.set_transmitter(&loop_transmitter_);
}

const SwitchSettings& Port::switch_settings() const {
  return edge_.settings != nullptr ? *edge_.settings : UnconnectedSettings();
}

uint8_t Port::LaneOf(uint8_t sl, uint8_t traffic_class) const {
  const SwitchSettings& settings = switch_settings();
  return spec_.link_layer == LinkLayer::kInfiniBand ? settings.sl_to_vl[sl & 15]
                                                    : settings.dscp_to_priority[traffic_class >> 2];
}

void Port::OnConnected(const EdgeLink& link) {
  edge_ = link;
  wire_.OnConnected(link);
  pauses_ = PauseSender(context_, link.settings);
  pauses_.set_transmitter(link.uplink);
}

void Port::Finish(Packet* packet) {
  if (edge_.credits) {
    const Picos leaves =
        std::max(context_->scheduler.Now() + edge_.settings->credit_processing, edge_.uplink->busy_until());
    edge_.far_gate->ReturnCredits(packet->lane, CreditsOf(packet->wire_bytes),
                                  leaves + edge_.uplink->delay());
  }
  if (!up_ || packet->corrupted || packet->destination != endpoint_) {
    ++counters_.dropped_packets;
    if (packet->corrupted) {
      ++counters_.corrupted_packets;
      ++context_->statistics.corrupted_packets;
    }
  } else {
    ++counters_.rx_packets;
    counters_.rx_bytes += packet->wire_bytes;
    counters_.rx_payload_bytes += packet->payload_bytes;
    owner_->Deliver(this, *packet);
  }
  context_->packets.Delete(packet);
}

void Port::SetPaused(bool paused) {
  if (edge_.credits || edge_.infiniband || edge_.settings == nullptr || paused_ == paused) return;
  if (edge_.settings->queue != QueueMode::kLossless) return;
  paused_ = paused;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if ((edge_.settings->lossless_priorities >> lane & 1) == 0) continue;
    if (paused) {
      pauses_.Pause(lane);
    } else {
      pauses_.Resume(lane);
    }
  }
}

void Port::Backlog(Packet* packet, Picos done) {
  const uint64_t limit = host_->settings().receive_buffer_bytes;
  // Credits are the limit of an InfiniBand port.
  if (!edge_.credits && backlog_bytes_ + packet->wire_bytes > limit) {
    ++counters_.dropped_packets;
    ++context_->statistics.dropped_packets;
    context_->packets.Delete(packet);
    return;
  }
  packet->arrival = done;
  backlog_bytes_ += packet->wire_bytes;
  backlog_.Push(packet);
  ScheduleDrain();
  if (backlog_bytes_ > limit / 2) SetPaused(true);
}

void Port::ScheduleDrain() {
  if (drain_event_ || stalled_ || backlog_.empty()) return;
  drain_event_ = true;
  context_->scheduler.At(backlog_.front()->arrival, this, 0);
}

void Port::SetStalled(bool stalled) {
  stalled_ = stalled;
  ScheduleDrain();
}

void Port::Receive(Packet* packet) {
  if (packet->kind == PacketKind::kPfcPause) {
    wire_.gate()->OnPause(*packet, switch_settings().pause_response);
    context_->packets.Delete(packet);
    return;
  }
  const Picos now = context_->scheduler.Now();
  const Picos free = host_->write_free();
  const Picos done = host_->Write(now, packet->payload_bytes);
  // While the host keeps up a write costs nothing that anybody would see.
  if (free <= now && backlog_.empty() && !stalled_) {
    Finish(packet);
  } else {
    Backlog(packet, done);
  }
}

void Port::OnEvent(uint32_t, uint64_t) {
  drain_event_ = false;
  if (stalled_) return;
  Packet* packet = backlog_.Pop();
  backlog_bytes_ -= packet->wire_bytes;
  ScheduleDrain();
  if (backlog_bytes_ < host_->settings().receive_buffer_bytes / 4) SetPaused(false);
  Finish(packet);
}

void Port::LoopSink::Receive(Packet* packet) {
  if (port->up_) port->owner_->Deliver(port, *packet);
  port->context_->packets.Delete(packet);
}

}  // namespace sluice::soft
