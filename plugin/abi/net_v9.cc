// NET v9 (NCCL 2.24 and 2.25): sizes are size_t, merged devices.
#include "plugin/abi/boundary.h"
#include "plugin/abi/tables.h"

namespace sluice {
namespace {

using nccl::NcclResult;

NcclResult Init(DebugLogger logger) {
  return boundary::InitGlobal(logger);
}

NcclResult GetProperties(int dev, nccl::NetPropertiesV9* to) {
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

NcclResult Connect(int dev, void* handle, void** send_comm, nccl::NetDeviceHandle** device_handle) {
  return boundary::ConnectGlobal(dev, nullptr, handle, send_comm, device_handle);
}

NcclResult Isend(void* comm, void* data, size_t size, int tag, void* mhandle, void** request) {
  return boundary::Isend(comm, data, size, tag, mhandle, nullptr, request);
}

NcclResult Irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** request) {
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

const sluice::nccl::NetV9 ncclNetPlugin_v9 = {
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
