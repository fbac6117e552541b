// TUNER v4 (NCCL 2.24 to 2.27): tells whether buffers are registered.
#include "plugin/abi/tables.h"
#include "plugin/abi/tuner_boundary.h"

namespace sluice {
namespace {

using nccl::NcclResult;

NcclResult Init(size_t ranks, size_t nodes, DebugLogger logger, void** context) {
  return tuner_boundary::Init(context, 0, ranks, nodes, logger);
}

NcclResult GetCollInfo(void* context, int coll, size_t bytes, int pipe_ops, float** /*cost_table*/,
                       int /*algorithms*/, int /*protocols*/, int registered, int* /*channels*/) {
  return tuner_boundary::GetCollInfo(context, coll, bytes, pipe_ops, registered);
}

}  // namespace
}  // namespace sluice

const sluice::nccl::TunerV4 ncclTunerPlugin_v4 = {
    .name = "Sluice",
    .init = sluice::Init,
    .getCollInfo = sluice::GetCollInfo,
    .destroy = sluice::tuner_boundary::Finalize,
};
