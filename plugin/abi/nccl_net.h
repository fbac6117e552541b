// The binary interface of NCCL's NET plugins, versions 7 to 12 (NCCL 2.19 to 2.30), on LP64.
//
// Order and type of members are the interface: members are inserted in the middle of the properties between
// versions (regIsGlobal in 8, forceFlush in 9, eight member devices in 12). A plugin exports one constant per
// version:
//
//   extern "C" __attribute__((visibility("default"))) extern const sluice::nccl::NetV12 ncclNetPlugin_v12;
//
// Used by the version tables (net_v7.cc to net_v12.cc), which export them, and by tools that load a plugin as
// NCCL does. Only data layouts here: nothing of NCCL is needed to compile or to load this.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::nccl {

// ncclResult_t.
enum NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclDebugLogLevel, and the subsystem bits that a plugin uses in `flags`.
enum LogLevel : int {
  kLogNone = 0,
  kLogVersion = 1,
  kLogWarn = 2,
  kLogInfo = 3,
  kLogAbort = 4,
  kLogTrace = 5
};
inline constexpr unsigned long kLogInit = 0x1;
inline constexpr unsigned long kLogNet = 0x10;
inline constexpr unsigned long kLogEnv = 0x80;
inline constexpr unsigned long kLogAll = ~0UL;

// NetProperties::ptrSupport, and `type` of regMr.
inline constexpr int kPtrHost = 0x1;
inline constexpr int kPtrCuda = 0x2;
inline constexpr int kPtrDmaBuf = 0x4;

inline constexpr int kNetHandleBytes = 128;  // `handle` of listen and connect
inline constexpr int kNetMaxRequests = 32;   // grouped receives open on one connection
inline constexpr int kNetDeviceHost = 0;     // NetProperties::netDeviceType: no offload to the GPU
inline constexpr int kTrafficClassUndefined = -1;
inline constexpr int kNetIdUndefined = -1;                       // railId, planeId
inline constexpr uint64_t kNetMaxSizeBytes = uint64_t{1} << 40;  // largest maxP2pBytes that NCCL accepts

// `*request` at the entry of irecv for LL and LL128: the receiver does not need the completion (NCCL 2.24 and
// later). A plugin that refuses stores null over it.
inline void* OptionalReceiveCompletion() {
  return reinterpret_cast<void*>(0x1);
}

// ncclFunc_t, the bit numbers of NetAttr::op. Algorithm and protocol: the bit numbers of algo and proto.
enum NcclFunc : int {
  kFuncBroadcast = 0,
  kFuncReduce = 1,
  kFuncAllGather = 2,
  kFuncReduceScatter = 3,
  kFuncAllReduce = 4,
  kFuncSendRecv = 5,
  kFuncSend = 6,
  kFuncRecv = 7,
  kFuncAllToAll = 8,
  kFuncScatter = 9,
  kFuncGather = 10,
};
enum NcclAlgo : int {
  kAlgoTree,
  kAlgoRing,
  kAlgoCollNetDirect,
  kAlgoCollNetChain,
  kAlgoNvls,
  kAlgoNvlsTree,
  kAlgoPat
};
enum NcclProto : int { kProtoLl, kProtoLl128, kProtoSimple };

using DebugLogger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format,
                             ...);

// ncclProfilerCallback_t (v10 and later) and its `type`.
enum ProfilerEvent : int {
  kProfilerStart = 0,
  kProfilerStop = 1,
  kProfilerUpdate = 2,
  kProfilerUpdateAndStop = 3
};
using ProfilerCallback = NcclResult (*)(void** event_handle, int type, void* phandle, int64_t plugin_id,
                                        void* data);

// The handle of a device-side connection. Always null for kNetDeviceHost, hence without members here.
struct NetDeviceHandle;

struct NetPropertiesV7 {
  const char* name;
  const char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int speed;  // Mb/s
  int port;
  float latency;  // microseconds
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
};
static_assert(sizeof(NetPropertiesV7) == 56);
static_assert(offsetof(NetPropertiesV7, ptrSupport) == 24);
static_assert(offsetof(NetPropertiesV7, speed) == 28);
static_assert(offsetof(NetPropertiesV7, netDeviceType) == 48);

