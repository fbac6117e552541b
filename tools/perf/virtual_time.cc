#include "tools/perf/virtual_time.h"

#include <dlfcn.h>
#include <time.h>

#include <atomic>

namespace {

using ClockGettime = int(clockid_t, timespec*);

ClockGettime* System() {
  static std::atomic<ClockGettime*> system{nullptr};
  ClockGettime* function = system.load(std::memory_order_relaxed);
  if (function == nullptr) {
    function = reinterpret_cast<ClockGettime*>(dlsym(RTLD_NEXT, "clock_gettime"));
    system.store(function, std::memory_order_relaxed);
  }
  return function;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t id, timespec* now) noexcept {
  using sluice::perf::VirtualTime;
  if (id != CLOCK_MONOTONIC || !VirtualTime::shown()) return System()(id, now);
  const int64_t ns = VirtualTime::shown_ns();
  *now = {.tv_sec = static_cast<time_t>(ns / 1'000'000'000),
          .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
  return 0;
}
