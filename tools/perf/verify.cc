#include "tools/perf/verify.h"

#include <cstring>
#include <vector>

namespace sluice::perf {
namespace {

// 0 to 255. 32-bit arithmetic keeps the loops below vectorisable.
inline uint32_t Value(uint32_t seed, uint32_t index) {
  uint32_t x = index * 2654435761u + seed;
  x ^= x >> 15;
  x *= 2246822519u;
  return x >> 24;
}
inline uint32_t Seed(int rank, uint32_t round) {
  return (static_cast<uint32_t>(rank) + 1) * 3266489917u + round * 668265263u;
}

// The sums over all ranks of elements [first, first + count) are given to `compare` in blocks: (offset,
// values, number).
template <typename Compare>
void ForSums(const Shape& shape, uint32_t round, size_t first, size_t count, Compare compare) {
  constexpr size_t kBlock = 4096;
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = at + kBlock < count ? kBlock : count - at;
    uint32_t sums[kBlock] = {};
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const uint32_t seed = Seed(rank, round);
      const auto base = static_cast<uint32_t>(first + at);
      for (size_t i = 0; i < n; ++i) sums[i] += Value(seed, base + static_cast<uint32_t>(i));
    }
    compare(at, sums, n);
  }
}

size_t Differing(const float* output, const uint32_t* expected, size_t count) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += output[i] == static_cast<float>(expected[i]) ? 0 : 1;
  return wrong;
}

size_t CountWrongSum(const Shape& shape, uint32_t round, const float* output, size_t first, size_t count) {
  size_t wrong = 0;
  ForSums(shape, round, first, count,
          [&](size_t at, const uint32_t* sums, size_t n) { wrong += Differing(output + at, sums, n); });
  return wrong;
}

size_t CountWrongCopy(int rank, uint32_t round, const float* output, size_t first, size_t count) {
  const uint32_t seed = Seed(rank, round);
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    wrong += output[i] == static_cast<float>(Value(seed, static_cast<uint32_t>(first + i))) ? 0 : 1;
  }
  return wrong;
}

}  // namespace

float InputValue(int rank, size_t index, uint32_t round) {
  return static_cast<float>(Value(Seed(rank, round), static_cast<uint32_t>(index)));
}

void FillInput(const Shape& shape, uint32_t round, float* input) {
  const uint32_t seed = Seed(shape.rank, round);
  const size_t n = InputElements(shape);
  for (size_t i = 0; i < n; ++i) input[i] = static_cast<float>(Value(seed, static_cast<uint32_t>(i)));
}

void Poison(const Shape& shape, float* output) {
  std::memset(output, 0xff, OutputElements(shape) * sizeof(float));  // a NaN
}

namespace {

// A rank sends its k-th transfer from the k-th block of its input.
size_t CountWrongTransfers(const Shape& shape, uint32_t round, const float* output) {
  const size_t n = shape.block_elements;
  std::vector<size_t> sent(static_cast<size_t>(shape.ranks));
  size_t wrong = 0;
  for (const Transfer& transfer : *shape.transfers) {
    const size_t block = sent[static_cast<size_t>(transfer.from)]++;
    if (transfer.to != shape.rank) continue;
    wrong += CountWrongCopy(transfer.from, round, output, block * n, n);
    output += n;
  }
  return wrong;
}

}  // namespace

size_t CountWrong(const Shape& shape, uint32_t round, const float* output) {
  const size_t n = shape.block_elements;
  const auto me = static_cast<size_t>(shape.rank);
  size_t wrong = 0;
  switch (shape.op) {
    case Op::kAllReduce:
      return CountWrongSum(shape, round, output, 0, n);
    case Op::kReduce:
      return shape.rank == shape.root ? CountWrongSum(shape, round, output, 0, n) : 0;
    case Op::kReduceScatter:
      return CountWrongSum(shape, round, output, me * n, n);
    case Op::kBroadcast:
      return CountWrongCopy(shape.root, round, output, 0, n);
    case Op::kSendRecv:
      if (shape.transfers != nullptr) return CountWrongTransfers(shape, round, output);
      return CountWrongCopy((shape.rank + shape.ranks - 1) % shape.ranks, round, output, 0, n);
    case Op::kAllGather:
      for (int r = 0; r < shape.ranks; ++r)
        wrong += CountWrongCopy(r, round, output + static_cast<size_t>(r) * n, 0, n);
      return wrong;
    case Op::kAllToAll:
      for (int r = 0; r < shape.ranks; ++r)
        wrong += CountWrongCopy(r, round, output + static_cast<size_t>(r) * n, me * n, n);
      return wrong;
  }
  return 0;
}

void CountWrongEverywhere(Shape shape, uint32_t round, std::span<const float* const> outputs,
                          std::span<uint64_t> wrong) {
  if (shape.op == Op::kAllReduce) {
    ForSums(shape, round, 0, shape.block_elements, [&](size_t at, const uint32_t* sums, size_t n) {
      for (size_t r = 0; r < outputs.size(); ++r) wrong[r] += Differing(outputs[r] + at, sums, n);
    });
    return;
  }
  for (size_t r = 0; r < outputs.size(); ++r) {
    shape.rank = static_cast<int>(r);
    wrong[r] += CountWrong(shape, round, outputs[r]);
  }
}

}  // namespace sluice::perf
