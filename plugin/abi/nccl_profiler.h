// The binary interface of NCCL's profiler plugins, versions 1 to 6 (NCCL 2.23 to 2.30), on LP64.
//
// Order and type of members are the interface. Versions differ in the arguments of init (4 and 5 swap mask and
// communicator), in the type of an event (8 bits up to version 4, 64 from 5), in the names of operations
// (numbers in 1, text from 2), and in the members of every descriptor. NCCL takes the highest version that it
// knows: the symbol is ncclProfiler_vN.
//
// Used by the version tables (profiler_v1.cc to profiler_v6.cc) and by tools that load a plugin as NCCL does.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "plugin/abi/nccl_net.h"

namespace sluice::nccl {

// Bits of the activation mask and of `type`. A bit implies the events above it (a step its operation, the
// operation its collective).
enum ProfilerEventType : uint64_t {
  kProfileGroup = 1 << 0,
  kProfileColl = 1 << 1,
  kProfileP2p = 1 << 2,
  kProfileProxyOp = 1 << 3,
  kProfileProxyStep = 1 << 4,
  kProfileProxyCtrl = 1 << 5,
  kProfileKernelCh = 1 << 6,
  kProfileNetPlugin = 1 << 7,
  kProfileGroupApi = 1 << 8,
  kProfileCollApi = 1 << 9,
  kProfileP2pApi = 1 << 10,
  kProfileKernelLaunch = 1 << 11,
  kProfileCeColl = 1 << 12,
  kProfileCeSync = 1 << 13,
  kProfileCeBatch = 1 << 14,
};

// `state` of recordEventState. 0 to 7 belong to proxy operations of versions 1 to 3, 19 and 20 to version 4 and
// later.
enum ProfilerEventState : int {
  kProxyOpSendPosted = 0,
  kProxyOpSendRemFifoWait = 1,
  kProxyOpSendTransmitted = 2,
  kProxyOpSendDone = 3,
  kProxyOpRecvPosted = 4,
  kProxyOpRecvReceived = 5,
  kProxyOpRecvTransmitted = 6,
  kProxyOpRecvDone = 7,
  kProxyStepSendGpuWait = 8,
  kProxyStepSendWait = 9,
  kProxyStepRecvWait = 10,
  kProxyStepRecvFlushWait = 11,
  kProxyStepRecvGpuWait = 12,
  kProxyCtrlIdle = 13,
  kProxyCtrlActive = 14,
  kProxyCtrlSleep = 15,
  kProxyCtrlWakeup = 16,
  kProxyCtrlAppend = 17,
  kProxyCtrlAppendEnd = 18,
  kProxyOpInProgressV4 = 19,
  kProxyStepSendPeerWaitV4 = 20,
  kNetPluginUpdate = 21,
  kKernelChStop = 22,
  kGroupStartApiStop = 23,
  kGroupEndApiStart = 24,
};

// Descriptors that are the same in every version.
struct ProfilerProxyOp {
  pid_t pid;  // process that launched the operation: of another one, every pointer here is foreign
  uint8_t channelId;
  int peer;
  int nSteps;
  int chunkSize;
  int isSend;
};
struct ProfilerProxyStep {
  int step;
};
struct ProfilerNetPlugin {
  int64_t id;
  void* data;
};
static_assert(sizeof(ProfilerProxyOp) == 24 && offsetof(ProfilerProxyOp, peer) == 8);

struct ProfilerEventDescrV1 {
  uint8_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      const char* name;
      uint64_t commHash;
      uint64_t seqNumber;
      uint8_t func;  // ncclFunc_t
      const void* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      uint8_t datatype;  // ncclDataType_t
      uint32_t op;
      size_t trafficBytes;
      uint8_t nMaxChannels;
      uint8_t nWarps;
      uint8_t algo;
      uint8_t proto;
      int isCollnet;
      int isNvls;
    } coll;
    struct {
      const char* name;
      uint64_t commHash;
      uint8_t func;
      void* buff;
      uint8_t datatype;
      size_t count;
      int peer;
    } p2p;
    ProfilerProxyOp proxyOp;
    ProfilerProxyStep proxyStep;
  };
};
static_assert(sizeof(ProfilerEventDescrV1) == 120);
static_assert(offsetof(ProfilerEventDescrV1, coll) == 24);
static_assert(offsetof(ProfilerEventDescrV1, coll.count) == 24 + 48);
static_assert(offsetof(ProfilerEventDescrV1, coll.algo) == 24 + 82);
static_assert(offsetof(ProfilerEventDescrV1, p2p.count) == 24 + 40);

