// `sluice scenario NAME`: named experiments in virtual time.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>

#include "tools/scenario/scenario.h"

namespace sluice::scenario {

struct Options {
  std::string name;
  std::string size_name = "default";
  uint32_t seeds = 0;  // 0: what the scenario needs
  uint64_t seed = 1;
  uint32_t jobs = 0;
  bool json = false;
  std::string plot;
  std::string topology;
  std::string engine;  // empty: by the other options, then by the scenario
  std::string host;    // for the engine plugin
  std::string plugin;  // likewise
};

void AddOptions(CLI::App* app, Options* options);
// 0: done; 1: a run failed or a figure lies outside its band; 2: bad usage.
int Run(const Options& options);

}  // namespace sluice::scenario
