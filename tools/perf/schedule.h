// Operations as lists of slices: what a rank receives, reduces, copies and sends, and in which order.
//
//   Shape shape{.op = Op::kAllReduce, .algo = Algo::kRing, .proto = Proto::kSimple, .rank = 0, .ranks = 4,
//               .channels = 2, .block_elements = 1 << 20};
//   Schedule schedule = BuildSchedule(shape);
//
// Pure functions of the shape: no clock, no network, no memory. Who executes a schedule, in real or in
// virtual time, is not known here. Every rank builds its own part; the parts of all ranks of one shape fit
// together: the k-th message that a rank sends on (peer, channel) is the k-th that the peer receives there,
// with the same number of bytes.
//
// Sizes and cuts follow NCCL: eight steps per connection, a chunk of chunk_steps steps cut into slices of
// slice_steps steps, at least 32 KiB of traffic per channel, empty slices sent as empty messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace sluice::perf {

enum class Op : uint8_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kReduce, kAllToAll, kSendRecv };
enum class Algo : uint8_t { kTree, kRing };           // numbered as NCCL numbers them
enum class Proto : uint8_t { kLl, kLl128, kSimple };  // numbered as NCCL numbers them

std::string_view Name(Op op);
std::string_view Name(Algo algo);
std::string_view Name(Proto proto);

inline constexpr int kSteps = 8;  // slots of a connection
inline constexpr int kProtocols = 3;
inline constexpr int kSharedSteps = 16;     // slots that the point-to-point connections of one channel share
inline constexpr int kMaxBatch = 8;         // point-to-point pairs that run at the same time on one channel
inline constexpr size_t kElementBytes = 4;  // float
inline constexpr size_t kBufferBytes[kProtocols] = {524288, 4915200, 4194304};
inline constexpr size_t kPointToPointChunkBytes = 128 << 10;
inline constexpr size_t kMaxNetBytes = size_t{1} << 30;  // one message of a registered buffer

// One send and its receive, for a sendrecv that is no ring: from rank to rank.
struct Transfer {
  int from = 0;
  int to = 0;
};
using Transfers = std::shared_ptr<const std::vector<Transfer>>;

// One call. block_elements: elements per rank for all_gather, reduce_scatter and all_to_all, else all
// elements.
struct Shape {
  Op op = Op::kAllReduce;
  Algo algo = Algo::kRing;
  Proto proto = Proto::kSimple;
  int rank = 0;
  int ranks = 1;
  int channels = 1;
  int root = 0;
  size_t block_elements = 0;
  bool registered = false;  // the network reads and writes the user's buffers
  // sendrecv only: all of them in one group, of block_elements each. Null: every rank to the next one. A
  // rank's input has a block for each transfer that it sends, its output one for each that it receives, in
  // this order.
  Transfers transfers{};
};

// all_to_all and sendrecv: connections of their own, whose Simple buffers are shared per channel.
bool IsPointToPoint(Op op);
bool Reduces(Op op);
size_t InputElements(const Shape& shape);
size_t OutputElements(const Shape& shape);

// What NCCL would run where it has no such combination: ring but for all_reduce, Simple for point-to-point
// LL128 and for registered buffers. The result is what BuildSchedule accepts.
Shape Supported(Shape shape);

enum class Operand : uint8_t { kNone, kInput, kOutput };

// One message's worth of work: everything that moves together. The result (the sum of the source and of what
// was received) goes to the target and to all peers that the strand sends to.
struct Slice {
  bool receives = false;
  bool sends = false;
  Operand source = Operand::kNone;
  Operand target = Operand::kNone;
  size_t source_offset = 0;  // bytes, like all offsets here
  size_t target_offset = 0;
  size_t wire_offset = 0;  // registered only: where in the output the message lands and is sent from
  size_t bytes = 0;
};

// A sequence on one channel. Strands run concurrently, but a strand of batch b starts only when all of batch
// b - 1 on the same channel are finished.
struct Strand {
  int channel = 0;
  int batch = 0;
  std::vector<int> receive_from{};  // peers
  std::vector<int> send_to{};
  std::vector<Slice> slices{};

  size_t receives() const;  // messages per peer of receive_from
  size_t sends() const;
};

struct Schedule {
  Shape shape;
  int chunk_steps = 1;
  int slice_steps = 1;
  size_t step_bytes = 0;  // wire bytes of one step: distance of two slots
  std::vector<Strand> strands{};
};

Schedule BuildSchedule(const Shape& shape);

// A connection that the schedules of an operation need: directed, on one channel.
struct Edge {
  int peer = 0;
  int channel = 0;
  bool operator==(const Edge&) const = default;
  auto operator<=>(const Edge&) const = default;
};
struct Edges {
  std::vector<Edge> receive;  // sorted, unique
  std::vector<Edge> send;
};
// Everything that any size of this operation can use, for the rank of `shape`.
Edges ConnectionsOf(const Shape& shape);

}  // namespace sluice::perf