struct NetPropertiesV8 {
  const char* name;
  const char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
};
static_assert(sizeof(NetPropertiesV8) == 64);
static_assert(offsetof(NetPropertiesV8, regIsGlobal) == 28);
static_assert(offsetof(NetPropertiesV8, speed) == 32);
static_assert(offsetof(NetPropertiesV8, netDeviceVersion) == 56);

// The physical devices behind a device. Versions 9 to 11 hold 4, version 12 holds 8.
struct NetVDevicePropsV9 {
  static constexpr int kMaxDevices = 4;
  int ndevs;
  int devs[kMaxDevices];
};
static_assert(sizeof(NetVDevicePropsV9) == 20);

struct NetVDevicePropsV12 {
  static constexpr int kMaxDevices = 8;
  int ndevs;
  int devs[kMaxDevices];
};
static_assert(sizeof(NetVDevicePropsV12) == 36);

// Versions 9 and 10.
struct NetPropertiesV9 {
  const char* name;
  const char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  NetVDevicePropsV9 vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
};
static_assert(sizeof(NetPropertiesV9) == 104);
static_assert(offsetof(NetPropertiesV9, forceFlush) == 32);
static_assert(offsetof(NetPropertiesV9, vProps) == 64);
static_assert(offsetof(NetPropertiesV9, maxP2pBytes) == 88);
static_assert(offsetof(NetPropertiesV9, maxCollBytes) == 96);
using NetPropertiesV10 = NetPropertiesV9;

struct NetPropertiesV11 {
  const char* name;
  const char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  NetVDevicePropsV9 vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
  int maxMultiRequestSize;
};
static_assert(sizeof(NetPropertiesV11) == 112);
static_assert(offsetof(NetPropertiesV11, maxP2pBytes) == 88);
static_assert(offsetof(NetPropertiesV11, maxMultiRequestSize) == 104);

struct NetPropertiesV12 {
  const char* name;
  const char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  NetVDevicePropsV12 vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
  int maxMultiRequestSize;
  int16_t railId;
  int16_t planeId;
};
static_assert(sizeof(NetPropertiesV12) == 128);
static_assert(offsetof(NetPropertiesV12, vProps) == 64);
static_assert(offsetof(NetPropertiesV12, maxP2pBytes) == 104);
static_assert(offsetof(NetPropertiesV12, maxMultiRequestSize) == 120);
static_assert(offsetof(NetPropertiesV12, railId) == 124);
static_assert(offsetof(NetPropertiesV12, planeId) == 126);

// ncclNetCommConfig_t: connect of v10, init of v11 and v12. Valid during the call only in v11 and v12.
struct NetCommConfig {
  int trafficClass;  // kTrafficClassUndefined: the user set none
};
static_assert(sizeof(NetCommConfig) == 4);

// ncclNetAttr_t of v11 and v12. Valid during the call only.
struct NetCommAttr {
  int32_t maxConcurrentPeers;
  int32_t minConcurrentPeers;
  int32_t maxFlowsPerPeer;
  int32_t minFlowsPerPeer;
};
struct NetAttr {
  NetCommAttr sendCommAttr;
  NetCommAttr recvCommAttr;
  uint32_t op;
  uint32_t algo;
  uint32_t proto;
};
static_assert(sizeof(NetAttr) == 44);
static_assert(offsetof(NetAttr, recvCommAttr) == 16);
static_assert(offsetof(NetAttr, op) == 32);

