// What every version table shares: from NCCL's arguments to the typed interface of plugin/net.h and back.
//
//   NcclResult Isend(void* comm, void* data, int size, int tag, void* mhandle, void** request) {
//     return boundary::Isend(comm, data, size, tag, mhandle, nullptr, request);
//   }
//
// Contract towards NCCL: an output is written on every path, null when there is nothing to hand out; a null
// argument or a handle of the wrong kind is an error, releasing null is not; nothing is thrown (set-up
// catches, the fast path is noexcept). An error is logged once, here. Isend, Irecv, Iflush and Test are the
// fast path: a few instructions over the typed call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "plugin/abi/nccl_net.h"
#include "plugin/net.h"

namespace sluice::boundary {

using nccl::NcclResult;

// NCCL holds connections as void*, and regMr takes either direction. The low bits of the pointer tell what it
// is; zero is null, so one compare rejects both null and a wrong kind.
enum class Kind : uintptr_t { kSend = 1, kRecv = 2, kListen = 3 };
inline constexpr uintptr_t kKindMask = 7;

template <typename T>
inline constexpr Kind kKindOf = std::is_same_v<T, SendComm>   ? Kind::kSend
                                : std::is_same_v<T, RecvComm> ? Kind::kRecv
                                                              : Kind::kListen;

template <typename T>
bool Is(const void* handle) {
  return (reinterpret_cast<uintptr_t>(handle) & kKindMask) == static_cast<uintptr_t>(kKindOf<T>);
}
template <typename T>
T* Unwrap(void* handle) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(handle) - static_cast<uintptr_t>(kKindOf<T>));
}
template <typename T>
void* Wrap(T* object) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(object) + static_cast<uintptr_t>(kKindOf<T>));
}

// Logs `status` unless it was logged before (the same error is reported by every later call), and converts
// its code.
[[gnu::cold]] NcclResult Fail(const Status& status);
// As Fail, on the level of information: for what NCCL asks and copes with when refused.
[[gnu::cold]] NcclResult Decline(const Status& status);
// A call that breaks the contract of the interface: "isend was called with a null or foreign handle".
[[gnu::cold]] NcclResult BadArgument(const char* call, const char* cause);

inline constexpr char kNullArgument[] = "a null or foreign handle";
inline constexpr char kBadSize[] =
    "a size that is negative or above 2147483647 bytes; NCCL's test() counts in int";
inline constexpr char kBadType[] = "a memory type that is neither host nor CUDA";
inline constexpr char kBadMembers[] =
    "a number of devices to merge that is not 1 to the maximum of this version";
inline constexpr char kBadGroup[] = "a group of buffers whose number is not 1 to 8";

inline NcclResult Convert(const Status& status) {
  return status.ok() ? nccl::kSuccess : Fail(status);
}

// Negative ints become huge, so that one compare covers both ends.
template <typename Size>
bool SizeOk(Size size) {
  return static_cast<size_t>(size) <= kMaxMessageBytes;
}

// Set-up. `config` may be null. InitGlobal fails when there is no device: v7 to v10 have no finalize to call
// afterwards.
NcclResult InitGlobal(DebugLogger logger);
NcclResult InitContext(void** ctx, uint64_t comm_id, const nccl::NetCommConfig* config, DebugLogger logger);
NcclResult Finalize(void* ctx);
NcclResult Devices(int* count);
NcclResult Listen(NetContext* context, int dev, void* handle, void** listen_comm);
NcclResult Connect(NetContext* context, int dev, const nccl::NetCommConfig* config, void* handle,
                   void** send_comm, nccl::NetDeviceHandle** device_handle);
NcclResult Accept(void* listen_comm, void** recv_comm, nccl::NetDeviceHandle** device_handle);
NcclResult RegMr(void* comm, void* data, size_t size, int type, void** mhandle);
NcclResult RegMrDmaBuf(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                       void** mhandle);
NcclResult DeregMr(void* comm, void* mhandle);
NcclResult CloseSend(void* send_comm);
NcclResult CloseRecv(void* recv_comm);
NcclResult CloseListen(void* listen_comm);
NcclResult SetNetAttr(void* ctx, const nccl::NetAttr* attributes);
NcclResult MakeVDevice(int* dev, const int* members, int count, int max_members);

// v7 to v10: the context that all communicators share.
NcclResult ListenGlobal(int dev, void* handle, void** listen_comm);
NcclResult ConnectGlobal(int dev, const nccl::NetCommConfig* config, void* handle, void** send_comm,
                         nccl::NetDeviceHandle** device_handle);

// The properties of a device, or the error to return. `out` null is an error.
NcclResult GetProperties(int dev, const void* out, NetProperties* properties);

int PointerSupport(const NetProperties& properties);

// Members that are the same in every version.
template <typename Properties>
void FillCommon(const NetProperties& from, Properties* to) {
  to->name = from.name;
  to->pciPath = from.pci_path;
  to->guid = from.guid;
  to->ptrSupport = PointerSupport(from);
  to->speed = from.speed_mbps;
  to->port = from.port;
  to->latency = from.latency_us;
  to->maxComms = from.max_comms;
  to->maxRecvs = from.max_recvs;
  to->netDeviceType = nccl::kNetDeviceHost;
  to->netDeviceVersion = 0;
}

// A registration belongs to the ports of the connection that made it.
inline constexpr int kRegistrationIsGlobal = 0;

