#include <algorithm>

#include "tools/perf/schedule_parts.h"

namespace sluice::perf {

// Every loop covers one chunk per rank: ranks - 1 reduce steps, then ranks - 1 copy steps around the ring.
void BuildRingAllReduce(Schedule& schedule) {
  const Shape& shape = schedule.shape;
  const auto n = static_cast<size_t>(shape.ranks);
  const auto me = static_cast<size_t>(shape.rank);
  for (const Part& part : CutOverChannels(shape, shape.block_elements)) {
    const size_t full_chunk = SetSteps(schedule, 4, 2, part.count * kElementBytes);
    Strand strand{.channel = part.channel,
                  .receive_from = {static_cast<int>((me + n - 1) % n)},
                  .send_to = {static_cast<int>((me + 1) % n)}};
    for (size_t at = 0; at < part.count; at += n * full_chunk) {
      const size_t left = part.count - at;
      const size_t chunk = left < n * full_chunk ? RoundUp(CeilDiv(left, n), 16 / kElementBytes) : full_chunk;
      auto append = [&](size_t index, Slice slice) {
        const size_t begin = std::min(index * chunk, left);
        slice.bytes = (std::min(begin + chunk, left) - begin) * kElementBytes;
        const size_t offset = (part.offset + at + begin) * kElementBytes;
        slice.source_offset = slice.target_offset = slice.wire_offset = offset;
        AppendChunk(schedule, strand, slice);
      };
      append((me + n - 1) % n, {.sends = true, .source = Operand::kInput});
      for (size_t j = 2; j < n; ++j) {
        append((me + n - j) % n, {.receives = true, .sends = true, .source = Operand::kInput});
      }
      append(me, {.receives = true, .sends = true, .source = Operand::kInput, .target = Operand::kOutput});
      for (size_t j = 1; j + 1 < n; ++j) {
        append((me + n - j) % n, {.receives = true, .sends = true, .target = Operand::kOutput});
      }
      append((me + 1) % n, {.receives = true, .target = Operand::kOutput});
    }
    schedule.strands.push_back(std::move(strand));
  }
}

}  // namespace sluice::perf
