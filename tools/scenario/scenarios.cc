#include "tools/scenario/runs.h"
#include "tools/scenario/scenario.h"

namespace sluice::scenario {

const std::vector<Scenario>& AllScenarios() {
  static const std::vector<Scenario> scenarios = {
      {"uncontended", "one flow alone: latency and goodput by message size, beside the closed form",
       Engine::kFlows, "latency / closed form; plugin: bus bandwidth / link rate", false, true,
       RunUncontended, PluginUncontended},
      {"incast", "N hosts send 1 MiB to one: last completion over the ideal, spread, peak of the queue",
       Engine::kFlows, "completion, us", true, true, RunIncast, PluginIncast},
      {"victim", "a flow that shares only a switch with an incast of 126 hosts, and what PFC does to it",
       Engine::kFlows, "completion, us", true, false, RunVictim, PluginVictim},
      {"priority", "small operations beside bulk traffic, in one class and ahead of it", Engine::kPlugin,
       "duration of small operations, us", true, true, RunPriority, PluginPriority, "typical"},
      {"storage", "a training job's ring beside storage traffic, in one class and ahead of it",
       Engine::kPlugin, "step time, us", true, true, RunStorage, PluginStorage, "typical"},
      {"fairness", "N flows through one receiver, and through one link between switches: Jain's index",
       Engine::kFlows, "goodput of a flow, Gb/s", true, true, RunFairness, PluginFairness},
      {"lossy", "goodput against packet loss and transport timeout, beside the closed form of go-back-N",
       Engine::kFlows, "goodput / lossless goodput", true, false, RunLossy, nullptr},
      {"all-to-all", "every host to every other: time over that of the busiest link", Engine::kFlows,
       "completion, us", true, true, RunAllToAll, PluginAllToAll},
      {"permutation", "every host to one other: slowdown by collisions of paths, and with adaptive routing",
       Engine::kFlows, "slowdown", true, true, RunPermutation, PluginPermutation},
      {"two-jobs", "two training jobs whose rings share links between switches: step time over alone",
       Engine::kFlows, "step time / alone", true, true, RunTwoJobs, PluginTwoJobs},
  };
  return scenarios;
}

const char* EngineName(Engine engine) {
  return engine == Engine::kFlows ? "flows" : "plugin";
}

const Scenario* FindScenario(const std::string& name) {
  for (const Scenario& scenario : AllScenarios()) {
    if (name == scenario.name) return &scenario;
  }
  return nullptr;
}

}  // namespace sluice::scenario
