#include "tools/perf/schedule.h"

#include <algorithm>

#include "tools/perf/schedule_parts.h"

namespace sluice::perf {

std::string_view Name(Op op) {
  switch (op) {
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kAllGather:
      return "all_gather";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kReduce:
      return "reduce";
    case Op::kAllToAll:
      return "all_to_all";
    case Op::kSendRecv:
      return "sendrecv";
  }
  return "?";
}

std::string_view Name(Algo algo) {
  return algo == Algo::kTree ? "tree" : "ring";
}

std::string_view Name(Proto proto) {
  switch (proto) {
    case Proto::kLl:
      return "ll";
    case Proto::kLl128:
      return "ll128";
    case Proto::kSimple:
      return "simple";
  }
  return "?";
}

bool IsPointToPoint(Op op) {
  return op == Op::kAllToAll || op == Op::kSendRecv;
}
bool Reduces(Op op) {
  return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce;
}

namespace {

size_t TransfersOf(const Shape& shape, int Transfer::*end) {
  return static_cast<size_t>(std::count_if(shape.transfers->begin(), shape.transfers->end(),
                                           [&](const Transfer& t) { return t.*end == shape.rank; }));
}

}  // namespace

size_t InputElements(const Shape& shape) {
  if (shape.transfers != nullptr) return shape.block_elements * TransfersOf(shape, &Transfer::from);
  const bool blocks = shape.op == Op::kReduceScatter || shape.op == Op::kAllToAll;
  return shape.block_elements * (blocks ? static_cast<size_t>(shape.ranks) : 1);
}

size_t OutputElements(const Shape& shape) {
  if (shape.transfers != nullptr) return shape.block_elements * TransfersOf(shape, &Transfer::to);
  const bool blocks = shape.op == Op::kAllGather || shape.op == Op::kAllToAll;
  return shape.block_elements * (blocks ? static_cast<size_t>(shape.ranks) : 1);
}

Shape Supported(Shape shape) {
  if (shape.op != Op::kAllReduce) shape.algo = Algo::kRing;
  if (IsPointToPoint(shape.op) && shape.proto == Proto::kLl128) shape.proto = Proto::kSimple;
  if (shape.registered) {
    if (shape.op == Op::kReduceScatter || shape.op == Op::kReduce || shape.algo == Algo::kTree) {
      shape.registered = false;
    } else {
      shape.proto = Proto::kSimple;
    }
  }
  return shape;
}

size_t Strand::receives() const {
  return static_cast<size_t>(
      std::count_if(slices.begin(), slices.end(), [](const Slice& s) { return s.receives; }));
}

size_t Strand::sends() const {
  return static_cast<size_t>(
      std::count_if(slices.begin(), slices.end(), [](const Slice& s) { return s.sends; }));
}

std::vector<Part> CutOverChannels(const Shape& shape, size_t elements) {
  constexpr size_t kMinTrafficBytes = 32 << 10;
  size_t traffic_per_byte = 1;
  if (shape.op == Op::kAllReduce) traffic_per_byte = 2;
  if (shape.op == Op::kAllGather || shape.op == Op::kReduceScatter)
    traffic_per_byte = static_cast<size_t>(shape.ranks);
  if (shape.proto == Proto::kLl) traffic_per_byte *= 4;
  const size_t cell = RoundUp(CeilDiv(kMinTrafficBytes, traffic_per_byte), 16) / kElementBytes;
  const size_t cells = CeilDiv(elements, cell);
  const size_t per_channel = CeilDiv(cells, static_cast<size_t>(shape.channels)) * cell;
  std::vector<Part> parts;
  for (size_t at = 0; at < elements; at += per_channel) {
    parts.push_back({static_cast<int>(parts.size()), at, std::min(per_channel, elements - at)});
  }
  return parts;
}

size_t SetSteps(Schedule& schedule, int ring_chunk_steps, int ring_slice_steps, size_t channel_bytes) {
  const Shape& shape = schedule.shape;
  const bool multi = shape.proto == Proto::kSimple && shape.algo == Algo::kRing;
  schedule.chunk_steps = multi ? ring_chunk_steps : 1;
  schedule.slice_steps = multi ? ring_slice_steps : 1;
  schedule.step_bytes = kBufferBytes[static_cast<int>(shape.proto)] / kSteps;
  size_t chunk = schedule.step_bytes * static_cast<size_t>(schedule.chunk_steps);
  if (shape.proto == Proto::kLl) chunk /= 2;
  if (shape.proto == Proto::kLl128) {
    chunk = chunk / 128 * 120;
    if (shape.algo == Algo::kTree) {  // shorter chunks fill a deep tree sooner
      size_t depth = 1;
      while ((size_t{2} << (depth - 1)) <= static_cast<size_t>(shape.ranks)) ++depth;
      while (channel_bytes / chunk < depth * 64 && chunk > 131072) chunk /= 2;
      while (channel_bytes / chunk < depth * 16 && chunk > 32768) chunk /= 2;
      chunk = chunk / 1920 * 1920;
    }
  }
  return chunk / kElementBytes;
}

void AppendChunk(const Schedule& schedule, Strand& strand, const Slice& chunk) {
  const auto slices = static_cast<size_t>(schedule.chunk_steps / schedule.slice_steps);
  size_t slice_bytes = chunk.bytes;
  if (schedule.shape.proto == Proto::kSimple && slices > 1) {
    const size_t elements = CeilDiv(chunk.bytes, kElementBytes);
    const size_t even = CeilDiv(elements, 16 * slices) * 16 * kElementBytes;
    slice_bytes = std::max(even, schedule.step_bytes * static_cast<size_t>(schedule.slice_steps) / 32);
  }
  size_t at = 0;
  for (size_t i = 0; i < slices;
       ++i) {  // all of them, empty ones too, or the steps of the two ends would drift apart
    Slice slice = chunk;
    slice.bytes = std::min(slice_bytes, chunk.bytes - at);
    slice.source_offset += at;
    slice.target_offset += at;
    slice.wire_offset += at;
    strand.slices.push_back(slice);
    at += slice.bytes;
  }
}

Strand LocalCopy(size_t source_offset, size_t target_offset, size_t bytes) {
  Strand strand;
  strand.slices.push_back({.source = Operand::kInput,
                           .target = Operand::kOutput,
                           .source_offset = source_offset,
                           .target_offset = target_offset,
                           .bytes = bytes});
  return strand;
}

Schedule BuildSchedule(const Shape& shape) {
  Schedule schedule;
  schedule.shape = shape;
  if (shape.ranks == 1 && shape.op != Op::kSendRecv) {
    schedule.step_bytes = kBufferBytes[static_cast<int>(shape.proto)] / kSteps;
    schedule.strands.push_back(LocalCopy(0, 0, shape.block_elements * kElementBytes));
    return schedule;
  }
  switch (shape.op) {
    case Op::kAllReduce:
      shape.algo == Algo::kTree ? BuildTreeAllReduce(schedule) : BuildRingAllReduce(schedule);
      break;
    case Op::kAllGather:
      BuildRingAllGather(schedule);
      break;
    case Op::kReduceScatter:
      BuildRingReduceScatter(schedule);
      break;
    case Op::kBroadcast:
      BuildRingBroadcast(schedule);
      break;
    case Op::kReduce:
      BuildRingReduce(schedule);
      break;
    case Op::kAllToAll:
    case Op::kSendRecv:
      BuildPointToPoint(schedule);
      break;
  }
  return schedule;
}

Edges ConnectionsOf(const Shape& shape) {
  Edges edges;
  const int n = shape.ranks;
  if (shape.transfers != nullptr) {
    for (const PlacedTransfer& t : PlaceTransfers(shape)) {
      if (t.transfer.to == shape.rank) edges.receive.push_back({t.transfer.from, t.channel});
      if (t.transfer.from == shape.rank) edges.send.push_back({t.transfer.to, t.channel});
    }
    for (std::vector<Edge>* list : {&edges.receive, &edges.send}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    return edges;
  }
  for (int channel = 0; channel < shape.channels; ++channel) {
    auto receive = [&](int peer) { edges.receive.push_back({peer, channel}); };
    auto send = [&](int peer) { edges.send.push_back({peer, channel}); };
    if (shape.op == Op::kAllToAll) {
      for (int peer = 0; peer < n; ++peer) {
        if (peer != shape.rank) receive(peer), send(peer);
      }
    } else if (shape.op == Op::kSendRecv || (n > 1 && shape.algo == Algo::kRing)) {
      receive((shape.rank + n - 1) % n), send((shape.rank + 1) % n);
    } else if (n > 1) {
      const TreePlace tree = TreeOf(shape, channel);
      if (tree.up >= 0) receive(tree.up), send(tree.up);
      for (int child : tree.down) receive(child), send(child);
    }
  }
  std::sort(edges.receive.begin(), edges.receive.end());
  std::sort(edges.send.begin(), edges.send.end());
  return edges;
}

}  // namespace sluice::perf