struct ProfilerEventDescrV2 {
  uint8_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      const char* name;
      uint64_t commHash;
      uint64_t seqNumber;
      const char* func;
      const void* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      size_t trafficBytes;
      uint8_t nMaxChannels;
      uint8_t nWarps;
      const char* algo;
      const char* proto;
    } coll;
    struct {
      const char* name;
      uint64_t commHash;
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
    } p2p;
    ProfilerProxyOp proxyOp;
    ProfilerProxyStep proxyStep;
  };
};
static_assert(sizeof(ProfilerEventDescrV2) == 128);
static_assert(offsetof(ProfilerEventDescrV2, coll.datatype) == 24 + 64);
static_assert(offsetof(ProfilerEventDescrV2, coll.proto) == 24 + 96);

struct ProfilerEventDescrV3 {
  uint8_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      const char* name;
      uint64_t commHash;
      uint64_t seqNumber;
      const char* func;
      const void* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      uint8_t nMaxChannels;
      uint8_t nWarps;
      const char* algo;
      const char* proto;
    } coll;
    struct {
      const char* name;
      uint64_t commHash;
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
    } p2p;
    ProfilerProxyOp proxyOp;
    ProfilerProxyStep proxyStep;
    struct {
      uint8_t channelId;
    } kernelCh;
    ProfilerNetPlugin netPlugin;
  };
};
static_assert(sizeof(ProfilerEventDescrV3) == 120);
static_assert(offsetof(ProfilerEventDescrV3, coll.proto) == 24 + 88);

struct ProfilerEventDescrV4 {
  uint8_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      uint64_t seqNumber;
      const char* func;
      const void* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      uint8_t nChannels;
      uint8_t nWarps;
      const char* algo;
      const char* proto;
    } coll;
    struct {
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t nChannels;
    } p2p;
    ProfilerProxyOp proxyOp;
    ProfilerProxyStep proxyStep;
    struct {
      uint8_t channelId;
      uint64_t pTimer;
    } kernelCh;
    ProfilerNetPlugin netPlugin;
  };
};
static_assert(sizeof(ProfilerEventDescrV4) == 104);
static_assert(offsetof(ProfilerEventDescrV4, coll.count) == 24 + 32);
static_assert(offsetof(ProfilerEventDescrV4, coll.proto) == 24 + 72);

struct ProfilerEventDescrV5 {
  uint64_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      bool graphCaptured;
      int groupDepth;
    } groupApi;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool graphCaptured;
    } collApi;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      void* stream;
      bool graphCaptured;
    } p2pApi;
    struct {
      void* stream;
    } kernelLaunch;
    struct {
      uint64_t seqNumber;
      const char* func;
      const void* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      uint8_t nChannels;
      uint8_t nWarps;
      const char* algo;
      const char* proto;
      void* parentGroup;
    } coll;
    struct {
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t nChannels;
      void* parentGroup;
    } p2p;
    ProfilerProxyOp proxyOp;
    ProfilerProxyStep proxyStep;
    struct {
      uint8_t channelId;
      uint64_t pTimer;
    } kernelCh;
    ProfilerNetPlugin netPlugin;
  };
};
static_assert(sizeof(ProfilerEventDescrV5) == 112);
static_assert(offsetof(ProfilerEventDescrV5, coll.parentGroup) == 24 + 80);

