#include "tools/perf/service_thread.h"

#include <pthread.h>

#include <utility>

namespace sluice::perf {

ServiceThread::ServiceThread() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "perf service");
    Loop();
  });
}

ServiceThread::~ServiceThread() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Status ServiceThread::Call(std::function<Status()> task) {
  std::unique_lock lock(mutex_);
  task_ = std::move(task);
  changed_.notify_all();
  changed_.wait(lock, [&] { return !task_; });
  return std::exchange(result_, Status::Ok());
}

void ServiceThread::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || task_; });
    if (!task_) return;
    std::function<Status()> task = task_;  // task_ itself stays set until the result is there
    lock.unlock();
    Status result = task();
    lock.lock();
    result_ = std::move(result);
    task_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace sluice::perf
