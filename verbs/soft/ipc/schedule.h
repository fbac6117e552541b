// Asks the scheduler for short time slices: a thread that works for microseconds and sleeps then runs soon
// after it is woken, also beside programs that poll without end. Needs no privilege; without kernel support
// nothing changes.
//
// Thread rule: affects the calling thread.
#pragma once

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace sluice::soft {

inline void AskForShortSlices() {
  struct {
    uint32_t size = 48;
    uint32_t policy = 0;  // SCHED_OTHER
    uint64_t flags = 0;
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t runtime_ns = 100'000;  // the shortest slice that the kernel grants
    uint64_t deadline_ns = 0;
    uint64_t period_ns = 0;
  } attributes;
  static_assert(sizeof(attributes) == 48);
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace sluice::soft
