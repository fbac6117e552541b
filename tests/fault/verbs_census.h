// Counts the verbs objects of this process, and makes chosen calls fail, without the plugin's or the device's
// help.
//
//   const Census before = LiveObjects();
//   FailNext(VerbsCall::kModifyToRtr, ENETUNREACH);          // the next such call answers that, once
//   FailAfter(VerbsCall::kRegMr, 1, ENOMEM);                 // one succeeds first
//
// The definitions stand in the test program, where the dynamic linker looks before libibverbs; they forward.
// The program must export them (ENABLE_EXPORTS).
//
// Threads: any.
#pragma once

#include <ostream>

namespace sluice::fault {

struct Census {
  int contexts = 0;
  int protection_domains = 0;
  int memory_regions = 0;
  int completion_queues = 0;
  int shared_receive_queues = 0;
  int queue_pairs = 0;
  bool operator==(const Census&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Census& census);

Census LiveObjects();
// Queue pairs made since the process began.
int QueuePairsMade();

enum class VerbsCall {
  kOpenDevice,
  kRegMr,
  kCreateCq,
  kCreateSrq,
  kCreateQp,
  kModifyToRtr,
  kModifyToRts,
  kCount
};
void FailAfter(VerbsCall call, int successes, int error);
inline void FailNext(VerbsCall call, int error) {
  FailAfter(call, 0, error);
}

}  // namespace sluice::fault
