// Ground truth of a network for tests and scenarios: what no real network tells. Reading changes nothing.
//
//   const NetworkTruth& truth = fabric->truth();
//   truth.link(2 * index).pause_time;             // of Topology::links[index], direction a to b
//   truth.ForEachQueue([&](const QueueTruth& q) { peak = std::max(peak, q.peak_bytes); });
//
// Thread rule: the thread that drives the fabric.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/packet.h"

namespace sluice::soft {

// One direction of a link.
struct LinkTruth {
  std::array<uint64_t, kLanes> bytes{};  // wire bytes sent
  uint64_t packets = 0;
  uint64_t dropped = 0;          // by faults, or because the link was down
  Picos busy_time = 0;           // something was on the sender
  Picos pause_time = 0;          // a lane was paused by PFC, summed over lanes
  Picos transmit_wait = 0;       // something to send, link idle: paused or without credits
  uint64_t pauses_received = 0;  // PFC frames that pause (not those that resume)
};

// The queue of one lane at one egress port of a switch.
struct QueueTruth {
  uint32_t switch_index = 0;
  uint32_t port = 0;
  uint32_t lane = 0;
  uint32_t directed_link = 0;  // that it feeds: 2 * index in Topology::links, + 1 from b to a
  uint64_t bytes = 0;          // now
  uint64_t peak_bytes = 0;
  double mean_bytes = 0;  // over the time from the start
  uint64_t packets = 0;   // that joined it
  uint64_t drops = 0;
  uint64_t ecn_marks = 0;
  uint64_t trims = 0;
};

// Ingress side of a switch port.
struct IngressTruth {
  uint64_t pauses_sent = 0;  // refreshes not counted
  uint64_t peak_bytes = 0;   // buffered from this port, most on any lane
};

// The credits of one lane of one direction of a link, in blocks of 64 bytes. At any moment between two events
// each block of the receiver's buffer is in exactly one of four places.
struct CreditTruth {
  uint32_t buffer = 0;     // of the lane at the receiver; 0: a link without credits
  int32_t at_sender = 0;   // to spend
  uint32_t returning = 0;  // freed, or lost with its packet; not yet at the sender
  uint32_t on_wire = 0;    // taken by packets on the link
  uint32_t stored = 0;     // taken by packets in the receiver's buffer

  bool conserved() const {
    return at_sender >= 0 &&
           uint64_t{buffer} == uint64_t{static_cast<uint32_t>(at_sender)} + returning + on_wire + stored;
  }
  // Nothing is under way or stored.
  bool at_rest() const { return conserved() && on_wire == 0 && stored == 0; }
};

class NetworkTruth {
 public:
  virtual ~NetworkTruth() = default;
  virtual uint32_t directed_links() const = 0;
  virtual LinkTruth link(uint32_t directed_link) const = 0;
  // Looks at every packet that the receiver stores: for tests.
  virtual CreditTruth credits(uint32_t directed_link, uint32_t lane) const = 0;
  virtual uint32_t switches() const = 0;
  virtual uint32_t ports(uint32_t switch_index) const = 0;
  virtual QueueTruth queue(uint32_t switch_index, uint32_t port, uint32_t lane) const = 0;
  virtual IngressTruth ingress(uint32_t switch_index, uint32_t port) const = 0;
  // Queues that ever held something.
  virtual void ForEachQueue(const std::function<void(const QueueTruth&)>& call) const = 0;
  // Bytes inside switches that are bound for `endpoint`, now and at the peak. Counted from the call of
  // TrackDestinations on, because it costs every packet some time.
  virtual void TrackDestinations() = 0;
  virtual uint64_t BytesBoundFor(uint32_t endpoint) const = 0;
  virtual uint64_t PeakBytesBoundFor(uint32_t endpoint) const = 0;
};

}  // namespace sluice::soft
