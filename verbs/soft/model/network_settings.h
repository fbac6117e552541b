// How switches, NICs and routes of a fabric behave. Plain values, part of Topology; the presets are
// functions.
//
//   topology.switch_settings = SwitchSettings::Htsim();
//   topology.nic_settings = NicSettings::Realistic();
//
// Sizes in bytes are wire bytes (headers, preamble and gap included). Thread rule: as value types.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/packet.h"

namespace sluice::soft {

// What a switch does when packets come faster than they leave.
enum class QueueMode : uint8_t {
  kUnbounded,  // queues of any length: neither drops nor pauses
  kLossless,   // PFC on Ethernet, credits on InfiniBand
  kDropTail,   // a full queue drops what arrives
  kTrim,       // a full queue cuts packets to their headers (Ultra Ethernet)
};

// When a switch begins to send a packet.
enum class Forwarding : uint8_t {
  kStoreAndForward,  // it has arrived whole
  kCutThrough,       // kCutThroughBytes of it have arrived, where it leaves no faster than it comes
};
inline constexpr uint32_t kCutThroughBytes = 64;

// Ethernet: how the buffer of a kLossless switch is shared.
enum class BufferMode : uint8_t {
  kStatic,   // every (ingress port, priority) pauses at xoff_bytes and resumes at xon_bytes
  kDynamic,  // thresholds are alpha x what is free of the shared pool
};

// One entry of an InfiniBand VL arbitration table.
struct VlWeight {
  uint8_t lane = 0;
  uint8_t weight = 4;  // units of 64 bytes, rounded up to whole packets; 0: never
};

// Marking between two queue lengths (RED on the length at this moment), by egress queue.
struct EcnSettings {
  bool enabled = false;
  uint64_t k_min_bytes = 100'000;  // per 25 Gb/s of the link if `per_25g`
  uint64_t k_max_bytes = 400'000;
  double p_max = 0.2;
  bool per_25g = true;
  bool at_dequeue = false;  // mark by the queue that the packet leaves, not by the one it joins
};

struct SwitchSettings {
  // Both link layers.
  QueueMode queue = QueueMode::kLossless;
  Forwarding forwarding = Forwarding::kStoreAndForward;
  EcnSettings ecn;

  // Ethernet.
  BufferMode buffer = BufferMode::kDynamic;
  uint8_t lossless_priorities = 1 << 0 | 1 << 3;  // bit per priority; the others are dropped from
  uint64_t pool_bytes = 64 << 20;                 // per chip of ports_per_chip ports, headroom included
  uint32_t ports_per_chip = 64;                   // a switch with more ports is a chassis of such chips
  uint32_t alpha_eighths = 1;                     // alpha in eighths: 1 is 1/8
  uint64_t xoff_bytes = 0, xon_bytes = 0;         // BufferMode::kStatic
  // BufferMode::kDynamic: resume this much below the pause threshold.
  uint64_t xon_offset_bytes = 2 * 4178;
  Picos pause_response = 80 * kPicosPerNs;  // from pause frame to silence, beside delay and packet
  uint16_t pause_quanta = 65535;            // units of 512 bit times; refreshed at half
  // A pause frame takes the place of a data packet: it waits for the one in progress and uses 84 bytes of the
  // link. False: it appears at the far end after the link delay alone, as in htsim.
  bool pause_on_wire = true;
  // The end of a transmission, an arrival and the way through a switch are events of their own, each scheduled
  // when the one before has run, as in htsim: decides who is first among events of one moment. Costs time.
  bool staged_events = false;
  uint64_t queue_bytes = 0;   // limit of one egress queue; 0: by the pool only. kDropTail and kTrim need it
  uint32_t trim_bytes = 64;   // kTrim: what is left of a packet
  uint8_t trim_priority = 7;  // kTrim: where headers travel
  std::array<uint8_t, kLanes> ets_weight = {1, 1, 1, 1, 1, 1, 1, 1};  // shares of the link
  uint8_t strict_priorities = 1 << 6 | 1 << 7;                        // before all others, highest first
  std::array<uint8_t, 64> dscp_to_priority = DscpClasses();

  // InfiniBand.
  std::array<uint8_t, 16> sl_to_vl = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<VlWeight> vl_high;  // empty: no lane is in the high table
  std::vector<VlWeight> vl_low = {{0, 4}, {1, 4}, {2, 4}, {3, 4}, {4, 4}, {5, 4}, {6, 4}, {7, 4}};
  uint8_t vl_high_limit = 255;                 // units of 4 KB before one low packet; 255: no limit
  uint64_t vl_buffer_bytes = 0;                // per lane and port; 0: rate x loop + 3 packets
  Picos credit_processing = 50 * kPicosPerNs;  // from a freed buffer to its credit on the wire

