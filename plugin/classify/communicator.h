// What the three halves of the plugin know together of one communicator, and the service classes that follow.
//
// NCCL initialises NET, profiler and tuner of a communicator one after the other on one thread. Each joins here: by
// the communicator's hash where its version tells one; among several with one hash (ranks of one process), and for
// versions that tell none, by the thread. The profiler half may also stand alone (communicators that share the
// connections of their parent, NET v10 and older).
//
// Threads: Join and Learn from any, they lock; classes() from any, it does not. Never freed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tuner/operation.h"
#include "tuner/policy.h"

namespace sluice {

enum class PluginHalf : uint8_t { kNet = 1, kProfiler = 2, kTuner = 4 };

class CommunicatorState {
 public:
  // The state that this half of the communicator belongs to, made if there is none. `known` adds to what is known.
  static CommunicatorState& Join(PluginHalf half, const Communicator& known);
  // One that nobody joins: the context of NET v7 to v10, which serves every communicator.
  static CommunicatorState& MakeShared();

  void Learn(const Communicator& known);
  // Forgets that `half` is there: a later communicator of the same hash is another one.
  void Leave(PluginHalf half);
  Communicator communicator() const;
  // Valid to the end of the process.
  const ClassMap& classes() const { return *classes_.load(std::memory_order_acquire); }

 private:
  CommunicatorState() = default;
  void Bind();

  mutable std::mutex mutex_;
  Communicator communicator_;                           // under mutex_
  std::vector<std::unique_ptr<const ClassMap>> bound_;  // under mutex_; grows with what is learnt
  std::atomic<const ClassMap*> classes_{nullptr};
  unsigned halves_ = 0;  // under the registry's mutex
  bool ended_ = false;   // likewise: no half may join any more
};

}  // namespace sluice
