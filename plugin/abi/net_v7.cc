// NET v7 (NCCL 2.19): sizes are int, one context for the process.
#include "plugin/abi/boundary.h"
#include "plugin/abi/tables.h"

namespace sluice {
namespace {

using nccl::NcclResult;

NcclResult Init(DebugLogger logger) {
  return boundary::InitGlobal(logger);
}

NcclResult GetProperties(int dev, nccl::NetPropertiesV7* to) {
  NetProperties from;
  const NcclResult result = boundary::GetProperties(dev, to, &from);
  if (result != nccl::kSuccess) return result;
  boundary::FillCommon(from, to);
  return nccl::kSuccess;
}

NcclResult Listen(int dev, void* handle, void** listen_comm) {
  return boundary::ListenGlobal(dev, handle, listen_comm);
}

NcclResult Connect(int dev, void* handle, void** send_comm, nccl::NetDeviceHandle** device_handle) {
  return boundary::ConnectGlobal(dev, nullptr, handle, send_comm, device_handle);
}

NcclResult RegMr(void* comm, void* data, int size, int type, void** mhandle) {
  if (size < 0) {
    if (mhandle != nullptr) *mhandle = nullptr;
    return boundary::BadArgument("regMr", boundary::kBadSize);
  }
  return boundary::RegMr(comm, data, static_cast<size_t>(size), type, mhandle);
}

NcclResult Isend(void* comm, void* data, int size, int tag, void* mhandle, void** request) {
  return boundary::Isend(comm, data, size, tag, mhandle, nullptr, request);
}

NcclResult Irecv(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles, void** request) {
  return boundary::Irecv(comm, n, data, sizes, tags, mhandles, request);
}

NcclResult Iflush(void* comm, int n, void** data, int* sizes, void** mhandles, void** request) {
  return boundary::Iflush(comm, n, data, sizes, mhandles, request);
}

NcclResult Test(void* request, int* done, int* sizes) {
  return boundary::Test(request, done, sizes);
}

}  // namespace
}  // namespace sluice

const sluice::nccl::NetV7 ncclNetPlugin_v7 = {
    .name = "Sluice",
    .init = sluice::Init,
    .devices = sluice::boundary::Devices,
    .getProperties = sluice::GetProperties,
    .listen = sluice::Listen,
    .connect = sluice::Connect,
    .accept = sluice::boundary::Accept,
    .regMr = sluice::RegMr,
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
};
