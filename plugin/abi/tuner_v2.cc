// TUNER v2 (NCCL 2.21): a context per communicator.
#include "plugin/abi/tables.h"
#include "plugin/abi/tuner_boundary.h"

namespace sluice {
namespace {

using nccl::NcclResult;

NcclResult Init(size_t ranks, size_t nodes, DebugLogger logger, void** context) {
  return tuner_boundary::Init(context, 0, ranks, nodes, logger);
}

NcclResult GetCollInfo(void* context, int coll, size_t bytes, int /*collnet*/, int /*nvls*/, int pipe_ops,
                       int* /*algorithm*/, int* /*protocol*/, int* /*channels*/) {
  return tuner_boundary::GetCollInfo(context, coll, bytes, pipe_ops, 0);
}

}  // namespace
}  // namespace sluice

const sluice::nccl::TunerV2 ncclTunerPlugin_v2 = {
    .name = "Sluice",
    .init = sluice::Init,
    .getCollInfo = sluice::GetCollInfo,
    .destroy = sluice::tuner_boundary::Finalize,
};