// Version 5 with three descriptors of copy-engine collectives, which never come to a network.
struct ProfilerEventDescrV6 {
  uint64_t type;
  void* parentObj;
  int rank;
  union {
    decltype(ProfilerEventDescrV5::groupApi) groupApi;
    decltype(ProfilerEventDescrV5::collApi) collApi;
    decltype(ProfilerEventDescrV5::p2pApi) p2pApi;
    decltype(ProfilerEventDescrV5::kernelLaunch) kernelLaunch;
    decltype(ProfilerEventDescrV5::coll) coll;
    decltype(ProfilerEventDescrV5::p2p) p2p;
    ProfilerProxyOp proxyOp;
    ProfilerProxyStep proxyStep;
    decltype(ProfilerEventDescrV5::kernelCh) kernelCh;
    ProfilerNetPlugin netPlugin;
    struct {
      uint64_t seqNumber;
      const char* func;
      const void* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      const char* syncStrategy;
      bool intraBatchSync;
      uint32_t batchSize;
      uint32_t numBatches;
      uint32_t ceSeqNum;
      void* stream;
    } ceColl;
  };
};
static_assert(sizeof(ProfilerEventDescrV6) == 112);
static_assert(offsetof(ProfilerEventDescrV6, ceColl.stream) == 24 + 80);

union ProfilerEventStateArgsV1 {
  struct {
    size_t transSize;
    int steps;
  } proxyOp;
  struct {
    int appendedProxyOps;
  } proxyCtrl;
};
static_assert(sizeof(ProfilerEventStateArgsV1) == 16);

union ProfilerEventStateArgsV4 {
  struct {
    size_t transSize;
  } proxyStep;
  struct {
    int appendedProxyOps;
  } proxyCtrl;
  struct {
    void* data;
  } netPlugin;
  struct {
    uint64_t pTimer;
  } kernelCh;
};
static_assert(sizeof(ProfilerEventStateArgsV4) == 8);

// The members of every table behind init. `state` is an enum of NCCL's: int.
template <typename Descr, typename Args, typename InitFunction>
struct ProfilerTable {
  using Descriptor = Descr;
  using StateArgs = Args;
  const char* name;
  InitFunction init;
  NcclResult (*startEvent)(void* context, void** event, Descr* descr);
  NcclResult (*stopEvent)(void* event);
  NcclResult (*recordEventState)(void* event, int state, Args* args);
  NcclResult (*finalize)(void* context);
};
using ProfilerInitV1 = NcclResult (*)(void** context, int* mask);
using ProfilerInitV4 = NcclResult (*)(void** context, int* mask, const char* comm_name, uint64_t comm_hash,
                                      int nodes, int ranks, int rank, DebugLogger logger);
using ProfilerInitV5 = NcclResult (*)(void** context, uint64_t comm_id, int* mask, const char* comm_name,
                                      int nodes, int ranks, int rank, DebugLogger logger);

using ProfilerV1 = ProfilerTable<ProfilerEventDescrV1, ProfilerEventStateArgsV1, ProfilerInitV1>;
using ProfilerV2 = ProfilerTable<ProfilerEventDescrV2, ProfilerEventStateArgsV1, ProfilerInitV1>;
using ProfilerV3 = ProfilerTable<ProfilerEventDescrV3, ProfilerEventStateArgsV1, ProfilerInitV1>;
using ProfilerV4 = ProfilerTable<ProfilerEventDescrV4, ProfilerEventStateArgsV4, ProfilerInitV4>;
using ProfilerV5 = ProfilerTable<ProfilerEventDescrV5, ProfilerEventStateArgsV4, ProfilerInitV5>;
using ProfilerV6 = ProfilerTable<ProfilerEventDescrV6, ProfilerEventStateArgsV4, ProfilerInitV5>;
static_assert(sizeof(ProfilerV1) == 48 && sizeof(ProfilerV6) == 48);

}  // namespace sluice::nccl
