// SLUICE_SL_SOURCE=path: the service level of every lane from the subnet administrator, for each port pair of a path and
// both directions, where routing engines own it.
//
//   AskServiceLevels(engine, peer, ports, matched, lanes, [](const Status&, std::vector<LaneSpec>, PairLevels) { ... });
//
// A lane that names an SL keeps it where the route allows it. Where it does not, control and the default class, which every
// path has, take the SL of the route; any other class loses its queue pairs (queue_pairs = 0) and uses those of the default
// class. One warning names the first such class. A lane that names none takes the SL of the route, in each direction.
//
// Threads: event thread. Nothing blocks: `done` runs later, or at once when all answers are known.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "plugin/lanes.h"
#include "plugin/transport/path.h"

namespace sluice {

using PortMatch = std::pair<uint8_t, uint8_t>;               // port of the sender, port of the receiver
using PairLevels = std::vector<std::vector<ServiceLevels>>;  // by port pair, then by lane
using ServiceLevelsDone = std::function<void(const Status&, std::vector<LaneSpec>, PairLevels)>;

void AskServiceLevels(Engine& engine, const std::string& peer, const std::vector<PortAddress>& peer_ports,
                      const std::vector<PortMatch>& matched, std::vector<LaneSpec> lanes,
                      ServiceLevelsDone done);

}  // namespace sluice
