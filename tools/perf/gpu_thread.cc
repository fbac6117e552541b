#include "tools/perf/gpu_thread.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice::perf {

GpuThread::GpuThread(GpuEngine* engine, std::shared_ptr<Doorbell> doorbell, JobState* job)
    : engine_(engine), job_(job), doorbell_(std::move(doorbell)) {
  job_->OnAbort([bell = doorbell_] { bell->Ring(); });
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "perf gpu");
    Loop();
  });
}

GpuThread::~GpuThread() {
  Stop();
}

void GpuThread::Launch(Operation operation) {
  {
    std::lock_guard lock(mutex_);
    launched_.push_back(std::move(operation));
  }
  changed_.notify_all();
}

Status GpuThread::Wait(uint64_t id) {
  std::unique_lock lock(mutex_);
  while (finished_ < id) {
    if (job_->aborted()) return job_->status();
    changed_.wait_for(lock, std::chrono::milliseconds(50));  // an abort does not notify
  }
  return Status::Ok();
}

std::vector<double> GpuThread::DurationsSince(uint64_t id) {
  std::lock_guard lock(mutex_);
  return {durations_.begin() + static_cast<ptrdiff_t>(std::min<uint64_t>(id, durations_.size())),
          durations_.end()};
}

void GpuThread::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  doorbell_->Ring();
  if (thread_.joinable()) thread_.join();
}

void GpuThread::Loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !launched_.empty(); });
      if (launched_.empty() || job_->aborted()) return;
      engine_->Launch(std::move(launched_.front()));
      launched_.pop_front();
    }
    for (;;) {
      const int seen = doorbell_->Prepare();
      if (job_->aborted()) return;
      const GpuEngine::Outcome outcome = engine_->Step();
      if (outcome == GpuEngine::Outcome::kEmpty) break;
      if (outcome == GpuEngine::Outcome::kMoved) continue;
      // Lines arrive in memory and ring no bell.
      engine_->polls_memory() ? static_cast<void>(sched_yield()) : doorbell_->WaitSince(seen);
    }
    {
      std::lock_guard lock(mutex_);
      finished_ = engine_->finished();
      durations_.push_back(engine_->durations().back());
    }
    changed_.notify_all();
  }
}

}  // namespace sluice::perf
