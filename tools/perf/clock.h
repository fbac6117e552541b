// The one place where time enters the benchmark, so that the same code runs on the wall clock and on a
// virtual one.
#pragma once

#include <cstdint>
#include <ctime>

namespace sluice::perf {

class Clock {
 public:
  virtual int64_t NowNs() const = 0;

 protected:
  ~Clock() = default;
};

class WallClock final : public Clock {
 public:
  int64_t NowNs() const override {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
  }
  static const WallClock& Get() {
    static const WallClock clock;
    return clock;
  }
};

}  // namespace sluice::perf
