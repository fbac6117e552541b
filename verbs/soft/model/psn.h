// Packet sequence numbers: 24 bits on the wire, 64 bits inside, so that comparing them is plain arithmetic.
#pragma once

#include <cstdint>

namespace sluice::soft {

// The 64-bit PSN nearest to `reference` with the low 24 bits `wire`.
inline uint64_t ExtendPsn(uint64_t reference, uint32_t wire) {
  const int32_t difference = static_cast<int32_t>((wire - static_cast<uint32_t>(reference)) << 8) >> 8;
  return reference + static_cast<int64_t>(difference);
}
// Where counting starts for a PSN given by the program: far enough from 0 that "before" exists.
inline uint64_t StartPsn(uint32_t wire) {
  return (uint64_t{1} << 24) + (wire & 0xFFFFFF);
}

}  // namespace sluice::soft
