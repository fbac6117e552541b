// PROFILER v4 (NCCL 2.27): steps have states of their own, the communicator is named at init.
#include "plugin/abi/profiler_boundary.h"
#include "plugin/abi/tables.h"

namespace sluice {
namespace {

using nccl::NcclResult;

constexpr int kVersion = 4;

NcclResult Init(void** context, int* mask, const char* comm_name, uint64_t comm_hash, int nodes, int ranks,
                int rank, DebugLogger logger) {
  return profiler_boundary::Init(
      kVersion, context, mask, profiler_boundary::CommunicatorFrom(comm_hash, comm_name, nodes, ranks, rank),
      logger);
}

NcclResult StartEvent(void* context, void** event, nccl::ProfilerEventDescrV4* descr) {
  return profiler_boundary::StartEvent(context, event, descr);
}

// Just before isend NCCL reports that the step waits for its peer.
NcclResult RecordEventState(void* event, int state, nccl::ProfilerEventStateArgsV4* /*args*/) {
  if (state == nccl::kProxyStepSendPeerWaitV4) BeforeSend(profiler_boundary::EventFrom(event));
  return nccl::kSuccess;
}

}  // namespace
}  // namespace sluice

const sluice::nccl::ProfilerV4 ncclProfiler_v4 = {
    .name = "Sluice",
    .init = sluice::Init,
    .startEvent = sluice::StartEvent,
    .stopEvent = sluice::profiler_boundary::StopEvent,
    .recordEventState = sluice::RecordEventState,
    .finalize = sluice::profiler_boundary::Finalize,
};
