#include <algorithm>

#include "tools/perf/schedule_parts.h"

namespace sluice::perf {

// The block of each rank is summed on its way around the ring and ends at its owner.
void BuildRingReduceScatter(Schedule& schedule) {
  const Shape& shape = schedule.shape;
  const auto n = static_cast<size_t>(shape.ranks);
  const auto me = static_cast<size_t>(shape.rank);
  for (const Part& part : CutOverChannels(shape, shape.block_elements)) {
    const size_t chunk = SetSteps(schedule, 4, 2, part.count * n * kElementBytes);
    Strand strand{.channel = part.channel,
                  .receive_from = {static_cast<int>((me + n - 1) % n)},
                  .send_to = {static_cast<int>((me + 1) % n)}};
    for (size_t at = 0; at < part.count; at += chunk) {
      auto append = [&](size_t block, Slice slice) {
        slice.bytes = std::min(chunk, part.count - at) * kElementBytes;
        slice.source_offset = (block * shape.block_elements + part.offset + at) * kElementBytes;
        slice.target_offset = (part.offset + at) * kElementBytes;
        AppendChunk(schedule, strand, slice);
      };
      append((me + n - 1) % n, {.sends = true, .source = Operand::kInput});
      for (size_t j = 2; j < n; ++j) {
        append((me + n - j) % n, {.receives = true, .sends = true, .source = Operand::kInput});
      }
      append(me, {.receives = true, .source = Operand::kInput, .target = Operand::kOutput});
    }
    schedule.strands.push_back(std::move(strand));
  }
}

}  // namespace sluice::perf
