// A port of a switch: the queues of its lanes towards the link, and the receiving end of the link.
//
// A packet is stored when it has arrived whole, queued by lane at the port it leaves by, and frees its buffer
// when it has been sent whole. On InfiniBand that buffer belongs to the (ingress port, lane) and its credits
// go back to the neighbour; on Ethernet see switch_buffer.h.
//
// Thread rule: single threaded.
#pragma once

#include <array>
#include <cstdint>

#include "verbs/soft/model/lane_arbiter.h"
#include "verbs/soft/model/pfc.h"
#include "verbs/soft/model/send_gate.h"
#include "verbs/soft/model/switch_buffer.h"
#include "verbs/soft/model/transmitter.h"

namespace sluice::soft {

class Switch;

struct LaneQueue {
  PacketQueue packets;
  uint64_t bytes = 0;
  uint64_t peak_bytes = 0;
  double byte_picos = 0;  // integral up to changed_at
  Picos changed_at = 0;
  uint64_t joined = 0;
  uint64_t drops = 0;
  uint64_t ecn_marks = 0;
  uint64_t trims = 0;
};

class SwitchPort final : public PacketSource, public PacketSink {
 public:
  SwitchPort(NetworkContext* context, Switch* owner, uint32_t index, const SwitchSettings* settings,
             bool infiniband, bool credits);

  // PacketSource: towards the link.
  Packet* NextPacket() override;
  bool MayHavePacket() const override { return nonempty_ != 0 || release_wanted_; }
  void OnLeft() override { Settle(context_->scheduler.Now()); }
  void OnLost(const Packet& packet) override;
  // PacketSink: from the link.
  void Receive(Packet* packet) override;
  uint32_t StoredBlocks(uint32_t lane) const override;
  // A packet that came by this port is stored, but in no queue: its tail is still coming.
  void TailAwaited(const Packet& packet) { tails_[packet.lane] += CreditsOf(packet.wire_bytes); }
  void TailArrived(const Packet& packet) { tails_[packet.lane] -= CreditsOf(packet.wire_bytes); }

  void Enqueue(Packet* packet, Picos now);
  // The oldest packet of a lane, out of its queue; nullptr: there is none.
  Packet* Dequeue(uint32_t lane, Picos now);
  // Puts `packet` in the place of the newest packet of its lane, which it becomes. The lane is not empty.
  void ReplaceNewest(Packet* packet, Picos now);
  LaneQueue& queue(uint32_t lane) { return queues_[lane]; }
  const LaneQueue& queue(uint32_t lane) const { return queues_[lane]; }
  // Integral of a queue changes with its length: call before each change.
  static void Account(LaneQueue* queue, Picos now) {
    queue->byte_picos += static_cast<double>(queue->bytes) * static_cast<double>(now - queue->changed_at);
    queue->changed_at = now;
  }
  uint64_t total_bytes() const { return total_bytes_; }
  // Frees the buffer of the packet that the link carried last, if it has left.
  void Settle(Picos now) {
    if (in_service_.bytes != 0 && transmitter_->idle(now)) ReleaseInService();
  }
  // A pause of `ingress` waits for buffers: tell exactly when the packet on the link has left.
  void WatchRelease(uint32_t ingress);
  // The buffer of a packet that came by this port is free; its credits leave at `at` at the earliest.
  void ReturnCredits(uint32_t lane, uint32_t wire_bytes, Picos at);

  void Connect(Transmitter* transmitter, SendGate* upstream);
  // The other direction of the link.
  void set_incoming(const Transmitter* incoming) { incoming_ = incoming; }
  const Transmitter* incoming() const { return incoming_; }
  Transmitter* transmitter() const { return transmitter_; }
  bool connected() const { return transmitter_ != nullptr; }
  SendGate* gate() override { return &gate_; }
  const SendGate& gate() const { return gate_; }
  PauseSender& pauses() { return pauses_; }
  const PauseSender& pauses() const { return pauses_; }
  IngressBuffer& ingress() { return ingress_; }
  const IngressBuffer& ingress() const { return ingress_; }
  uint32_t index() const { return index_; }
  bool uses_credits() const { return credits_; }

 private:
  void ReleaseInService();
  // The packet that the link carries now, if its buffer is counted.
  struct InService {
    uint32_t bytes = 0;  // 0: none
    uint16_t ingress = 0;
    uint8_t lane = 0;
  };

  NetworkContext* context_;
  Switch* owner_;
  Transmitter* transmitter_ = nullptr;
  SendGate* upstream_ = nullptr;  // of whoever sends to this port
  const Transmitter* incoming_ = nullptr;
  uint32_t index_;
  uint32_t nonempty_ = 0;  // a bit per lane
  uint64_t total_bytes_ = 0;
  bool credits_;
  bool release_wanted_ = false;
  InService in_service_;
  LaneArbiter arbiter_;
  SendGate gate_;
  std::array<LaneQueue, kLanes> queues_;
  std::array<uint32_t, kLanes> tails_{};  // blocks
  IngressBuffer ingress_;
  PauseSender pauses_;
};

}  // namespace sluice::soft
