// `sluice perf --fabric virtual --workload FILE`: the jobs of a tools/workload description over the real plugin.
#pragma once

#include <string>
#include <vector>

#include "tools/perf/options.h"

namespace sluice::perf {

// Returns 2 where the description is bad; otherwise it prints a Results as one line of JSON and ends the
// process.
int RunVirtualWorkload(const Options& options, const std::vector<std::string>& arguments);

}  // namespace sluice::perf
