// Events for a program that reads them through a descriptor: the descriptor counts, the queue holds.
//
//   EventQueue<int> queue;  int fd = queue.Open();       // fd can be polled and made O_NONBLOCK by the
//   program queue.Push(7);          queue.Pop(&event, [] {});    // waits as the descriptor's flags say
//
// Thread rule: any thread; Close when nobody else uses it.
#pragma once

#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <mutex>

namespace sluice::soft {

template <typename Event>
class EventQueue {
 public:
  // -1 with errno when there is no descriptor.
  int Open() { return fd_ = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void Push(const Event& event) {
    std::lock_guard lock(mutex_);
    events_.push_back(event);
    const uint64_t one = 1;
    while (write(fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }
  // Runs `taken(event)` under the lock, so that Remove sees an event either queued or counted by `taken`.
  // False with errno when the descriptor is non-blocking and empty, or a signal came.
  template <typename Taken>
  bool Pop(Event* event, Taken taken) {
    for (;;) {
      uint64_t count = 0;
      if (read(fd_, &count, sizeof(count)) < 0) return false;
      std::lock_guard lock(mutex_);
      if (events_.empty()) continue;  // removed after the descriptor had counted it
      *event = events_.front();
      events_.pop_front();
      taken(*event);
      return true;
    }
  }
  template <typename Test>
  void Remove(Test test) {
    std::lock_guard lock(mutex_);
    const size_t removed = std::erase_if(events_, test);
    for (size_t i = 0; i < removed; ++i) {
      uint64_t count = 0;
      iovec data{&count, sizeof(count)};
      // Never waits: another reader may have taken the count already.
      if (preadv2(fd_, &data, 1, -1, RWF_NOWAIT) < 0) return;
    }
  }

 private:
  int fd_ = -1;
  std::mutex mutex_;
  std::deque<Event> events_;
};

}  // namespace sluice::soft
