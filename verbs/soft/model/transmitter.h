// One direction of a link: takes a packet from its source whenever it is idle, keeps it for its serialisation
// time, and delivers it to its sink one propagation delay later: whole, or for a switch that cuts through when
// its first bytes are there. Costs one event
// per packet on an idle link and two on a busy one; packets on the wire need one entry in the event queue,
// not one each.
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>

#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/fabric.h"
#include "verbs/soft/model/network_settings.h"
#include "verbs/soft/model/network_truth.h"
#include "verbs/soft/model/packet.h"
#include "verbs/soft/model/scheduler.h"

namespace sluice::soft {

class SendGate;
class Transmitter;

class PacketSource {
 public:
  // What the far end allows; a source without one sends whenever it likes.
  virtual SendGate* gate() { return nullptr; }
  // The next packet to send, or nullptr: then the source calls Transmitter::Kick when there is one.
  virtual Packet* NextPacket() = 0;
  // Whether NextPacket may have one, or wants to know when the link is idle. False saves an event.
  virtual bool MayHavePacket() const = 0;
  // With staged events: the packet in progress has left.
  virtual void OnLeft() {}
  // A fault or a downed link took a packet that was sent: it arrives nowhere.
  virtual void OnLost(const Packet& packet) = 0;

 protected:
  ~PacketSource() = default;
};

// What a NIC port learns about the link that it is on.
struct EdgeLink {
  Transmitter* uplink = nullptr;
  SendGate* far_gate = nullptr;  // of the sender at the other end
  const SwitchSettings* settings = nullptr;
  bool infiniband = false;
  bool credits = false;
};

class PacketSink {
 public:
  virtual void OnConnected(const EdgeLink&) {}
  // Takes over the packet.
  virtual void Receive(Packet* packet) = 0;
  // Credits that packets of the lane hold in the receiver's buffer; for tests.
  virtual uint32_t StoredBlocks(uint32_t /*lane*/) const { return 0; }

 protected:
  ~PacketSink() = default;
};

// Shared by every part of one network.
struct NetworkContext {
  Scheduler scheduler;
  PacketPool packets;
  FaultHook fault_hook;
  FabricStatistics statistics;
  bool staged_events = false;  // SwitchSettings::staged_events
};

class Transmitter final : public EventTarget {
 public:
  Transmitter(NetworkContext* context, uint32_t id, uint64_t rate_bps, Picos delay, PacketSource* source,
              PacketSink* sink);

  // The source has something to send.
  void Kick();
  // A frame of the link itself (PFC): before all data, behind the packet in progress.
  void SendControl(Packet* packet);
  // As SendControl, but takes no time on the link.
  void SendBeside(Packet* packet);
  // Asks the source again when the packet in progress has left.
  void KickWhenIdle();
  // Down: what is on the wire is lost, and so is what is sent.
  void SetUp(bool up);
  bool up() const { return up_; }
  // The sink takes packets when so much of them has arrived; 0: whole.
  void set_cut_through_bytes(uint32_t bytes) { cut_through_bytes_ = bytes; }
  // From the time at which the sink takes a packet until its last byte is there.
  Picos TailTime(uint32_t bytes) const {
    return cut_through_bytes_ == 0 || bytes <= cut_through_bytes_
               ? 0
               : TimeOf(bytes) - TimeOf(cut_through_bytes_);
  }
  void set_counted(bool counted) { counted_ = counted; }
  void set_from_host(bool from_host) { from_host_ = from_host; }
  uint32_t id() const { return id_; }
  uint64_t rate_bps() const { return rate_bps_; }
  void set_rate_bps(uint64_t rate_bps);
  Picos delay() const { return delay_; }
  // When the packet in progress has left; in the past when there is none.
  Picos busy_until() const { return busy_until_; }
  // No packet is in progress. With staged events that is so from the event of its end on.
  bool idle(Picos now) const { return busy_until_ <= now && !in_progress_; }
  Picos TimeOf(uint32_t bytes) const {
    return picos_per_byte_ != 0 ? bytes * picos_per_byte_ : SerialisationTime(bytes, rate_bps_);
  }
  LinkTruth& truth() { return truth_; }
  const LinkTruth& truth() const { return truth_; }
  // Credits that packets of the lane on the wire hold; for tests.
  uint32_t BlocksOnWire(uint32_t lane) const { return BlocksOf(wire_, lane); }

  void OnEvent(uint32_t kind, uint64_t argument) override;
  void Prefetch() const override {
    __builtin_prefetch(wire_.front());
    __builtin_prefetch(sink_);
    __builtin_prefetch(source_);
  }

 private:
  enum : uint32_t { kIdle, kArrival, kBeside };
  void Send(Packet* packet);
  // Staged events: the packet in progress has left.
  void Left();
  void Deliver();
  void ScheduleArrival(bool more);
  void DeliverBeside();
  void Lose(Packet* packet);
  PacketFate FateOf(const Packet& packet) const;

  NetworkContext* context_;
  PacketSource* source_;
  PacketSink* sink_;
  uint64_t rate_bps_;
  Picos delay_;
  Picos picos_per_byte_ = 0;  // 0: no whole number
  Picos busy_until_ = 0;
  PacketQueue wire_;
  PacketQueue control_;
  PacketQueue beside_;  // staged events: control packets on their way
  uint32_t left_ = 0;   // staged events: packets of wire_ that have left, all but one at the most
  uint32_t id_;
  uint32_t cut_through_bytes_ = 0;
  bool up_ = true;
  bool counted_ = true;  // false: a loop inside a NIC, no link
  bool from_host_ = false;
  bool idle_event_ = false;
  bool arrival_event_ = false;
  bool kicking_ = false;
  bool in_progress_ = false;  // staged events only
  bool lost_ = false;         // the packet in progress is on no wire
  LinkTruth truth_;
};

}  // namespace sluice::soft
