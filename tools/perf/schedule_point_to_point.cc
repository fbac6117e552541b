#include <algorithm>
#include <vector>

#include "tools/perf/schedule_parts.h"

namespace sluice::perf {
namespace {

// One direction of one part of a pair.
void AppendPart(Schedule& schedule, Strand strand, bool send, size_t base, size_t begin, size_t end,
                size_t chunk) {
  for (size_t at = begin; at < end; at += chunk) {
    Slice slice{.bytes = std::min(chunk, end - at)};
    slice.sends = send;
    slice.receives = !send;
    (send ? slice.source : slice.target) = send ? Operand::kInput : Operand::kOutput;
    slice.source_offset = slice.target_offset = slice.wire_offset = base + at;
    strand.slices.push_back(slice);
  }
  schedule.strands.push_back(std::move(strand));
}

void BuildTransfers(Schedule& schedule, size_t chunk) {
  const Shape& shape = schedule.shape;
  const size_t bytes = shape.block_elements * kElementBytes;
  size_t sent = 0;
  size_t received = 0;
  for (const PlacedTransfer& t : PlaceTransfers(shape)) {
    if (t.transfer.to == shape.rank) {
      Strand strand{.channel = t.channel, .batch = t.batch, .receive_from = {t.transfer.from}};
      AppendPart(schedule, std::move(strand), false, bytes * received++, 0, bytes, chunk);
    }
    if (t.transfer.from == shape.rank) {
      Strand strand{.channel = t.channel, .batch = t.batch, .send_to = {t.transfer.to}};
      AppendPart(schedule, std::move(strand), true, bytes * sent++, 0, bytes, chunk);
    }
  }
}

}  // namespace

std::vector<PlacedTransfer> PlaceTransfers(const Shape& shape) {
  std::vector<int> sent(static_cast<size_t>(shape.ranks));
  std::vector<int> received(sent.size());
  std::vector<PlacedTransfer> placed;
  for (const Transfer& transfer : *shape.transfers) {
    int& out = sent[static_cast<size_t>(transfer.from)];
    int& in = received[static_cast<size_t>(transfer.to)];
    const int index = std::max(out, in);  // both ends must find the same
    out = in = index + 1;
    placed.push_back({transfer, index / kMaxBatch % shape.channels, index / (kMaxBatch * shape.channels)});
  }
  return placed;
}

// all_to_all: in round k a rank sends to the rank k places behind it and receives from the one k places
// before it. sendrecv: round 1 only, over the network even where that is the rank itself. A pair's bytes are
// cut into parts, one per channel; a channel runs kMaxBatch pairs at a time, in the same order on every rank.
void BuildPointToPoint(Schedule& schedule) {
  const Shape& shape = schedule.shape;
  const int n = shape.ranks;
  const size_t bytes = shape.block_elements * kElementBytes;
  const bool all = shape.op == Op::kAllToAll;

  const bool ll = shape.proto == Proto::kLl;
  schedule.step_bytes = ll ? kBufferBytes[0] / kSteps : kPointToPointChunkBytes;
  size_t chunk = schedule.step_bytes;
  if (!ll && bytes < schedule.step_bytes) {
    chunk /= 4;
  } else if (bytes < 8 * schedule.step_bytes) {
    chunk /= 2;
  }
  if (ll) chunk /= 2;
  if (shape.registered) chunk = kMaxNetBytes;

  if (shape.transfers != nullptr) return BuildTransfers(schedule, chunk);

  const auto channels = static_cast<size_t>(shape.channels);
  const size_t parts = std::clamp<size_t>(CeilDiv(bytes, kPointToPointChunkBytes / 2), 1, channels);
  const size_t part_bytes = RoundUp(CeilDiv(bytes, parts), 4096);
  std::vector<int> pairs(channels, 0);
  const int first = all ? 0 : 1;
  const int last = all ? n - 1 : 1;
  for (int round = first; round <= last; ++round) {
    const int to = (shape.rank + round) % n;
    const int from = (shape.rank + n - round % n) % n;
    const size_t send_base = all ? static_cast<size_t>(to) * bytes : 0;
    const size_t receive_base = all ? static_cast<size_t>(from) * bytes : 0;
    if (round == 0) {
      schedule.strands.push_back(LocalCopy(send_base, receive_base, bytes));
      continue;
    }
    for (size_t part = 0; part < parts; ++part) {
      const size_t begin = std::min(part * part_bytes, bytes);
      const size_t end = std::min(begin + part_bytes, bytes);
      if (begin == end) break;
      const size_t channel = (static_cast<size_t>(round) + part) % channels;
      const int batch = pairs[channel]++ / kMaxBatch;
      const Strand empty{.channel = static_cast<int>(channel), .batch = batch};
      Strand receive = empty;
      receive.receive_from = {from};
      AppendPart(schedule, std::move(receive), false, receive_base, begin, end, chunk);
      Strand send = empty;
      send.send_to = {to};
      AppendPart(schedule, std::move(send), true, send_base, begin, end, chunk);
    }
  }
}

}  // namespace sluice::perf
