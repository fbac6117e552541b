#include "tools/perf/progress_thread.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>

namespace sluice::perf {

ProgressThread::ProgressThread(ProgressEngine* engine, JobState* job, int rank)
    : engine_(engine), job_(job), rank_(rank) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "perf progress");
    Loop();
  });
}

ProgressThread::~ProgressThread() {
  Stop();
}

void ProgressThread::Post(const Operation& operation) {
  {
    std::lock_guard lock(mutex_);
    engine_->Post(operation);
  }
  changed_.notify_one();
}

void ProgressThread::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ProgressThread::Loop() {
  for (;;) {
    const Result<ProgressEngine::Outcome> outcome = engine_->Step();
    if (!outcome.ok()) {
      job_->Abort(outcome.status().message(), rank_);
      return;
    }
    if (job_->aborted()) return;
    if (*outcome == ProgressEngine::Outcome::kIdle) sched_yield();
    if (*outcome == ProgressEngine::Outcome::kEmpty && !AwaitPosted()) return;
  }
}

bool ProgressThread::AwaitPosted() {
  std::unique_lock lock(mutex_);
  while (!engine_->HasPosted() && !stop_ && !job_->aborted()) {
    changed_.wait_for(lock, std::chrono::milliseconds(50));  // an abort does not notify
  }
  return engine_->HasPosted() && !job_->aborted();
}

}  // namespace sluice::perf
