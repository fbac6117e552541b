#include "tools/perf/net_plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tools/perf/profiler_plugin.h"

namespace sluice::perf {
namespace {

std::mutex warning_mutex;
std::string last_warning;  // guarded by warning_mutex

// NCCL_DEBUG as NCCL reads it: VERSION, WARN, INFO, TRACE; unset: nothing is printed.
int DebugLevel() {
  static const int level = [] {
    const char* text = getenv("NCCL_DEBUG");
    if (text == nullptr) return 0;
    const std::pair<const char*, int> names[] = {{"VERSION", nccl::kLogVersion},
                                                 {"WARN", nccl::kLogWarn},
                                                 {"INFO", nccl::kLogInfo},
                                                 {"ABORT", nccl::kLogAbort},
                                                 {"TRACE", nccl::kLogTrace}};
    for (const auto& [name, value] : names) {
      if (strcasecmp(text, name) == 0) return value;
    }
    return 0;
  }();
  return level;
}

__attribute__((format(printf, 5, 6))) void Log(int level, unsigned long, const char* file, int line,
                                               const char* format, ...) {
  if (level != nccl::kLogWarn && level > DebugLevel()) return;
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (level == nccl::kLogWarn) {
    std::lock_guard lock(warning_mutex);
    last_warning = text;
  }
  if (level <= DebugLevel())
    fprintf(stderr, "%d %s:%d %s\n", getpid(), file != nullptr ? file : "?", line, text);
}

std::atomic<ProfilerPlugin*> callback_profiler{nullptr};

// Without a profiler NCCL's callback succeeds and leaves the event handle alone. It follows a null phandle.
nccl::NcclResult ProfilerCallback(void**, int type, void* phandle, int64_t id, void* data) {
  ProfilerPlugin* const profiler = callback_profiler.load(std::memory_order_relaxed);
  if (profiler != nullptr && type == nccl::kProfilerStart)
    profiler->NetEvent(static_cast<void**>(phandle)[0], id, data);
  return nccl::kSuccess;
}

const char* ResultName(int result) {
  switch (result) {
    case nccl::kUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case nccl::kSystemError:
      return "ncclSystemError";
    case nccl::kInternalError:
      return "ncclInternalError";
    case nccl::kInvalidArgument:
      return "ncclInvalidArgument";
    case nccl::kInvalidUsage:
      return "ncclInvalidUsage";
    case nccl::kRemoteError:
      return "ncclRemoteError";
    case nccl::kInProgress:
      return "ncclInProgress";
    default:
      return "an unknown code";
  }
}

Status Failure(const char* call, int result) {
  std::string text =
      std::string(call) + " returned " + ResultName(result) + " (" + std::to_string(result) + ")";
  const std::string warning = LastPluginWarning();
  if (!warning.empty()) text += ": " + warning;
  return RemoteError(std::move(text));
}

inline Status Check(const char* call, nccl::NcclResult result) {
  if (result == nccl::kSuccess) [[likely]]
    return Status::Ok();
  return Failure(call, result);
}

struct LibraryCloser {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, LibraryCloser>;

template <typename Table>
struct Traits;
template <>
struct Traits<nccl::NetV7> {
  static constexpr int kApi = 7;
  using Properties = nccl::NetPropertiesV7;
};
template <>
struct Traits<nccl::NetV8> {
  static constexpr int kApi = 8;
  using Properties = nccl::NetPropertiesV8;
};
template <>
struct Traits<nccl::NetV9> {
  static constexpr int kApi = 9;
  using Properties = nccl::NetPropertiesV9;
  using VDevice = nccl::NetVDevicePropsV9;
};
template <>
struct Traits<nccl::NetV10> {
  static constexpr int kApi = 10;
  using Properties = nccl::NetPropertiesV10;
  using VDevice = nccl::NetVDevicePropsV9;
};
template <>
struct Traits<nccl::NetV11> {
  static constexpr int kApi = 11;
  using Properties = nccl::NetPropertiesV11;
  using VDevice = nccl::NetVDevicePropsV9;
};
template <>
struct Traits<nccl::NetV12> {
  static constexpr int kApi = 12;
  using Properties = nccl::NetPropertiesV12;
  using VDevice = nccl::NetVDevicePropsV12;
};

template <typename Table>
class Versioned final : public NetPlugin {
  static constexpr int kApi = Traits<Table>::kApi;
  static constexpr unsigned char kPoison = 0xa5;

