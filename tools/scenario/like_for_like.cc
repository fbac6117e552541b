#include "tools/scenario/like_for_like.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tools/scenario/flow_network.h"
#include "verbs/soft/flows/random.h"
#include "verbs/soft/flows/simulation.h"

namespace sluice::scenario {
namespace {

using soft::FlowId;
using soft::LinkEnd;
using soft::Picos;
using soft::Simulation;
using soft::Topology;

constexpr uint32_t kPayloadBytes = 4000;
constexpr uint32_t kHeaderBytes = 64;
constexpr uint32_t kIncastHost = 33;
constexpr uint32_t kVictimSource = 38;
constexpr uint32_t kVictimDestination = 34;
// The fat-tree of 128 hosts: 4 hosts on an edge switch, 4 edge and 4 aggregation switches in a pod.
constexpr int kHalf = 4;
constexpr int kEdges = 32;
constexpr int kCores = kEdges + kEdges;  // number of the first core switch

// Notes when the first message of every flow is acknowledged.
class FirstMessages final : public soft::FlowObserver {
 public:
  FirstMessages(Simulation* simulation, size_t flows) : simulation_(simulation), done_(flows, soft::kNever) {}
  void OnSent(FlowId flow, uint64_t message) override {
    if (message == 0) done_[flow] = simulation_->Now();
  }
  const std::vector<Picos>& done() const { return done_; }

