#include "plugin/transport/event_loop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>

namespace sluice {

Result<EventLoop*> EventLoop::Get() {
  static std::mutex mutex;
  static EventLoop* loop = nullptr;
  std::lock_guard lock(mutex);
  if (loop == nullptr) {
    auto* candidate = new EventLoop;
    if (Status status = candidate->Start(); !status.ok()) {
      delete candidate;
      return status;
    }
    loop = candidate;
  }
  return loop;
}

Status EventLoop::Start() {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake_fd_;
  if (epoll_fd_ < 0 || wake_fd_ < 0 || epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &event) != 0) {
    Status status = SystemError("event thread: cannot create its descriptors", errno,
                                "raise the limit of open files (ulimit -n)");
    if (epoll_fd_ >= 0) close(epoll_fd_);
    if (wake_fd_ >= 0) close(wake_fd_);
    return status;
  }
  // Signals belong to the application's threads.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  pthread_t thread;
  auto entry = [](void* self) -> void* {
    static_cast<EventLoop*>(self)->Loop();
    return nullptr;
  };
  std::unique_lock lock(mutex_);
  const int error = pthread_create(&thread, nullptr, entry, this);
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  if (error != 0) {
    close(epoll_fd_);
    close(wake_fd_);
    return SystemError("event thread: cannot start it", error, "raise the limit of processes (ulimit -u)");
  }
  pthread_setname_np(thread, "sluice-event");
  pthread_detach(thread);
  lock.unlock();
  Run([this] { thread_id_ = std::this_thread::get_id(); });
  return Status::Ok();
}

void EventLoop::Post(Task task) {
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void EventLoop::Run(const Task& task) {
  std::mutex mutex;
  std::condition_variable condition;
  bool done = false;
  Post([&] {
    task();
    std::lock_guard lock(mutex);
    done = true;
    condition.notify_one();
  });
  std::unique_lock lock(mutex);
  condition.wait(lock, [&] { return done; });
}

Status EventLoop::Watch(int fd, uint32_t epoll_events, FdCallback callback) {
  epoll_event event{};
  event.events = epoll_events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return SystemError("event thread: cannot watch descriptor " + std::to_string(fd), errno);
  }
  watched_[fd] = std::make_shared<FdCallback>(std::move(callback));
  return Status::Ok();
}

void EventLoop::Rearm(int fd, uint32_t epoll_events) {
  epoll_event event{};
  event.events = epoll_events;
  event.data.fd = fd;
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Unwatch(int fd) {
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  watched_.erase(fd);
}

EventLoop::TimerId EventLoop::After(std::chrono::milliseconds delay, Task task) {
  const TimerId id = next_timer_++;
  timers_.emplace(Clock::now() + delay, std::make_pair(id, std::move(task)));
  return id;
}

void EventLoop::Cancel(TimerId id) {
  for (auto it = timers_.begin(); it != timers_.end(); ++it) {
    if (it->second.first == id) {
      timers_.erase(it);
      return;
    }
  }
}

void EventLoop::RunPosted() {
  std::deque<Task> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (Task& task : tasks) task();
}

int EventLoop::RunTimers() {
  while (!timers_.empty()) {
    const auto first = timers_.begin();
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(first->first - Clock::now());
    if (wait.count() > 0) return static_cast<int>(std::min<int64_t>(wait.count(), 60'000));
    Task task = std::move(first->second.second);
    timers_.erase(first);
    task();
  }
  return -1;
}

void EventLoop::Loop() {
  constexpr int kBatch = 64;
  epoll_event events[kBatch];
  for (;;) {
    RunPosted();
    const int timeout_ms = RunTimers();
    const int count = epoll_wait(epoll_fd_, events, kBatch, timeout_ms);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == wake_fd_) {
        uint64_t drained;
        [[maybe_unused]] const ssize_t got = read(wake_fd_, &drained, sizeof(drained));
        continue;
      }
      // An earlier callback of this batch may have unwatched it.
      const auto found = watched_.find(fd);
      if (found == watched_.end()) continue;
      const std::shared_ptr<FdCallback> callback = found->second;
      (*callback)(events[i].events);
    }
  }
}

}  // namespace sluice
