// Scenarios over the real plugin: a workload goes to a process of its own (`sluice perf --fabric virtual
// --workload`), because a plugin, its settings and a virtual fabric live as long as their process. Its results
// come back as numbers.
//
//   PluginArm arm{.name = "one class"};
//   Result<workload::Results> results = RunOverPlugin(config, network, arm, workload);
//
// Thread rule: call it while the process has one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/scenario/scenario.h"
#include "tools/workload/workload.h"
#include "verbs/soft/model/topology.h"

namespace sluice::scenario {

// One way to run the traffic of a scenario: settings of the plugin and of the network.
struct PluginArm {
  std::string name;
  bool infiniband = false;                           // of the scenario's own network
  std::map<std::string, std::string> environment{};  // on top of what the command was given
  std::string overrides{};                           // of the topology: "switches.KEY=value,..."
};

// `roce` and `ib`; with --topology that network alone, as `plugin`.
std::vector<PluginArm> PluginArms(const RunConfig& config);

// A network as text, and what of it a scenario must know.
struct PluginNetwork {
  std::string text;
  soft::Topology topology;
};
// --topology, or `default_text` with the arm's link layer; it has `hosts` hosts at least.
Result<PluginNetwork> PluginNetworkOf(const RunConfig& config, const std::string& default_text,
                                      const PluginArm& arm, uint32_t hosts);

Result<workload::Results> RunOverPlugin(const RunConfig& config, const PluginNetwork& network,
                                        const PluginArm& arm, const workload::Workload& workload);

// Hosts 0 to count - 1.
std::vector<uint32_t> FirstHosts(uint32_t count);
// Durations of the calls of a job that have this index in its list.
std::vector<double> DurationsUs(const workload::JobResult& job, uint32_t call);
// From one end of a call to the next, on the rank that is last; the first from 0.
std::vector<double> StepsUs(const workload::JobResult& job);

}  // namespace sluice::scenario
