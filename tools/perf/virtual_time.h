// CLOCK_MONOTONIC as a plugin sees it in virtual time: this program's clock_gettime stands before the C library's
// (virtual_time.cc, part of the program itself) and answers the thread that drives the virtual fabric with virtual
// time while it is in a call of the data path. All other threads and calls, set-up among them, see the system's.
//
// Threads: Show and Hide concern the calling thread.
#pragma once

#include <cstdint>

namespace sluice::perf {

class VirtualTime {
 public:
  static void Show(int64_t picos) { shown_ps_ = picos; }
  static void Hide() { shown_ps_ = kHidden; }
  static bool shown() { return shown_ps_ != kHidden; }
  static int64_t shown_ns() { return shown_ps_ / 1000; }

 private:
  static constexpr int64_t kHidden = -1;
  static inline thread_local int64_t shown_ps_ = kHidden;
};

}  // namespace sluice::perf
