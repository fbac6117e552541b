// The fabric that a user has asked for: topology, faults and background traffic as SLUICE_FABRIC_TOPOLOGY,
// SLUICE_FABRIC_FAULTS and SLUICE_FABRIC_BACKGROUND name them (ipc/socket.h reads them).
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "verbs/soft/ipc/socket.h"
#include "verbs/soft/model/fabric.h"

namespace sluice::soft {

// Read and checked as a whole.
Result<Topology> TopologyOf(const TopologySource& source);
// With its faults and background traffic started. `seed`: of routes, faults and background traffic; nullptr: as
// the topology says. `pool` outlives the fabric.
Result<std::unique_ptr<Fabric>> StartFabric(const TopologySource& source, const uint64_t* seed,
                                            PayloadPool* pool);

}  // namespace sluice::soft
