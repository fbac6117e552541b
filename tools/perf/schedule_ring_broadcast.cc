#include <algorithm>

#include "tools/perf/schedule_parts.h"

namespace sluice::perf {

// A pipeline along the ring that starts at the root and ends at its predecessor.
void BuildRingBroadcast(Schedule& schedule) {
  const Shape& shape = schedule.shape;
  const int n = shape.ranks;
  const int next = (shape.rank + 1) % n;
  Slice step{.receives = true, .sends = true, .target = Operand::kOutput};
  if (shape.rank == shape.root) step = {.sends = true, .source = Operand::kInput, .target = Operand::kOutput};
  if (next == shape.root) step.sends = false;
  for (const Part& part : CutOverChannels(shape, shape.block_elements)) {
    const size_t chunk = SetSteps(schedule, 1, 1, part.count * kElementBytes);
    Strand strand{.channel = part.channel};
    if (step.receives) strand.receive_from = {(shape.rank + n - 1) % n};
    if (step.sends) strand.send_to = {next};
    for (size_t at = 0; at < part.count; at += chunk) {
      Slice slice = step;
      slice.bytes = std::min(chunk, part.count - at) * kElementBytes;
      slice.source_offset = slice.target_offset = slice.wire_offset = (part.offset + at) * kElementBytes;
      AppendChunk(schedule, strand, slice);
    }
    schedule.strands.push_back(std::move(strand));
  }
}

}  // namespace sluice::perf
