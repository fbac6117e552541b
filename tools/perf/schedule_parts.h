// What the builders of the operations share: neighbours, channel and chunk cuts. Internal to the schedules.
#pragma once

#include <cstddef>
#include <vector>

#include "tools/perf/schedule.h"

namespace sluice::perf {

constexpr size_t CeilDiv(size_t a, size_t b) {
  return (a + b - 1) / b;
}
constexpr size_t RoundUp(size_t a, size_t multiple) {
  return CeilDiv(a, multiple) * multiple;
}

// A rank's place in the double binary tree; -1: none. Channels below half of them use the first tree.
struct TreePlace {
  int up = -1;
  std::vector<int> down;
};
TreePlace PlaceInTree(int rank, int ranks, bool second);
TreePlace TreeOf(const Shape& shape, int channel);

// Elements of one channel.
struct Part {
  int channel = 0;
  size_t offset = 0;
  size_t count = 0;
};
// Cuts `elements` so that every channel in use carries at least 32 KiB of traffic.
std::vector<Part> CutOverChannels(const Shape& shape, size_t elements);

// Sets steps for a collective; returns the elements of a full chunk. bytes: of one channel, whole operation.
size_t SetSteps(Schedule& schedule, int ring_chunk_steps, int ring_slice_steps, size_t channel_bytes);

// Appends `chunk` (bytes = all of the chunk, offsets its start) as the slices that NCCL would make of it.
void AppendChunk(const Schedule& schedule, Strand& strand, const Slice& chunk);

// A strand that copies the input to the output: what is left of an operation on one rank.
Strand LocalCopy(size_t source_offset, size_t target_offset, size_t bytes);

// Where a transfer goes: kMaxBatch pairs of a rank at a time on a channel, as many channels as there are.
struct PlacedTransfer {
  Transfer transfer;
  int channel = 0;
  int batch = 0;
};
std::vector<PlacedTransfer> PlaceTransfers(const Shape& shape);

void BuildRingAllReduce(Schedule& schedule);
void BuildTreeAllReduce(Schedule& schedule);
void BuildRingAllGather(Schedule& schedule);
void BuildRingReduceScatter(Schedule& schedule);
void BuildRingBroadcast(Schedule& schedule);
void BuildRingReduce(Schedule& schedule);
void BuildPointToPoint(Schedule& schedule);

}  // namespace sluice::perf
