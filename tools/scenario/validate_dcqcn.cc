// DCQCN: fairness of the model's own, by the paper's constants, and our law beside ns3-datacenter's
// (github.com/inet-tub/ns3-datacenter, commit 6ddb4a4, simulator/ns-3.39): examples/PowerTCP/
// powertcp-evaluation-fairness, --algorithm=1 --windowCheck=0 --wien=0, RngRun 1 to 50. docs/network-model.md has
// its configuration and what was read.
#include <algorithm>

#include "tools/scenario/flow_network.h"
#include "tools/scenario/seed_runner.h"
#include "tools/scenario/validate.h"
#include "verbs/soft/flows/simulation.h"

namespace sluice::scenario {
namespace {

using soft::FlowId;
using soft::Picos;
using soft::Simulation;
using soft::Topology;

constexpr Picos kSettled = 10 * soft::kPicosPerMs;
constexpr Picos kFrom = 40 * soft::kPicosPerMs;
constexpr Picos kTo = 50 * soft::kPicosPerMs;
constexpr double kSeconds = 10e-3;  // the last of them
constexpr uint32_t kReceiver = 2;

// The reference: means over its runs.
constexpr uint32_t kSeeds = 20;
constexpr double kQueueBytes = 173'970;
constexpr double kLastQueueBytes = 222'320;
constexpr double kRateGbps = 49.96;

struct Pair {
  // Mean length of the queue towards the receiver, from kSettled and from kFrom on.
  double queue_bytes = 0;
  double last_queue_bytes = 0;
  double gbps[2] = {};  // sent by the two from kFrom on, on the wire
};

// Two flows into one port, both from the start, for 50 ms.
Result<Pair> TwoFlows(Topology topology, const soft::RcSettings& rc, uint64_t seed) {
  soft::SimulationSettings settings;
  settings.seed = topology.routing.seed = seed;
  settings.rc = rc;
  Result<std::unique_ptr<Simulation>> made = Simulation::Create(std::move(topology), settings);
  if (!made.ok()) return made.status();
  Simulation& simulation = **made;
  for (uint32_t source = 0; source < 2; ++source) {
    const FlowId flow = simulation.AddFlow({.source = source, .destination = kReceiver});
    // More than a link carries in that time.
    simulation.PostAt(0, flow, uint64_t{100'000'000'000} / 8 / 1000 * 60);
  }
  const auto queue_integral = [&](Picos now) {
    double mean = 0;
    simulation.truth().ForEachQueue([&](const soft::QueueTruth& queue) {
      if (queue.port == kReceiver) mean += queue.mean_bytes;
    });
    return mean * static_cast<double>(now);
  };
  simulation.Run(kSettled);
  const double settled = queue_integral(kSettled);
  simulation.Run(kFrom);
  const double before = queue_integral(kFrom);
  const uint64_t sent[] = {simulation.port_counters(0).tx_bytes, simulation.port_counters(1).tx_bytes};
  simulation.Run(kTo);
  Pair pair;
  const double end = queue_integral(kTo);
  pair.queue_bytes = (end - settled) / static_cast<double>(kTo - kSettled);
  pair.last_queue_bytes = (end - before) / static_cast<double>(kTo - kFrom);
  for (uint32_t i = 0; i < 2; ++i) {
    pair.gbps[i] = static_cast<double>(simulation.port_counters(i).tx_bytes - sent[i]) * 8e-9 / kSeconds;
  }
  return pair;
}

Result<Topology> OneSwitch() {
  Result<Topology> topology = Topology::FromText("hosts=3,rate=100G,delay=1us");
  if (!topology.ok()) return topology.status();
  topology->switch_settings = soft::SwitchSettings::Shared64();
  topology->nic_settings.rate_control = soft::RateControl::kDcqcn;
  return topology;
}

Status CheckPaper(Checks* out) {
  Result<Topology> topology = OneSwitch();
  if (!topology.ok()) return topology.status();
  Result<Pair> pair = TwoFlows(std::move(*topology), soft::RcSettings::Roce(), 1);
  if (!pair.ok()) return pair.status();
  const auto& gbps = pair->gbps;
  out->Between("DCQCN", "two flows at 100G, Jain's index of the last 10 of 50 ms",
               JainIndex({gbps[0], gbps[1]}), 1, 0.98, 1);
  out->Between("DCQCN", "two flows at 100G, share of the link used", (gbps[0] + gbps[1]) / 100, 1, 0.9, 1.01);
  return Status::Ok();
}

// The reference's NICs as they are there: every marked packet is echoed, the rate is cut at most every 50 us at
// ticks of a clock, there is no byte counter, and the target grows by one step a timer.
Result<Topology> ReferenceNetwork() {
  Result<Topology> topology = OneSwitch();
  if (!topology.ok()) return topology.status();
  topology->switch_settings.ecn.at_dequeue = true;
  soft::DcqcnSettings& dcqcn = topology->nic_settings.dcqcn;
  dcqcn.reduce_period = dcqcn.cnp_interval;
  dcqcn.cnp_interval = 0;
  dcqcn.byte_counter_bytes = uint64_t{1} << 40;
  dcqcn.rate_hai_bps = dcqcn.rate_ai_bps;
  return topology;
}

void CheckReference(const ValidateOptions& options, Checks* out) {
  std::vector<uint64_t> seeds;
  for (uint64_t i = 0; i < kSeeds; ++i) seeds.push_back(options.seed + i);
  const SeedResults results =
      RunSeeds("validate DCQCN", seeds, options.jobs, [](uint64_t seed) -> Result<Outcome> {
        Result<Topology> topology = ReferenceNetwork();
        if (!topology.ok()) return topology.status();
        soft::RcSettings rc;
        rc.payload_bytes = 1000;
        rc.header_bytes = 48;
        rc.first_bytes = rc.last_bytes = 0;
        rc.ack_bytes = 60;
        rc.ack_interval_packets = 1;
        rc.timeout = 0;
        Result<Pair> pair = TwoFlows(std::move(*topology), rc, seed);
        if (!pair.ok()) return pair.status();
        Outcome outcome;
        outcome.samples["queue"] = {pair->queue_bytes, pair->last_queue_bytes};
        outcome.samples["gbps"] = {pair->gbps[0], pair->gbps[1]};
        return outcome;
      });
  out->failures.insert(out->failures.end(), results.failures.begin(), results.failures.end());
  if (results.interrupted) out->failures.push_back("interrupted");
  if (results.outcomes.empty()) return;
  std::vector<double> queues;
  std::vector<double> last_queues;
  std::vector<double> rates;
  for (const Outcome& outcome : results.outcomes) {
    queues.push_back(outcome.samples.at("queue")[0]);
    last_queues.push_back(outcome.samples.at("queue")[1]);
    for (const double gbps : outcome.samples.at("gbps")) rates.push_back(gbps);
  }
  out->Within("DCQCN", "ns3-datacenter, two flows at 100G, mean queue from 10 to 50 ms, KB",
              Mean(queues) / 1000, kQueueBytes / 1000, 0.1);
  out->Inform("DCQCN", "ns3-datacenter, two flows at 100G, mean queue from 40 to 50 ms, KB",
              Mean(last_queues) / 1000, kLastQueueBytes / 1000);
  out->Within("DCQCN", "ns3-datacenter, two flows at 100G, mean rate of a flow from 40 to 50 ms, Gb/s",
              Mean(rates), kRateGbps, 0.1);
}

}  // namespace

void CheckDcqcn(const ValidateOptions& options, Checks* out) {
  if (options.size == Size::kCi) return;
  const Status status = CheckPaper(out);
  if (!status.ok()) out->failures.push_back(status.message());
  CheckReference(options, out);
}

}  // namespace sluice::scenario
