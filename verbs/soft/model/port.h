// A port of a NIC: its sending side (egress.h), its counters, and what becomes of what arrives.
//
// Traffic from a port to itself turns round inside the NIC and never sees the link. What arrives faster than
// the host takes it waits in the port; then a RoCE port pauses its switch, and an InfiniBand port gives its
// credits back later.
//
// Thread rule: single threaded.
#pragma once

#include <array>
#include <cstdint>

#include "verbs/soft/model/addressing.h"
#include "verbs/soft/model/egress.h"
#include "verbs/soft/model/host_interface.h"
#include "verbs/soft/model/nic.h"
#include "verbs/soft/model/pfc.h"
#include "verbs/soft/model/transmitter.h"

namespace sluice::soft {

class Port;

// What receives through a port: a NIC, a host of flows.
class PortOwner {
 public:
  virtual void Deliver(Port* port, const Packet& packet) = 0;

 protected:
  ~PortOwner() = default;
};

class Port final : public PacketSink, public EventTarget {
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
  HostInterface* host() { return host_; }
  PortCounters& counters() { return counters_; }
  const PortCounters& counters() const { return counters_; }
  std::array<GidEntry, kGidTableSize>& gids() { return gids_; }
  const std::array<GidEntry, kGidTableSize>& gids() const { return gids_; }
  // Lane of a packet that leaves here: by service level on InfiniBand, by the DSCP of the traffic class on
  // Ethernet.
  uint8_t LaneOf(uint8_t sl, uint8_t traffic_class) const;
  // Settings of the fabric's switches; defaults while not connected.
  const SwitchSettings& switch_settings() const;

  // The host takes nothing more; when it goes on, what came meanwhile is delivered first.
  void SetStalled(bool stalled);

  void OnConnected(const EdgeLink& link) override;
  void Receive(Packet* packet) override;
  uint32_t StoredBlocks(uint32_t lane) const override { return BlocksOf(backlog_, lane); }
  void OnEvent(uint32_t kind, uint64_t argument) override;

 private:
  // What the inner loop delivers to: as the port, but the port counters only count the link.
  struct LoopSink final : public PacketSink {
    explicit LoopSink(Port* owner) : port(owner) {}
    void Receive(Packet* packet) override;
    Port* port;
  };

  // Counts, hands over to the owner and frees the place in the buffer.
  void Finish(Packet* packet);
  void Backlog(Packet* packet, Picos done);
  void ScheduleDrain();
  void SetPaused(bool paused);

  NetworkContext* context_;
  PortOwner* owner_;
  HostInterface* host_;
  uint32_t number_;
  uint32_t endpoint_;
  PortSpec spec_;
  uint32_t link_ = UINT32_MAX;  // in Topology::links
  bool up_ = true;
  bool paused_ = false;
  bool stalled_ = false;
  bool drain_event_ = false;
  std::array<GidEntry, kGidTableSize> gids_;
  PortCounters counters_;
  Egress wire_;
  Egress loop_;
  LoopSink loop_sink_;
  Transmitter loop_transmitter_;
  EdgeLink edge_;
  PauseSender pauses_;
  PacketQueue backlog_;  // by the time at which the host has taken them
  uint64_t backlog_bytes_ = 0;
};

}  // namespace sluice::soft
