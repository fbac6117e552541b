// The binary interface of NCCL's tuner plugins, versions 1 to 6 (NCCL 2.19 to 2.30), on LP64.
//
// Version 1 has no context. 2 to 4 put ranks and nodes before the context of init, 5 and 6 the context first;
// `destroy` is called `finalize` from 5 on, at the same place. collCostTable is a flat array of
// float[numAlgo][numProto] behind the type float**. getChunkSize (6) is the last member and may be null.
//
// Used by the version tables (tuner_v1.cc to tuner_v6.cc) and by tools that load a plugin as NCCL does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/abi/nccl_net.h"

namespace sluice::nccl {

struct TunerNvlDomainInfo {
  int nNvlDomains;
  int minRanksPerNvlDomain;
  int maxRanksPerNvlDomain;
};
static_assert(sizeof(TunerNvlDomainInfo) == 12);

inline constexpr int kTunerAlgorithms = 7;
inline constexpr int kTunerProtocols = 3;
inline constexpr int kTunerHardwareLinks = 3;
inline constexpr int kTunerComputeCapabilities = 4;
inline constexpr int kTunerScales = 3;

// Read and written by init before NCCL computes its cost model.
struct TunerConstants {
  double baseLatencies[kTunerAlgorithms][kTunerProtocols];
  double hwLatencies[kTunerHardwareLinks][kTunerAlgorithms][kTunerProtocols];
  double llMaxBws[kTunerComputeCapabilities][kTunerScales];
  double perChMaxRingLL128Bws[kTunerComputeCapabilities][kTunerScales];
  double perChMaxTreeLL128Bws[kTunerComputeCapabilities][kTunerScales];
  double perChMaxTreeBws[kTunerComputeCapabilities][kTunerScales];
  double perChMaxNVLSTreeBws[kTunerComputeCapabilities][kTunerScales];
};
static_assert(sizeof(TunerConstants) == 8 * (21 + 63 + 5 * 12));

struct TunerV1 {
  const char* name;
  NcclResult (*init)(size_t ranks, size_t nodes, DebugLogger logger);
  NcclResult (*getCollInfo)(int coll, size_t bytes, int collnet, int nvls, int pipe_ops, int* algorithm,
                            int* protocol, int* channels);
  NcclResult (*destroy)();
};
static_assert(sizeof(TunerV1) == 32);

struct TunerV2 {
  const char* name;
  NcclResult (*init)(size_t ranks, size_t nodes, DebugLogger logger, void** context);
  NcclResult (*getCollInfo)(void* context, int coll, size_t bytes, int collnet, int nvls, int pipe_ops,
                            int* algorithm, int* protocol, int* channels);
  NcclResult (*destroy)(void* context);
};
static_assert(sizeof(TunerV2) == 32);

struct TunerV3 {
  const char* name;
  NcclResult (*init)(size_t ranks, size_t nodes, DebugLogger logger, void** context);
  NcclResult (*getCollInfo)(void* context, int coll, size_t bytes, int pipe_ops, float** cost_table,
                            int algorithms, int protocols, int* channels);
  NcclResult (*destroy)(void* context);
};
static_assert(sizeof(TunerV3) == 32);

struct TunerV4 {
  const char* name;
  NcclResult (*init)(size_t ranks, size_t nodes, DebugLogger logger, void** context);
  NcclResult (*getCollInfo)(void* context, int coll, size_t bytes, int pipe_ops, float** cost_table,
                            int algorithms, int protocols, int registered, int* channels);
  NcclResult (*destroy)(void* context);
};
static_assert(sizeof(TunerV4) == 32);

struct TunerV5 {
  const char* name;
  NcclResult (*init)(void** context, uint64_t comm_id, size_t ranks, size_t nodes, DebugLogger logger,
                     TunerNvlDomainInfo* domains, TunerConstants* constants);
  NcclResult (*getCollInfo)(void* context, int coll, size_t bytes, int pipe_ops, float** cost_table,
                            int algorithms, int protocols, int registered, int* channels);
  NcclResult (*finalize)(void* context);
};
static_assert(sizeof(TunerV5) == 32);

struct TunerV6 {
  const char* name;
  NcclResult (*init)(void** context, uint64_t comm_id, size_t ranks, size_t nodes, DebugLogger logger,
                     TunerNvlDomainInfo* domains, TunerConstants* constants);
  NcclResult (*getCollInfo)(void* context, int coll, size_t bytes, int pipe_ops, float** cost_table,
                            int algorithms, int protocols, int registered, int* channels);
  NcclResult (*finalize)(void* context);
  NcclResult (*getChunkSize)(void* context, int coll, size_t bytes, int algorithm, int protocol, int channels,
                             size_t* chunk_bytes);
};
static_assert(sizeof(TunerV6) == 40);

}  // namespace sluice::nccl
