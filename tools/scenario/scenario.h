// A named experiment in virtual time. One run is one seed; runs share nothing and go in processes of their
// own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/scenario/outcome.h"

namespace sluice::scenario {

enum class Size { kCi, kDefault, kFull };

// What drives the traffic of a scenario, and so which options have an effect on it.
enum class Engine {
  kFlows,   // RC flows of the network model: no plugin, no host noise
  kPlugin,  // the real plugin in virtual time: --plugin, --host and SLUICE_* settings apply
};

struct RunConfig {
  uint64_t seed = 1;
  Size size = Size::kDefault;
  std::string topology;  // empty: the scenario's own
  // Lines separated by ";", beside those of the topology.
  std::string faults;
  std::string background;
  Engine engine = Engine::kFlows;
  // Engine::kPlugin.
  std::string host = "ideal";
  std::string plugin;  // empty: the one beside the program
};

struct Scenario {
  const char* name;
  const char* line;         // what it shows, for `list`
  Engine engine;            // unless asked for the other
  const char* sample_name;  // of Outcome::samples, with unit: the x axis of the plot
  bool seed_matters;        // false: every seed gives the same figures
  bool takes_topology;
  Result<Outcome> (*run_flows)(const RunConfig& config);  // null: not with this engine
  Result<Outcome> (*run_plugin)(const RunConfig& config);
  const char* host = "ideal";  // preset of the engine plugin unless asked for another

  auto run(Engine with) const { return with == Engine::kFlows ? run_flows : run_plugin; }
};

const std::vector<Scenario>& AllScenarios();
const char* EngineName(Engine engine);
// nullptr: no such scenario.
const Scenario* FindScenario(const std::string& name);

}  // namespace sluice::scenario
