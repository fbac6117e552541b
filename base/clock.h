// Time as the data path takes it: ticks that every process of a host counts alike.
//
//   const uint64_t now = TickClock::Now();
//   deadline = now + TickClock::FromNs(50'000);
//
// The processor's counter where it runs at a constant rate (invariant TSC, generic timer of Arm), else
// CLOCK_MONOTONIC in nanoseconds. In virtual time the program that loads the plugin defines clock_gettime and asks
// for CLOCK_MONOTONIC (SLUICE_CLOCK=monotonic), so that the same code runs on its clock.
//
// Threads: Use before the first Now of another thread; everything else any thread.
#pragma once

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace sluice {

class TickClock {
 public:
  enum class Kind : uint8_t { kAutomatic, kMonotonic };

  // Fixes the kind for the process, at the first call; the rate of the counter is measured then (1 ms). Later calls
  // do nothing.
  static void Use(Kind kind);

  static uint64_t Now() {
    if (!counter_) [[unlikely]]
      return MonotonicNs();
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return MonotonicNs();
#endif
  }
  static uint64_t FromNs(uint64_t ns) {
    return static_cast<uint64_t>(static_cast<double>(ns) * ticks_per_ns_);
  }
  static uint64_t ToNs(uint64_t ticks) {
    return static_cast<uint64_t>(static_cast<double>(ticks) / ticks_per_ns_);
  }
  static double ticks_per_ns() {
    return ticks_per_ns_;
  }

 private:
  static uint64_t MonotonicNs() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  }

  static inline bool counter_ = false;
  static inline double ticks_per_ns_ = 1;
};

}  // namespace sluice
