#include "tools/scenario/uec_experiment.h"

#include <memory>
#include <string>
#include <utility>

#include "verbs/soft/flows/random.h"

namespace sluice::scenario {
namespace {

constexpr uint64_t kLinks = 4;  // host, leaf, spine, leaf, host
constexpr uint32_t kHostsPerLeaf = 64;
// The reference's 100 include the packet on the link, which has left our queues.
constexpr uint64_t kQueuePackets = 99;
constexpr uint64_t kMarkFromPackets = 25;
constexpr uint64_t kMarkAllPackets = 75;
constexpr uint64_t kWindowPackets = 150;  // at 400 Gb/s

}  // namespace

Result<UecResult> RunUecIncast(const UecExperiment& experiment, uint64_t seed) {
  Result<soft::Topology> topology =
      soft::Topology::FromText("leaf-spine:hosts=" + std::to_string(experiment.hosts) + ",rate=" +
                               std::to_string(experiment.rate_bps / 1'000'000'000) + "G,delay=1us");
  if (!topology.ok()) return topology.status();
  soft::SimulationSettings settings;
  settings.seed = seed;
  settings.transport = experiment.transport;
  soft::UecSettings& uec = settings.uec;
  uec.network_rtt =
      kLinks * (2 * soft::kPicosPerUs + soft::SerialisationTime(uec.packet_bytes, experiment.rate_bps) +
                soft::SerialisationTime(uec.header_bytes, experiment.rate_bps));
  // As the reference sets it: 15 us and six of its full queues.
  uec.retransmit_timeout =
      15 * soft::kPicosPerUs + 6 * soft::SerialisationTime(100 * uec.packet_bytes, experiment.rate_bps);
  uec.window_bytes = kWindowPackets * uec.packet_bytes * experiment.rate_bps / 400'000'000'000;

  soft::SwitchSettings& switches = topology->switch_settings;
  switches = soft::SwitchSettings();
  switches.queue = soft::QueueMode::kTrim;
  switches.queue_bytes = kQueuePackets * uec.packet_bytes;
  switches.trim_bytes = uec.header_bytes;
  switches.trim_priority = uec.control_priority;
  switches.strict_priorities = static_cast<uint8_t>(1 << uec.control_priority);
  // With credit from the receiver nothing reacts to marks on its own link, the only one that is full here.
  switches.ecn.enabled = experiment.transport == soft::Transport::kNscc;
  switches.ecn.per_25g = false;
  switches.ecn.at_dequeue = true;
  switches.ecn.k_min_bytes = kMarkFromPackets * uec.packet_bytes;
  switches.ecn.k_max_bytes = kMarkAllPackets * uec.packet_bytes;
  switches.ecn.p_max = 1;
  topology->routing.seed = seed;

  Result<std::unique_ptr<soft::Simulation>> made = soft::Simulation::Create(std::move(*topology), settings);
  if (!made.ok()) return made.status();
  soft::Simulation& simulation = **made;
  soft::Random random(seed, soft::kRandomMatrix, experiment.senders);
  std::vector<uint32_t> hosts;
  // No sender sits on the receiver's own leaf, as in the recorded matrices: it would see a shorter round trip.
  for (uint32_t i = kHostsPerLeaf; i < experiment.hosts; ++i) hosts.push_back(i);
  for (uint32_t i = 0; i < experiment.senders; ++i) {
    std::swap(hosts[i], hosts[i + random.Below(hosts.size() - i)]);
    simulation.PostAt(0, simulation.AddFlow({.source = hosts[i], .destination = 0}), experiment.flow_bytes);
  }
  // Credit is handed out in advance for ever when nobody asks, so the end is that of the flows.
  constexpr soft::Picos kLimit = soft::kPicosPerSecond;
  constexpr soft::Picos kStretch = 100 * soft::kPicosPerUs;
  UecResult result;
  for (soft::Picos until = kStretch; until < kLimit; until += kStretch) {
    const bool idle = simulation.Run(until);
    bool done = true;
    for (soft::FlowId flow = 0; flow < simulation.flows(); ++flow) {
      done = done && simulation.FinishTime(flow) != soft::kNever;
    }
    if (done || idle) break;
  }
  for (soft::FlowId flow = 0; flow < simulation.flows(); ++flow) {
    if (simulation.FinishTime(flow) == soft::kNever) return InternalError("a UEC flow did not finish");
    result.completion_us.push_back(static_cast<double>(simulation.FinishTime(flow)) / soft::kPicosPerUs);
  }
  result.repeated_packets = simulation.counters().retransmitted_packets;
  result.packet_hops = simulation.statistics().packet_hops;
  return result;
}

}  // namespace sluice::scenario
