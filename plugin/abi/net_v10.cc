// NET v10 (NCCL 2.26 and 2.27): a configuration in connect, profiler handles.
#include <atomic>

#include "plugin/abi/boundary.h"
#include "plugin/abi/tables.h"

namespace sluice {
namespace {

using nccl::NcclResult;

std::atomic<nccl::ProfilerCallback> ask_profiler{nullptr};

// NCCL hands `query` to startEvent of the profiler that is loaded, with the step's event as parent.
bool AskProfiler(void* phandle, void* query) {
  constexpr int64_t kPluginId = 0x536c << 16 | 1;  // a type of our own, version 1
  const nccl::ProfilerCallback ask = ask_profiler.load(std::memory_order_relaxed);
  void* event = nullptr;
  return ask(&event, nccl::kProfilerStart, phandle, kPluginId, query) == nccl::kSuccess;
}

NcclResult Init(DebugLogger logger, nccl::ProfilerCallback profiler) {
  if (profiler != nullptr) {
    ask_profiler.store(profiler, std::memory_order_relaxed);
    NetContext::SetAskProfiler(AskProfiler);
  }
  return boundary::InitGlobal(logger);
}

NcclResult GetProperties(int dev, nccl::NetPropertiesV10* to) {
  NetProperties from;
  const NcclResult result = boundary::GetProperties(dev, to, &from);
  if (result != nccl::kSuccess) return result;
  boundary::FillCommon(from, to);
  to->regIsGlobal = boundary::kRegistrationIsGlobal;
  to->forceFlush = from.force_flush ? 1 : 0;
  to->maxP2pBytes = from.max_p2p_bytes;
  to->maxCollBytes = from.max_coll_bytes;
  return boundary::FillMembers(from, &to->vProps);
}

NcclResult Listen(int dev, void* handle, void** listen_comm) {
  return boundary::ListenGlobal(dev, handle, listen_comm);
}

NcclResult Connect(int dev, nccl::NetCommConfig* config, void* handle, void** send_comm,
                   nccl::NetDeviceHandle** device_handle) {
  return boundary::ConnectGlobal(dev, config, handle, send_comm, device_handle);
}

NcclResult Isend(void* comm, void* data, size_t size, int tag, void* mhandle, void* phandle, void** request) {
  return boundary::Isend(comm, data, size, tag, mhandle, phandle, request);
}

NcclResult Irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                 void** /*phandles*/, void** request) {
  return boundary::Irecv(comm, n, data, sizes, tags, mhandles, request);
}

NcclResult Iflush(void* comm, int n, void** data, int* sizes, void** mhandles, void** request) {
  return boundary::Iflush(comm, n, data, sizes, mhandles, request);
}

NcclResult Test(void* request, int* done, int* sizes) {
  return boundary::Test(request, done, sizes);
}

NcclResult MakeVDevice(int* dev, nccl::NetVDevicePropsV9* properties) {
  if (properties == nullptr) return boundary::BadArgument("makeVDevice", boundary::kNullArgument);
  return boundary::MakeVDevice(dev, properties->devs, properties->ndevs,
                               nccl::NetVDevicePropsV9::kMaxDevices);
}

}  // namespace
}  // namespace sluice

const sluice::nccl::NetV10 ncclNetPlugin_v10 = {
    .name = "Sluice",
    .init = sluice::Init,
    .devices = sluice::boundary::Devices,
    .getProperties = sluice::GetProperties,
    .listen = sluice::Listen,
    .connect = sluice::Connect,
    .accept = sluice::boundary::Accept,
    .regMr = sluice::boundary::RegMr,
    .regMrDmaBuf = sluice::boundary::RegMrDmaBuf,
    .deregMr = sluice::boundary::DeregMr,
    .isend = sluice::Isend,
    .irecv = sluice::Irecv,
    .iflush = sluice::Iflush,
    .test = sluice::Test,
    .closeSend = sluice::boundary::CloseSend,
    .closeRecv = sluice::boundary::CloseRecv,
    .closeListen = sluice::boundary::CloseListen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = sluice::MakeVDevice,
};
