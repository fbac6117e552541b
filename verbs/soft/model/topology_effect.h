// Refuses settings of switches and NICs that were given and would change nothing, because of the link layer or
// of another setting: whoever gives one expects something of it.
//
// Thread rule: pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/topology.h"
#include "verbs/soft/model/topology_text.h"

namespace sluice::soft {

// Entries of [switches] or [nics], as `section` says, against the finished topology.
Status CheckEffect(std::string_view section, const std::vector<TextEntry>& entries, const Topology& topology);

}  // namespace sluice::soft
