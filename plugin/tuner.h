// The typed TUNER interface: what the version tables of plugin/abi call. No C struct of NCCL appears here.
//
// It decides nothing: the cost table, the number of channels and the chunk size stay NCCL's, and every call
// succeeds (an error here would fail the collective). It tells the other halves how large the communicator is,
// and counts what NCCL asks.
//
// Threads: as NCCL, one thread per communicator at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/net.h"
#include "tuner/operation.h"

namespace sluice {

// What NCCL wants to know: one bin of equal collectives of a group.
struct TunerQuestion {
  Function function = Function::kUnknown;
  size_t bytes = 0;
  int pipe_ops = 0;         // collectives per channel
  bool registered = false;  // both buffers
};

// One communicator that NCCL tunes with us. Never freed.
class TunerContext {
 public:
  // Null when SLUICE_TUNER=0: calls with a null context do nothing. Fields of `communicator` that the version does
  // not tell are unknown.
  static TunerContext* Create(const Communicator& communicator, DebugLogger logger);
  void Asked(const TunerQuestion& question) noexcept;
  void Finalize();
};

}  // namespace sluice
