#include "tools/perf/synthetic.h"

#include <cstring>

namespace sluice::perf {
namespace {

// 0 to 255, by position and round.
uint32_t Common(size_t element, uint32_t round) {
  uint32_t x = static_cast<uint32_t>(element) * 2654435761u + (round + 1) * 668265263u;
  x ^= x >> 15;
  x *= 2246822519u;
  return x >> 24;
}

}  // namespace

float SyntheticPayload::InputAt(int rank, size_t element) const {
  return static_cast<float>(Common(element, round_) + static_cast<uint32_t>(rank));
}

float SyntheticPayload::Expected(size_t element) const {
  const size_t n = shape_.block_elements;
  const auto me = static_cast<size_t>(shape_.rank);
  const auto ranks = static_cast<uint32_t>(shape_.ranks);
  const auto sum = [&](size_t index) {
    return static_cast<float>(ranks * Common(index, round_) + ranks * (ranks - 1) / 2);
  };
  switch (shape_.op) {
    case Op::kAllReduce:
    case Op::kReduce:
      return sum(element);
    case Op::kReduceScatter:
      return sum(me * n + element);
    case Op::kBroadcast:
      return InputAt(shape_.root, element);
    case Op::kSendRecv:
      return InputAt((shape_.rank + shape_.ranks - 1) % shape_.ranks, element);
    case Op::kAllGather:
      return InputAt(static_cast<int>(element / n), element % n);
    case Op::kAllToAll:
      return InputAt(static_cast<int>(element / n), me * n + element % n);
  }
  return 0;
}

void SyntheticPayload::Fill(size_t offset_bytes, std::byte* data, size_t bytes) const {
  auto* out = reinterpret_cast<float*>(data);
  const size_t first = offset_bytes / kElementBytes;
  for (size_t i = 0; i < bytes / kElementBytes; ++i) out[i] = InputAt(shape_.rank, first + i);
}

void SyntheticPayload::Check(size_t offset_bytes, const std::byte* data, size_t bytes) {
  const auto* in = reinterpret_cast<const float*>(data);
  const size_t first = offset_bytes / kElementBytes;
  const size_t count = bytes / kElementBytes;
  for (size_t i = 0; i < count; ++i) wrong_ += in[i] == Expected(first + i) ? 0 : 1;
  written_ += count;
}

uint64_t SyntheticPayload::Wrong() const {
  const bool receives = shape_.op != Op::kReduce || shape_.rank == shape_.root;
  const uint64_t due = receives ? OutputElements(shape_) : 0;
  return wrong_ + (written_ > due ? written_ - due : due - written_);
}

}  // namespace sluice::perf
