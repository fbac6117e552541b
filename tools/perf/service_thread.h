// The stand-in for NCCL's proxy service thread: runs one task after another on a thread of its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/status.h"

namespace sluice::perf {

class ServiceThread {
 public:
  ServiceThread();
  ~ServiceThread();
  // Runs `task` on the service thread and returns what it returns. One caller at a time.
  Status Call(std::function<Status()> task);

 private:
  void Loop();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<Status()> task_;  // guarded by mutex_; empty: nothing to do
  Status result_;                 // guarded by mutex_
  bool stop_ = false;             // guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice::perf
