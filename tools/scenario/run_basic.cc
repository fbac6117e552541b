// uncontended, incast, victim.
#include <algorithm>
#include <cmath>

#include "tools/scenario/flow_network.h"
#include "tools/scenario/like_for_like.h"
#include "tools/scenario/runs.h"

namespace sluice::scenario {
namespace {

using soft::FlowId;
using soft::Picos;
using soft::Simulation;
using soft::Topology;

// Store and forward over `links` links of one rate: all bytes over the first, then the last packet over each
// of the others, and the answer back. Exact while packets are of one size; a short last packet follows a full
// one.
Picos ClosedForm(uint64_t bytes, uint32_t links, uint64_t rate_bps, Picos delay, const soft::RcSettings& rc) {
  const uint64_t packets = std::max<uint64_t>(1, (bytes + rc.payload_bytes - 1) / rc.payload_bytes);
  const uint64_t last = rc.header_bytes + rc.last_bytes + (bytes - (packets - 1) * rc.payload_bytes) +
                        (packets == 1 ? rc.first_bytes : 0);
  const uint64_t slowest = packets > 1 ? std::max<uint64_t>(last, rc.payload_bytes + rc.header_bytes) : last;
  // A full packet before a short one holds it up at every hop.
  return soft::SerialisationTime(WireBytes(bytes, rc), rate_bps) + soft::SerialisationTime(last, rate_bps) +
         (links - 2) * soft::SerialisationTime(slowest, rate_bps) +
         links * (2 * delay + soft::SerialisationTime(rc.ack_bytes, rate_bps));
}

}  // namespace

Result<Outcome> RunUncontended(const RunConfig& config) {
  Outcome outcome;
  const uint64_t largest = uint64_t{1} << (config.size == Size::kCi        ? 24
                                           : config.size == Size::kDefault ? 28
                                                                           : 30);
  for (const bool infiniband : {false, true}) {
    if (infiniband && !config.topology.empty()) break;
    const Arm arm{infiniband ? "ib" : "roce", infiniband, nullptr};
    Result<Topology> topology = TopologyOf(config, "leaf-spine:hosts=16,rate=400G", arm);
    if (!topology.ok()) return topology.status();
    SLUICE_RETURN_IF_ERROR(NeedEndpoints(*topology, 2));
    const uint32_t far = EndpointCount(*topology) - 1;
    const soft::RcSettings rc = FlowSettings(*topology, 1).rc;
    for (uint64_t bytes = 64; bytes <= largest; bytes *= 16) {
      Result<std::unique_ptr<Simulation>> made = MakeSimulation(*topology, config.seed);
      if (!made.ok()) return made.status();
      const FlowId flow = (*made)->AddFlow({.source = 0, .destination = far});
      (*made)->PostAt(0, flow, bytes);
      (*made)->Run();
      SLUICE_RETURN_IF_ERROR(NeedFinished(**made));
      const double us = Us((*made)->FinishTime(flow));
      const std::string size = std::to_string(bytes) + " B";
      outcome.Add(arm.name, "latency, " + size, "us", us);
      outcome.Add(arm.name, "goodput, " + size, "Gb/s", static_cast<double>(bytes) * 8e-3 / us);
      if (config.topology.empty()) {
        const Picos formula = ClosedForm(bytes, 4, RateOf(*topology), topology->links[0].delay, rc);
        outcome.Add(arm.name, "latency / closed form, " + size, "", us / Us(formula));
        outcome.samples[arm.name].push_back(us / Us(formula));
      } else {
        outcome.samples[arm.name].push_back(us);
      }
      outcome.packet_hops += (*made)->statistics().packet_hops;
    }
  }
  return outcome;
}

Result<Outcome> RunIncast(const RunConfig& config) {
  Outcome outcome;
  constexpr uint64_t kBytes = 1 << 20;
  const std::vector<uint32_t> degrees = IncastDegrees(config.size);
  for (const Arm& arm : StandardArms(config)) {
    Result<Topology> topology = TopologyOf(config, "leaf-spine:hosts=256,rate=400G", arm);
    if (!topology.ok()) return topology.status();
    SLUICE_RETURN_IF_ERROR(NeedEndpoints(*topology, degrees.front() + 1));
    const uint32_t endpoints = EndpointCount(*topology);
    for (const uint32_t degree : degrees) {
      if (degree >= endpoints) continue;
      Result<std::unique_ptr<Simulation>> made = MakeSimulation(*topology, config.seed);
      if (!made.ok()) return made.status();
      Simulation& simulation = **made;
      simulation.truth().TrackDestinations();
      const std::vector<uint32_t> senders = DrawSenders(degree, endpoints, config.seed);
      for (const uint32_t sender : senders) {
        simulation.PostAt(0, simulation.AddFlow({.source = sender, .destination = 0, .control = arm.control}),
                          kBytes);
      }
      simulation.Run();
      SLUICE_RETURN_IF_ERROR(NeedFinished(simulation));
      // Ideal: the receiver's link is busy from the moment at which the nearest sender reaches it.
      const Result<double> nearest = NearestUs(*topology, senders, 0);
      if (!nearest.ok()) return nearest.status();
      std::vector<double> completions;
      for (FlowId flow = simulation.first_flow(); flow < simulation.flows(); ++flow) {
        completions.push_back(Us(simulation.FinishTime(flow)));
      }
      const double last = Quantile(completions, 1);
      const double wire_us = static_cast<double>(degree * WireBytes(kBytes, FlowSettings(*topology, 1).rc)) *
                             8e6 / static_cast<double>(RateOf(*topology));
      const std::string which = ", " + std::to_string(degree) + ":1";
      outcome.Add(arm.name, "last completion" + which, "us", last);
      outcome.Add(arm.name, "last / ideal" + which, "", last / (wire_us + *nearest));
      outcome.Add(arm.name, "last / first" + which, "", last / Quantile(completions, 0));
      outcome.Add(arm.name, "peak queued for the receiver" + which, "KB",
                  static_cast<double>(simulation.truth().PeakBytesBoundFor(0)) * 1e-3);
      outcome.Add(arm.name, "pauses between switches" + which, "",
                  static_cast<double>(TruthOf(simulation).switch_pauses));
      outcome.packet_hops += simulation.statistics().packet_hops;
      if (degree == degrees.back() || degrees.back() >= endpoints) outcome.samples[arm.name] = completions;
    }
  }
  return outcome;
}

Result<Outcome> RunVictim(const RunConfig& config) {
  Outcome outcome;
  RoceExperiment alone;
  alone.flows = {VictimFlows().back()};
  Result<RoceResult> reference = RunRoce(alone, config.seed);
  if (!reference.ok()) return reference.status();
  RoceExperiment experiment;
  experiment.flows = VictimFlows();
  Result<RoceResult> result = RunRoce(experiment, config.seed);
  if (!result.ok()) return result.status();
  const double victim = result->completion_us[kVictimFlow];
  std::vector<double> incast(result->completion_us.begin(), result->completion_us.begin() + kVictimFlow);
  outcome.Add("static", "victim alone", "us", reference->completion_us[0]);
  outcome.Add("static", "victim", "us", victim);
  outcome.Add("static", "victim / alone", "", victim / reference->completion_us[0]);
  outcome.Add("static", "incast, 10 % done", "us", Quantile(incast, 0.1));
  outcome.Add("static", "incast, half done", "us", Quantile(incast, 0.5));
  outcome.Add("static", "incast, all done", "us", Quantile(incast, 1));
  outcome.Add("static", "pauses", "", static_cast<double>(result->pauses));
  outcome.samples["incast"] = std::move(incast);
  outcome.samples["victim"] = {victim};
  outcome.packet_hops = reference->packet_hops + result->packet_hops;
  return outcome;
}

}  // namespace sluice::scenario
