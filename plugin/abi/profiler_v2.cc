// PROFILER v2 (NCCL 2.24 and 2.25): operations by name.
#include "plugin/abi/profiler_boundary.h"
#include "plugin/abi/tables.h"

namespace sluice {
namespace {

using nccl::NcclResult;

constexpr int kVersion = 2;

NcclResult Init(void** context, int* mask) {
  return profiler_boundary::Init(kVersion, context, mask, Communicator{}, nullptr);
}

NcclResult StartEvent(void* context, void** event, nccl::ProfilerEventDescrV2* descr) {
  return profiler_boundary::StartEvent(context, event, descr);
}

// Just before isend NCCL reports that the operation waits for its peer.
NcclResult RecordEventState(void* event, int state, nccl::ProfilerEventStateArgsV1* /*args*/) {
  if (state == nccl::kProxyOpSendRemFifoWait) BeforeSend(profiler_boundary::EventFrom(event));
  return nccl::kSuccess;
}

}  // namespace
}  // namespace sluice

const sluice::nccl::ProfilerV2 ncclProfiler_v2 = {
    .name = "Sluice",
    .init = sluice::Init,
    .startEvent = sluice::StartEvent,
    .stopEvent = sluice::profiler_boundary::StopEvent,
    .recordEventState = sluice::RecordEventState,
    .finalize = sluice::profiler_boundary::Finalize,
};
