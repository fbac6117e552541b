// Ends a rank in bounded time, whatever its plugin does.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "tools/perf/abort.h"

namespace sluice::perf {

// Aborts the job after `limit`. A rank that only waits for others gives the one that holds them up 1 s more
// to report what it hangs in, then asks who is missing. When the job is aborted, for whatever reason, and the
// watchdog still exists 10 s later, or 1 s after the limit, it calls `last_words` and ends the process.
class Watchdog {
 public:
  Watchdog(JobState* job, int rank, std::chrono::duration<double> limit, std::function<void()> last_words);
  ~Watchdog();

 private:
  void Loop(std::chrono::steady_clock::time_point deadline, double limit_s);
  JobState* job_;
  int rank_;
  std::function<void()> last_words_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice::perf