 public:
  Versioned(Library library, const Table* table) : library_(std::move(library)), table_(table) {}

  int api() const override { return kApi; }
  std::string name() const override { return table_->name == nullptr ? "?" : table_->name; }

  Status Init(void** context, uint64_t comm_id, int traffic_class) override {
    *context = nullptr;
    if constexpr (kApi >= 11) {
      nccl::NetCommConfig config{traffic_class};
      Status status = Check("init", table_->init(context, comm_id, &config, Log, ProfilerCallback));
      std::memset(static_cast<void*>(&config), kPoison, sizeof config);  // valid during the call only
      asm volatile("" : : "r"(&config) : "memory");
      return status;
    } else {
      std::lock_guard lock(mutex_);
      if (communicators_++ > 0) return Status::Ok();
      if constexpr (kApi == 10) return Check("init", table_->init(Log, ProfilerCallback));
      if constexpr (kApi < 10) return Check("init", table_->init(Log));
    }
  }

  Status Finalize(void* context) override {
    if constexpr (kApi >= 11) {
      return Check("finalize", table_->finalize(context));
    } else {
      std::lock_guard lock(mutex_);
      --communicators_;
      return Status::Ok();
    }
  }

  Status Devices(int* count) override { return Check("devices", table_->devices(count)); }

  Status Properties(int device, DeviceProperties* out) override {
    typename Traits<Table>::Properties raw;
    std::memset(static_cast<void*>(&raw), kPoison, sizeof raw);
    SLUICE_RETURN_IF_ERROR(Check("getProperties", table_->getProperties(device, &raw)));
    if (raw.name == nullptr) return InternalError("getProperties left the name of a device null");
    out->name = raw.name;
    out->pci_path = raw.pciPath == nullptr ? "" : raw.pciPath;
    out->guid = raw.guid;
    out->pointer_support = raw.ptrSupport;
    out->speed_mbps = raw.speed;
    out->port = raw.port;
    out->latency_us = raw.latency;
    out->max_comms = raw.maxComms;
    out->max_recvs = raw.maxRecvs;
    out->members = {device};
    if (raw.netDeviceType != nccl::kNetDeviceHost)
      return Unset(out->name, "netDeviceType", raw.netDeviceType);
    if ((raw.ptrSupport & nccl::kPtrHost) == 0) return Unset(out->name, "ptrSupport", raw.ptrSupport);
    if (raw.maxRecvs < 1 || raw.maxRecvs > kMaxSubs) return Unset(out->name, "maxRecvs", raw.maxRecvs);
    if (raw.maxComms < 1) return Unset(out->name, "maxComms", raw.maxComms);
    if constexpr (kApi >= 9) {
      out->force_flush = raw.forceFlush != 0;
      if (raw.maxP2pBytes == 0 || raw.maxP2pBytes > nccl::kNetMaxSizeBytes) {
        return Unset(out->name, "maxP2pBytes", static_cast<long long>(raw.maxP2pBytes));
      }
      if (raw.vProps.ndevs < 1 || raw.vProps.ndevs > decltype(raw.vProps)::kMaxDevices) {
        return Unset(out->name, "vProps.ndevs", raw.vProps.ndevs);
      }
      out->members.assign(raw.vProps.devs, raw.vProps.devs + raw.vProps.ndevs);
    }
    return Status::Ok();
  }

  bool can_merge() const override {
    if constexpr (kApi >= 9) return table_->makeVDevice != nullptr;
    return false;
  }

