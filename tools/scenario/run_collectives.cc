// all-to-all, permutation, two-jobs.
#include <algorithm>

#include "tools/scenario/flow_network.h"
#include "tools/scenario/like_for_like.h"
#include "tools/scenario/ring_job.h"
#include "tools/scenario/runs.h"

namespace sluice::scenario {
namespace {

using soft::FlowId;
using soft::Picos;
using soft::Simulation;
using soft::Topology;

}  // namespace

Result<Outcome> RunAllToAll(const RunConfig& config) {
  Outcome outcome;
  const uint32_t hosts = config.size == Size::kCi ? 32 : config.size == Size::kDefault ? 64 : 256;
  const uint64_t bytes = config.size == Size::kDefault ? 512 << 10 : 64 << 10;
  for (const Arm& arm : StandardArms(config)) {
    Result<Topology> topology =
        TopologyOf(config, "leaf-spine:rate=400G,hosts=" + std::to_string(hosts), arm);
    if (!topology.ok()) return topology.status();
    Result<std::unique_ptr<Simulation>> made = MakeSimulation(*topology, config.seed);
    if (!made.ok()) return made.status();
    Simulation& simulation = **made;
    const uint32_t count = simulation.endpoints();
    SLUICE_RETURN_IF_ERROR(NeedEndpoints(*topology, 2));
    Result<double> alone = AloneUs(*topology, 0, count - 1, 1);
    if (!alone.ok()) return alone.status();
    for (uint32_t step = 1; step < count; ++step) {
      for (uint32_t host = 0; host < count; ++host) {
        simulation.PostAt(0,
                          simulation.AddFlow(
                              {.source = host, .destination = (host + step) % count, .control = arm.control}),
                          bytes);
      }
    }
    simulation.Run();
    SLUICE_RETURN_IF_ERROR(NeedFinished(simulation));
    std::vector<double> completions;
    for (FlowId flow = simulation.first_flow(); flow < simulation.flows(); ++flow)
      completions.push_back(Us(simulation.FinishTime(flow)));
    const double last = Quantile(completions, 1);
    const double host_us =
        static_cast<double>((count - 1) * WireBytes(bytes, FlowSettings(*topology, 1).rc)) * 8e6 /
        static_cast<double>(RateOf(*topology));
    outcome.Add(arm.name, "last completion", "us", last);
    outcome.Add(arm.name, "last / busiest link", "", last / (Us(TruthOf(simulation).busiest_link) + *alone));
    outcome.Add(arm.name, "last / host link", "", last / (host_us + *alone));
    outcome.samples[arm.name] = std::move(completions);
    outcome.packet_hops += simulation.statistics().packet_hops;
  }
  return outcome;
}

Result<Outcome> RunPermutation(const RunConfig& config) {
  Outcome outcome;
  constexpr uint64_t kBytes = 1 << 20;
  const uint32_t hosts = config.size == Size::kCi ? 128 : config.size == Size::kDefault ? 1024 : 8192;
  std::vector<Arm> arms = StandardArms(config);
  arms.push_back({config.topology.empty() ? "roce adaptive" : "adaptive", false, StaticControl()});
  for (const Arm& arm : arms) {
    // The window is far above the message: unbounded is the same.
    if (arm.control == nullptr) continue;
    const bool adaptive = arm.name == arms.back().name;
    Result<Topology> topology =
        TopologyOf(config, "leaf-spine:rate=400G,hosts=" + std::to_string(hosts), arm);
    if (!topology.ok()) return topology.status();
    SLUICE_RETURN_IF_ERROR(NeedEndpoints(*topology, 2));
    topology->routing.seed = config.seed;
    soft::SimulationSettings settings = FlowSettings(*topology, config.seed);
    if (adaptive) {
      topology->routing.mode = soft::RoutingMode::kAdaptive;
      settings.rc.reorder_packets = 256;
    }
    const uint32_t count = EndpointCount(*topology);
    Result<double> alone = AloneUs(*topology, 0, count - 1, kBytes);
    if (!alone.ok()) return alone.status();
    Result<std::unique_ptr<Simulation>> made = Simulation::Create(std::move(*topology), settings);
    if (!made.ok()) return made.status();
    Simulation& simulation = **made;
    for (const RoceFlow& flow : PermutationFlows(count, config.seed)) {
      simulation.PostAt(0,
                        simulation.AddFlow(
                            {.source = flow.source, .destination = flow.destination, .control = arm.control}),
                        kBytes);
    }
    simulation.Run();
    SLUICE_RETURN_IF_ERROR(NeedFinished(simulation));
    std::vector<double> slowdowns;
    for (FlowId flow = simulation.first_flow(); flow < simulation.flows(); ++flow) {
      slowdowns.push_back(Us(simulation.FinishTime(flow)) / *alone);
    }
    outcome.Add(arm.name, "slowdown, median", "", Quantile(slowdowns, 0.5));
    outcome.Add(arm.name, "slowdown, 90 %", "", Quantile(slowdowns, 0.9));
    outcome.Add(arm.name, "slowdown, worst", "", Quantile(slowdowns, 1));
    outcome.Add(arm.name, "last completion", "us", Quantile(slowdowns, 1) * *alone);
    outcome.samples[arm.name] = std::move(slowdowns);
    outcome.packet_hops += simulation.statistics().packet_hops;
  }
  return outcome;
}

Result<Outcome> RunTwoJobs(const RunConfig& config) {
  Outcome outcome;
  constexpr uint32_t kRanks = 8;
  constexpr double kCommunication = 0.3;  // of a step, alone
  const uint64_t bytes = config.size == Size::kCi ? 2 << 20 : 8 << 20;
  const uint32_t steps = config.size == Size::kCi ? 10 : 30;
  for (const Arm& arm : StandardArms(config)) {
    if (arm.control == nullptr) continue;
    double communication_us = 0;
    double alone_us = 0;
    for (int pass = 0; pass < 3; ++pass) {
      // The link between the leaves carries one job's ring at full rate, or two at half.
      Result<Topology> topology =
          TopologyOf(config, "leaf-spine:hosts=16,rate=400G,hosts_per_leaf=8,spines=1,spine_rate=1600G", arm);
      if (!topology.ok()) return topology.status();
      SLUICE_RETURN_IF_ERROR(NeedEndpoints(*topology, 2 * kRanks));
      Result<std::unique_ptr<Simulation>> made = MakeSimulation(*topology, config.seed);
      if (!made.ok()) return made.status();
      Simulation& simulation = **made;
      FlowRouter router;
      simulation.set_observer(&router);
      soft::Random random(config.seed, soft::kRandomStart, 0);
      std::vector<std::unique_ptr<RingJob>> jobs;
      const double compute_us = pass == 0 ? 0 : communication_us * (1 - kCommunication) / kCommunication;
      for (uint32_t number = 0; number < (pass == 2 ? 2U : 1U); ++number) {
        RingJobSettings job;
        // Ranks alternate between the two halves of the hosts, so every hop crosses.
        for (uint32_t i = 0; i < kRanks; ++i) {
          job.endpoints.push_back(number * kRanks / 2 + i / 2 + (i % 2) * EndpointCount(*topology) / 2);
        }
        job.bytes = bytes;
        job.steps = pass == 0 ? 1 : steps;
        job.control = arm.control;
        job.compute = static_cast<Picos>(compute_us * soft::kPicosPerUs);
        if (number == 1) job.start = static_cast<Picos>(random.Unit() * alone_us * soft::kPicosPerUs);
        jobs.push_back(std::make_unique<RingJob>(&simulation, &router, job));
      }
      simulation.Run();
      SLUICE_RETURN_IF_ERROR(NeedAlive(simulation));
      outcome.packet_hops += simulation.statistics().packet_hops;
      std::vector<double> step_us;
      for (const auto& job : jobs) {
        if (!job->done()) return InternalError("a ring did not finish");
        step_us.insert(step_us.end(), job->step_us().begin(), job->step_us().end());
      }
      if (pass == 0) {
        communication_us = Mean(step_us);
        continue;
      }
      if (pass == 1) {
        alone_us = Mean(step_us);
        outcome.Add(arm.name, "step alone", "us", alone_us);
        continue;
      }
      outcome.Add(arm.name, "step / alone", "", Mean(step_us) / alone_us);
      outcome.Add(arm.name, "longest step / alone", "", Quantile(step_us, 1) / alone_us);
      for (double& us : step_us) us /= alone_us;
      outcome.samples[arm.name] = std::move(step_us);
    }
  }
  return outcome;
}

}  // namespace sluice::scenario
