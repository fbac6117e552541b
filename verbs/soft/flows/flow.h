// A flow of a simulation: a connection from one endpoint to another with a transport of the model and no
// payload. What it shares with the simulation is in FlowContext.
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>

#include "verbs/soft/flows/congestion_control.h"
#include "verbs/soft/model/packet.h"
#include "verbs/soft/model/port.h"
#include "verbs/soft/model/transmitter.h"

namespace sluice::soft {

using FlowId = uint32_t;

struct FlowSpec {
  uint32_t source = 0;  // endpoints: NIC ports in topology order
  uint32_t destination = 0;
  uint8_t sl = 0;
  uint8_t traffic_class = 0;
  // What switches hash, one for each direction, as the 5-tuples of a connection differ. 0: drawn.
  uint32_t flow_hash = 0;
  uint32_t ack_hash = 0;
  const CongestionControlFactory* control = nullptr;  // null: unbounded. Outlives the simulation
};

// What a simulation is told. Called inside an event: it may post messages and add flows.
class FlowObserver {
 public:
  virtual ~FlowObserver() = default;
  // Message number `message` (from 0) of the flow is acknowledged, or has arrived whole.
  virtual void OnSent(FlowId /*flow*/, uint64_t /*message*/) {}
  virtual void OnReceived(FlowId /*flow*/, uint64_t /*message*/) {}
  // Retries are used up; nothing more is sent.
  virtual void OnFailed(FlowId /*flow*/) {}
};

struct RcSettings {
  uint32_t payload_bytes = 4096;  // of a full packet
  uint32_t header_bytes = 82;     // of every data packet on the wire: RoCE v2 over IPv4
  uint32_t first_bytes = 16;      // more in the first packet of a message (RETH)
  uint32_t last_bytes = 4;        // more in the last one (immediate data)
  uint32_t ack_bytes = 86;
  // An acknowledgement is asked for by the last packet of a message and by every n-th one. 1: every packet,
  // and answers are not merged.
  uint32_t ack_interval_packets = 16;
  uint8_t timeout = 14;     // T = 4.096 us * 2^timeout; 0: no timer
  double timer_factor = 1;  // the timer expires at T times this, 1 to 4
  uint8_t retry_count = 7;
  // Packets that may arrive before an earlier one, at most 256: adaptive routing with queue pairs that accept
  // it. 0: whatever overtakes is a gap.
  uint32_t reorder_packets = 0;

  // With the header and acknowledgement bytes of a link layer.
  static RcSettings Roce() { return {}; }
  static RcSettings InfiniBand() {
    RcSettings settings;
    settings.header_bytes = 26;
    settings.ack_bytes = 30;
    return settings;
  }
};

// Sums over all flows.
struct FlowCounters {
  uint64_t data_packets = 0;
  uint64_t retransmitted_packets = 0;
  uint64_t naks = 0;
  uint64_t timeouts = 0;
  uint64_t duplicates = 0;
  uint64_t reordered = 0;
  uint64_t trimmed = 0;
  uint64_t failed_flows = 0;
};

enum class FlowTimer : uint32_t { kStart, kRetransmit, kPace, kPull };

struct FlowContext {
  NetworkContext* network = nullptr;
  FlowObserver* observer = nullptr;
  EventTarget* timers = nullptr;  // its kinds are FlowTimer, its arguments FlowId
  RcSettings rc;
  const NicSettings* nic = nullptr;  // rate control
  FlowCounters counters;
  uint64_t seed = 1;
  uint32_t first_number = 0;  // added to the numbers below

  Picos Now() const { return network->scheduler.Now(); }
  void SetTimer(Picos at, FlowTimer timer, uint64_t argument) {
    network->scheduler.At(at, timers, static_cast<uint32_t>(timer), argument);
  }
};

class Flow {
 public:
  virtual ~Flow() = default;
  virtual void Post(uint64_t bytes) = 0;
  virtual void OnPacket(const Packet& packet, bool at_source) = 0;
  virtual void OnTimer(FlowTimer timer) = 0;
};

// The number that a packet of a flow carries as its destination queue pair.
inline uint32_t SourceNumber(FlowId flow) {
  return flow * 2;
}
inline uint32_t SinkNumber(FlowId flow) {
  return flow * 2 + 1;
}

}  // namespace sluice::soft