 private:
  Simulation* simulation_;
  std::vector<Picos> done_;
};

// Index in Topology::links by the switches that it joins.
std::map<std::pair<int, int>, uint32_t> SwitchLinks(const Topology& topology) {
  std::map<std::pair<int, int>, uint32_t> links;
  for (uint32_t i = 0; i < topology.links.size(); ++i) {
    const LinkEnd& a = topology.links[i].a;
    const LinkEnd& b = topology.links[i].b;
    if (!a.is_switch || !b.is_switch) continue;
    links[{static_cast<int>(a.node), static_cast<int>(b.node)}] = i;
    links[{static_cast<int>(b.node), static_cast<int>(a.node)}] = i;
  }
  return links;
}

std::vector<uint32_t> RouteLinks(const std::map<std::pair<int, int>, uint32_t>& links, int source,
                                 int destination, int aggregation, int core) {
  const int from = source / kHalf;
  const int to = destination / kHalf;
  std::vector<uint32_t> route;
  if (from != to) {
    const int up = kEdges + from / kHalf * kHalf + aggregation;
    const int down = kEdges + to / kHalf * kHalf + aggregation;
    route.push_back(links.at({from, up}));
    if (up != down) {
      const int top = kCores + aggregation * kHalf + core;
      route.push_back(links.at({up, top}));
      route.push_back(links.at({top, down}));
    }
    route.push_back(links.at({down, to}));
  }
  route.push_back(static_cast<uint32_t>(destination));
  return route;
}

}  // namespace

std::vector<RoceFlow> VictimFlows() {
  std::vector<RoceFlow> flows;
  for (uint32_t host = 0; host < 128; ++host) {
    if (host != kIncastHost && host != kVictimSource) flows.push_back({host, kIncastHost});
  }
  flows.push_back({kVictimSource, kVictimDestination});
  return flows;
}

std::vector<RoceFlow> PermutationFlows(uint32_t hosts, uint64_t seed) {
  soft::Random random(seed, soft::kRandomMatrix, hosts);
  std::vector<uint32_t> to(hosts);
  for (uint32_t i = 0; i < hosts; ++i) to[i] = i;
  for (uint32_t i = hosts; i > 1; --i) std::swap(to[i - 1], to[random.Below(i)]);
  for (uint32_t i = 0; i < hosts; ++i) {
    if (to[i] == i) std::swap(to[i], to[(i + 1) % hosts]);
  }
  std::vector<RoceFlow> flows;
  for (uint32_t i = 0; i < hosts; ++i) flows.push_back({i, to[i]});
  return flows;
}

std::vector<RoceFlow> IncastFlows(uint32_t hosts, uint32_t senders, uint64_t seed) {
  soft::Random random(seed, soft::kRandomMatrix, senders);
  std::vector<uint32_t> from;
  for (uint32_t i = 0; i < hosts; ++i) {
    if (i != kIncastHost) from.push_back(i);
  }
  std::vector<RoceFlow> flows;
  for (uint32_t i = 0; i < senders; ++i) {
    std::swap(from[i], from[i + random.Below(from.size() - i)]);
    flows.push_back({from[i], kIncastHost});
  }
  return flows;
}

std::vector<RoceFlow> FlowsOf(std::span<const RecordedFlow> recorded) {
  std::vector<RoceFlow> flows;
  for (const RecordedFlow& flow : recorded) {
    flows.push_back({static_cast<uint32_t>(flow.source), static_cast<uint32_t>(flow.destination),
                     static_cast<uint32_t>(flows.size()) * kRecordedStaggerUs});
  }
  return flows;
}

Result<RoceResult> RunRoce(const RoceExperiment& experiment, uint64_t seed) {
  Result<Topology> topology =
      Topology::FromText("fat-tree:hosts=" + std::to_string(experiment.hosts) +
                         ",rate=" + std::to_string(experiment.rate_bps / 1'000'000'000) + "G,delay=1us");
  if (!topology.ok()) return topology.status();
  topology->switch_settings = soft::SwitchSettings::Htsim();
  // The reference counts thresholds in payloads and compares them with bytes on the wire.
  topology->switch_settings.xoff_bytes = uint64_t{experiment.xoff_packets} * kPayloadBytes;
  topology->switch_settings.xon_bytes = uint64_t{experiment.xon_packets} * kPayloadBytes;
  topology->routing.seed = seed;

  soft::SimulationSettings settings;
  settings.seed = seed;
  settings.rc.payload_bytes = kPayloadBytes;
  settings.rc.header_bytes = kHeaderBytes;
  settings.rc.first_bytes = settings.rc.last_bytes = 0;
  settings.rc.ack_bytes = kHeaderBytes;
  settings.rc.ack_interval_packets = 1;
  settings.rc.timeout = 0;

  std::vector<soft::FlowSpec> specs;
  const std::map<std::pair<int, int>, uint32_t> links =
      experiment.routes.empty() ? std::map<std::pair<int, int>, uint32_t>() : SwitchLinks(*topology);
  for (size_t i = 0; i < experiment.flows.size(); ++i) {
    soft::FlowSpec spec;
    spec.source = experiment.flows[i].source;
    spec.destination = experiment.flows[i].destination;
    if (!experiment.routes.empty()) {
      const RecordedFlow& r = experiment.routes[i];
      spec.flow_hash = static_cast<uint32_t>(2 * i + 1);
      spec.ack_hash = static_cast<uint32_t>(2 * i + 2);
      topology->routing.static_routes.push_back(
          {spec.flow_hash, RouteLinks(links, r.source, r.destination, r.aggregation, r.core)});
      topology->routing.static_routes.push_back(
          {spec.ack_hash, RouteLinks(links, r.destination, r.source, r.ack_aggregation, r.ack_core)});
    }
    specs.push_back(spec);
  }

  Result<std::unique_ptr<Simulation>> made = Simulation::Create(std::move(*topology), settings);
  if (!made.ok()) return made.status();
  Simulation& simulation = **made;
  FirstMessages first(&simulation, specs.size());
  simulation.set_observer(&first);
  for (const soft::FlowSpec& spec : specs) {
    const FlowId flow = simulation.AddFlow(spec);
    const Picos start = experiment.flows[flow].start_us * soft::kPicosPerUs;
    // The reference sends whole packets only, and one more than the flow has, which it does not count.
    const uint64_t packets = (experiment.flow_bytes + kPayloadBytes - 1) / kPayloadBytes;
    simulation.PostAt(start, flow, packets * kPayloadBytes);
    simulation.PostAt(start, flow, kPayloadBytes);
  }
  simulation.Run();

  RoceResult result;
  for (const Picos done : first.done()) {
    if (done == soft::kNever) return InternalError("a flow of a lossless network did not finish");
    result.completion_us.push_back(static_cast<double>(done) / soft::kPicosPerUs);
  }
  result.pauses = TruthOf(simulation).pauses;
  result.packet_hops = simulation.statistics().packet_hops;
  return result;
}

}  // namespace sluice::scenario
