// What is known of one NCCL operation: the vocabulary of classification, policy and statistics.
//
// Numbers of Function, Algorithm and Protocol are NCCL's own (ncclFunc_t since 2.28, NCCL_ALGO_*, NCCL_PROTO_*),
// so that a bit mask of the NET API converts by its bit index.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

enum class Function : uint8_t {
  kBroadcast = 0,
  kReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kAllReduce = 4,
  kSendRecv = 5,
  kSend = 6,
  kRecv = 7,
  kAllToAll = 8,
  kScatter = 9,
  kGather = 10,
  kAllGatherV = 11,
  kPutSignal = 12,
  kSignal = 13,
  kWaitSignal = 14,
  kUnknown = 15,
  // Which one is not known, its kind is: all that OperationSource::kConnection tells.
  kCollective = 16,
  kPointToPoint = 17,
};
inline constexpr int kFunctions = 18;

enum class Algorithm : uint8_t {
  kTree = 0,
  kRing = 1,
  kCollNetDirect = 2,
  kCollNetChain = 3,
  kNvls = 4,
  kNvlsTree = 5,
  kPat = 6,
  kUnknown = 7,
};
inline constexpr int kAlgorithms = 8;

enum class Protocol : uint8_t { kLl = 0, kLl128 = 1, kSimple = 2, kUnknown = 3 };
inline constexpr int kProtocols = 4;

// Which kind of parallelism a communicator serves.
enum class Parallelism : uint8_t { kUnknown, kData, kTensor, kPipeline, kExpert };
inline constexpr int kParallelisms = 5;

// How the operation of a message was found out, best first.
enum class OperationSource : uint8_t {
  kAttributes,  // setNetAttr of NET v11 and later: function, algorithm, protocol
  kProfiler,  // the step that our profiler half was told of just before the call: bytes and communicator too
  kProfilerCallback,  // the same through phandle (NET v10 and later)
  kConnection,        // kind of connection, registered sizes, posted size: protocol, and collective or not
  kNone,
};
inline constexpr int kOperationSources = 5;

inline constexpr uint64_t kUnknownBytes = ~uint64_t{0};

struct Operation {
  Function function = Function::kUnknown;
  Algorithm algorithm = Algorithm::kUnknown;
  Protocol protocol = Protocol::kUnknown;
  // Bytes of the user's call on this rank: count x size of the type, as NCCL's profiler reports the count.
  uint64_t bytes = kUnknownBytes;
};

// Send, Recv, all-to-all, gather and scatter, which NCCL builds from point-to-point messages, and the one-sided calls.
constexpr bool IsPointToPoint(Function function) {
  return (function >= Function::kSendRecv && function <= Function::kGather) ||
         (function >= Function::kPutSignal && function <= Function::kWaitSignal) ||
         function == Function::kPointToPoint;
}
// What runs over rings and trees. Neither holds for kUnknown.
constexpr bool IsCollective(Function function) {
  return function != Function::kUnknown && !IsPointToPoint(function);
}

// "all_reduce", "ring", "simple", "tensor"; "unknown". kCollective is "collective".
std::string_view Name(Function function);
std::string_view Name(Algorithm algorithm);
std::string_view Name(Protocol protocol);
std::string_view Name(Parallelism parallelism);

// The inverse. Case, '_', '-' and ' ' do not count, so NCCL's spelling ("AllReduce", "LL128") is read too. "unknown" is none.
std::optional<Function> FunctionFromName(std::string_view name);
std::optional<Algorithm> AlgorithmFromName(std::string_view name);
std::optional<Protocol> ProtocolFromName(std::string_view name);
std::optional<Parallelism> ParallelismFromName(std::string_view name);

// What is known of a communicator; -1 and empty: unknown.
struct Communicator {
  uint64_t hash = 0;      // ncclComm's commHash: equal on all ranks
  std::string name = {};  // ncclConfig_t.commName
  int rank = -1;
  int ranks = -1;
  int nodes = -1;
  int traffic_class = -1;  // ncclConfig_t.trafficClass
};

}  // namespace sluice