  // A 64 MB chip with dynamic thresholds, alpha 1/8, ECN by the DCQCN figures: the default.
  static SwitchSettings Shared64();
  // Per-ingress XOFF 15 and XON 12 packets of 4000 bytes, 200-packet buffers, no ECN: uet-htsim's.
  static SwitchSettings Htsim();
  // 8 GB of buffer per chip, as deep-buffer routers have.
  static SwitchSettings Deep();
  // Credits, four lanes with equal weights.
  static SwitchSettings InfiniBand();
  // Neither drops nor pauses.
  static SwitchSettings Unbounded();
  // "shared64", "htsim", "deep", "infiniband", "unbounded"; empty Result error names them.
  static Result<SwitchSettings> Preset(std::string_view name);

  static constexpr std::array<uint8_t, 64> DscpClasses() {
    std::array<uint8_t, 64> map{};
    for (uint32_t dscp = 0; dscp < 64; ++dscp) map[dscp] = static_cast<uint8_t>(dscp >> 3);
    return map;
  }
};

enum class RateControl : uint8_t { kNone, kDcqcn };

// Constants of DCQCN as in its paper (Zhu et al., SIGCOMM 2015), every one can be set.
struct DcqcnSettings {
  Picos alpha_timer = 55 * kPicosPerUs;
  Picos rate_timer = 300 * kPicosPerUs;
  uint64_t byte_counter_bytes = 10'000'000;
  double g = 1.0 / 256;
  uint64_t rate_ai_bps = 40'000'000;
  uint64_t rate_hai_bps = 400'000'000;
  uint32_t fast_recovery_rounds = 5;
  Picos cnp_interval = 50 * kPicosPerUs;  // at most one per queue pair
  // 0: a CNP cuts the rate and raises alpha at once. Else both look for CNPs by their own clocks, the rate every
  // reduce_period and alpha every alpha_timer from the first CNP on, as NICs do (rate_reduce_monitor_period).
  Picos reduce_period = 0;
  uint64_t min_rate_bps = 10'000'000;
};

struct NicSettings {
  Picos doorbell = 0;                         // from post to the NIC seeing the work request
  Picos pcie_read = 0;                        // latency of a read of host memory; reads overlap
  uint64_t pcie_read_bps = 0;                 // 0: unlimited
  uint64_t pcie_write_bps = 0;                // 0: unlimited. Slower than the link: backpressure
  uint64_t receive_buffer_bytes = 512 << 10;  // Ethernet: pauses its switch above half of it
  uint32_t work_requests_per_second_qp = 0;   // 0: unlimited
  uint32_t work_requests_per_second = 0;      // of the NIC; 0: unlimited
  uint32_t burst_packets = 1;                 // of one queue pair before the next one's turn
  bool acks_first = true;                     // acknowledgements go before data of their lane
  // The transport timer of a queue pair expires at 4.096 us * 2^timeout times this, 1 to 4.
  double timer_factor = 1;
  // RDMA writes that may arrive before an earlier packet, at most 512: for adaptive routing. Data is placed as it
  // comes, completions keep their order. 0: whatever overtakes causes a NAK and go-back-N.
  uint32_t reorder_packets = 0;
  RateControl rate_control = RateControl::kNone;
  DcqcnSettings dcqcn;
  uint8_t cnp_priority = 6;

  // Nothing costs time: the default of the real-time fabric, where hosts have costs of their own.
  static NicSettings Instant() { return {}; }
  // Doorbell 300 ns, PCIe gen5 x16 (700 ns, 440 Gb/s), 16 M and 200 M work requests/s.
  static NicSettings Realistic();
  // "instant", "realistic".
  static Result<NicSettings> Preset(std::string_view name);
};

enum class RoutingMode : uint8_t {
  kEcmp,      // a flow keeps its path, drawn by hash
  kAdaptive,  // every packet takes the shortest of the candidate queues
};
enum class FlowHashKind : uint8_t { kCrc32, kToeplitz };

// The path of one flow, by the links it takes after the source's own.
struct StaticRoute {
  uint32_t flow = 0;            // Packet::flow
  std::vector<uint32_t> links;  // index in Topology::links, from the first switch on
};

struct RoutingSettings {
  RoutingMode mode = RoutingMode::kEcmp;
  FlowHashKind hash = FlowHashKind::kCrc32;
  uint64_t seed = 1;
  bool equal_seeds = false;           // every switch draws alike: polarisation
  Picos reroute_delay = kPicosPerMs;  // from a link's change to routes that know of it
  std::vector<StaticRoute> static_routes;
};

}  // namespace sluice::soft
