// `sluice perf`: the collective benchmark for any NCCL NET plugin, without GPUs.
#pragma once

#include <string>
#include <vector>

#include "tools/perf/options.h"

namespace sluice::perf {

// Runs the benchmark with parsed options. arguments: of the whole program, to start it again once per rank.
int Run(Options options, const std::vector<std::string>& arguments);

}  // namespace sluice::perf
