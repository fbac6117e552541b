// What plugins say of their messages, as text: the result of `--op mixed`, and `--show-lanes`.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/perf/claim_check.h"
#include "tools/perf/plugin_halves.h"

namespace sluice::perf {

// Of one rank, or a sum. Ranks exchange it as bytes.
struct MixedOutcome {
  uint64_t wrong_values = 0;
  ClaimTotals claims;
  void Add(const MixedOutcome& other);
};
std::string DescribeMixed(const MixedOutcome& sum, const PluginHalves& halves, int net_version, bool json);

// The statistics of one process, for another one; and those of all ranks added up: a table, or one JSON object per
// line. The fabric's own counts stand beside them where it can be asked.
Result<std::string> SerializeLanes(pid_t pid);
std::string DescribeLanes(const std::vector<std::string>& ranks, bool json);

}  // namespace sluice::perf
