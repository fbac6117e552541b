// The profiler and tuner halves of the library under test, as NCCL would take them beside its NET half.
//
// Threads: the user's.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "tools/perf/net_plugin.h"
#include "tools/perf/options.h"
#include "tools/perf/profiler_plugin.h"
#include "tools/perf/tuner_plugin.h"

namespace sluice::perf {

struct PluginHalves {
  std::unique_ptr<ProfilerPlugin> profiler;  // null: none
  std::unique_ptr<TunerPlugin> tuner;

  // What the options name, or what fits the NET version. A version that was not named may be missing.
  static Result<PluginHalves> Load(const std::string& path, const Options& options, int net_version);
};

}  // namespace sluice::perf
