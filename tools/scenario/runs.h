// The runs behind the scenarios' names, one per seed.
#pragma once

#include "base/status.h"
#include "tools/scenario/outcome.h"
#include "tools/scenario/scenario.h"

namespace sluice::scenario {

Result<Outcome> RunUncontended(const RunConfig& config);
Result<Outcome> RunIncast(const RunConfig& config);
Result<Outcome> RunVictim(const RunConfig& config);
Result<Outcome> RunPriority(const RunConfig& config);
Result<Outcome> RunStorage(const RunConfig& config);
Result<Outcome> RunFairness(const RunConfig& config);
Result<Outcome> RunLossy(const RunConfig& config);
Result<Outcome> RunAllToAll(const RunConfig& config);
Result<Outcome> RunPermutation(const RunConfig& config);
Result<Outcome> RunTwoJobs(const RunConfig& config);

// The same over the real plugin.
Result<Outcome> PluginUncontended(const RunConfig& config);
Result<Outcome> PluginIncast(const RunConfig& config);
Result<Outcome> PluginVictim(const RunConfig& config);
Result<Outcome> PluginPriority(const RunConfig& config);
Result<Outcome> PluginStorage(const RunConfig& config);
Result<Outcome> PluginFairness(const RunConfig& config);
Result<Outcome> PluginAllToAll(const RunConfig& config);
Result<Outcome> PluginPermutation(const RunConfig& config);
Result<Outcome> PluginTwoJobs(const RunConfig& config);

}  // namespace sluice::scenario
