#include "plugin/abi/profiler_boundary.h"

#include <cstring>
#include <exception>
#include <utility>

#include "plugin/log.h"

namespace sluice::profiler_boundary {
namespace {

template <typename T, size_t kCount>
T Find(const std::pair<const char*, T> (&names)[kCount], const char* name, T otherwise) {
  if (name == nullptr) return otherwise;
  for (const auto& [known, value] : names) {
    if (strcmp(known, name) == 0) return value;
  }
  return otherwise;
}

constexpr std::pair<const char*, Function> kFunctionNames[] = {
    {"AllReduce", Function::kAllReduce},
    {"AllGather", Function::kAllGather},
    {"Send", Function::kSend},
    {"Recv", Function::kRecv},
    {"Broadcast", Function::kBroadcast},
    {"ReduceScatter", Function::kReduceScatter},
    {"Reduce", Function::kReduce},
    {"AlltoAll", Function::kAllToAll},
    {"SendRecv", Function::kSendRecv},
    {"Gather", Function::kGather},
    {"Scatter", Function::kScatter},
    {"AllGatherV", Function::kAllGatherV},
    {"PutSignal", Function::kPutSignal},
    {"Signal", Function::kSignal},
    {"WaitSignal", Function::kWaitSignal},
};
constexpr std::pair<const char*, Algorithm> kAlgorithmNames[] = {
    {"RING", Algorithm::kRing},
    {"TREE", Algorithm::kTree},
    {"PAT", Algorithm::kPat},
    {"NVLS", Algorithm::kNvls},
    {"NVLS_TREE", Algorithm::kNvlsTree},
    {"COLLNET_DIRECT", Algorithm::kCollNetDirect},
    {"COLLNET_CHAIN", Algorithm::kCollNetChain},
};
constexpr std::pair<const char*, Protocol> kProtocolNames[] = {
    {"SIMPLE", Protocol::kSimple}, {"LL", Protocol::kLl}, {"LL128", Protocol::kLl128}};
// ncclDataType_t; ncclInt8 and ncclChar are one number, as are ncclInt32 and ncclInt.
constexpr std::pair<const char*, size_t> kTypes[] = {
    {"ncclInt8", 1},
    {"ncclUint8", 1},
    {"ncclInt32", 4},
    {"ncclUint32", 4},
    {"ncclInt64", 8},
    {"ncclUint64", 8},
    {"ncclFloat16", 2},
    {"ncclFloat32", 4},
    {"ncclFloat64", 8},
    {"ncclBfloat16", 2},
    {"ncclFloat8e4m3", 1},
    {"ncclFloat8e5m2", 1},
    // NCCL's table of names lacks ncclUint8, and before 2.30 the 8-bit floats: all of one byte.
    {"Unknown", 1}};
constexpr size_t kNumberedTypes = std::size(kTypes) - 1;

}  // namespace

Function FunctionFrom(const char* name) {
  return Find(kFunctionNames, name, Function::kUnknown);
}
Algorithm AlgorithmFrom(const char* name) {
  return Find(kAlgorithmNames, name, Algorithm::kUnknown);
}
Protocol ProtocolFrom(const char* name) {
  return Find(kProtocolNames, name, Protocol::kUnknown);
}
// Before 2.28 NCCL had nothing beyond Recv.
Function FunctionFrom(uint8_t number) {
  return number <= static_cast<uint8_t>(Function::kRecv) ? static_cast<Function>(number) : Function::kUnknown;
}
Algorithm AlgorithmFrom(uint8_t number) {
  return number < static_cast<uint8_t>(Algorithm::kUnknown) ? static_cast<Algorithm>(number)
                                                            : Algorithm::kUnknown;
}
Protocol ProtocolFrom(uint8_t number) {
  return number < static_cast<uint8_t>(Protocol::kUnknown) ? static_cast<Protocol>(number)
                                                           : Protocol::kUnknown;
}
size_t ElementBytes(uint8_t datatype) {
  return datatype < kNumberedTypes ? kTypes[datatype].second : 0;
}
size_t ElementBytes(const char* datatype) {
  return Find(kTypes, datatype, size_t{0});
}

Communicator CommunicatorFrom(uint64_t hash, const char* name, int nodes, int ranks, int rank) {
  Communicator communicator;
  communicator.hash = hash;
  if (name != nullptr) communicator.name = name;
  communicator.nodes = nodes;
  communicator.ranks = ranks;
  communicator.rank = rank;
  return communicator;
}

NcclResult Init(int version, void** context, int* mask, const Communicator& communicator,
                DebugLogger logger) {
  if (context == nullptr || mask == nullptr) return nccl::kInvalidArgument;
  *context = nullptr;
  try {
    Result<ProfilerContext*> created = ProfilerContext::Create(version, communicator, logger);
    if (created.ok()) {
      *context = *created;
      // NCCL reads it at every API call, of every communicator.
      __atomic_store_n(mask, *created == nullptr ? 0 : static_cast<int>(ProfilerMask(version)),
                       __ATOMIC_RELAXED);
      return nccl::kSuccess;
    }
    SLUICE_WARN("profiler: %s", created.status().message().c_str());
  } catch (const std::exception& error) {
    SLUICE_WARN("profiler: init failed: %s", error.what());
  }
  __atomic_store_n(mask, 0, __ATOMIC_RELAXED);
  return nccl::kSystemError;
}

NcclResult StopEvent(void* event) {
  sluice::StopEvent(EventFrom(event));
  return nccl::kSuccess;
}

NcclResult Finalize(void* context) {
  if (context == nullptr) return nccl::kSuccess;
  try {
    const Status status = static_cast<ProfilerContext*>(context)->Finalize();
    if (!status.ok()) SLUICE_WARN("profiler: %s", status.message().c_str());
  } catch (const std::exception& error) {
    SLUICE_WARN("profiler: finalize failed: %s", error.what());
  }
  return nccl::kSuccess;
}

}  // namespace sluice::profiler_boundary
