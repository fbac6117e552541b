#include "verbs/soft/model/port.h"

namespace sluice::soft {
namespace {

// Through the NIC and back over its own host interface.
constexpr Picos kLoopDelay = 300 * kPicosPerNs;
constexpr uint32_t kLoopLinkId = UINT32_MAX;

}  // namespace

Egress::Egress(Port* port, bool counted) : port_(port), counted_(counted) {
  acks_.previous = acks_.next = &acks_;
  data_.previous = data_.next = &data_;
}

void Egress::Append(RingHook* ring, RingHook* hook) {
  if (hook->linked()) return;
  hook->previous = ring->previous;
  hook->next = ring;
  ring->previous->next = hook;
  ring->previous = hook;
}

Packet* Egress::NextPacket() {
  while (acks_.next != &acks_) {
    RingHook* hook = acks_.next;
    hook->Unlink();
    Packet* packet = hook->client->TakeAck();
    if (packet == nullptr) continue;
    if (counted_) port_->CountSent(*packet);
    return packet;
  }
  while (data_.next != &data_) {
    RingHook* hook = data_.next;
    hook->Unlink();
    Packet* packet = hook->client->NextPacket();
    if (packet == nullptr) continue;
    Append(&data_, hook);
    if (counted_) port_->CountSent(*packet);
    return packet;
  }
  return nullptr;
}

Port::Port(NetworkContext* context, PortOwner* owner, uint32_t number, uint32_t endpoint,
           const PortSpec& spec, HostInterface* host)
    : context_(context),
      owner_(owner),
      host_(host),
      number_(number),
      endpoint_(endpoint),
      spec_(spec),
      gids_(InitialGids(endpoint, spec.link_layer)),
      wire_(this, true),
      loop_(this, false),
      loop_sink_(this),
      loop_transmitter_(context, kLoopLinkId, spec.rate_bps, kLoopDelay, &loop_, &loop_sink_) {
  loop_transmitter_.set_counted(false);
  loop_.set_transmitter(&loop_transmitter_);
}

void Port::CountSent(const Packet& packet) {
  ++counters_.tx_packets;
  counters_.tx_bytes += packet.wire_bytes;
  counters_.tx_payload_bytes += packet.payload_bytes;
  counters_.tx_bytes_by_sl[packet.sl] += packet.wire_bytes;
  counters_.tx_bytes_by_traffic_class[packet.traffic_class] += packet.wire_bytes;
}

void Port::SetStalled(bool stalled) {
  stalled_ = stalled;
  while (!stalled_ && !stalled_packets_.empty()) Receive(stalled_packets_.Pop());
}

void Port::Receive(Packet* packet) {
  if (stalled_) {
    stalled_packets_.Push(packet);
    return;
  }
  if (!up_ || packet->corrupted || packet->destination != endpoint_) {
    ++counters_.dropped_packets;
  } else {
    ++counters_.rx_packets;
    counters_.rx_bytes += packet->wire_bytes;
    counters_.rx_payload_bytes += packet->payload_bytes;
    owner_->Deliver(this, *packet);
  }
  context_->packets.Delete(packet);
}

void Port::LoopSink::Receive(Packet* packet) {
  if (port->up_) port->owner_->Deliver(port, *packet);
  port->context_->packets.Delete(packet);
}

}  // namespace sluice::soft
