#include "plugin/abi/tuner_boundary.h"

#include <exception>

#include "plugin/log.h"

namespace sluice::tuner_boundary {

NcclResult Init(void** context, uint64_t comm_id, size_t ranks, size_t nodes, DebugLogger logger) {
  if (context == nullptr) return nccl::kInvalidArgument;
  *context = nullptr;
  Communicator communicator;
  communicator.hash = comm_id;
  communicator.ranks = static_cast<int>(ranks);
  communicator.nodes = static_cast<int>(nodes);
  try {
    *context = TunerContext::Create(communicator, logger);
  } catch (const std::exception& error) {
    SLUICE_WARN("tuner: init failed: %s; NCCL's own choices hold", error.what());
  }
  return nccl::kSuccess;
}

NcclResult GetCollInfo(void* context, int coll, size_t bytes, int pipe_ops, int registered) {
  if (context == nullptr) return nccl::kSuccess;
  const bool known = coll >= 0 && coll < static_cast<int>(Function::kUnknown);
  static_cast<TunerContext*>(context)->Asked(
      {known ? static_cast<Function>(coll) : Function::kUnknown, bytes, pipe_ops, registered != 0});
  return nccl::kSuccess;
}

NcclResult Finalize(void* context) {
  if (context != nullptr) static_cast<TunerContext*>(context)->Finalize();
  return nccl::kSuccess;
}

}  // namespace sluice::tuner_boundary
