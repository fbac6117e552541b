// One NCCL NET plugin of any version from 7 to 12, loaded as NCCL loads it, behind one set of calls.
//
//   Result<std::unique_ptr<NetPlugin>> plugin = NetPlugin::Load("lib/libnccl-net-sluice.so", 0);
//   void* context;
//   SLUICE_RETURN_IF_ERROR((*plugin)->Init(&context, commId, -1));
//
// Arguments reach the plugin as NCCL of that version would pass them: same order, same widths, config on a
// stack that is scribbled over, properties in a poisoned struct. Every failure names the call and the
// plugin's last warning. The plugin is called from the caller's thread and nothing is locked: the thread
// rules are NCCL's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugin/abi/nccl_net.h"

namespace sluice::perf {

inline constexpr int kOldestApi = 7;
inline constexpr int kNewestApi = 12;
inline constexpr int kMaxSubs = 64;  // members of one grouped receive, NCCL's bound
using Handle = std::array<std::byte, nccl::kNetHandleBytes>;

struct DeviceProperties {
  std::string name;
  std::string pci_path;
  uint64_t guid = 0;
  int pointer_support = 0;
  bool force_flush = false;
  int speed_mbps = 0;
  int port = 0;
  float latency_us = 0;
  int max_comms = 0;
  int max_recvs = 1;
  std::vector<int> members;
};

class NetPlugin {
 public:
  // api: 7 to 12, or 0 for the highest that the library exports. A name without '/' is looked for as NCCL
  // does.
  static Result<std::unique_ptr<NetPlugin>> Load(const std::string& path, int api);
  virtual ~NetPlugin() = default;  // closes the library

  virtual int api() const = 0;
  virtual std::string name() const = 0;

  // Below v11 the first Init of the process reaches the plugin and the others do not; *context is null.
  virtual Status Init(void** context, uint64_t comm_id, int traffic_class) = 0;
  virtual Status Finalize(void* context) = 0;
  virtual Status Devices(int* count) = 0;
  virtual Status Properties(int device, DeviceProperties* properties) = 0;
  virtual bool can_merge() const = 0;
  virtual Status MakeVDevice(const std::vector<int>& members, int* device) = 0;

  virtual bool has_set_attr() const = 0;
  virtual Status SetAttr(void* context, const nccl::NetAttr& attributes) = 0;
  virtual Status Listen(void* context, int device, Handle* handle, void** listen_comm) = 0;
  virtual Status Connect(void* context, int device, int traffic_class, Handle* handle, void** send_comm) = 0;
  virtual Status Accept(void* listen_comm, void** recv_comm) = 0;
  virtual Status RegMr(void* comm, void* data, size_t bytes, void** mhandle) = 0;
  virtual Status DeregMr(void* comm, void* mhandle) = 0;
  virtual Status CloseSend(void* comm) = 0;
  virtual Status CloseRecv(void* comm) = 0;
  virtual Status CloseListen(void* comm) = 0;

  // *request null: not now. For Irecv it is in and out.
  virtual Status Isend(void* comm, void* data, size_t bytes, int tag, void* mhandle, void* phandle,
                       void** request) = 0;
  virtual Status Irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                       void** phandles, void** request) = 0;
  virtual Status Iflush(void* comm, int n, void** data, int* sizes, void** mhandles, void** request) = 0;
  virtual Status Test(void* request, bool* done, int* sizes) = 0;
  virtual Status IrecvConsumed(void* comm, int n, void* request) = 0;
};

// Whom NCCL's profiler callback reaches: null, as at the start, nobody. One profiler serves the process.
class ProfilerPlugin;
void SetCallbackProfiler(ProfilerPlugin* profiler);

// What the plugin logged last at level WARN in this process; empty if nothing.
std::string LastPluginWarning();

}  // namespace sluice::perf