struct NetV7 {
  const char* name;
  NcclResult (*init)(DebugLogger logger);
  NcclResult (*devices)(int* count);
  NcclResult (*getProperties)(int dev, NetPropertiesV7* properties);
  NcclResult (*listen)(int dev, void* handle, void** listen_comm);
  NcclResult (*connect)(int dev, void* handle, void** send_comm, NetDeviceHandle** device_handle);
  NcclResult (*accept)(void* listen_comm, void** recv_comm, NetDeviceHandle** device_handle);
  NcclResult (*regMr)(void* comm, void* data, int size, int type, void** mhandle);
  NcclResult (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                            void** mhandle);
  NcclResult (*deregMr)(void* comm, void* mhandle);
  NcclResult (*isend)(void* send_comm, void* data, int size, int tag, void* mhandle, void** request);
  NcclResult (*irecv)(void* recv_comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                      void** request);
  NcclResult (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  NcclResult (*test)(void* request, int* done, int* sizes);
  NcclResult (*closeSend)(void* send_comm);
  NcclResult (*closeRecv)(void* recv_comm);
  NcclResult (*closeListen)(void* listen_comm);
  NcclResult (*getDeviceMr)(void* comm, void* mhandle, void** device_mhandle);
  NcclResult (*irecvConsumed)(void* recv_comm, int n, void* request);
};
static_assert(sizeof(NetV7) == 152);

struct NetV8 {
  const char* name;
  NcclResult (*init)(DebugLogger logger);
  NcclResult (*devices)(int* count);
  NcclResult (*getProperties)(int dev, NetPropertiesV8* properties);
  NcclResult (*listen)(int dev, void* handle, void** listen_comm);
  NcclResult (*connect)(int dev, void* handle, void** send_comm, NetDeviceHandle** device_handle);
  NcclResult (*accept)(void* listen_comm, void** recv_comm, NetDeviceHandle** device_handle);
  NcclResult (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  NcclResult (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                            void** mhandle);
  NcclResult (*deregMr)(void* comm, void* mhandle);
  NcclResult (*isend)(void* send_comm, void* data, int size, int tag, void* mhandle, void** request);
  NcclResult (*irecv)(void* recv_comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                      void** request);
  NcclResult (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  NcclResult (*test)(void* request, int* done, int* sizes);
  NcclResult (*closeSend)(void* send_comm);
  NcclResult (*closeRecv)(void* recv_comm);
  NcclResult (*closeListen)(void* listen_comm);
  NcclResult (*getDeviceMr)(void* comm, void* mhandle, void** device_mhandle);
  NcclResult (*irecvConsumed)(void* recv_comm, int n, void* request);
};
static_assert(sizeof(NetV8) == 152);

struct NetV9 {
  const char* name;
  NcclResult (*init)(DebugLogger logger);
  NcclResult (*devices)(int* count);
  NcclResult (*getProperties)(int dev, NetPropertiesV9* properties);
  NcclResult (*listen)(int dev, void* handle, void** listen_comm);
  NcclResult (*connect)(int dev, void* handle, void** send_comm, NetDeviceHandle** device_handle);
  NcclResult (*accept)(void* listen_comm, void** recv_comm, NetDeviceHandle** device_handle);
  NcclResult (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  NcclResult (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                            void** mhandle);
  NcclResult (*deregMr)(void* comm, void* mhandle);
  NcclResult (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void** request);
  NcclResult (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                      void** request);
  NcclResult (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  NcclResult (*test)(void* request, int* done, int* sizes);
  NcclResult (*closeSend)(void* send_comm);
  NcclResult (*closeRecv)(void* recv_comm);
  NcclResult (*closeListen)(void* listen_comm);
  NcclResult (*getDeviceMr)(void* comm, void* mhandle, void** device_mhandle);
  NcclResult (*irecvConsumed)(void* recv_comm, int n, void* request);
  NcclResult (*makeVDevice)(int* dev, NetVDevicePropsV9* properties);
};
static_assert(sizeof(NetV9) == 160);

struct NetV10 {
  const char* name;
  NcclResult (*init)(DebugLogger logger, ProfilerCallback profiler);
  NcclResult (*devices)(int* count);
  NcclResult (*getProperties)(int dev, NetPropertiesV10* properties);
  NcclResult (*listen)(int dev, void* handle, void** listen_comm);
  NcclResult (*connect)(int dev, NetCommConfig* config, void* handle, void** send_comm,
                        NetDeviceHandle** device_handle);
  NcclResult (*accept)(void* listen_comm, void** recv_comm, NetDeviceHandle** device_handle);
  NcclResult (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  NcclResult (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                            void** mhandle);
  NcclResult (*deregMr)(void* comm, void* mhandle);
  NcclResult (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                      void** request);
  NcclResult (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                      void** phandles, void** request);
  NcclResult (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  NcclResult (*test)(void* request, int* done, int* sizes);
  NcclResult (*closeSend)(void* send_comm);
  NcclResult (*closeRecv)(void* recv_comm);
  NcclResult (*closeListen)(void* listen_comm);
  NcclResult (*getDeviceMr)(void* comm, void* mhandle, void** device_mhandle);
  NcclResult (*irecvConsumed)(void* recv_comm, int n, void* request);
  NcclResult (*makeVDevice)(int* dev, NetVDevicePropsV9* properties);
};
static_assert(sizeof(NetV10) == 160);

struct NetV11 {
  const char* name;
  NcclResult (*init)(void** ctx, uint64_t comm_id, NetCommConfig* config, DebugLogger logger,
                     ProfilerCallback profiler);
  NcclResult (*devices)(int* count);
  NcclResult (*getProperties)(int dev, NetPropertiesV11* properties);
  NcclResult (*listen)(void* ctx, int dev, void* handle, void** listen_comm);
  NcclResult (*connect)(void* ctx, int dev, void* handle, void** send_comm, NetDeviceHandle** device_handle);
  NcclResult (*accept)(void* listen_comm, void** recv_comm, NetDeviceHandle** device_handle);
  NcclResult (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  NcclResult (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                            void** mhandle);
  NcclResult (*deregMr)(void* comm, void* mhandle);
  NcclResult (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                      void** request);
  NcclResult (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                      void** phandles, void** request);
  NcclResult (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  NcclResult (*test)(void* request, int* done, int* sizes);
  NcclResult (*closeSend)(void* send_comm);
  NcclResult (*closeRecv)(void* recv_comm);
  NcclResult (*closeListen)(void* listen_comm);
  NcclResult (*getDeviceMr)(void* comm, void* mhandle, void** device_mhandle);
  NcclResult (*irecvConsumed)(void* recv_comm, int n, void* request);
  NcclResult (*makeVDevice)(int* dev, NetVDevicePropsV9* properties);
  NcclResult (*finalize)(void* ctx);
  NcclResult (*setNetAttr)(void* ctx, NetAttr* attributes);
};
static_assert(sizeof(NetV11) == 176);

struct NetV12 {
  const char* name;
  NcclResult (*init)(void** ctx, uint64_t comm_id, NetCommConfig* config, DebugLogger logger,
                     ProfilerCallback profiler);
  NcclResult (*devices)(int* count);
  NcclResult (*getProperties)(int dev, NetPropertiesV12* properties);
  NcclResult (*listen)(void* ctx, int dev, void* handle, void** listen_comm);
  NcclResult (*connect)(void* ctx, int dev, void* handle, void** send_comm, NetDeviceHandle** device_handle);
  NcclResult (*accept)(void* listen_comm, void** recv_comm, NetDeviceHandle** device_handle);
  NcclResult (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  NcclResult (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                            void** mhandle);
  NcclResult (*deregMr)(void* comm, void* mhandle);
  NcclResult (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                      void** request);
  NcclResult (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                      void** phandles, void** request);
  NcclResult (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  NcclResult (*test)(void* request, int* done, int* sizes);
  NcclResult (*closeSend)(void* send_comm);
  NcclResult (*closeRecv)(void* recv_comm);
  NcclResult (*closeListen)(void* listen_comm);
  NcclResult (*getDeviceMr)(void* comm, void* mhandle, void** device_mhandle);
  NcclResult (*irecvConsumed)(void* recv_comm, int n, void* request);
  NcclResult (*makeVDevice)(int* dev, NetVDevicePropsV12* properties);
  NcclResult (*finalize)(void* ctx);
  NcclResult (*setNetAttr)(void* ctx, NetAttr* attributes);
};
static_assert(sizeof(NetV12) == 176);

static_assert(sizeof(NcclResult) == sizeof(int) && sizeof(LogLevel) == sizeof(int));

}  // namespace sluice::nccl
