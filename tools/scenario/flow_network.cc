#include "tools/scenario/flow_network.h"

#include <algorithm>
#include <utility>

#include "verbs/soft/flows/random.h"

namespace sluice::scenario {

using soft::FlowId;
using soft::Picos;
using soft::Simulation;
using soft::Topology;

const soft::CongestionControlFactory* StaticControl() {
  static const soft::StaticWindowFactory window(soft::kNcclChannelBytes);
  return &window;
}

std::vector<Arm> StandardArms(const RunConfig& config) {
  if (!config.topology.empty()) return {{"static", false, StaticControl()}, {"unbounded", false, nullptr}};
  return {{"roce static", false, StaticControl()},
          {"roce unbounded", false, nullptr},
          {"ib static", true, StaticControl()}};
}

Result<Topology> TopologyOf(const RunConfig& config, const std::string& default_text, const Arm& arm) {
  Result<Topology> topology =
      !config.topology.empty()
          ? Topology::Parse(config.topology)
          : Topology::FromText(default_text +
                               (arm.infiniband ? ",link=infiniband,delay=100ns" : ",delay=1us"));
  if (!topology.ok()) return topology.status();
  if (config.topology.empty()) {
    topology->switch_settings =
        arm.infiniband ? soft::SwitchSettings::InfiniBand() : soft::SwitchSettings::Shared64();
  }
  SLUICE_RETURN_IF_ERROR(topology->Add(config.faults, config.background));
  return topology;
}

bool IsInfiniBand(const Topology& topology) {
  return topology.hosts.front().nics.front().ports.front().link_layer == soft::LinkLayer::kInfiniBand;
}

uint64_t RateOf(const Topology& topology) {
  return topology.hosts.front().nics.front().ports.front().rate_bps;
}

uint32_t EndpointCount(const Topology& topology) {
  size_t count = 0;
  for (const soft::HostSpec& host : topology.hosts) {
    for (const soft::NicSpec& nic : host.nics) count += nic.ports.size();
  }
  return static_cast<uint32_t>(count);
}

Status NeedEndpoints(const Topology& topology, uint32_t needed) {
  const uint32_t count = EndpointCount(topology);
  if (count >= needed) return Status::Ok();
  return InvalidArgument("--topology: " + std::to_string(count) +
                         " NIC ports are too few; this scenario needs " + std::to_string(needed));
}

soft::SimulationSettings FlowSettings(const Topology& topology, uint64_t seed) {
  soft::SimulationSettings settings;
  settings.seed = seed;
  settings.rc = IsInfiniBand(topology) ? soft::RcSettings::InfiniBand() : soft::RcSettings::Roce();
  return settings;
}

Result<std::unique_ptr<Simulation>> MakeSimulation(const Topology& topology, uint64_t seed) {
  Topology copy = topology;
  copy.routing.seed = seed;
  return Simulation::Create(std::move(copy), FlowSettings(topology, seed));
}

std::vector<uint32_t> IncastDegrees(Size size) {
  std::vector<uint32_t> degrees = {8, 32};
  if (size != Size::kCi) degrees.push_back(128);
  if (size == Size::kFull) degrees.push_back(255);
  return degrees;
}

std::vector<uint32_t> DrawSenders(uint32_t count, uint32_t endpoints, uint64_t seed) {
  soft::Random random(seed, soft::kRandomMatrix, count);
  std::vector<uint32_t> others;
  for (uint32_t i = 1; i < endpoints; ++i) others.push_back(i);
  for (uint32_t i = 0; i < count; ++i) std::swap(others[i], others[i + random.Below(others.size() - i)]);
  others.resize(count);
  return others;
}

Result<double> AloneUs(const Topology& topology, uint32_t source, uint32_t destination, uint64_t bytes) {
  soft::Topology quiet = topology;
  quiet.faults.clear();
  quiet.background.clear();
  Result<std::unique_ptr<Simulation>> made = MakeSimulation(quiet, 1);
  if (!made.ok()) return made.status();
  Simulation& simulation = **made;
  const FlowId flow = simulation.AddFlow({.source = source, .destination = destination});
  simulation.PostAt(0, flow, bytes);
  simulation.Run();
  if (simulation.FinishTime(flow) == soft::kNever) return InternalError("a flow alone did not finish");
  return Us(simulation.FinishTime(flow));
}

Status NeedFinished(const Simulation& simulation) {
  for (FlowId flow = simulation.first_flow(); flow < simulation.flows(); ++flow) {
    if (simulation.FinishTime(flow) != soft::kNever) continue;
    return RemoteError("flow " + std::to_string(flow) + " of " + std::to_string(simulation.flows()) +
                       (simulation.Failed(flow) ? " used up its retries" : " did not finish") +
                       ": the network loses too much of it; look at the faults of --topology and --fault");
  }
  return Status::Ok();
}

Status NeedAlive(const Simulation& simulation) {
  for (FlowId flow = simulation.first_flow(); flow < simulation.flows(); ++flow) {
    if (!simulation.Failed(flow)) continue;
    return RemoteError(
        "flow " + std::to_string(flow) + " of " + std::to_string(simulation.flows()) +
        " used up its retries: the network loses too much of it; look at the faults of --topology "
        "and --fault");
  }
  return Status::Ok();
}

Result<double> NearestUs(const Topology& topology, const std::vector<uint32_t>& sources,
                         uint32_t destination) {
  soft::Topology quiet = topology;
  quiet.faults.clear();
  quiet.background.clear();
  Result<std::unique_ptr<Simulation>> made = MakeSimulation(quiet, 1);
  if (!made.ok()) return made.status();
  Simulation& simulation = **made;
  double least_us = 0;
  for (const uint32_t source : sources) {
    const FlowId flow = simulation.AddFlow({.source = source, .destination = destination});
    const Picos begin = simulation.Now();
    simulation.Post(flow, 1);
    simulation.Run();
    if (simulation.FinishTime(flow) == soft::kNever) return InternalError("a flow alone did not finish");
    const double us = Us(simulation.FinishTime(flow) - begin);
    if (least_us == 0 || us < least_us) least_us = us;
  }
  return least_us;
}

uint64_t WireBytes(uint64_t bytes, const soft::RcSettings& rc) {
  const uint64_t packets = bytes == 0 ? 1 : (bytes + rc.payload_bytes - 1) / rc.payload_bytes;
  return bytes + packets * rc.header_bytes + rc.first_bytes + rc.last_bytes;
}

void FlowRouter::Set(FlowId flow, soft::FlowObserver* observer) {
  if (observers_.size() <= flow) observers_.resize(flow + 1, nullptr);
  observers_[flow] = observer;
}

void FlowRouter::OnSent(FlowId flow, uint64_t message) {
  if (soft::FlowObserver* observer = Find(flow)) observer->OnSent(flow, message);
}

void FlowRouter::OnReceived(FlowId flow, uint64_t message) {
  if (soft::FlowObserver* observer = Find(flow)) observer->OnReceived(flow, message);
}

void FlowRouter::OnFailed(FlowId flow) {
  if (soft::FlowObserver* observer = Find(flow)) observer->OnFailed(flow);
}

}  // namespace sluice::scenario