  Status MakeVDevice(const std::vector<int>& members, int* device) override {
    if constexpr (kApi >= 9) {
      typename Traits<Table>::VDevice raw;
      std::memset(static_cast<void*>(&raw), kPoison, sizeof raw);
      if (members.size() > raw.kMaxDevices) {
        return InvalidArgument("NET v" + std::to_string(kApi) + " merges at most " +
                               std::to_string(raw.kMaxDevices) + " devices");
      }
      raw.ndevs = static_cast<int>(members.size());
      std::copy(members.begin(), members.end(), raw.devs);
      return Check("makeVDevice", table_->makeVDevice(device, &raw));
    } else {
      return InvalidArgument("NET v" + std::to_string(kApi) + " cannot merge devices; use --api 9 or later");
    }
  }

  bool has_set_attr() const override {
    if constexpr (kApi >= 11) return table_->setNetAttr != nullptr;
    return false;
  }

  Status SetAttr(void* context, const nccl::NetAttr& attributes) override {
    if constexpr (kApi >= 11) {
      if (table_->setNetAttr == nullptr) return Status::Ok();
      nccl::NetAttr copy = attributes;
      return Check("setNetAttr", table_->setNetAttr(context, &copy));
    } else {
      return Status::Ok();
    }
  }

  Status Listen(void* context, int device, Handle* handle, void** listen_comm) override {
    if constexpr (kApi >= 11)
      return Check("listen", table_->listen(context, device, handle->data(), listen_comm));
    if constexpr (kApi < 11) return Check("listen", table_->listen(device, handle->data(), listen_comm));
  }

  Status Connect(void* context, int device, int traffic_class, Handle* handle, void** send_comm) override {
    nccl::NetDeviceHandle* offload = nullptr;
    if constexpr (kApi >= 11) {
      return Check("connect", table_->connect(context, device, handle->data(), send_comm, &offload));
    } else if constexpr (kApi == 10) {
      {
        std::lock_guard lock(mutex_);
        if (config_ == nullptr)
          config_ = std::make_unique<nccl::NetCommConfig>(nccl::NetCommConfig{traffic_class});
      }
      return Check("connect", table_->connect(device, config_.get(), handle->data(), send_comm, &offload));
    } else {
      return Check("connect", table_->connect(device, handle->data(), send_comm, &offload));
    }
  }

  Status Accept(void* listen_comm, void** recv_comm) override {
    nccl::NetDeviceHandle* offload = nullptr;
    return Check("accept", table_->accept(listen_comm, recv_comm, &offload));
  }

  Status RegMr(void* comm, void* data, size_t bytes, void** mhandle) override {
    if constexpr (kApi == 7) {
      if (bytes > static_cast<size_t>(std::numeric_limits<int>::max())) {
        return InvalidArgument("NET v7 registers at most 2 GiB; use --api 8 or later");
      }
      return Check("regMr", table_->regMr(comm, data, static_cast<int>(bytes), nccl::kPtrHost, mhandle));
    } else {
      return Check("regMr", table_->regMr(comm, data, bytes, nccl::kPtrHost, mhandle));
    }
  }

  Status DeregMr(void* comm, void* mhandle) override {
    return Check("deregMr", table_->deregMr(comm, mhandle));
  }
  Status CloseSend(void* comm) override { return Check("closeSend", table_->closeSend(comm)); }
  Status CloseRecv(void* comm) override { return Check("closeRecv", table_->closeRecv(comm)); }
  Status CloseListen(void* comm) override { return Check("closeListen", table_->closeListen(comm)); }

  Status Isend(void* comm, void* data, size_t bytes, int tag, void* mhandle, void* phandle,
               void** request) override {
    if constexpr (kApi >= 10) {
      return Check("isend", table_->isend(comm, data, bytes, tag, mhandle, phandle, request));
    } else if constexpr (kApi == 9) {
      return Check("isend", table_->isend(comm, data, bytes, tag, mhandle, request));
    } else {
      return Check("isend", table_->isend(comm, data, static_cast<int>(bytes), tag, mhandle, request));
    }
  }

  Status Irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** phandles,
               void** request) override {
    if constexpr (kApi >= 10) {
      return Check("irecv", table_->irecv(comm, n, data, sizes, tags, mhandles, phandles, request));
    } else if constexpr (kApi == 9) {
      return Check("irecv", table_->irecv(comm, n, data, sizes, tags, mhandles, request));
    } else {
      int narrow[kMaxSubs];
      for (int i = 0; i < n; ++i) narrow[i] = static_cast<int>(sizes[i]);
      return Check("irecv", table_->irecv(comm, n, data, narrow, tags, mhandles, request));
    }
  }

