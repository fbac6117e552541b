// One direction of a link: takes a packet from its source whenever it is idle, keeps it for its serialisation
// time, and delivers it, whole, to its sink one propagation delay later (store and forward). Costs one event
// per packet on an idle link and two on a busy one; packets on the wire need one entry in the event queue,
// not one each.
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>

#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/fabric.h"
#include "verbs/soft/model/packet.h"
#include "verbs/soft/model/scheduler.h"

namespace sluice::soft {

class PacketSource {
 public:
  // The next packet to send, or nullptr: then the source calls Transmitter::Kick when there is one.
  virtual Packet* NextPacket() = 0;
  // Whether NextPacket may have one. False saves an event.
  virtual bool MayHavePacket() const = 0;

 protected:
  ~PacketSource() = default;
};

class PacketSink {
 public:
  // Takes over the packet.
  virtual void Receive(Packet* packet) = 0;

 protected:
  ~PacketSink() = default;
};

// Shared by every part of one network.
struct NetworkContext {
  Scheduler scheduler;
  PacketPool packets;
  FaultHook fault_hook;
  FabricStatistics statistics;
};

class Transmitter final : public EventTarget {
 public:
  Transmitter(NetworkContext* context, uint32_t id, uint64_t rate_bps, Picos delay, PacketSource* source,
              PacketSink* sink);

  // The source has something to send.
  void Kick();
  // Down: what is on the wire is lost, and so is what is sent.
  void SetUp(bool up);
  bool up() const { return up_; }
  void set_counted(bool counted) { counted_ = counted; }
  void set_from_host(bool from_host) { from_host_ = from_host; }
  uint64_t rate_bps() const { return rate_bps_; }
  // From the next packet on.
  void set_rate_bps(uint64_t rate_bps) {
    rate_bps_ = rate_bps;
    cached_bytes_ = 0;
    cached_time_ = 0;
  }

  void OnEvent(uint32_t kind, uint64_t argument) override;

 private:
  enum : uint32_t { kIdle, kArrival };
  void Send(Packet* packet);
  void Deliver();
  PacketFate FateOf(const Packet& packet) const;

  NetworkContext* context_;
  PacketSource* source_;
  PacketSink* sink_;
  uint64_t rate_bps_;
  Picos delay_;
  Picos busy_until_ = 0;
  uint64_t cached_bytes_ = 0;  // most packets of a flow are of one size
  Picos cached_time_ = 0;
  PacketQueue wire_;
  uint32_t id_;
  bool up_ = true;
  bool counted_ = true;  // false: a loop inside a NIC, no link
  bool from_host_ = false;
  bool idle_event_ = false;
  bool arrival_event_ = false;
  bool kicking_ = false;
};

}  // namespace sluice::soft
