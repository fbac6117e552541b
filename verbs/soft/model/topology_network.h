// The keys of the sections [switches], [nics], [routing] and [[route]]: how a fabric behaves, see
// network_settings.h for what each setting means.
//
//   [topology]                       one line: "leaf-spine:hosts=128,switch=shared64,switches.pool=32M"
//   switch = "shared64"              # a preset; `preset` in [switches] is the same
//   nic = "realistic"
//   [switches]
//   pool = "32M"                     # what differs from the preset
//   lossless_priorities = [0, 3]
//   dscp = { 26 = 3, 48 = 6 }        # others keep the preset's priority
//   vl_low = [[0, 64], [1, 128]]
//   [[route]]
//   flow = 17
//   links = ["leaf0-spine1", "spine1-leaf3"]
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/network_settings.h"
#include "verbs/soft/model/topology.h"
#include "verbs/soft/model/topology_text.h"

namespace sluice::soft {

// "switches", "nics" or "routing".
bool IsNetworkSection(std::string_view name);
// The entries of one section, in any order: a preset applies first. `name` is one of those above.
Status ApplyNetworkSection(const std::string& name, const std::vector<TextEntry>& entries,
                           Topology* topology);
// "switches.KEY=value,nics.KEY=value", each on top of what the topology has. An empty text changes nothing.
Status ApplyOverrides(std::string_view text, Topology* topology);
// After links are known.
Status ApplyRoute(const TextSection& section, Topology* topology);
// "switches.preset, switches.queue, ..., routing.mode, ..." for messages.
std::string NetworkKeys();

}  // namespace sluice::soft
