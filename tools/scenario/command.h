// `sluice scenario NAME`: named experiments in virtual time.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/scenario/scenario.h"

namespace sluice::scenario {

struct Options {
  std::string name;
  std::string size_name = "default";
  uint32_t seeds = 0;  // 0: what the scenario needs
  uint64_t seed = 1;
  // As typed; Run puts them in the place of the defaults above.
  std::optional<int64_t> given_seeds, given_jobs;
  std::string given_seed;
  uint32_t jobs = 0;  // 0: one per processor
  bool json = false;
  std::string plot;
  std::string topology;
  std::vector<std::string> faults;      // beside those of the topology
  std::vector<std::string> background;  // likewise
  std::string engine;                   // empty: by the other options, then by the scenario
  std::string host;                     // for the engine plugin
  std::string plugin;                   // likewise
};

void AddOptions(CLI::App* app, Options* options);
// 0: done; 1: a run failed or a figure lies outside its band; 2: bad usage.
int Run(Options options);

}  // namespace sluice::scenario
