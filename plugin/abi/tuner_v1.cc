// TUNER v1 (NCCL 2.19 and 2.20): no context, one communicator cannot be told from another.
#include "plugin/abi/tables.h"
#include "plugin/abi/tuner_boundary.h"

namespace sluice {
namespace {

using nccl::NcclResult;

NcclResult Init(size_t ranks, size_t nodes, DebugLogger logger) {
  void* ignored = nullptr;
  return tuner_boundary::Init(&ignored, 0, ranks, nodes, logger);
}

NcclResult GetCollInfo(int coll, size_t bytes, int /*collnet*/, int /*nvls*/, int pipe_ops,
                       int* /*algorithm*/, int* /*protocol*/, int* /*channels*/) {
  return tuner_boundary::GetCollInfo(nullptr, coll, bytes, pipe_ops, 0);
}

NcclResult Destroy() {
  return nccl::kSuccess;
}

}  // namespace
}  // namespace sluice

const sluice::nccl::TunerV1 ncclTunerPlugin_v1 = {
    .name = "Sluice",
    .init = sluice::Init,
    .getCollInfo = sluice::GetCollInfo,
    .destroy = sluice::Destroy,
};
