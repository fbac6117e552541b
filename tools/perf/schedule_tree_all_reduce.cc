#include <algorithm>

#include "tools/perf/schedule_parts.h"

namespace sluice::perf {
namespace {

int LowestBit(int rank, int ranks) {
  int bit = 1;
  while (bit < ranks && (rank & bit) == 0) bit <<= 1;
  return bit;
}

// The first tree: leaves are odd ranks; a rank whose lowest set bit is b stands above rank +- b / 2.
TreePlace FirstTree(int rank, int ranks) {
  TreePlace place;
  const int bit = LowestBit(rank, ranks);
  if (rank == 0) {
    if (ranks > 1) place.down.push_back(bit >> 1);
    return place;
  }
  const int parent = (rank ^ bit) | (bit << 1);
  place.up = parent < ranks ? parent : rank ^ bit;
  int half = bit >> 1;
  if (half == 0) return place;
  place.down.push_back(rank - half);
  while (half > 0 && rank + half >= ranks) half >>= 1;
  if (half > 0) place.down.push_back(rank + half);
  return place;
}

}  // namespace

// The second tree mirrors the first (even number of ranks) or shifts it by one (odd), so that inner ranks of
// one tree are leaves of the other.
TreePlace PlaceInTree(int rank, int ranks, bool second) {
  if (!second) return FirstTree(rank, ranks);
  const bool mirror = ranks % 2 == 0;
  auto there = [&](int r) { return mirror ? ranks - 1 - r : (r + ranks - 1) % ranks; };
  auto back = [&](int r) { return mirror ? ranks - 1 - r : (r + 1) % ranks; };
  TreePlace place = FirstTree(there(rank), ranks);
  if (place.up >= 0) place.up = back(place.up);
  for (int& child : place.down) child = back(child);
  return place;
}

TreePlace TreeOf(const Shape& shape, int channel) {
  return PlaceInTree(shape.rank, shape.ranks, shape.channels > 1 && channel >= (shape.channels + 1) / 2);
}

// Up and down the tree at the same time, as two strands; the root turns around in one.
void BuildTreeAllReduce(Schedule& schedule) {
  const Shape& shape = schedule.shape;
  for (const Part& part : CutOverChannels(shape, shape.block_elements)) {
    const size_t chunk = SetSteps(schedule, 1, 1, part.count * kElementBytes);
    const TreePlace tree = TreeOf(shape, part.channel);
    Strand up{.channel = part.channel, .receive_from = tree.down};
    Strand down{.channel = part.channel, .send_to = tree.down};
    Slice reduce{.receives = !tree.down.empty(), .sends = true, .source = Operand::kInput};
    Slice copy{.receives = true, .sends = !tree.down.empty(), .target = Operand::kOutput};
    if (tree.up >= 0) {
      up.send_to = {tree.up};
      down.receive_from = {tree.up};
    } else {
      up.send_to = tree.down;
      reduce.target = Operand::kOutput;
    }
    for (size_t at = 0; at < part.count; at += chunk) {
      for (Slice* slice : {&reduce, &copy}) {
        slice->bytes = std::min(chunk, part.count - at) * kElementBytes;
        slice->source_offset = slice->target_offset = (part.offset + at) * kElementBytes;
      }
      AppendChunk(schedule, up, reduce);
      if (tree.up >= 0) AppendChunk(schedule, down, copy);
    }
    schedule.strands.push_back(std::move(up));
    if (tree.up >= 0) schedule.strands.push_back(std::move(down));
  }
}

}  // namespace sluice::perf
