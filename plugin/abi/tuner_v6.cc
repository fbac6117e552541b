// TUNER v6 (NCCL 2.30): may choose the size of a chunk.
#include "plugin/abi/tables.h"
#include "plugin/abi/tuner_boundary.h"

namespace sluice {
namespace {

using nccl::NcclResult;

NcclResult Init(void** context, uint64_t comm_id, size_t ranks, size_t nodes, DebugLogger logger,
                nccl::TunerNvlDomainInfo* /*domains*/, nccl::TunerConstants* /*constants*/) {
  return tuner_boundary::Init(context, comm_id, ranks, nodes, logger);
}

NcclResult GetCollInfo(void* context, int coll, size_t bytes, int pipe_ops, float** /*cost_table*/,
                       int /*algorithms*/, int /*protocols*/, int registered, int* /*channels*/) {
  return tuner_boundary::GetCollInfo(context, coll, bytes, pipe_ops, registered);
}

}  // namespace
}  // namespace sluice

const sluice::nccl::TunerV6 ncclTunerPlugin_v6 = {
    .name = "Sluice",
    .init = sluice::Init,
    .getCollInfo = sluice::GetCollInfo,
    .finalize = sluice::tuner_boundary::Finalize,
    .getChunkSize = nullptr,  // the chunk stays NCCL's
};
