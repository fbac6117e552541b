#include <algorithm>

#include "tools/perf/schedule_parts.h"

namespace sluice::perf {

// A pipeline along the ring that starts behind the root and ends at it.
void BuildRingReduce(Schedule& schedule) {
  const Shape& shape = schedule.shape;
  const int n = shape.ranks;
  const int previous = (shape.rank + n - 1) % n;
  Slice step{
      .receives = previous != shape.root, .sends = shape.rank != shape.root, .source = Operand::kInput};
  if (shape.rank == shape.root) step.target = Operand::kOutput;
  for (const Part& part : CutOverChannels(shape, shape.block_elements)) {
    const size_t chunk = SetSteps(schedule, 1, 1, part.count * kElementBytes);
    Strand strand{.channel = part.channel};
    if (step.receives) strand.receive_from = {previous};
    if (step.sends) strand.send_to = {(shape.rank + 1) % n};
    for (size_t at = 0; at < part.count; at += chunk) {
      Slice slice = step;
      slice.bytes = std::min(chunk, part.count - at) * kElementBytes;
      slice.source_offset = slice.target_offset = (part.offset + at) * kElementBytes;
      AppendChunk(schedule, strand, slice);
    }
    schedule.strands.push_back(std::move(strand));
  }
}

}  // namespace sluice::perf