  Status Iflush(void* comm, int n, void** data, int* sizes, void** mhandles, void** request) override {
    return Check("iflush", table_->iflush(comm, n, data, sizes, mhandles, request));
  }

  Status Test(void* request, bool* done, int* sizes) override {
    int flag = 0;
    const nccl::NcclResult result = table_->test(request, &flag, sizes);
    *done = flag != 0;
    return Check("test", result);
  }

  Status IrecvConsumed(void* comm, int n, void* request) override {
    if (table_->irecvConsumed == nullptr) return Status::Ok();
    return Check("irecvConsumed", table_->irecvConsumed(comm, n, request));
  }

 private:
  static Status Unset(const std::string& device, const char* field, long long value) {
    return InternalError("getProperties of NET v" + std::to_string(kApi) + " reports " + field + " = " +
                         std::to_string(value) + " for device " + device +
                         ", which NCCL refuses or the plugin left unset");
  }

  Library library_;
  const Table* table_;
  std::mutex mutex_;
  int communicators_ = 0;                        // guarded by mutex_
  std::unique_ptr<nccl::NetCommConfig> config_;  // v10: stays valid as long as the communicator
};

template <typename Table>
std::unique_ptr<NetPlugin> TryVersion(Library& library, int api) {
  if (api != 0 && api != Traits<Table>::kApi) return nullptr;
  const std::string symbol = "ncclNetPlugin_v" + std::to_string(Traits<Table>::kApi);
  const void* table = dlsym(library.get(), symbol.c_str());
  if (table == nullptr) return nullptr;
  return std::make_unique<Versioned<Table>>(std::move(library), static_cast<const Table*>(table));
}

}  // namespace

void SetCallbackProfiler(ProfilerPlugin* profiler) {
  callback_profiler.store(profiler, std::memory_order_relaxed);
}

std::string LastPluginWarning() {
  std::lock_guard lock(warning_mutex);
  return last_warning;
}

Result<std::unique_ptr<NetPlugin>> NetPlugin::Load(const std::string& path, int api) {
  std::vector<std::string> names = {path};
  if (path.find('/') == std::string::npos) names.push_back("libnccl-net-" + path + ".so");
  Library library;
  std::string not_found, found;  // why: no such file, or it does not load
  for (size_t i = 0; i < names.size() && library == nullptr; ++i) {
    library.reset(dlopen(names[i].c_str(), RTLD_NOW | RTLD_LOCAL));
    if (library != nullptr) break;
    const char* error = dlerror();
    const std::string cause = error == nullptr ? "unknown error" : error;
    // A library that is needed and not there is told in the same words, under its own name.
    const bool missing = cause.starts_with(names[i] + ": cannot open shared object file: No such file");
    std::string& text = missing ? not_found : found;
    text += (text.empty() ? "" : "; ") +
            (cause.find(names[i]) == std::string::npos ? names[i] + ": " + cause : cause);
  }
  if (library == nullptr)
    return SystemError("cannot load the plugin " + path + ": " + (found.empty() ? not_found : found));
  std::unique_ptr<NetPlugin> plugin;
  if (!plugin) plugin = TryVersion<nccl::NetV12>(library, api);
  if (!plugin) plugin = TryVersion<nccl::NetV11>(library, api);
  if (!plugin) plugin = TryVersion<nccl::NetV10>(library, api);
  if (!plugin) plugin = TryVersion<nccl::NetV9>(library, api);
  if (!plugin) plugin = TryVersion<nccl::NetV8>(library, api);
  if (!plugin) plugin = TryVersion<nccl::NetV7>(library, api);
  if (!plugin) {
    const std::string wanted =
        api == 0 ? "any of ncclNetPlugin_v7 to _v12" : "ncclNetPlugin_v" + std::to_string(api);
    return InvalidArgument("the plugin " + path + " does not export " + wanted +
                           (api == 0 ? "" : "; leave --api out to use the highest version that it has"));
  }
  return plugin;
}

}  // namespace sluice::perf