// vProps of a device. A device of more members than the version can name was made through a later version: an
// error.
template <typename VDeviceProps>
NcclResult FillMembers(const NetProperties& from, VDeviceProps* to) {
  if (from.member_count > VDeviceProps::kMaxDevices) {
    return BadArgument("getProperties",
                       "a device with more ports than this version of the interface can name");
  }
  to->ndevs = from.member_count;
  for (int i = 0; i < VDeviceProps::kMaxDevices; ++i)
    to->devs[i] = i < from.member_count ? from.members[i] : -1;
  return nccl::kSuccess;
}

// `*request` after a call that may be refused: null unless there is a request, also over what irecv finds
// there.
inline NcclResult Deliver(Attempt<Request> attempt, void** request) {
  *request = attempt.value();
  if (attempt.error() != nullptr) [[unlikely]]
    return Fail(*attempt.error());
  return nccl::kSuccess;
}

template <typename Size>
NcclResult Isend(void* comm, void* data, Size size, int tag, void* mhandle, void* phandle, void** request) {
  if (request == nullptr) [[unlikely]]
    return BadArgument("isend", kNullArgument);
  if (!Is<SendComm>(comm)) [[unlikely]] {
    *request = nullptr;
    return BadArgument("isend", kNullArgument);
  }
  if (!SizeOk(size)) [[unlikely]] {
    *request = nullptr;
    return BadArgument("isend", kBadSize);
  }
  return Deliver(Unwrap<SendComm>(comm)->Isend(data, static_cast<size_t>(size), tag,
                                               static_cast<MemoryHandle*>(mhandle), phandle),
                 request);
}

// Gathers NCCL's parallel arrays. False if a size is out of range.
template <typename Size>
bool Gather(int n, void** data, const Size* sizes, const int* tags, void** mhandles, ReceiveBuffer* buffers) {
  for (int i = 0; i < n; ++i) {
    if (!SizeOk(sizes[i])) [[unlikely]]
      return false;
    buffers[i] = {data[i], static_cast<size_t>(sizes[i]), tags == nullptr ? 0 : tags[i],
                  static_cast<MemoryHandle*>(mhandles[i])};
  }
  return true;
}

inline bool GroupOk(int n) {
  return static_cast<unsigned>(n) - 1u < static_cast<unsigned>(kMaxGroup);
}

// More than one buffer, or none.
template <typename Size>
[[gnu::noinline]] NcclResult IrecvGroup(RecvComm* comm, int n, void** data, const Size* sizes,
                                        const int* tags, void** mhandles, void** request) {
  if (!GroupOk(n)) {
    *request = nullptr;
    return BadArgument("irecv", kBadGroup);
  }
  std::array<ReceiveBuffer, kMaxGroup> buffers;  // the first n are written, the rest never read
  if (!Gather(n, data, sizes, tags, mhandles, buffers.data())) {
    *request = nullptr;
    return BadArgument("irecv", kBadSize);
  }
  return Deliver(comm->Irecv(std::span(buffers.data(), static_cast<size_t>(n))), request);
}

template <typename Size>
NcclResult Irecv(void* comm, int n, void** data, const Size* sizes, const int* tags, void** mhandles,
                 void** request) {
  if (request == nullptr) [[unlikely]]
    return BadArgument("irecv", kNullArgument);
  const bool arrays = data != nullptr && sizes != nullptr && tags != nullptr && mhandles != nullptr;
  if (!Is<RecvComm>(comm) || !arrays) [[unlikely]] {
    *request = nullptr;
    return BadArgument("irecv", kNullArgument);
  }
  // NCCL groups only when more than one receive per request is offered (SLUICE_MAX_RECVS).
  if (n != 1) [[unlikely]]
    return IrecvGroup(Unwrap<RecvComm>(comm), n, data, sizes, tags, mhandles, request);
  ReceiveBuffer buffer;
  if (!Gather(1, data, sizes, tags, mhandles, &buffer)) [[unlikely]] {
    *request = nullptr;
    return BadArgument("irecv", kBadSize);
  }
  return Deliver(Unwrap<RecvComm>(comm)->Irecv(std::span(&buffer, 1)), request);
}

inline NcclResult Iflush(void* comm, int n, void** data, const int* sizes, void** mhandles, void** request) {
  if (request == nullptr) [[unlikely]]
    return BadArgument("iflush", kNullArgument);
  std::array<ReceiveBuffer, kMaxGroup> buffers;
  if (!Is<RecvComm>(comm) || data == nullptr || sizes == nullptr || mhandles == nullptr) [[unlikely]] {
    *request = nullptr;
    return BadArgument("iflush", kNullArgument);
  }
  if (!GroupOk(n)) [[unlikely]] {
    *request = nullptr;
    return BadArgument("iflush", kBadGroup);
  }
  if (!Gather(n, data, sizes, nullptr, mhandles, buffers.data())) [[unlikely]] {
    *request = nullptr;
    return BadArgument("iflush", kBadSize);
  }
  return Deliver(Unwrap<RecvComm>(comm)->Iflush(std::span(buffers.data(), static_cast<size_t>(n))), request);
}

inline NcclResult Test(void* request, int* done, int* sizes) {
  if (done == nullptr) [[unlikely]]
    return BadArgument("test", kNullArgument);
  if (request == nullptr) [[unlikely]] {
    *done = 0;
    return BadArgument("test", kNullArgument);
  }
  const TestOutcome outcome = static_cast<Request*>(request)->Test(sizes);
  *done = outcome.done ? 1 : 0;
  if (outcome.error != nullptr) [[unlikely]]
    return Fail(*outcome.error);
  return nccl::kSuccess;
}

}  // namespace sluice::boundary
