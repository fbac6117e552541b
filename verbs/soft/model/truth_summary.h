// Ground truth of a whole network in a few numbers.
#pragma once

#include <cstdint>

#include "verbs/soft/model/clock.h"

namespace sluice::soft {

class NetworkTruth;
struct Topology;

struct TruthSummary {
  // PFC frames that stopped a sender: at any link, and at links between switches.
  uint64_t pauses = 0;
  uint64_t switch_pauses = 0;
  Picos busiest_link = 0;  // what the link that carried most needs for its bytes alone
  // Longest time in which a link between switches had something to send and might not.
  Picos switch_transmit_wait = 0;
};

TruthSummary Summarise(const Topology& topology, const NetworkTruth& truth);

}  // namespace sluice::soft
