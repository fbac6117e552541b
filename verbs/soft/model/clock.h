// Model time: integer picoseconds since the start of the fabric. At 800 Gb/s a byte takes exactly 10 ps, so
// serialisation times of the usual rates are whole numbers and two runs never differ by rounding.
//
// The model never reads a wall clock. A driver moves time: the real-time driver calls Fabric::Advance() with
// its (dilated) model time, the virtual-time driver with Fabric::NextEventTime().
#pragma once

#include <cstdint>

namespace sluice::soft {

using Picos = int64_t;

inline constexpr Picos kPicosPerNs = 1'000;
inline constexpr Picos kPicosPerUs = 1'000'000;
inline constexpr Picos kPicosPerMs = 1'000'000'000;
inline constexpr Picos kPicosPerSecond = 1'000'000'000'000;
// "No event": later than any real time.
inline constexpr Picos kNever = INT64_MAX;

// Time that `bytes` take on a link of `rate_bps`, rounded up to whole picoseconds.
inline Picos SerialisationTime(uint64_t bytes, uint64_t rate_bps) {
  const auto bits = static_cast<unsigned __int128>(bytes) * 8 * static_cast<uint64_t>(kPicosPerSecond);
  return static_cast<Picos>((bits + rate_bps - 1) / rate_bps);
}

}  // namespace sluice::soft
