// priority, storage over the real plugin.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tools/scenario/flow_network.h"
#include "tools/scenario/plugin_run.h"
#include "tools/scenario/report.h"
#include "tools/scenario/runs.h"

namespace sluice::scenario {
namespace {

using workload::Job;
using workload::JobResult;
using workload::Results;
using workload::Workload;

enum class Lanes {
  kOne,          // whatever a packet says
  kFloor,        // one that leaves the others 2 %
  kUrgentFirst,  // one before all others at every queue of NICs and switches; a packet that has begun is finished
};

// How traffic that must not wait is told from the rest, and what else runs.
struct LaneCase {
  const char* name;
  bool loaded;  // with what disturbs it
  bool marked;  // its communicators have the urgent lane's traffic class
  Lanes lanes;
  std::map<std::string, std::string> environment{};
};

// The urgent lane: priority 3 by DSCP 24, VL 1 by SL 1.
constexpr int kUrgentDscp = 24;
constexpr int kUrgentSl = 1;

// Everything in one class: what a transport without lanes does.
std::map<std::string, std::string> OneClass() {
  return {{"SLUICE_POLICY", "[[rule]]\nclass = 'bulk'\n"}};
}
// The built-in rules; these classes have marks of their own.
std::map<std::string, std::string> MarkedLanes(std::initializer_list<const char*> classes) {
  std::string policy = "default_rules = true\n";
  for (const char* name : classes) {
    policy += "[[class]]\nname = '" + std::string(name) + "'\nsl = " + std::to_string(kUrgentSl) +
              "\ndscp = " + std::to_string(kUrgentDscp) + "\n";
  }
  return {{"SLUICE_POLICY", policy}};
}

// Alone and the oracle come first: others are measured by them.
const std::vector<LaneCase>& LaneCases() {
  static const std::vector<LaneCase> cases = {
      {"alone", false, false, Lanes::kOne, OneClass()},
      {"oracle", true, true, Lanes::kUrgentFirst, OneClass()},
      {"one class", true, false, Lanes::kOne, OneClass()},
      {"lanes, 2 VLs", true, false, Lanes::kUrgentFirst, MarkedLanes({"control", "latency"})},
      {"lanes, 1 VL", true, false, Lanes::kOne},
  };
  return cases;
}

int UrgentTrafficClass(bool infiniband) {
  return infiniband ? kUrgentSl : kUrgentDscp << 2;
}

std::string OverridesFor(Lanes lanes, bool infiniband) {
  if (lanes == Lanes::kUrgentFirst) {
    return infiniband ? "switches.vl_high=1:255,switches.vl_low=0:64/2:64/3:64"
                      : "switches.strict_priorities=3/6/7";
  }
  if (lanes == Lanes::kFloor) {
    // 50 x 4 KB, then one packet of another lane; weights of deficit round robin.
    return infiniband ? "switches.vl_high=1:255,switches.vl_low=0:64/2:64/3:64,switches.vl_high_limit=50"
                      : "switches.ets=0:2/3:98";
  }
  std::string table = "0";
  for (int i = 1; i < (infiniband ? 16 : 64); ++i) table += "/0";
  return (infiniband ? "switches.sl2vl=" : "switches.dscp=") + table;
}

// One of the arms on a network.
PluginArm ArmOf(const PluginArm& base, const LaneCase& lanes, bool infiniband) {
  PluginArm arm = base;
  arm.name = base.name + " " + lanes.name;
  arm.environment = lanes.environment;
  arm.overrides = OverridesFor(lanes.lanes, infiniband);
  return arm;
}

double GoodputGbps(const JobResult& job, size_t ranks, double time_us) {
  return static_cast<double>(job.bytes()) * 8e-3 / time_us / static_cast<double>(ranks);
}

// ---- priority

constexpr uint32_t kPriorityHosts = 16;
constexpr uint32_t kGroups = 4;
constexpr uint64_t kSmallBytes = 64 << 10;
constexpr uint64_t kMediumBytes = 1 << 20;
constexpr uint32_t kSmallCalls = 3;  // in an iteration, before one of kMediumBytes

Workload PriorityWorkload(const RunConfig& config, const LaneCase& lanes, uint32_t hosts, bool infiniband) {
  Workload workload;
  for (uint32_t group = 0; group < kGroups; ++group) {
    Job job{.name = "tensor" + std::to_string(group)};
    for (uint32_t i = 0; i < kPriorityHosts / kGroups; ++i) job.hosts.push_back(i * (hosts / 4) + group);
    for (uint32_t i = 0; i < kSmallCalls; ++i) job.calls.push_back({.bytes = kSmallBytes, .proto = "ll128"});
    job.calls.push_back({.bytes = kMediumBytes, .proto = "simple"});
    job.iterations = config.size == Size::kCi ? 6 : config.size == Size::kDefault ? 64 : 640;
    if (lanes.marked) job.traffic_class = UrgentTrafficClass(infiniband);
    workload.jobs.push_back(std::move(job));
  }
  if (!lanes.loaded) return workload;
  Job bulk{.name = "data"};
  for (uint32_t i = 0; i < 4; ++i) {
    for (uint32_t group = 0; group < kGroups; ++group) bulk.hosts.push_back(i * (hosts / 4) + group);
  }
  bulk.calls = {{.bytes = 256 << 20, .proto = "simple"}};
  bulk.channels = 2;
  bulk.iterations = 0;
  workload.jobs.push_back(std::move(bulk));
  // Behind it the small ones would take for ever.
  workload.stop_us = config.size == Size::kCi ? 2'000 : config.size == Size::kDefault ? 22'000 : 220'000;
  return workload;
}

struct PriorityFigures {
  std::vector<double> small_us;
  std::vector<double> medium_us;
  double active = 0;      // share of the time, of the group with the least
  double link_share = 0;  // of one NIC port, payload
  double bulk_gbps = 0;
};

PriorityFigures FiguresOf(const Results& results, uint64_t rate_bps) {
  PriorityFigures figures;
  double time_us = 0;
  for (uint32_t group = 0; group < kGroups; ++group) {
    for (const workload::CallTimes& call : results.jobs[group].calls)
      time_us = std::max(time_us, call.last_end_us);
  }
  figures.active = 1;
  double bytes = 0;
  for (uint32_t group = 0; group < kGroups; ++group) {
    const JobResult& job = results.jobs[group];
    double busy_us = 0;
    double until_us = 0;
    for (const workload::CallTimes& call : job.calls) {
      busy_us += call.last_end_us - std::max(until_us, call.first_begin_us);
      until_us = call.last_end_us;
      std::vector<double>& durations = call.call == kSmallCalls ? figures.medium_us : figures.small_us;
      durations.push_back(call.duration_us());
    }
    if (until_us > 0) figures.active = std::min(figures.active, busy_us / until_us);
    bytes += static_cast<double>(job.bytes());
  }
  figures.link_share = bytes / kPriorityHosts * 8e6 / time_us / static_cast<double>(rate_bps);
  if (results.jobs.size() > kGroups)
    figures.bulk_gbps = GoodputGbps(results.jobs.back(), kPriorityHosts, results.time_us);
  return figures;
}

void AddSizes(Outcome* outcome, const std::string& name, const PriorityFigures& figures,
              const PriorityFigures& alone) {
  struct SizeOf {
    const char* name;
    const std::vector<double>& us;
    const std::vector<double>& alone_us;
  };
  for (const SizeOf& size : {SizeOf{"64 KiB", figures.small_us, alone.small_us},
                             SizeOf{"1 MiB", figures.medium_us, alone.medium_us}}) {
    for (const auto& [label, fraction] : {std::pair{"median", 0.5}, std::pair{"99 %", 0.99}}) {
      const std::string what = std::string(size.name) + ", " + label;
      outcome->Add(name, what, "us", Quantile(size.us, fraction));
      outcome->Add(name, what + " / alone", "",
                   Quantile(size.us, fraction) / Quantile(size.alone_us, fraction));
    }
  }
}

// ---- storage

// Storage is not ours to hold back: all communication has the lane, which leaves storage the floor of 2 %.
const std::vector<LaneCase>& StorageCases() {
  static const std::vector<LaneCase> cases = {
      {"alone", false, false, Lanes::kOne, OneClass()},
      {"oracle", true, true, Lanes::kUrgentFirst, OneClass()},
      {"one class", true, false, Lanes::kOne, OneClass()},
      {"lanes, 2 VLs", true, false, Lanes::kFloor, MarkedLanes({"control", "latency", "bulk"})},
  };
  return cases;
}

constexpr uint32_t kStorageHosts = 16;
constexpr double kCommunication = 0.4;  // of a step, alone
constexpr double kWriterLoads[] = {0.3, 0.5, 0.7};

// Every second host is a storage server, so that writers do not ask more of servers than these can take.
bool IsServer(uint32_t host) {
  return host % 2 == 1;
}

std::string Writers(const soft::Topology& topology, double load, double stop_us) {
  std::string hosts;
  std::string servers;
  for (uint32_t i = 0; i < kStorageHosts; ++i) {
    std::string& list = IsServer(i) ? servers : hosts;
    list += (list.empty() ? "" : "+") + topology.hosts[i].name;
  }
  return "storage:hosts=" + hosts + ",targets=" + servers + ",read_share=0,load=" + Number(load) +
         ",stop=" + std::to_string(std::llround(stop_us)) + "us";
}

Workload StorageWorkload(const RunConfig& config, uint32_t steps, double compute_us) {
  Workload workload;
  Job job{.name = "training"};
  for (uint32_t i = 0; i < kStorageHosts; ++i) {
    if (!IsServer(i)) job.hosts.push_back(i);
  }
  job.calls = {{.bytes = config.size == Size::kCi ? 4U << 20 : 16U << 20, .proto = "simple"}};
  job.iterations = steps;
  job.compute_us = compute_us;
  workload.jobs = {std::move(job)};
  return workload;
}

}  // namespace

Result<Outcome> PluginPriority(const RunConfig& config) {
  Outcome outcome;
  for (const PluginArm& base : PluginArms(config)) {
    Result<PluginNetwork> network =
        PluginNetworkOf(config, "leaf-spine:hosts=16,rate=400G,hosts_per_leaf=4", base, kPriorityHosts);
    if (!network.ok()) return network.status();
    const bool infiniband = IsInfiniBand(network->topology);
    PriorityFigures alone;
    double oracle_gbps = 0;
    for (const LaneCase& lanes : LaneCases()) {
      const PluginArm arm = ArmOf(base, lanes, infiniband);
      const auto hosts = static_cast<uint32_t>(network->topology.hosts.size());
      Result<Results> results =
          RunOverPlugin(config, *network, arm, PriorityWorkload(config, lanes, hosts, infiniband));
      if (!results.ok()) return results.status();
      const PriorityFigures figures = FiguresOf(*results, RateOf(network->topology));
      if (!lanes.loaded) alone = figures;
      if (lanes.marked) oracle_gbps = figures.bulk_gbps;
      outcome.Add(arm.name, "operations", "",
                  static_cast<double>(figures.small_us.size() + figures.medium_us.size()));
      outcome.Add(arm.name, "active share of the time", "", figures.active);
      outcome.Add(arm.name, "share of the link", "", figures.link_share);
      AddSizes(&outcome, arm.name, figures, alone);
      if (lanes.loaded) {
        outcome.Add(arm.name, "bulk goodput", "Gb/s", figures.bulk_gbps);
        outcome.Add(arm.name, "bulk goodput / oracle", "", figures.bulk_gbps / oracle_gbps);
      }
      outcome.samples[arm.name + ", 64 KiB"] = figures.small_us;
      outcome.samples[arm.name + ", 1 MiB"] = figures.medium_us;
      outcome.packet_hops += results->packet_hops;
    }
  }
  return outcome;
}

Result<Outcome> PluginStorage(const RunConfig& config) {
  Outcome outcome;
  const uint32_t steps = config.size == Size::kFull ? 40 : 6;
  for (const PluginArm& base : PluginArms(config)) {
    Result<PluginNetwork> network =
        PluginNetworkOf(config, "leaf-spine:hosts=16,rate=400G,hosts_per_leaf=4", base, kStorageHosts);
    if (!network.ok()) return network.status();
    const bool infiniband = IsInfiniBand(network->topology);
    // Without computing: what communication takes.
    Result<Results> bare = RunOverPlugin(config, *network, base, StorageWorkload(config, 3, 0));
    if (!bare.ok()) return bare.status();
    const double communication_us = Quantile(StepsUs(bare->jobs[0]), 0.5);
    const double compute_us = communication_us * (1 - kCommunication) / kCommunication;
    double alone_us = 0;
    for (const LaneCase& lanes : StorageCases()) {
      for (const double load : kWriterLoads) {
        if (!lanes.loaded && load != kWriterLoads[0]) continue;
        PluginArm arm = ArmOf(base, lanes, infiniband);
        Workload workload = StorageWorkload(config, steps, compute_us);
        if (lanes.loaded) {
          arm.name += ", writers " + Number(load * 100) + " %";
          workload.background = Writers(network->topology, load, 3 * alone_us * steps);
        }
        if (lanes.marked) workload.jobs[0].traffic_class = UrgentTrafficClass(infiniband);
        Result<Results> results = RunOverPlugin(config, *network, arm, workload);
        if (!results.ok()) return results.status();
        const std::vector<double> steps_us = StepsUs(results->jobs[0]);
        if (!lanes.loaded) alone_us = Mean(steps_us);
        outcome.Add(arm.name, "step", "us", Mean(steps_us));
        outcome.Add(arm.name, "step / alone", "", Mean(steps_us) / alone_us);
        outcome.Add(arm.name, "longest step / alone", "", Quantile(steps_us, 1) / alone_us);
        outcome.samples[arm.name] = steps_us;
        outcome.packet_hops += results->packet_hops;
      }
    }
  }
  return outcome;
}

}  // namespace sluice::scenario
