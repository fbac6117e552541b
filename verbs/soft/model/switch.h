// A switch: finds the port a packet leaves by, and what becomes of a packet when there is no room for it.
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "verbs/soft/model/random.h"
#include "verbs/soft/model/ring.h"
#include "verbs/soft/model/switch_port.h"

namespace sluice::soft {

class Network;

class Switch final : public EventTarget {
 public:
  Switch(NetworkContext* context, Network* network, uint32_t index, const SwitchSettings* settings,
         uint64_t seed);

  uint32_t index() const { return index_; }
  const SwitchSettings& settings() const { return *settings_; }
  uint32_t port_count() const { return static_cast<uint32_t>(ports_.size()); }
  SwitchPort* port(uint32_t index) { return index < ports_.size() ? ports_[index].get() : nullptr; }
  const SwitchPort* port(uint32_t index) const {
    return index < ports_.size() ? ports_[index].get() : nullptr;
  }
  SwitchPort* AddPort(uint32_t index, bool infiniband, bool credits);
  // All links are connected.
  void Configure();

  // Everything queued is lost.
  void Reset();

  // A packet has arrived by `in`: whole, or with cut-through its first bytes.
  void Forward(SwitchPort* in, Packet* packet);
  void OnEvent(uint32_t kind, uint64_t argument) override;
  // The buffer of a packet that came by port `ingress` is free.
  void Release(uint32_t ingress, uint32_t lane, uint32_t bytes);
  // Credits that packets of a lane hold which came by port `ingress` and wait in queues; for tests.
  uint32_t QueuedBlocks(uint32_t ingress, uint32_t lane) const;
  Network* network() { return network_; }
  // Marks by the length of its queue, if the packet can carry a mark.
  void MaybeMark(LaneQueue* queue, uint64_t rate_bps, Packet* packet);
  bool marks_at_dequeue() const { return settings_->ecn.enabled && settings_->ecn.at_dequeue; }

 private:
  enum EventKind : uint32_t { kTailArrived, kPassed };
  struct Passing {
    Packet* packet;
    SwitchPort* out;
  };
  // Accepts the packet for the queue of `out`, or drops it.
  void Queue(SwitchPort* in, SwitchPort* out, Packet* packet);
  void Append(SwitchPort* out, Packet* packet);
  bool AdmitLossless(SwitchPort* in, SwitchPort* out, Packet* packet);
  bool AdmitOrTrim(SwitchPort* out, Packet* packet);
  bool QueueTrimmed(SwitchPort* out, Packet* packet);
  void Drop(SwitchPort* in, SwitchPort* out, Packet* packet);
  void SettlePorts();

  NetworkContext* context_;
  Network* network_;
  uint32_t index_;
  const SwitchSettings* settings_;
  SwitchBuffer buffer_;
  Random random_;
  Ring<Passing> passing_;                           // staged events: accepted, on the way to their queues
  std::vector<std::unique_ptr<SwitchPort>> ports_;  // holes for numbers that no link uses
};

}  // namespace sluice::soft
