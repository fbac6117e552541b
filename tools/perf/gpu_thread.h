// The stand-in for a GPU: steps a GPU engine, and sleeps while nothing is ready for it.
//
// Threads: Launch, Wait and Stop from the user's thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"
#include "tools/perf/abort.h"
#include "tools/perf/gpu_engine.h"

namespace sluice::perf {

class GpuThread {
 public:
  // `engine` must live until Stop.
  GpuThread(GpuEngine* engine, std::shared_ptr<Doorbell> doorbell, JobState* job);
  ~GpuThread();  // Stop

  void Launch(Operation operation);
  // Waits for operation `id`; fails when the job is aborted.
  Status Wait(uint64_t id);
  // How long the operations after `id` ran, oldest first, in nanoseconds.
  std::vector<double> DurationsSince(uint64_t id);
  // Ends the thread, after the operations that were launched unless the job is aborted.
  void Stop();

 private:
  void Loop();

  GpuEngine* engine_;
  JobState* job_;
  std::shared_ptr<Doorbell> doorbell_;  // shared with the job, which rings it on abort
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> launched_;  // guarded by mutex_
  uint64_t finished_ = 0;           // guarded by mutex_
  std::vector<double> durations_;   // guarded by mutex_: by operation id - 1
  bool stop_ = false;               // guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice::perf
