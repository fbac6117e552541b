// The processors of simulated hosts: what calls cost, and how irregularly a thread that polls comes round.
//
//   HostProcessor processor(*FindHostPreset("typical"), seed, thread_number);
//   wake = processor.AfterStall(event_time + processor.PollGap());
//
// `ideal` costs nothing and polls without a gap: it shows the network alone. `typical` is what a busy
// training host does to a proxy thread. Draws come from a generator of its own per thread and from
// whole-number arithmetic and correctly rounded operations only, so that every machine draws the same. Thread
// rule: single threaded.
#pragma once

#include <cstdint>

#include "verbs/soft/model/clock.h"

namespace sluice::perf {

using soft::Picos;

struct HostPreset {
  const char* name;
  Picos test;        // a call of test
  Picos post;        // a call of isend, irecv or iflush
  Picos completion;  // taking one completion
  // Between an event and the moment a polling thread sees it: log-normal. A median of 0: at once.
  Picos gap_median;
  double gap_sigma;  // of the logarithm
  // The thread does not run for so long, once in each period.
  Picos stall;
  Picos stall_period;
};

// nullptr: no such preset. Known: ideal, typical.
const HostPreset* FindHostPreset(const char* name);

// SplitMix64: small, and good enough to seed and to draw from.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }

 private:
  uint64_t state_;
};

class HostProcessor {
 public:
  HostProcessor(const HostPreset& preset, uint64_t seed, uint64_t thread);

  Picos PollGap();
  // `time`, or the end of the stall in which it lies.
  Picos AfterStall(Picos time) const;

 private:
  const HostPreset* preset_;
  SplitMix64 generator_;
  Picos stall_phase_ = 0;
};

}  // namespace sluice::perf
