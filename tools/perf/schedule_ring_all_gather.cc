#include <algorithm>

#include "tools/perf/schedule_parts.h"

namespace sluice::perf {

// Every rank's block travels once around the ring. With registered buffers a block (of a channel) is one
// message.
void BuildRingAllGather(Schedule& schedule) {
  const Shape& shape = schedule.shape;
  const auto n = static_cast<size_t>(shape.ranks);
  const auto me = static_cast<size_t>(shape.rank);
  for (const Part& part : CutOverChannels(shape, shape.block_elements)) {
    size_t chunk = SetSteps(schedule, 4, 2, part.count * n * kElementBytes);
    if (shape.registered) {
      schedule.chunk_steps = schedule.slice_steps = 1;
      chunk = kMaxNetBytes / kElementBytes;
    }
    Strand strand{.channel = part.channel,
                  .receive_from = {static_cast<int>((me + n - 1) % n)},
                  .send_to = {static_cast<int>((me + 1) % n)}};
    for (size_t at = 0; at < part.count; at += chunk) {
      auto append = [&](size_t block, Slice slice) {
        slice.bytes = std::min(chunk, part.count - at) * kElementBytes;
        slice.source_offset = (part.offset + at) * kElementBytes;
        slice.target_offset = slice.wire_offset =
            (block * shape.block_elements + part.offset + at) * kElementBytes;
        AppendChunk(schedule, strand, slice);
      };
      append(me, {.sends = true, .source = Operand::kInput, .target = Operand::kOutput});
      for (size_t j = 1; j + 1 < n; ++j) {
        append((me + n - j) % n, {.receives = true, .sends = true, .target = Operand::kOutput});
      }
      append((me + 1) % n, {.receives = true, .target = Operand::kOutput});
    }
    schedule.strands.push_back(std::move(strand));
  }
}

}  // namespace sluice::perf
