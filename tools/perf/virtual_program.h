// What runs on the virtual fabric, and the process around it: loading, time limit, signals, files, exit code.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/perf/abort.h"
#include "tools/perf/descriptors.h"
#include "tools/perf/options.h"
#include "verbs/soft/virtual/virtual_fabric.h"

namespace sluice::perf {

class VirtualProgram {
 public:
  virtual ~VirtualProgram() = default;
  // Prints its results. A failure is printed by the caller.
  virtual Status Run() = 0;
  virtual uint64_t wrong() const = 0;                  // values that are not what they must be
  virtual VirtualDescriptors descriptors() const = 0;  // what it will take
  virtual std::vector<std::string> stuck() const = 0;  // what is open where nothing can move any more
};

using MakeVirtualProgram =
    std::function<std::unique_ptr<VirtualProgram>(soft::VirtualFabric* fabric, JobState* state)>;

// Runs it and ends the process: plugins may have threads that still run. Of `settings` topology, seed and
// completion cost come from `options`. `arguments` are those of the program, in case that it must start again
// with other loader settings.
[[noreturn]] void RunVirtualProgram(const Options& options, soft::VirtualFabricSettings settings,
                                    const std::vector<std::string>& arguments,
                                    const MakeVirtualProgram& make);

}  // namespace sluice::perf
