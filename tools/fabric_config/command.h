// `sluice fabric-config`: what the network needs for a policy, for the operator to apply.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "tools/fabric_config/plan.h"

namespace sluice::fabric_config {

struct CommandOptions {
  std::string policy;  // a file; empty: SLUICE_POLICY
  std::string target;  // opensm, mlnx_qos, dcb, sonic
  std::string ports;   // separated by commas; empty: the default
  Options options;
};

void AddOptions(CLI::App* app, CommandOptions* options);
// 0: written to standard output, with warnings on standard error; 1: the policy or the output failed; 2: bad usage.
int Run(CommandOptions options);

}  // namespace sluice::fabric_config
