// Random numbers of the model: one small generator per use, seeded from the seed of the run, the purpose and an
// index, so that adding a use never changes what another draws. No standard distribution is used: those differ
// between libraries.
//
//   Random random(seed, kPurposeStart, flow);
//   const Picos start = static_cast<Picos>(random.Below(window));
//
// Thread rule: as a value type.
#pragma once

#include <cstdint>

namespace sluice::soft {

class Random {
 public:
  Random(uint64_t seed, uint64_t purpose, uint64_t index)
      : state_(Mix(Mix(Mix(seed) + purpose) + index)) {}

  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    return Mix(state_);
  }
  // Uniform in [0, bound); 0 when `bound` is 0.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  // Uniform in [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  static uint64_t Mix(uint64_t value) {
    value ^= value >> 30;
    value *= 0xBF58476D1CE4E5B9ULL;
    value ^= value >> 27;
    value *= 0x94D049BB133111EBULL;
    return value ^ (value >> 31);
  }
  uint64_t state_;
};

}  // namespace sluice::soft
