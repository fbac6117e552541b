// A mutex biased towards one thread: the thread that moves data pays two loads and two stores, anybody else a
// membarrier.
//
// NCCL drives a connection from one progress thread, while its service thread registers memory, connects and
// closes, and (v7 to v10, bootstrap over the network) other threads may move data too. The first thread that
// calls LockData owns the bias. Another thread that calls LockData ends the bias for good: from then on
// everybody takes the mutex. LockControl takes the bias away for the length of its critical section and gives
// it back.
//
// Source of the technique: D. Dice, M. Moir, W. Scherer, "Quickly reacquirable locks" (2003), with
// membarrier(2) (MEMBARRIER_CMD_PRIVATE_EXPEDITED) as the asymmetric fence. Where membarrier is refused, or
// under ThreadSanitizer, which cannot follow it, every call takes the mutex.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace sluice {

class BiasedLock {
 public:
  // Data path. Uncontended and biased: no locked instruction, no system call. Returns what UnlockData wants
  // to know.
  bool LockData() {
    if (TryLockBiased()) [[likely]]
      return true;
    LockDataSlow(Self());
    return false;
  }
  void UnlockData(bool biased) {
    if (biased) [[likely]] {
      UnlockBiased();
    } else {
      Unlock();
    }
  }
  // The fast half alone: false when the caller has to use LockData.
  bool TryLockBiased() {
    const uintptr_t self = Self();
    if (owner_.load(std::memory_order_relaxed) != self) [[unlikely]]
      return false;
    busy_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (owner_.load(std::memory_order_acquire) == self) [[likely]]
      return true;
    busy_.store(false, std::memory_order_release);
    return false;
  }
  void UnlockBiased() { busy_.store(false, std::memory_order_release); }

  // Control path: listen, connect, accept, close, the event thread. May wait for one data-path call.
  void LockControl();
  void UnlockControl() { Unlock(); }

 private:
  static constexpr uintptr_t kNoOwner = 0;

  static uintptr_t Self() { return reinterpret_cast<uintptr_t>(__builtin_thread_pointer()); }
  void LockDataSlow(uintptr_t self);
  void Revoke();
  void Unlock();

  std::atomic<uintptr_t> owner_{kNoOwner};  // thread that may enter without the mutex
  std::atomic<bool> busy_{false};           // that thread is inside; written by it only
  std::mutex mutex_;
  uintptr_t favourite_ = kNoOwner;  // under mutex_: first data thread
  bool shared_ = false;             // under mutex_: two data threads were seen
};

class DataGuard {
 public:
  explicit DataGuard(BiasedLock& lock) : lock_(lock), biased_(lock.LockData()) {}
  ~DataGuard() { lock_.UnlockData(biased_); }
  bool biased() const { return biased_; }
  DataGuard(const DataGuard&) = delete;
  DataGuard& operator=(const DataGuard&) = delete;

 private:
  BiasedLock& lock_;
  const bool biased_;
};

class ControlGuard {
 public:
  explicit ControlGuard(BiasedLock& lock) : lock_(lock) { lock_.LockControl(); }
  ~ControlGuard() { lock_.UnlockControl(); }
  ControlGuard(const ControlGuard&) = delete;
  ControlGuard& operator=(const ControlGuard&) = delete;

 private:
  BiasedLock& lock_;
};

}  // namespace sluice
