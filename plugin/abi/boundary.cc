#include "plugin/abi/boundary.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "plugin/log.h"
#include "plugin/params.h"

namespace sluice::boundary {
namespace {

NcclResult ResultOf(Code code) {
  switch (code) {
    case Code::kOk:
      return nccl::kSuccess;
    case Code::kInvalidArgument:
      return nccl::kInvalidArgument;
    case Code::kInvalidUsage:
      return nccl::kInvalidUsage;
    case Code::kSystem:
      return nccl::kSystemError;
    case Code::kRemote:
      return nccl::kRemoteError;
    case Code::kInternal:
      break;
  }
  return nccl::kInternalError;
}

// Which errors were logged. A status is the same one when both its storage and its text are: a failed
// connection hands out one status again and again, while another failure with the same words is logged again.
class LoggedErrors {
 public:
  bool Insert(const std::string& message) {
    const size_t key = std::hash<std::string_view>()(message) ^
                       (reinterpret_cast<uintptr_t>(&message) * 0x9e3779b97f4a7c15u);
    const std::scoped_lock lock(mutex_);
    if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) return false;
    keys_[next_++ % keys_.size()] = key;
    return true;
  }

 private:
  std::mutex mutex_;
  std::array<size_t, 256> keys_{};
  size_t next_ = 0;
};

// Never destroyed: calls may come while the process exits.
LoggedErrors& Logged() {
  static auto* const kLogged = new LoggedErrors;
  return *kLogged;
}

void LogNotesOnce() {
  static std::atomic<bool> logged{false};
  const Result<Params>& params = GetParams();
  if (!params.ok() || logged.exchange(true)) return;
  for (const std::string& note : params->notes) SLUICE_INFO(kLogInit | kLogEnv, "%s", note.c_str());
}

// Set-up allocates; what it throws must not reach NCCL.
template <typename Function>
NcclResult Guarded(const char* call, Function function) {
  try {
    return function();
  } catch (const std::exception& exception) {
    SLUICE_WARN("%s: %s; the call was given up", call, exception.what());
    return nccl::kSystemError;
  }
}

template <typename T>
NcclResult HandOut(T* object, void** handle) {
  if ((reinterpret_cast<uintptr_t>(object) & kKindMask) != 0) {
    return Fail(InternalError(
        "a connection at an address that is not a multiple of 8; report this as a defect of Sluice"));
  }
  *handle = object == nullptr ? nullptr : Wrap(object);
  return nccl::kSuccess;
}

// The work on `comm` that both directions have.
template <typename Function>
NcclResult Visit(const char* call, void* comm, Function function) {
  return Guarded(call, [&] {
    if (Is<SendComm>(comm)) return function(*Unwrap<SendComm>(comm));
    if (Is<RecvComm>(comm)) return function(*Unwrap<RecvComm>(comm));
    return BadArgument(call, kNullArgument);
  });
}

// False for a type that is neither host nor GPU memory.
bool ParseMemoryKind(int type, MemoryKind* kind) {
  if (type != nccl::kPtrHost && type != nccl::kPtrCuda) return false;
  *kind = type == nccl::kPtrHost ? MemoryKind::kHost : MemoryKind::kCuda;
  return true;
}

NcclResult Register(const Result<MemoryHandle*>& handle, void** mhandle) {
  if (!handle.ok()) return Fail(handle.status());
  *mhandle = *handle;
  return nccl::kSuccess;
}

template <typename T>
NcclResult Close(const char* call, void* handle) {
  if (handle == nullptr) return nccl::kSuccess;
  if (!Is<T>(handle)) return BadArgument(call, kNullArgument);
  return Guarded(call, [&] { return Convert(Unwrap<T>(handle)->Close()); });
}

CommConfig ConfigFrom(const nccl::NetCommConfig* config) {
  return {config == nullptr ? nccl::kTrafficClassUndefined : config->trafficClass};
}

}  // namespace

NcclResult Fail(const Status& status) {
  if (Logged().Insert(status.message())) SLUICE_WARN("%s", status.message().c_str());
  return ResultOf(status.code());
}

