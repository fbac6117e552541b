// Our RC, PFC and ECMP with the parameters of uet-htsim's htsim_roce, so that results compare one to one:
// three tiers, k = 8, 128 hosts, 1 us links, packets of 4000 + 64 bytes, 64-byte answers to every packet,
// pauses by ingress port, no rate control, no timer, one path a flow by hash or as recorded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "tools/scenario/recorded.h"

namespace sluice::scenario {

struct RoceFlow {
  uint32_t source = 0;
  uint32_t destination = 0;
  uint32_t start_us = 0;
};

struct RoceExperiment {
  std::vector<RoceFlow> flows;
  uint32_t hosts = 128;
  uint64_t rate_bps = 100'000'000'000;
  uint64_t flow_bytes = 2'000'000;
  uint32_t xoff_packets = 15;
  uint32_t xon_packets = 12;
  std::span<const RecordedFlow> routes;  // empty: by hash; else one for each flow
};

struct RoceResult {
  std::vector<double> completion_us;  // of every flow: when its last packet is acknowledged
  uint64_t pauses = 0;
  uint64_t packet_hops = 0;
};

// Every host but the two of the victim sends to host 33; the last flow is the victim, host 38 to host 34.
std::vector<RoceFlow> VictimFlows();
constexpr size_t kVictimFlow = 126;
// A random permutation without a host that sends to itself.
std::vector<RoceFlow> PermutationFlows(uint32_t hosts, uint64_t seed);
// `senders` hosts, spread at random, send to host 33.
std::vector<RoceFlow> IncastFlows(uint32_t hosts, uint32_t senders, uint64_t seed);
std::vector<RoceFlow> FlowsOf(std::span<const RecordedFlow> recorded);

Result<RoceResult> RunRoce(const RoceExperiment& experiment, uint64_t seed);

}  // namespace sluice::scenario
