// Which path (entropy value) the next packet of a UEC sender takes: paths that an unmarked acknowledgement
// came back from are used again, oldest first; without one, all paths in a pseudo-random order, skipping for
// a while those that brought marks (1 turn), trims (4) or a timeout (15).
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <vector>

#include "verbs/soft/flows/random.h"
#include "verbs/soft/model/ring.h"

namespace sluice::soft {

enum class PathFeedback : uint8_t { kGood, kMarked, kTimeout };

class UecSpray {
 public:
  // `paths` is a power of two.
  UecSpray(uint16_t paths, uint64_t seed, uint64_t flow);
  uint16_t Next();
  void OnFeedback(uint16_t path, PathFeedback feedback);

 private:
  uint16_t Current() const { return static_cast<uint16_t>((index_ ^ order_) & mask_); }
  void Advance();

  Random random_;
  uint16_t mask_;
  uint16_t index_ = 0;
  uint16_t order_;
  std::vector<uint8_t> penalty_;  // turns to skip, by path
  Ring<uint16_t> good_;
};

}  // namespace sluice::soft