NcclResult Decline(const Status& status) {
  if (Logged().Insert(status.message())) SLUICE_INFO(kLogInit | kLogNet, "%s", status.message().c_str());
  return ResultOf(status.code());
}

NcclResult BadArgument(const char* call, const char* cause) {
  SLUICE_WARN("%s was called with %s; nothing was done", call, cause);
  return nccl::kInvalidArgument;
}

NcclResult InitGlobal(DebugLogger logger) {
  SetLogger(logger);
  return Guarded("init", [&]() -> NcclResult {
    const Result<NetContext*> context = NetContext::Global(logger);
    if (!context.ok()) return Fail(context.status());
    LogNotesOnce();
    const Result<int> count = DeviceCount();
    if (!count.ok()) return Fail(count.status());
    if (*count > 0) return nccl::kSuccess;
    SLUICE_INFO(kLogInit | kLogNet, "no usable RDMA device on this host; NCCL takes another network");
    return nccl::kInternalError;
  });
}

NcclResult InitContext(void** ctx, uint64_t comm_id, const nccl::NetCommConfig* config, DebugLogger logger) {
  SetLogger(logger);
  if (ctx == nullptr) return BadArgument("init", kNullArgument);
  *ctx = nullptr;
  return Guarded("init", [&]() -> NcclResult {
    const Result<NetContext*> context = NetContext::Create(comm_id, ConfigFrom(config), logger);
    if (!context.ok()) return Fail(context.status());
    LogNotesOnce();
    *ctx = *context;
    return nccl::kSuccess;
  });
}

NcclResult Finalize(void* ctx) {
  if (ctx == nullptr) return BadArgument("finalize", kNullArgument);
  return Guarded("finalize",
                 [&]() -> NcclResult { return Convert(static_cast<NetContext*>(ctx)->Finalize()); });
}

NcclResult Devices(int* count) {
  if (count == nullptr) return BadArgument("devices", kNullArgument);
  *count = 0;
  return Guarded("devices", [&]() -> NcclResult {
    const Result<int> found = DeviceCount();
    if (!found.ok()) return Fail(found.status());
    *count = *found;
    return nccl::kSuccess;
  });
}

NcclResult Listen(NetContext* context, int dev, void* handle, void** listen_comm) {
  if (listen_comm != nullptr) *listen_comm = nullptr;
  if (context == nullptr || handle == nullptr || listen_comm == nullptr) {
    return BadArgument("listen", kNullArgument);
  }
  return Guarded("listen", [&]() -> NcclResult {
    const Result<ListenComm*> listener = context->Listen(dev, static_cast<ConnectionHandle*>(handle));
    if (!listener.ok()) return Fail(listener.status());
    return HandOut(*listener, listen_comm);
  });
}

NcclResult Connect(NetContext* context, int dev, const nccl::NetCommConfig* config, void* handle,
                   void** send_comm, nccl::NetDeviceHandle** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  if (send_comm != nullptr) *send_comm = nullptr;
  if (context == nullptr || handle == nullptr || send_comm == nullptr) {
    return BadArgument("connect", kNullArgument);
  }
  return Guarded("connect", [&]() -> NcclResult {
    const CommConfig own = ConfigFrom(config);
    const Attempt<SendComm> attempt =
        context->Connect(dev, static_cast<ConnectionHandle*>(handle), config == nullptr ? nullptr : &own);
    if (attempt.error() != nullptr) return Fail(*attempt.error());
    return HandOut(attempt.value(), send_comm);
  });
}

NcclResult Accept(void* listen_comm, void** recv_comm, nccl::NetDeviceHandle** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  if (recv_comm != nullptr) *recv_comm = nullptr;
  if (!Is<ListenComm>(listen_comm) || recv_comm == nullptr) return BadArgument("accept", kNullArgument);
  return Guarded("accept", [&]() -> NcclResult {
    const Attempt<RecvComm> attempt = Unwrap<ListenComm>(listen_comm)->Accept();
    if (attempt.error() != nullptr) return Fail(*attempt.error());
    return HandOut(attempt.value(), recv_comm);
  });
}

