// The typed NET interface: what the version tables of plugin/abi call. No C struct of NCCL appears here.
//
// "Call again" is an empty Attempt; an error is a Status that says what to do. Sizes are bytes.
//
//   Attempt<Request> sent = comm->Isend(data, bytes, tag, memory, phandle);
//   if (sent.error()) return Fail(*sent.error());
//   *request = sent.value();              // null: not now, call again
//
// Threads (NCCL 2.19 to 2.30, see docs/architecture.md): Listen, Connect, Accept, RegMr, DeregMr and Close
// come from the proxy service thread, Isend, Irecv, Test and Iflush from the progress thread, everything from
// one thread during bootstrap. Any mix is safe; the mix above takes no lock in Isend, Irecv, Test and Iflush.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"

namespace sluice {

inline constexpr size_t kHandleBytes = 128;  // NCCL_NET_HANDLE_MAXSIZE
inline constexpr int kMaxGroup = 8;          // buffers of one grouped receive
inline constexpr int kMaxOpenGroups = 32;    // open irecvs of one connection: NCCL_NET_MAX_REQUESTS
inline constexpr int kMaxMergedPorts = 8;    // ports of one virtual device (NET v12; v11 and older see 4)
inline constexpr size_t kMaxMessageBytes = 0x7fffffff;  // test() reports an int

using ConnectionHandle = std::array<std::byte, kHandleBytes>;

// A value, "call again" (empty), or an error. The Status belongs to the object that failed and lives as long
// as it.
template <typename T>
class [[nodiscard]] Attempt {
 public:
  static Attempt Again() { return {nullptr, nullptr}; }
  static Attempt Of(T* value) { return {value, nullptr}; }
  static Attempt Failed(const Status* error) { return {nullptr, error}; }
  T* value() const { return value_; }
  const Status* error() const { return error_; }

 private:
  Attempt(T* value, const Status* error) : value_(value), error_(error) {}
  T* value_;
  const Status* error_;
};

// Outcome of Request::Test.
struct [[nodiscard]] TestOutcome {
  bool done;
  const Status* error;
};

enum class MemoryKind : uint8_t { kHost = 1, kCuda = 2 };  // NCCL_PTR_HOST, NCCL_PTR_CUDA

// What getProperties reports. Strings live as long as the process. speed in Mb/s, latency in microseconds.
struct NetProperties {
  const char* name = nullptr;
  const char* pci_path = nullptr;  // null: virtual device, or no PCI device behind it (rdma_rxe)
  uint64_t guid = 0;
  bool cuda = false;    // GPU memory can be registered (peer memory module)
  bool dmabuf = false;  // GPU memory can be registered through DMA-BUF
  bool force_flush = false;
  int speed_mbps = 0;
  int port = 0;
  float latency_us = 0;
  int max_comms = 0;
  int max_recvs = 1;
  size_t max_p2p_bytes = 0;
  size_t max_coll_bytes = 0;
  int member_count = 1;  // physical ports behind this device
  std::array<int, kMaxMergedPorts> members{};
};

// Per communicator settings that NCCL hands to init (v11+) or connect (v10).
struct CommConfig {
  int traffic_class = -1;  // -1: the user set none
};

// setNetAttr (NET v11+): bit masks over ncclFunc, algorithm and protocol; valid for the calling thread until
// the next call.
struct NetAttributes {
  uint32_t op = 0;
  uint32_t algo = 0;
  uint32_t proto = 0;
  int32_t max_peers = 0;
  int32_t max_flows_per_peer = 0;
};

// ncclDebugLogger_t without NCCL's types: level and flags as NCCL numbers them.
using DebugLogger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format,
                             ...);

class MemoryHandle;  // one registration of one buffer on every port of a connection
class Request;
class SendComm;
class RecvComm;
class ListenComm;
class NetContext;

// One isend, irecv or iflush. Owned by its connection; done exactly once, then invalid.
class Request {
 public:
  // sizes: null, or room for one int per buffer of the irecv; written only when done.
  TestOutcome Test(int* sizes) noexcept;
};

// A connection as the sender sees it.
class SendComm {
 public:
  Attempt<Request> Isend(const void* data, size_t bytes, int tag, MemoryHandle* memory,
                         void* phandle) noexcept;
  Result<MemoryHandle*> RegMr(void* data, size_t bytes, MemoryKind kind);
  Result<MemoryHandle*> RegMrDmaBuf(void* data, size_t bytes, MemoryKind kind, uint64_t offset, int fd);
  Status DeregMr(MemoryHandle* memory);
  Status Close();
};

// One buffer of an irecv.
struct ReceiveBuffer {
  void* data;
  size_t bytes;
  int tag;
  MemoryHandle* memory;
};

// A connection as the receiver sees it.
class RecvComm {
 public:
  // 1 to kMaxGroup buffers. A longer group, or more than kMaxMessageBytes, is an error.
  Attempt<Request> Irecv(std::span<const ReceiveBuffer> buffers) noexcept;
  // Makes the bytes of the n buffers visible to the GPU. Empty: nothing to do, already visible.
  Attempt<Request> Iflush(std::span<const ReceiveBuffer> buffers) noexcept;
  Result<MemoryHandle*> RegMr(void* data, size_t bytes, MemoryKind kind);
  Result<MemoryHandle*> RegMrDmaBuf(void* data, size_t bytes, MemoryKind kind, uint64_t offset, int fd);
  Status DeregMr(MemoryHandle* memory);
  Status Close();
};

class ListenComm {
 public:
  // Empty until a peer has connected to this listener.
  Attempt<RecvComm> Accept();
  Status Close();
};

// One per communicator (v11+), or one for the process (v7 to v10, Global). Never freed: a call after Finalize
// is an error.
class NetContext {
 public:
  // Discovers the devices on first use. `logger` may be null. Never fails for a later communicator because of
  // an earlier one.
  static Result<NetContext*> Create(uint64_t comm_id, const CommConfig& config, DebugLogger logger);
  // The context that v7 to v10 share; created by the first call.
  static Result<NetContext*> Global(DebugLogger logger);
  // v10: NCCL's way from the phandle of an isend to our own profiler half. Asked when nobody has named the operation.
  // True when `query` (a ProfilerQuery) reached a profiler.
  using AskProfiler = bool (*)(void* phandle, void* query);
  static void SetAskProfiler(AskProfiler ask);

  Result<ListenComm*> Listen(int device, ConnectionHandle* handle);
  // `handle` as Listen wrote it; keeps the number of the attempt between retries. `config` overrides the
  // context's (v10), may be null.
  Attempt<SendComm> Connect(int device, ConnectionHandle* handle, const CommConfig* config);
  Status SetNetAttributes(const NetAttributes& attributes);
  // Returns within 100 ms; open connections are failed and reclaimed behind it.
  Status Finalize();
};

// Process-wide, valid after the first NetContext exists.
Result<int> DeviceCount();
Result<NetProperties> DeviceProperties(int device);
// Merges ports of equal link layer into a virtual device; returns its index. max_members: 4 up to NET v11, 8
// from v12.
Result<int> MakeVirtualDevice(std::span<const int> members, int max_members);

}  // namespace sluice
