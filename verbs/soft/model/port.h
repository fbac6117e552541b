// A port of a NIC: decides which queue pair sends next, counts, and hands what arrives to the NIC.
//
// Acknowledgements go first; behind them the queue pairs that have something to send take turns, one packet
// each, strictly in order inside one. Traffic from a port to itself turns round inside the NIC and never sees
// the link.
//
// Thread rule: single threaded.
#pragma once

#include <array>
#include <cstdint>

#include "verbs/soft/model/addressing.h"
#include "verbs/soft/model/nic.h"
#include "verbs/soft/model/transmitter.h"

namespace sluice::soft {

class Qp;
class Port;

// Membership of a queue pair in one ring of an Egress.
struct RingHook {
  RingHook* previous = nullptr;
  RingHook* next = nullptr;
  Qp* qp = nullptr;
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

class NicImpl;

class Port final : public PacketSink {
 public:
  Port(NetworkContext* context, NicImpl* nic, uint32_t number, uint32_t endpoint, const PortSpec& spec);
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

 private:
  // What the inner loop delivers to: as the port, but the port counters only count the link.
  struct LoopSink final : public PacketSink {
    explicit LoopSink(Port* owner) : port(owner) {}
    void Receive(Packet* packet) override;
    Port* port;
  };

  NetworkContext* context_;
  NicImpl* nic_;
  uint32_t number_;
  uint32_t endpoint_;
  PortSpec spec_;
  uint32_t link_ = UINT32_MAX;  // in Topology::links
  bool up_ = true;
  std::array<GidEntry, kGidTableSize> gids_;
  PortCounters counters_;
  Egress wire_;
  Egress loop_;
  LoopSink loop_sink_;
  Transmitter loop_transmitter_;
};

}  // namespace sluice::soft
