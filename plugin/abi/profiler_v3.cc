// PROFILER v3 (NCCL 2.26): events of kernels and of the network plugin.
#include "plugin/abi/profiler_boundary.h"
#include "plugin/abi/tables.h"

namespace sluice {
namespace {

using nccl::NcclResult;

constexpr int kVersion = 3;

NcclResult Init(void** context, int* mask) {
  return profiler_boundary::Init(kVersion, context, mask, Communicator{}, nullptr);
}

NcclResult StartEvent(void* context, void** event, nccl::ProfilerEventDescrV3* descr) {
  return profiler_boundary::StartEvent(context, event, descr);
}

// Just before isend NCCL reports that the operation waits for its peer.
NcclResult RecordEventState(void* event, int state, nccl::ProfilerEventStateArgsV1* /*args*/) {
  if (state == nccl::kProxyOpSendRemFifoWait) BeforeSend(profiler_boundary::EventFrom(event));
  return nccl::kSuccess;
}

}  // namespace
}  // namespace sluice

const sluice::nccl::ProfilerV3 ncclProfiler_v3 = {
    .name = "Sluice",
    .init = sluice::Init,
    .startEvent = sluice::StartEvent,
    .stopEvent = sluice::profiler_boundary::StopEvent,
    .recordEventState = sluice::RecordEventState,
    .finalize = sluice::profiler_boundary::Finalize,
};
