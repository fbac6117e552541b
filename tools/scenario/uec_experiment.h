// The yardstick transports on the network of the recorded 400G table: 8192 hosts, leaf and spine, 64 links up
// and down, 1 us links, packets of 4150 bytes, queues of 100 packets that trim.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "verbs/soft/flows/simulation.h"

namespace sluice::scenario {

struct UecExperiment {
  soft::Transport transport = soft::Transport::kNscc;
  uint32_t hosts = 8192;
  uint64_t rate_bps = 400'000'000'000;
  uint32_t senders = 8;  // to host 0, drawn at random from the other leaves
  uint64_t flow_bytes = 1 << 20;
};

struct UecResult {
  std::vector<double> completion_us;
  uint64_t repeated_packets = 0;
  uint64_t packet_hops = 0;
};

Result<UecResult> RunUecIncast(const UecExperiment& experiment, uint64_t seed);

}  // namespace sluice::scenario