NcclResult ListenGlobal(int dev, void* handle, void** listen_comm) {
  if (listen_comm != nullptr) *listen_comm = nullptr;
  return Guarded("listen", [&]() -> NcclResult {
    const Result<NetContext*> context = NetContext::Global(nullptr);
    if (!context.ok()) return Fail(context.status());
    return Listen(*context, dev, handle, listen_comm);
  });
}

NcclResult ConnectGlobal(int dev, const nccl::NetCommConfig* config, void* handle, void** send_comm,
                         nccl::NetDeviceHandle** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  if (send_comm != nullptr) *send_comm = nullptr;
  return Guarded("connect", [&]() -> NcclResult {
    const Result<NetContext*> context = NetContext::Global(nullptr);
    if (!context.ok()) return Fail(context.status());
    return Connect(*context, dev, config, handle, send_comm, device_handle);
  });
}

NcclResult RegMr(void* comm, void* data, size_t size, int type, void** mhandle) {
  if (mhandle == nullptr) return BadArgument("regMr", kNullArgument);
  *mhandle = nullptr;
  MemoryKind kind;
  if (!ParseMemoryKind(type, &kind)) return BadArgument("regMr", kBadType);
  return Visit("regMr", comm,
               [&](auto& connection) { return Register(connection.RegMr(data, size, kind), mhandle); });
}

NcclResult RegMrDmaBuf(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                       void** mhandle) {
  if (mhandle == nullptr) return BadArgument("regMrDmaBuf", kNullArgument);
  *mhandle = nullptr;
  MemoryKind kind;
  if (!ParseMemoryKind(type, &kind)) return BadArgument("regMrDmaBuf", kBadType);
  return Visit("regMrDmaBuf", comm, [&](auto& connection) {
    return Register(connection.RegMrDmaBuf(data, size, kind, offset, fd), mhandle);
  });
}

NcclResult DeregMr(void* comm, void* mhandle) {
  if (mhandle == nullptr) return nccl::kSuccess;
  return Visit("deregMr", comm, [&](auto& connection) {
    return Convert(connection.DeregMr(static_cast<MemoryHandle*>(mhandle)));
  });
}

NcclResult CloseSend(void* send_comm) {
  return Close<SendComm>("closeSend", send_comm);
}

NcclResult CloseRecv(void* recv_comm) {
  return Close<RecvComm>("closeRecv", recv_comm);
}

NcclResult CloseListen(void* listen_comm) {
  return Close<ListenComm>("closeListen", listen_comm);
}

NcclResult GetProperties(int dev, const void* out, NetProperties* properties) {
  if (out == nullptr) return BadArgument("getProperties", kNullArgument);
  return Guarded("getProperties", [&]() -> NcclResult {
    Result<NetProperties> found = DeviceProperties(dev);
    if (!found.ok()) return Fail(found.status());
    *properties = *found;
    return nccl::kSuccess;
  });
}

int PointerSupport(const NetProperties& properties) {
  return nccl::kPtrHost | (properties.cuda ? nccl::kPtrCuda : 0) | (properties.dmabuf ? nccl::kPtrDmaBuf : 0);
}

NcclResult SetNetAttr(void* ctx, const nccl::NetAttr* attributes) {
  if (ctx == nullptr || attributes == nullptr) [[unlikely]]
    return BadArgument("setNetAttr", kNullArgument);
  return Guarded("setNetAttr", [&] {
    return Convert(static_cast<NetContext*>(ctx)->SetNetAttributes(
        {attributes->op, attributes->algo, attributes->proto, attributes->sendCommAttr.maxConcurrentPeers,
         attributes->sendCommAttr.maxFlowsPerPeer}));
  });
}

NcclResult MakeVDevice(int* dev, const int* members, int count, int max_members) {
  if (dev == nullptr || members == nullptr) return BadArgument("makeVDevice", kNullArgument);
  if (count < 1 || count > max_members) return BadArgument("makeVDevice", kBadMembers);
  return Guarded("makeVDevice", [&]() -> NcclResult {
    const Result<int> made = MakeVirtualDevice(std::span(members, static_cast<size_t>(count)), max_members);
    // NCCL tries merges that need not work and goes on without them.
    if (!made.ok()) return Decline(made.status());
    *dev = *made;
    return nccl::kSuccess;
  });
}

}  // namespace sluice::boundary
