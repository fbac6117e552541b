// The stand-in for NCCL's proxy progress thread: steps a progress engine, yields when it is idle, sleeps
// while it has no operation.
//
// Threads: Post and Stop from the user's thread; the plugin's isend, irecv, iflush and test are called on
// this thread only.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tools/perf/abort.h"
#include "tools/perf/progress_engine.h"

namespace sluice::perf {

class ProgressThread {
 public:
  // `engine` must live until Stop.
  ProgressThread(ProgressEngine* engine, JobState* job, int rank);
  ~ProgressThread();  // Stop

  void Post(const Operation& operation);
  // Ends the thread when every operation is through, at once when the job is aborted.
  void Stop();

 private:
  void Loop();
  // Waits until something is posted. False: the thread shall end.
  bool AwaitPosted();

  ProgressEngine* engine_;
  JobState* job_;
  int rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice::perf
