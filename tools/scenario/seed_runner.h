// Runs seeds in parallel, each in a process of its own, and tells on stderr how far it is. A seed that fails
// (also by running out of memory or by a signal) leaves the others untouched: what they found is kept.
//
//   Results results = RunSeeds("incast", seeds, jobs, [](uint64_t seed) { return RunOne(seed); });
//
// Thread rule: call it while the process has one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/scenario/outcome.h"

namespace sluice::scenario {

struct SeedResults {
  std::vector<Outcome> outcomes;      // in the order of the seeds
  std::vector<std::string> failures;  // one line each, naming the seed
  bool interrupted = false;
};

using SeedFunction = std::function<Result<Outcome>(uint64_t seed)>;

// `jobs` 0: one per processor.
SeedResults RunSeeds(const std::string& name, const std::vector<uint64_t>& seeds, unsigned jobs,
                     const SeedFunction& run);

}  // namespace sluice::scenario
