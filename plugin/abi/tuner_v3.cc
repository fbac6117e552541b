// TUNER v3 (NCCL 2.22 and 2.23): a table of costs instead of one choice.
#include "plugin/abi/tables.h"
#include "plugin/abi/tuner_boundary.h"

namespace sluice {
namespace {

using nccl::NcclResult;

NcclResult Init(size_t ranks, size_t nodes, DebugLogger logger, void** context) {
  return tuner_boundary::Init(context, 0, ranks, nodes, logger);
}

NcclResult GetCollInfo(void* context, int coll, size_t bytes, int pipe_ops, float** /*cost_table*/,
                       int /*algorithms*/, int /*protocols*/, int* /*channels*/) {
  return tuner_boundary::GetCollInfo(context, coll, bytes, pipe_ops, 0);
}

}  // namespace
}  // namespace sluice

const sluice::nccl::TunerV3 ncclTunerPlugin_v3 = {
    .name = "Sluice",
    .init = sluice::Init,
    .getCollInfo = sluice::GetCollInfo,
    .destroy = sluice::tuner_boundary::Finalize,
};
