// A port of a NIC: decides which of its clients (queue pairs, flows) sends next, counts, and hands what
// arrives to its owner.
//
//   class Flow : public PortClient { ... RingHook data_hook_; };
//   data_hook_.client = this;
//   port->wire()->AddData(&data_hook_);  port->wire()->Kick();   // there is something to send
//
// Acknowledgements go first; behind them the clients that have something to send take turns, one packet
// each, strictly in order inside one. Traffic from a port to itself turns round inside the NIC and never sees
// the link.
//
// Thread rule: single threaded.
#pragma once

#include <array>
#include <cstdint>

#include "verbs/soft/model/addressing.h"
#include "verbs/soft/model/host_interface.h"
#include "verbs/soft/model/nic.h"
#include "verbs/soft/model/transmitter.h"

namespace sluice::soft {

class Port;

// What sends through a port.
class PortClient {
 public:
  // The next data packet; nullptr: nothing can be sent now. Then the client adds its hook again when it can.
  virtual Packet* NextPacket() = 0;
  // The acknowledgement that is due, or nullptr.
  virtual Packet* TakeAck() = 0;

 protected:
  ~PortClient() = default;
};

// What receives through a port: a NIC, a host of flows.
class PortOwner {
 public:
  virtual void Deliver(Port* port, const Packet& packet) = 0;

 protected:
  ~PortOwner() = default;
};

// Membership of a client in one ring of an Egress. Unlinked by its owner before either goes.
struct RingHook {
  RingHook* previous = nullptr;
  RingHook* next = nullptr;
  PortClient* client = nullptr;
  uint8_t lane = 0;  // of every packet that the client sends by this hook; changed only while not linked
  bool linked() const { return next != nullptr; }
  void Unlink() {
    previous->next = next;
    next->previous = previous;
    previous = next = nullptr;
  }
};

class Egress final : public PacketSource {
 public:
  explicit Egress(Port* port, bool counted);
  void AddData(RingHook* hook) { Append(&data_, hook); }
  void AddAck(RingHook* hook) { Append(&acks_, hook); }
  void Kick() { transmitter_->Kick(); }
  void set_transmitter(Transmitter* transmitter) { transmitter_ = transmitter; }

  Packet* NextPacket() override;
  bool MayHavePacket() const override { return acks_.next != &acks_ || data_.next != &data_; }

 private:
  static void Append(RingHook* ring, RingHook* hook);
  RingHook acks_;
  RingHook data_;
  Port* port_;
  Transmitter* transmitter_ = nullptr;
  bool counted_;
};

class Port final : public PacketSink {
 public:
  // `number` counts from 1. `host` is shared by the ports of one NIC; everything outlives the port.
  Port(NetworkContext* context, PortOwner* owner, uint32_t number, uint32_t endpoint, const PortSpec& spec,
       HostInterface* host);
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  uint32_t number() const { return number_; }  // from 1
  uint32_t endpoint() const { return endpoint_; }
  const PortSpec& spec() const { return spec_; }
  bool up() const { return up_; }
  void set_up(bool up) { up_ = up; }
  void Connect(Transmitter* uplink, uint32_t link) {
    wire_.set_transmitter(uplink);
    link_ = link;
  }
  uint32_t link() const { return link_; }
  Egress* wire() { return &wire_; }
  Egress* loop() { return &loop_; }
  PortCounters& counters() { return counters_; }
  const PortCounters& counters() const { return counters_; }
  std::array<GidEntry, kGidTableSize>& gids() { return gids_; }
  const std::array<GidEntry, kGidTableSize>& gids() const { return gids_; }

  void CountSent(const Packet& packet);
  void Receive(Packet* packet) override;
  // Takes nothing more from the wire; when it goes on, what came meanwhile is delivered first.
  void SetStalled(bool stalled);

 private:
  // What the inner loop delivers to: as the port, but the port counters only count the link.
  struct LoopSink final : public PacketSink {
    explicit LoopSink(Port* owner) : port(owner) {}
    void Receive(Packet* packet) override;
    Port* port;
  };

  NetworkContext* context_;
  PortOwner* owner_;
  HostInterface* host_;
  uint32_t number_;
  uint32_t endpoint_;
  PortSpec spec_;
  uint32_t link_ = UINT32_MAX;  // in Topology::links
  bool up_ = true;
  bool stalled_ = false;
  PacketQueue stalled_packets_;
  std::array<GidEntry, kGidTableSize> gids_;
  PortCounters counters_;
  Egress wire_;
  Egress loop_;
  LoopSink loop_sink_;
  Transmitter loop_transmitter_;
};

}  // namespace sluice::soft
