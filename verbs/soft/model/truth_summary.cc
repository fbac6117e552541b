#include "verbs/soft/model/truth_summary.h"

#include <algorithm>

#include "verbs/soft/model/network_truth.h"
#include "verbs/soft/model/topology.h"

namespace sluice::soft {

TruthSummary Summarise(const Topology& topology, const NetworkTruth& truth) {
  TruthSummary summary;
  for (uint32_t i = 0; i < topology.links.size(); ++i) {
    const LinkSpec& spec = topology.links[i];
    const bool between_switches = spec.a.is_switch && spec.b.is_switch;
    for (uint32_t direction = 0; direction < 2; ++direction) {
      const LinkTruth link = truth.link(2 * i + direction);
      uint64_t bytes = 0;
      for (const uint64_t lane : link.bytes) bytes += lane;
      summary.busiest_link = std::max(summary.busiest_link, SerialisationTime(bytes, spec.rate_bps));
      summary.pauses += link.pauses_received;
      if (!between_switches) continue;
      summary.switch_pauses += link.pauses_received;
      summary.switch_transmit_wait = std::max(summary.switch_transmit_wait, link.transmit_wait);
    }
  }
  return summary;
}

}  // namespace sluice::soft
