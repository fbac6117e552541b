// Every operation, algorithm and protocol, one after the other in one communicator: what `--op mixed` runs.
#pragma once

#include <vector>

#include "base/status.h"
#include "tools/perf/options.h"
#include "tools/perf/schedule.h"

namespace sluice::perf {

// In the order of one round. Sizes go from -b to -e, by -f.
std::vector<Shape> MixedShapes(const Options& options, int rank);

}  // namespace sluice::perf
