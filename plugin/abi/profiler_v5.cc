// PROFILER v5 (NCCL 2.28): 64-bit event types, API calls, another order of arguments at init.
#include "plugin/abi/profiler_boundary.h"
#include "plugin/abi/tables.h"

namespace sluice {
namespace {

using nccl::NcclResult;

constexpr int kVersion = 5;

NcclResult Init(void** context, uint64_t comm_id, int* mask, const char* comm_name, int nodes, int ranks,
                int rank, DebugLogger logger) {
  return profiler_boundary::Init(kVersion, context, mask,
                                 profiler_boundary::CommunicatorFrom(comm_id, comm_name, nodes, ranks, rank),
                                 logger);
}

NcclResult StartEvent(void* context, void** event, nccl::ProfilerEventDescrV5* descr) {
  return profiler_boundary::StartEvent(context, event, descr);
}

// Just before isend NCCL reports that the step waits for its peer.
NcclResult RecordEventState(void* event, int state, nccl::ProfilerEventStateArgsV4* /*args*/) {
  if (state == nccl::kProxyStepSendPeerWaitV4) BeforeSend(profiler_boundary::EventFrom(event));
  return nccl::kSuccess;
}

}  // namespace
}  // namespace sluice

const sluice::nccl::ProfilerV5 ncclProfiler_v5 = {
    .name = "Sluice",
    .init = sluice::Init,
    .startEvent = sluice::StartEvent,
    .stopEvent = sluice::profiler_boundary::StopEvent,
    .recordEventState = sluice::RecordEventState,
    .finalize = sluice::profiler_boundary::Finalize,
};
