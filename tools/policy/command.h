// `sluice policy check|explain|show`: what a policy says and does, before any job runs with it.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace sluice::policy {

struct Options {
  CLI::App* check = nullptr;
  CLI::App* explain = nullptr;
  CLI::App* show = nullptr;
  std::string file;
  bool json = false;
  // Of the operation to explain; empty: unknown.
  std::string op;
  std::string algo;
  std::string proto;
  std::string bytes;
  // Of its communicator; -1 and empty: unknown.
  std::string comm;
  int nodes = -1;
  int traffic_class = -1;
};

void AddOptions(CLI::App* app, Options* options);
// 0: the policy is sound; 1: it, the environment or the output is not; 2: bad usage.
int Run(const Options& options);

}  // namespace sluice::policy
