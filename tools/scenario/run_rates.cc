// fairness, lossy.
#include <algorithm>
#include <cmath>

#include "tools/scenario/flow_network.h"
#include "tools/scenario/runs.h"
#include "verbs/soft/flows/random.h"

namespace sluice::scenario {
namespace {

using soft::FlowId;
using soft::Picos;
using soft::Simulation;
using soft::Topology;

// `pairs` start at random within a tenth of `window` and send without end; goodput of each over the rest.
Result<std::vector<double>> Goodputs(const Topology& topology,
                                     const std::vector<std::pair<uint32_t, uint32_t>>& pairs, const Arm& arm,
                                     Picos window, uint64_t seed, uint64_t* packet_hops) {
  constexpr uint64_t kMessageBytes = 1 << 16;
  Result<std::unique_ptr<Simulation>> made = MakeSimulation(topology, seed);
  if (!made.ok()) return made.status();
  Simulation& simulation = **made;
  const double rate_bps = static_cast<double>(RateOf(topology));
  const auto messages =
      static_cast<uint64_t>(rate_bps * 1.2e-12 * static_cast<double>(window) / 8 / kMessageBytes) + 1;
  soft::Random random(seed, soft::kRandomStart, pairs.size());
  for (const auto& [source, destination] : pairs) {
    const FlowId flow =
        simulation.AddFlow({.source = source, .destination = destination, .control = arm.control});
    const auto start = static_cast<Picos>(random.Below(static_cast<uint64_t>(window / 10)));
    for (uint64_t i = 0; i < messages; ++i) simulation.PostAt(start, flow, kMessageBytes);
  }
  simulation.Run(window / 10);
  std::vector<uint64_t> before;
  for (FlowId flow = simulation.first_flow(); flow < simulation.flows(); ++flow)
    before.push_back(simulation.ReceivedMessages(flow));
  simulation.Run(window);
  SLUICE_RETURN_IF_ERROR(NeedAlive(simulation));
  std::vector<double> goodputs;
  for (FlowId flow = simulation.first_flow(); flow < simulation.flows(); ++flow) {
    const uint64_t bytes =
        (simulation.ReceivedMessages(flow) - before[flow - simulation.first_flow()]) * kMessageBytes;
    goodputs.push_back(static_cast<double>(bytes) * 8e-3 / Us(window - window / 10));
  }
  // A flow may starve beside others, but not all of them.
  if (Quantile(goodputs, 1) == 0) {
    return RemoteError(
        "no flow got anything through: the network stands still or loses all of it; look at the "
        "faults of --topology and --fault");
  }
  *packet_hops += simulation.statistics().packet_hops;
  return goodputs;
}

}  // namespace

Result<Outcome> RunFairness(const RunConfig& config) {
  Outcome outcome;
  const Picos window = (config.size == Size::kCi        ? 1
                        : config.size == Size::kDefault ? 4
                                                        : 20) *
                       soft::kPicosPerMs;
  for (const Arm& arm : StandardArms(config)) {
    // 16 hosts on a leaf; one spine link between two leaves carries all that crosses.
    Result<Topology> topology =
        TopologyOf(config, "leaf-spine:hosts=32,rate=400G,hosts_per_leaf=16,spines=1,links_per_spine=1", arm);
    if (!topology.ok()) return topology.status();
    SLUICE_RETURN_IF_ERROR(NeedEndpoints(*topology, 32));
    const uint32_t half = EndpointCount(*topology) / 2;
    for (const bool shared_link : {false, true}) {
      std::vector<std::pair<uint32_t, uint32_t>> pairs;
      for (uint32_t i = 0; i < 16; ++i) {
        // Half of the senders to one receiver sit on its own leaf.
        const uint32_t to_one = i < 8 ? i + 1 : half + i;
        pairs.emplace_back(shared_link ? i : to_one, shared_link ? half + i : 0);
      }
      Result<std::vector<double>> goodputs =
          Goodputs(*topology, pairs, arm, window, config.seed, &outcome.packet_hops);
      if (!goodputs.ok()) return goodputs.status();
      const std::string which = shared_link ? ", one shared link" : ", one receiver";
      outcome.Add(arm.name, "Jain's index" + which, "", JainIndex(*goodputs));
      outcome.Add(arm.name, "least goodput" + which, "Gb/s", Quantile(*goodputs, 0));
      outcome.Add(arm.name, "most goodput" + which, "Gb/s", Quantile(*goodputs, 1));
      outcome.samples[arm.name + which] = *goodputs;
    }
  }
  return outcome;
}

Result<Outcome> RunLossy(const RunConfig& config) {
  Outcome outcome;
  struct Case {
    double loss;
    uint64_t packets;
  };
  std::vector<Case> cases = {{1e-4, 400'000}, {1e-3, 100'000}};
  if (config.size != Size::kCi) cases = {{1e-5, 1'000'000}, {1e-4, 1'000'000}, {1e-3, 300'000}};
  if (config.size == Size::kFull) cases = {{1e-5, 20'000'000}, {1e-4, 10'000'000}, {1e-3, 2'000'000}};
  Result<Topology> topology = TopologyOf(config, "hosts=2,rate=400G", {"roce", false, nullptr});
  if (!topology.ok()) return topology.status();
  for (const int timeout : {10, 14, 20}) {
    const std::string arm = "timeout " + std::to_string(timeout);
    for (const Case& c : cases) {
      soft::SimulationSettings settings = FlowSettings(*topology, config.seed);
      settings.rc.timeout = static_cast<uint8_t>(timeout);
      settings.rc.retry_count = 255;
      Result<std::unique_ptr<Simulation>> made = Simulation::Create(*topology, settings);
      if (!made.ok()) return made.status();
      Simulation& simulation = **made;
      soft::Random random(config.seed, soft::kRandomLoss, static_cast<uint64_t>(timeout));
      // Data, acknowledgements and NAKs alike, on the link of the host that sends them.
      simulation.context().fault_hook = [&](const soft::PacketView& view) {
        return view.from_host && random.Unit() < c.loss ? soft::PacketFate::kDrop
                                                        : soft::PacketFate::kDeliver;
      };
      const FlowId flow = simulation.AddFlow({.source = 0, .destination = 1, .control = StaticControl()});
      constexpr uint64_t kMessageBytes = 1 << 20;
      const uint64_t messages = c.packets * settings.rc.payload_bytes / kMessageBytes;
      for (uint64_t i = 0; i < messages; ++i) simulation.PostAt(0, flow, kMessageBytes);
      simulation.Run();
      if (simulation.Failed(flow)) return RemoteError("retries are used up");
      const uint64_t rate_bps = RateOf(*topology);
      const double lossless_us = static_cast<double>(messages) *
                                 Us(soft::SerialisationTime(WireBytes(kMessageBytes, settings.rc), rate_bps));
      const double share = lossless_us / Us(simulation.FinishTime(flow));
      const double packet_us =
          Us(soft::SerialisationTime(settings.rc.payload_bytes + settings.rc.header_bytes, rate_bps));
      const double loop_us = 4 * Us(topology->links[0].delay) + 3 * packet_us;
      const double timer_us = 4.096 * std::ldexp(1, timeout);
      // The last packet of the run may wait for the timer too, which the formula does not have.
      const double formula =
          1 / (1 + c.loss * loop_us / packet_us + c.loss * 2 * c.loss * timer_us / packet_us);
      char text[32];
      snprintf(text, sizeof text, ", loss %.0e", c.loss);
      outcome.Add(arm, std::string("goodput share") + text, "", share);
      outcome.Add(arm, std::string("closed form") + text, "", formula);
      outcome.Add(arm, std::string("timeouts") + text, "",
                  static_cast<double>(simulation.counters().timeouts));
      outcome.Add(arm, std::string("packets lost") + text, "",
                  static_cast<double>(simulation.statistics().dropped_packets));
      outcome.samples[arm].push_back(share);
      outcome.packet_hops += simulation.statistics().packet_hops;
    }
  }
  return outcome;
}

}  // namespace sluice::scenario
