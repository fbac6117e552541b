#include "base/clock.h"

#include <mutex>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sluice {
namespace {

// Whether the counter runs at one rate in all power states, and what it is per nanosecond (0: to be measured).
bool HasConstantCounter(double* ticks_per_ns) {
  *ticks_per_ns = 0;
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & 1u << 8) != 0;
#elif defined(__aarch64__)
  uint64_t hz;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(hz));
  *ticks_per_ns = static_cast<double>(hz) * 1e-9;
  return hz != 0;
#else
  return false;
#endif
}

}  // namespace

void TickClock::Use(Kind kind) {
  static std::once_flag once;
  std::call_once(once, [kind] {
    double rate = 0;
    if (kind == Kind::kMonotonic || !HasConstantCounter(&rate)) return;
    counter_ = true;
    if (rate != 0) {
      ticks_per_ns_ = rate;
      return;
    }
    // 0.1 % is enough: ticks measure hold times and budgets.
    constexpr uint64_t kMeasureNs = 1'000'000;
    const uint64_t start_ns = MonotonicNs();
    const uint64_t start = Now();
    uint64_t end_ns = start_ns;
    while (end_ns - start_ns < kMeasureNs) end_ns = MonotonicNs();
    ticks_per_ns_ = static_cast<double>(Now() - start) / static_cast<double>(end_ns - start_ns);
  });
}

}  // namespace sluice
