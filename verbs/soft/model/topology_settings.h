// The keys of a topology: their grammar and ranges, the same in a TOML file and in the one-line form.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/topology.h"
#include "verbs/soft/model/topology_build.h"
#include "verbs/soft/model/topology_text.h"

namespace sluice::soft {

struct TopologySettings {
  uint32_t hosts = 256;
  bool hosts_given = false;
  uint64_t seed = 1;
  std::optional<bool> on_demand;  // not given: hosts come on demand until their number is given
  HostSettings host;
  ResourceLimits limits;
  TopologyShape shape;
  bool kind_given = false;
  std::vector<TextEntry> shape_entries;  // to check, at the end, that they belong to the kind
};

// Each sets one key. Not `known`: the caller knows which keys its place allows.
Status SetHostKey(HostSettings* settings, const TextEntry& entry, bool* known);
Status SetTopologyKey(TopologySettings* settings, const TextEntry& entry, bool* known);
Status SetLimitKey(ResourceLimits* limits, const TextEntry& entry, bool* known);
// "hosts, on_demand, nics, ..." for messages.
std::string TopologyKeys();
std::string HostKeys();
std::string LimitKeys();

bool IsTopologyKind(std::string_view text);
// When every key is set: refuses keys that mean nothing for the kind, and derives the number of hosts.
Status FinishSettings(TopologySettings* settings, const std::string& where);
TopologyPlan PlanOf(const TopologySettings& settings);

}  // namespace sluice::soft
