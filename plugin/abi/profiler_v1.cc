// PROFILER v1 (NCCL 2.23): operations by number, the communicator named with every task.
#include "plugin/abi/profiler_boundary.h"
#include "plugin/abi/tables.h"

namespace sluice {
namespace {

using nccl::NcclResult;

constexpr int kVersion = 1;

NcclResult Init(void** context, int* mask) {
  return profiler_boundary::Init(kVersion, context, mask, Communicator{}, nullptr);
}

NcclResult StartEvent(void* context, void** event, nccl::ProfilerEventDescrV1* descr) {
  return profiler_boundary::StartEvent(context, event, descr);
}

// Just before isend NCCL reports that the operation waits for its peer.
NcclResult RecordEventState(void* event, int state, nccl::ProfilerEventStateArgsV1* /*args*/) {
  if (state == nccl::kProxyOpSendRemFifoWait) BeforeSend(profiler_boundary::EventFrom(event));
  return nccl::kSuccess;
}

}  // namespace
}  // namespace sluice

const sluice::nccl::ProfilerV1 ncclProfiler_v1 = {
    .name = "Sluice",
    .init = sluice::Init,
    .startEvent = sluice::StartEvent,
    .stopEvent = sluice::profiler_boundary::StopEvent,
    .recordEventState = sluice::RecordEventState,
    .finalize = sluice::profiler_boundary::Finalize,
};
