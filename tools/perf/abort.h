// The first cause for which a job ends, seen by every thread of a rank.
//
//   if (job.aborted()) return job.status();
//   job.Abort("isend to rank 3 failed: ...", /*origin=*/rank);
//
// Threads: any thread may call anything; only the first Abort counts.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace sluice::perf {

class JobState {
 public:
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }

  // Returns true for the first call, which wakes everybody through the listeners.
  bool Abort(std::string cause, int origin) {
    std::vector<std::function<void()>> listeners;
    {
      std::lock_guard lock(mutex_);
      if (aborted()) return false;
      cause_ = std::move(cause);
      origin_ = origin;
      listeners = listeners_;
      aborted_.store(true, std::memory_order_release);
    }
    for (const auto& listener : listeners) listener();
    return true;
  }

  // `listener` runs once, on the aborting thread; at once if the job is aborted already. It must outlive the
  // job's threads.
  void OnAbort(std::function<void()> listener) {
    bool now = false;
    {
      std::lock_guard lock(mutex_);
      now = aborted();
      if (!now) listeners_.push_back(listener);
    }
    if (now) listener();
  }

  std::string cause() const {
    std::lock_guard lock(mutex_);
    return cause_;
  }
  // The rank where it began; -1: unknown.
  int origin() const {
    std::lock_guard lock(mutex_);
    return origin_;
  }
  Status status() const { return aborted() ? RemoteError(cause()) : Status::Ok(); }

  // What this rank is doing: the end of the sentence in which a timeout is reported.
  void SetActivity(std::string activity) {
    std::lock_guard lock(mutex_);
    activity_ = std::move(activity);
  }
  std::string activity() const {
    std::lock_guard lock(mutex_);
    return activity_;
  }
  // True while this rank can do nothing but wait until every other rank has come as far.
  void SetWaitingForOthers(bool waiting) { waiting_for_others_.store(waiting, std::memory_order_relaxed); }
  bool waiting_for_others() const { return waiting_for_others_.load(std::memory_order_relaxed); }
  // `ask` makes whoever knows for whom this rank waits end the job with their names; it must not block.
  // Empty: nobody can be asked any more.
  void SetAskWhoIsMissing(std::function<void(const std::string& timeout)> ask) {
    std::lock_guard lock(ask_mutex_);
    ask_ = std::move(ask);
  }
  // `timeout`: the beginning of the sentence in which that is told.
  void AskWhoIsMissing(const std::string& timeout) {
    std::lock_guard lock(ask_mutex_);
    if (ask_) ask_(timeout);
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> waiting_for_others_{false};
  std::string cause_;
  int origin_ = -1;
  std::string activity_ = "starting";
  std::vector<std::function<void()>> listeners_;
  std::mutex ask_mutex_;
  std::function<void(const std::string&)> ask_;  // guarded by ask_mutex_
};

}  // namespace sluice::perf
