// What every version table of the tuner shares: from NCCL's arguments to plugin/tuner.h. Every call succeeds: NCCL
// fails the collective, or the communicator, when a tuner does not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/abi/nccl_tuner.h"
#include "plugin/tuner.h"

namespace sluice::tuner_boundary {

using nccl::NcclResult;

// comm_id 0: the version does not tell it.
NcclResult Init(void** context, uint64_t comm_id, size_t ranks, size_t nodes, DebugLogger logger);
NcclResult GetCollInfo(void* context, int coll, size_t bytes, int pipe_ops, int registered);
NcclResult Finalize(void* context);

}  // namespace sluice::tuner_boundary
