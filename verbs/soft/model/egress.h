// The sending side of a NIC port: which of its clients (queue pairs, flows) sends next.
//
//   class Flow : public PortClient { ... RingHook data_hook_; };
//   data_hook_.client = this;
//   port->wire()->AddData(&data_hook_);  port->wire()->Kick();   // there is something to send
//
// Lanes share the link as at a switch (lane_arbiter.h). Inside a lane frames of the NIC itself (CNPs) go
// first, then acknowledgements, then data, of which the clients that have some send in turns. A paused or
// creditless lane stops all of its clients.
//
// With a HostInterface that costs time, data packets are fetched over PCIe ahead of the link, as much as its
// latency needs; the fetched ones wait in a queue per lane. A client with a rate (DCQCN) has its turn when
// its next packet is due.
//
// Thread rule: single threaded.
#pragma once

#include <array>
#include <cstdint>

#include "verbs/soft/model/host_interface.h"
#include "verbs/soft/model/lane_arbiter.h"
#include "verbs/soft/model/nic.h"
#include "verbs/soft/model/send_gate.h"
#include "verbs/soft/model/transmitter.h"

namespace sluice::soft {

class DcqcnRate;

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

// Membership of a client in one ring of an Egress. Unlinked by its owner before either goes.
struct RingHook {
  RingHook* previous = nullptr;
  RingHook* next = nullptr;
  PortClient* client = nullptr;
  DcqcnRate* rate = nullptr;  // data only; nullptr: as fast as the link
  Picos due = 0;      // before it the next work request, and with a rate the next packet, may not start
  uint8_t lane = 0;   // of every packet that the client sends by this hook; changed only while not linked
  uint8_t burst = 0;  // packets in this turn
  bool linked() const { return next != nullptr; }
  void Unlink() {
    previous->next = next;
    next->previous = previous;
    previous = next = nullptr;
  }
};

class Egress final : public PacketSource, public EventTarget {
 public:
  // `counters`: nullptr for what never sees the link. `host` outlives the egress.
  Egress(NetworkContext* context, PortCounters* counters, HostInterface* host);

  void AddData(RingHook* hook) { Append(&lanes_[hook->lane].data, hook, &data_lanes_); }
  void AddAck(RingHook* hook) { Append(&lanes_[hook->lane].acks, hook, &ack_lanes_); }
  // A packet of the NIC itself, in packet->lane.
  void SendNow(Packet* packet);
  void Kick() {
    if (staging_) Stage();
    transmitter_->Kick();
  }
  void set_transmitter(Transmitter* transmitter) { transmitter_ = transmitter; }
  void OnConnected(const EdgeLink& link);

  // PacketSource.
  SendGate* gate() override { return &gate_; }
  Packet* NextPacket() override;
  bool MayHavePacket() const override { return (data_lanes_ | ack_lanes_ | own_lanes_ | staged_lanes_) != 0; }
  void OnLost(const Packet& packet) override;

  void OnEvent(uint32_t kind, uint64_t argument) override;

 private:
  enum : uint32_t { kStaged, kDue };
  struct Lane {
    RingHook acks;
    RingHook data;
    PacketQueue own;
    PacketQueue staged;
    uint32_t staged_bytes = 0;
    bool ack_turn = false;
  };

  void Append(RingHook* ring, RingHook* hook, uint32_t* lanes);
  // The next packet of the lane's data ring, or nullptr when no client has one that is due.
  Packet* TakeData(uint32_t lane);
  Packet* TakeAck(uint32_t lane);
  Packet* TakeFrom(uint32_t lane, Picos now);
  // Fetches ahead.
  void Stage();
  void StageLane(uint32_t lane);
  // Lanes that may send; `ready`: those that would.
  uint32_t Eligible(Picos now, uint32_t* ready);
  void Postpone(RingHook* hook);
  void WakeAt(Picos at);
  void Count(const Packet& packet);

  NetworkContext* context_;
  PortCounters* counters_;
  HostInterface* host_;
  Transmitter* transmitter_ = nullptr;
  std::array<Lane, kLanes> lanes_;
  RingHook waiting_;  // clients whose next packet is not due, by time
  // Bit per lane. Of rings they may be set while the ring is empty: clients leave by themselves.
  uint32_t data_lanes_ = 0, ack_lanes_ = 0, own_lanes_ = 0, staged_lanes_ = 0;
  uint32_t stage_limit_bytes_ = 0;
  bool staging_ = false;
  bool in_stage_ = false;
  Picos staged_wake_ = kNever;
  Picos due_wake_ = kNever;
  LaneArbiter arbiter_;
  SendGate gate_;
};

}  // namespace sluice::soft
