// Room for the descriptors that a job needs.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "tools/perf/options.h"

namespace sluice::perf {

// Raises this process's limit of open files, which the ranks inherit, as far as a job of `options.ranks`
// ranks may need and the hard limit allows. An error when even the least that such a job takes is out of
// reach.
Status ReserveDescriptors(const Options& options);

// What a job takes when all of its ranks live in one process. Plugins differ; this is what Sluice's takes with
// one device.
struct VirtualDescriptors {
  size_t processes = 0;  // ranks that are processes of their own
  size_t paths = 0;      // directed pairs of ranks that have connections, of every communicator
};
// Raises the limit as far as the hard limit allows. An error when that is too little.
Status ReserveDescriptors(const VirtualDescriptors& job);
// An error when hardly any descriptor is left: a plugin may then try for ever.
Status CheckDescriptorsLeft();

}  // namespace sluice::perf
