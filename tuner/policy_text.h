// The small languages inside a policy: sizes, ranges and globs. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sluice {

// Values low <= v < high.
struct Interval {
  uint64_t low = 0;
  uint64_t high = ~uint64_t{0};

  bool empty() const { return low >= high; }
  bool Contains(uint64_t value) const { return value >= low && value < high; }
  bool Contains(const Interval& other) const { return low <= other.low && other.high <= high; }
};

// "[0, 1MiB)", "(64K, 1M]", "[1MiB, )": square brackets include the end, round ones do not; an end that is left out is open.
// With `bytes`, numbers may have the units of BytesFromText. The error is a half sentence about `text`.
Result<Interval> IntervalFromText(std::string_view text, bool bytes);

// '*' stands for any text, '?' for any one character; all others for themselves. Linear in the product of both sizes.
bool GlobMatches(std::string_view glob, std::string_view text);
// Every text that `narrow` matches is one that `wide` matches. May miss cases, never claims a wrong one.
bool GlobCovers(std::string_view wide, std::string_view narrow);

}  // namespace sluice
