// The one event thread of the process: links, listener, device events, deadlines. Everything that may take
// longer than a few microseconds happens here, so that no call of NCCL blocks.
//
// Threads: Post from any thread; everything else only from the event thread (inside callbacks).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.h"

namespace sluice {

class EventLoop {
 public:
  using Task = std::function<void()>;
  using FdCallback = std::function<void(uint32_t epoll_events)>;
  using Clock = std::chrono::steady_clock;
  using TimerId = uint64_t;

  // Started by the first call; lives to the end of the process. An error means that threads or descriptors
  // ran out.
  static Result<EventLoop*> Get();

  void Post(Task task);
  // Runs `task` on the event thread and waits for it. Not from the event thread.
  void Run(const Task& task);
  bool InLoop() const { return std::this_thread::get_id() == thread_id_; }

  Status Watch(int fd, uint32_t epoll_events, FdCallback callback);
  void Rearm(int fd, uint32_t epoll_events);
  void Unwatch(int fd);
  TimerId After(std::chrono::milliseconds delay, Task task);
  void Cancel(TimerId id);

 private:
  EventLoop() = default;
  Status Start();
  void Loop();
  void RunPosted();
  int RunTimers();  // returns milliseconds to the next one, -1 for none

  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  std::thread::id thread_id_;
  std::mutex mutex_;
  std::deque<Task> posted_;  // under mutex_
  // Event thread only. Callbacks are held by shared_ptr because a callback may unwatch its own descriptor.
  std::map<int, std::shared_ptr<FdCallback>> watched_;
  std::multimap<Clock::time_point, std::pair<TimerId, Task>> timers_;
  TimerId next_timer_ = 1;
};

}  // namespace sluice
