// `sluice perf --fabric virtual`: all ranks in this process, on a fabric with a clock of its own.
#pragma once

#include <string>
#include <vector>

#include "tools/perf/options.h"

namespace sluice::perf {

// Runs the whole benchmark and ends the process: plugins may have threads that still run. `arguments` are
// those of the program, in case that it must start again with other loader settings.
[[noreturn]] void RunVirtualBenchmark(const Options& options, const std::vector<std::string>& arguments);

}  // namespace sluice::perf
