// One NCCL TUNER plugin of any version from 1 to 6, loaded as NCCL loads it, behind one set of calls. Threads: the
// user's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "plugin/abi/nccl_tuner.h"
#include "tuner/operation.h"

namespace sluice::perf {

// The tuner version of the NCCL release that has this NET version.
int TunerOfNet(int net_version);

class TunerPlugin {
 public:
  static Result<std::unique_ptr<TunerPlugin>> Load(const std::string& path, int version);
  virtual ~TunerPlugin() = default;  // closes the library

  virtual int version() const = 0;
  virtual Status Init(const sluice::Communicator& communicator, void** context) = 0;
  // The question that NCCL asks before a collective. An answer that breaks the interface is an error; a choice is
  // not looked at: schedules here are given.
  virtual Status GetCollInfo(void* context, int function, size_t bytes) = 0;
  virtual Status Finalize(void* context) = 0;
};

}  // namespace sluice::perf
