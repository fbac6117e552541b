// The user's buffers of one operation that are not stored: what a rank would read from its input is made when it is
// read, and what it would write to its output is compared when it is written. The bytes between the ranks are real.
// Memory then depends on the connections alone, not on the size of the operation.
//
//   SyntheticPayload payload(shape, round);      // shape.rank: whose buffers
//   payload.Fill(offset_bytes, data, bytes);     // of the input
//   payload.Check(offset_bytes, data, bytes);    // of the output
//   payload.Wrong();                             // after the operation
//
// A value depends on rank, position and round, and the sum over all ranks on position and round by a formula that
// costs the same for any number of ranks. All are integers below 2^24, so sums are exact in any order; a rank that is
// missing, there twice or out of date shows.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/perf/schedule.h"

namespace sluice::perf {

class SyntheticPayload {
 public:
  SyntheticPayload(const Shape& shape, uint32_t round) : shape_(shape), round_(round) {}

  void Fill(size_t offset_bytes, std::byte* data, size_t bytes) const;
  void Check(size_t offset_bytes, const std::byte* data, size_t bytes);
  // Elements that were written wrong, and those that were not written, or too often.
  uint64_t Wrong() const;

 private:
  float InputAt(int rank, size_t element) const;
  float Expected(size_t element) const;

  const Shape shape_;
  const uint32_t round_;
  uint64_t written_ = 0;
  uint64_t wrong_ = 0;
};

}  // namespace sluice::perf
