#include "plugin/transport/biased_lock.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLUICE_NO_ASYMMETRIC_FENCE 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define SLUICE_NO_ASYMMETRIC_FENCE 1
#endif

namespace sluice {
namespace {

bool RegisterMembarrier() {
#ifdef SLUICE_NO_ASYMMETRIC_FENCE
  return false;
#else
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
#endif
}

bool HasAsymmetricFence() {
  static const bool available = RegisterMembarrier();
  return available;
}

}  // namespace

void BiasedLock::Revoke() {
  if (owner_.load(std::memory_order_relaxed) == kNoOwner) return;
  owner_.store(kNoOwner, std::memory_order_relaxed);
  // Registration above is per process and cannot fail later; after it, each thread of the process has
  // executed a full fence: the owner either saw kNoOwner or its busy_ is visible here.
  syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
  while (busy_.load(std::memory_order_acquire)) sched_yield();
}

void BiasedLock::LockDataSlow(uintptr_t self) {
  mutex_.lock();
  if (favourite_ == kNoOwner) {
    favourite_ = self;
  } else if (favourite_ != self) {
    shared_ = true;
    Revoke();
  }
}

void BiasedLock::LockControl() {
  mutex_.lock();
  Revoke();
}

void BiasedLock::Unlock() {
  if (favourite_ != kNoOwner && !shared_ && HasAsymmetricFence()) {
    owner_.store(favourite_, std::memory_order_release);
  }
  mutex_.unlock();
}

}  // namespace sluice
