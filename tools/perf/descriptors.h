// Room for the descriptors that a job needs.
#pragma once

#include "base/status.h"
#include "tools/perf/options.h"

namespace sluice::perf {

// Raises this process's limit of open files, which the ranks inherit, as far as a job of `options.ranks`
// ranks may need and the hard limit allows. An error when even the least that such a job takes is out of
// reach.
Status ReserveDescriptors(const Options& options);

}  // namespace sluice::perf
