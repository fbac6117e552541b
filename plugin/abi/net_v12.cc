// NET v12 (NCCL 2.30): as v11, with longer properties.
#include "plugin/abi/boundary.h"
#include "plugin/abi/tables.h"

namespace sluice {
namespace {

using nccl::NcclResult;

NcclResult Init(void** ctx, uint64_t comm_id, nccl::NetCommConfig* config, DebugLogger logger,
                nccl::ProfilerCallback /*profiler*/) {
  return boundary::InitContext(ctx, comm_id, config, logger);
}

NcclResult GetProperties(int dev, nccl::NetPropertiesV12* to) {
  NetProperties from;
  const NcclResult result = boundary::GetProperties(dev, to, &from);
  if (result != nccl::kSuccess) return result;
  boundary::FillCommon(from, to);
  to->regIsGlobal = boundary::kRegistrationIsGlobal;
  to->forceFlush = from.force_flush ? 1 : 0;
  to->maxP2pBytes = from.max_p2p_bytes;
  to->maxCollBytes = from.max_coll_bytes;
  to->maxMultiRequestSize = 1;
  to->railId = nccl::kNetIdUndefined;
  to->planeId = nccl::kNetIdUndefined;
  return boundary::FillMembers(from, &to->vProps);
}

NcclResult Listen(void* ctx, int dev, void* handle, void** listen_comm) {
  return boundary::Listen(static_cast<NetContext*>(ctx), dev, handle, listen_comm);
}

NcclResult Connect(void* ctx, int dev, void* handle, void** send_comm,
                   nccl::NetDeviceHandle** device_handle) {
  return boundary::Connect(static_cast<NetContext*>(ctx), dev, nullptr, handle, send_comm, device_handle);
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

NcclResult MakeVDevice(int* dev, nccl::NetVDevicePropsV12* properties) {
  if (properties == nullptr) return boundary::BadArgument("makeVDevice", boundary::kNullArgument);
  return boundary::MakeVDevice(dev, properties->devs, properties->ndevs,
                               nccl::NetVDevicePropsV12::kMaxDevices);
}

NcclResult SetNetAttr(void* ctx, nccl::NetAttr* attributes) {
  return boundary::SetNetAttr(ctx, attributes);
}

}  // namespace
}  // namespace sluice

const sluice::nccl::NetV12 ncclNetPlugin_v12 = {
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
    .finalize = sluice::boundary::Finalize,
    .setNetAttr = sluice::SetNetAttr,
};
