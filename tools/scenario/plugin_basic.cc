// uncontended, incast, victim, all-to-all, permutation over the real plugin.
#include <algorithm>

#include "tools/scenario/flow_network.h"
#include "tools/scenario/like_for_like.h"
#include "tools/scenario/plugin_run.h"
#include "tools/scenario/runs.h"

namespace sluice::scenario {
namespace {

using workload::Job;
using workload::JobResult;
using workload::Results;
using workload::Workload;

// So long before the senders that all receives are posted and known to them.
constexpr double kReceiversFirstUs = 100;
// Pairs of a rank that run on one channel at a time.
constexpr uint32_t kPairsPerChannel = 8;

// Completions of the transfers of a job whose senders began at `begin_us`, in the order of `transfers`.
std::vector<double> CompletionsUs(const Job& job, const JobResult& result, double begin_us) {
  std::vector<double> completions;
  for (const std::vector<int>& transfer : job.transfers) {
    for (const workload::ConnectionResult& c : result.connections) {
      if (c.from == transfer[0] && c.to == transfer[1]) completions.push_back(c.end_us - begin_us);
    }
  }
  return completions;
}

// Every sender to rank 0, which has posted its receives.
Job IncastJob(std::string name, uint32_t receiver, const std::vector<uint32_t>& senders, uint64_t bytes) {
  Job job{.name = std::move(name)};
  job.hosts = {receiver};
  job.rank_start_us = {0};
  for (uint32_t i = 0; i < senders.size(); ++i) {
    job.hosts.push_back(senders[i]);
    job.rank_start_us.push_back(kReceiversFirstUs);
    job.transfers.push_back({static_cast<int>(i + 1), 0});
  }
  job.calls = {{.op = "sendrecv", .bytes = bytes, .proto = "simple"}};
  job.channels = static_cast<int>((senders.size() + kPairsPerChannel - 1) / kPairsPerChannel);
  return job;
}

double WireUs(const PluginNetwork& network, uint64_t messages, uint64_t bytes) {
  return static_cast<double>(messages * WireBytes(bytes, FlowSettings(network.topology, 1).rc)) * 8e6 /
         static_cast<double>(RateOf(network.topology));
}

}  // namespace

Result<Outcome> PluginUncontended(const RunConfig& config) {
  Outcome outcome;
  std::vector<uint64_t> sizes = {8, 1 << 10, 64 << 10, 1 << 20, 4 << 20};
  if (config.size != Size::kCi) sizes.insert(sizes.end(), {16 << 20, 64 << 20});
  struct Case {
    const char* name;
    uint32_t ranks;
    int channels;
    uint64_t largest;
  };
  const bool ci = config.size == Size::kCi;
  const uint32_t ring = ci ? 16 : 64;
  std::vector<Case> cases = {{"pair", 2, 1, UINT64_MAX}, {"ring", ring, 1, UINT64_MAX}};
  if (!ci)
    cases.insert(cases.end(),
                 {{"pair, 8 channels", 2, 8, UINT64_MAX}, {"ring, 8 channels", ring, 8, 64 << 20}});
  if (!ci) sizes.push_back(256 << 20);
  for (const PluginArm& arm : PluginArms(config)) {
    Result<PluginNetwork> network =
        PluginNetworkOf(config, "leaf-spine:rate=400G,hosts=" + std::to_string(ring), arm, 2);
    if (!network.ok()) return network.status();
    const auto hosts = static_cast<uint32_t>(network->topology.hosts.size());
    for (const Case& c : cases) {
      Workload workload;
      Job job{.name = c.name};
      job.channels = c.channels;
      // A pair is as far apart as the network allows.
      const uint32_t ranks = std::min({c.ranks, hosts, 256U});
      job.hosts = ranks == 2 ? std::vector<uint32_t>{0, hosts - 1} : FirstHosts(ranks);
      // A ring of many ranks needs more packets.
      const uint64_t largest = config.size == Size::kFull || ranks == 2 ? c.largest : 64 << 20;
      job.calls = {{.bytes = 8}};  // warms up
      for (const uint64_t bytes : sizes) {
        if (bytes <= largest) job.calls.push_back({.bytes = bytes});
      }
      workload.jobs = {job};
      Result<Results> results = RunOverPlugin(config, *network, arm, workload);
      if (!results.ok()) return results.status();
      const std::string name = arm.name + " " + c.name;
      for (size_t i = 1; i < job.calls.size(); ++i) {
        const double us = DurationsUs(results->jobs[0], static_cast<uint32_t>(i))[0];
        const uint64_t bytes = job.calls[i].bytes;
        const std::string size = std::to_string(bytes) + " B";
        const double bus_gbps = static_cast<double>(bytes) * 2 * (ranks - 1) / ranks * 8e-3 / us;
        outcome.Add(name, "time, " + size, "us", us);
        outcome.Add(name, "bus bandwidth, " + size, "Gb/s", bus_gbps);
        outcome.samples[name].push_back(bus_gbps * 1e9 / static_cast<double>(RateOf(network->topology)));
      }
      outcome.packet_hops += results->packet_hops;
    }
  }
  return outcome;
}

Result<Outcome> PluginIncast(const RunConfig& config) {
  Outcome outcome;
  constexpr uint64_t kBytes = 1 << 20;
  const std::vector<uint32_t> degrees = IncastDegrees(config.size);
  for (const PluginArm& arm : PluginArms(config)) {
    Result<PluginNetwork> network =
        PluginNetworkOf(config, "leaf-spine:hosts=256,rate=400G", arm, degrees.front() + 1);
    if (!network.ok()) return network.status();
    const auto hosts = static_cast<uint32_t>(network->topology.hosts.size());
    for (const uint32_t degree : degrees) {
      if (degree >= std::min(hosts, 256U)) continue;
      const std::vector<uint32_t> senders = DrawSenders(degree, hosts, config.seed);
      // Ideal: the receiver's link is busy from the moment at which the nearest sender reaches it.
      Result<double> nearest = NearestUs(network->topology, senders, 0);
      if (!nearest.ok()) return nearest.status();
      Workload workload;
      workload.jobs = {IncastJob("incast", 0, senders, kBytes)};
      workload.tracked = {0};
      Result<Results> results = RunOverPlugin(config, *network, arm, workload);
      if (!results.ok()) return results.status();
      const std::vector<double> completions =
          CompletionsUs(workload.jobs[0], results->jobs[0], kReceiversFirstUs);
      const double last = Quantile(completions, 1);
      const std::string which = ", " + std::to_string(degree) + ":1";
      outcome.Add(arm.name, "last completion" + which, "us", last);
      outcome.Add(arm.name, "last / ideal" + which, "", last / (WireUs(*network, degree, kBytes) + *nearest));
      outcome.Add(arm.name, "last / first" + which, "", last / Quantile(completions, 0));
      outcome.Add(arm.name, "peak queued for the receiver" + which, "KB",
                  static_cast<double>(results->tracked_peak_bytes[0]) * 1e-3);
      outcome.Add(arm.name, "pauses between switches" + which, "",
                  static_cast<double>(results->switch_pauses));
      outcome.Add(arm.name, "transmit-wait between switches" + which, "us", results->switch_transmit_wait_us);
      outcome.packet_hops += results->packet_hops;
      outcome.samples[arm.name] = completions;
    }
  }
  return outcome;
}

Result<Outcome> PluginVictim(const RunConfig& config) {
  constexpr uint64_t kBytes = 2'000'000;
  Outcome outcome;
  const std::vector<RoceFlow> flows = VictimFlows();
  const RoceFlow& victim = flows.back();
  std::vector<uint32_t> senders;
  for (size_t i = 0; i < kVictimFlow; ++i) senders.push_back(flows[i].source);
  const PluginArm arm{.name = "plugin"};
  RunConfig own = config;
  // The network of like_for_like.h with NICs of the plugin's transport.
  own.topology = "fat-tree:hosts=128,rate=100G,delay=1us,switch=htsim";
  Result<PluginNetwork> network = PluginNetworkOf(own, "", arm, 128);
  if (!network.ok()) return network.status();
  const auto run = [&](bool with_incast, double victim_start_us) -> Result<Results> {
    Workload workload;
    Job job = IncastJob("victim", victim.destination, {victim.source}, kBytes);
    job.start_us = victim_start_us;
    workload.jobs = {job};
    if (with_incast) workload.jobs.push_back(IncastJob("incast", flows[0].destination, senders, kBytes));
    return RunOverPlugin(own, *network, arm, workload);
  };
  Result<Results> alone = run(false, 0);
  if (!alone.ok()) return alone.status();
  const double alone_us = alone->jobs[0].connections[0].end_us - kReceiversFirstUs;
  outcome.Add(arm.name, "victim alone", "us", alone_us);
  outcome.packet_hops += alone->packet_hops;
  for (const double start_us : {0.0, 2000.0}) {
    Result<Results> results = run(true, start_us);
    if (!results.ok()) return results.status();
    const std::string which = ", started at " + std::to_string(static_cast<int>(start_us / 1000)) + " ms";
    const double victim_us = results->jobs[0].connections[0].end_us - kReceiversFirstUs - start_us;
    const Job incast_job = IncastJob("incast", flows[0].destination, senders, kBytes);
    const std::vector<double> incast = CompletionsUs(incast_job, results->jobs[1], kReceiversFirstUs);
    outcome.Add(arm.name, "victim" + which, "us", victim_us);
    outcome.Add(arm.name, "victim / alone" + which, "", victim_us / alone_us);
    outcome.Add(arm.name, "incast, half done" + which, "us", Quantile(incast, 0.5));
    outcome.Add(arm.name, "incast, all done" + which, "us", Quantile(incast, 1));
    outcome.Add(arm.name, "pauses" + which, "", static_cast<double>(results->pauses));
    outcome.samples["incast" + which] = incast;
    outcome.samples["victim" + which] = {victim_us};
    outcome.packet_hops += results->packet_hops;
  }
  return outcome;
}

Result<Outcome> PluginAllToAll(const RunConfig& config) {
  Outcome outcome;
  const uint32_t ranks = config.size == Size::kCi ? 32 : config.size == Size::kDefault ? 64 : 256;
  const uint64_t bytes = config.size == Size::kDefault ? 512 << 10 : 64 << 10;
  for (const PluginArm& arm : PluginArms(config)) {
    Result<PluginNetwork> network =
        PluginNetworkOf(config, "leaf-spine:rate=400G,hosts=" + std::to_string(ranks), arm, 2);
    if (!network.ok()) return network.status();
    const uint32_t count = std::min(static_cast<uint32_t>(network->topology.hosts.size()), ranks);
    Result<double> alone = AloneUs(network->topology, 0, EndpointCount(network->topology) - 1, 1);
    if (!alone.ok()) return alone.status();
    Workload workload;
    Job job{.name = "all-to-all", .hosts = FirstHosts(count)};
    job.calls = {{.op = "all_to_all", .bytes = bytes * count, .proto = "simple"}};
    // As many as NCCL takes for so many peers.
    job.channels = static_cast<int>(std::min((count + kPairsPerChannel - 1) / kPairsPerChannel, 32U));
    workload.jobs = {job};
    Result<Results> results = RunOverPlugin(config, *network, arm, workload);
    if (!results.ok()) return results.status();
    std::vector<double> completions;
    for (const workload::ConnectionResult& c : results->jobs[0].connections) {
      if (c.bytes != 0) completions.push_back(c.end_us);
    }
    const double last = Quantile(completions, 1);
    outcome.Add(arm.name, "last completion", "us", last);
    outcome.Add(arm.name, "last / busiest link", "", last / (results->busiest_link_us + *alone));
    outcome.Add(arm.name, "last / host link", "", last / (WireUs(*network, count - 1, bytes) + *alone));
    outcome.samples[arm.name] = std::move(completions);
    outcome.packet_hops += results->packet_hops;
  }
  return outcome;
}

Result<Outcome> PluginPermutation(const RunConfig& config) {
  Outcome outcome;
  constexpr uint64_t kBytes = 1 << 20;
  const uint32_t ranks = config.size == Size::kCi ? 64 : config.size == Size::kDefault ? 128 : 256;
  for (const PluginArm& arm : PluginArms(config)) {
    Result<PluginNetwork> network =
        PluginNetworkOf(config, "leaf-spine:rate=400G,hosts=" + std::to_string(ranks), arm, 3);
    if (!network.ok()) return network.status();
    const uint32_t count = std::min(static_cast<uint32_t>(network->topology.hosts.size()), ranks);
    Result<double> alone = AloneUs(network->topology, 0, EndpointCount(network->topology) - 1, kBytes);
    if (!alone.ok()) return alone.status();
    Workload workload;
    Job job{.name = "permutation", .hosts = FirstHosts(count)};
    for (const RoceFlow& flow : PermutationFlows(count, config.seed)) {
      job.transfers.push_back({static_cast<int>(flow.source), static_cast<int>(flow.destination)});
    }
    job.calls = {{.op = "sendrecv", .bytes = kBytes, .proto = "simple"}};
    workload.jobs = {job};
    Result<Results> results = RunOverPlugin(config, *network, arm, workload);
    if (!results.ok()) return results.status();
    std::vector<double> slowdowns;
    for (const double us : CompletionsUs(job, results->jobs[0], 0)) slowdowns.push_back(us / *alone);
    outcome.Add(arm.name, "slowdown, median", "", Quantile(slowdowns, 0.5));
    outcome.Add(arm.name, "slowdown, 99 %", "", Quantile(slowdowns, 0.99));
    outcome.Add(arm.name, "slowdown, worst", "", Quantile(slowdowns, 1));
    outcome.Add(arm.name, "last completion", "us", Quantile(slowdowns, 1) * *alone);
    outcome.samples[arm.name] = std::move(slowdowns);
    outcome.packet_hops += results->packet_hops;
  }
  return outcome;
}

}  // namespace sluice::scenario
