// fairness, two-jobs, lossy over the real plugin.
#include <algorithm>

#include "tools/scenario/flow_network.h"
#include "tools/scenario/plugin_run.h"
#include "tools/scenario/runs.h"
#include "verbs/soft/flows/random.h"

namespace sluice::scenario {
namespace {

using workload::Job;
using workload::Results;
using workload::Workload;

constexpr uint32_t kSenders = 16;
constexpr int kPairsPerChannel = 8;

// 16 senders to one receiver, half of them on its own leaf; or 16 pairs over one link between switches.
Job SharingJob(bool shared_link, uint32_t hosts, double window_us, uint64_t rate_bps, soft::Random* random) {
  const uint32_t half = hosts / 2;
  Job job{.name = "flows"};
  const auto add = [&](uint32_t host, double start_us) {
    job.hosts.push_back(host);
    job.rank_start_us.push_back(start_us);
    return static_cast<int>(job.hosts.size() - 1);
  };
  const int receiver = shared_link ? -1 : add(0, 0);
  for (uint32_t i = 0; i < kSenders; ++i) {
    const double start_us = random->Unit() * window_us / 10;
    const uint32_t source = shared_link || i >= 8 ? (shared_link ? i : half + i) : i + 1;
    const int from = add(source, start_us);
    job.transfers.push_back({from, shared_link ? add(half + i, 0) : receiver});
  }
  // More than one flow alone could send.
  const auto bytes = static_cast<uint64_t>(static_cast<double>(rate_bps) / 8e6 * window_us * 1.2);
  job.calls = {{.op = "sendrecv", .bytes = bytes / 4 * 4, .proto = "simple"}};
  job.channels = shared_link ? 1 : (static_cast<int>(kSenders) + kPairsPerChannel - 1) / kPairsPerChannel;
  return job;
}

}  // namespace

Result<Outcome> PluginFairness(const RunConfig& config) {
  Outcome outcome;
  const double window_us = config.size == Size::kCi ? 1'000 : config.size == Size::kDefault ? 4'000 : 20'000;
  for (const PluginArm& arm : PluginArms(config)) {
    Result<PluginNetwork> network =
        PluginNetworkOf(config, "leaf-spine:hosts=32,rate=400G,hosts_per_leaf=16,spines=1,links_per_spine=1",
                        arm, 2 * kSenders);
    if (!network.ok()) return network.status();
    const auto hosts = static_cast<uint32_t>(network->topology.hosts.size());
    for (const bool shared_link : {false, true}) {
      soft::Random random(config.seed, soft::kRandomStart, kSenders);
      Workload workload;
      workload.jobs = {SharingJob(shared_link, hosts, window_us, RateOf(network->topology), &random)};
      workload.marks_us = {window_us / 10};
      workload.stop_us = window_us;
      Result<Results> results = RunOverPlugin(config, *network, arm, workload);
      if (!results.ok()) return results.status();
      std::vector<double> goodputs;
      for (const workload::ConnectionResult& c : results->jobs[0].connections) {
        goodputs.push_back(static_cast<double>(c.bytes - c.marks[0]) * 8e-3 / (window_us * 0.9));
      }
      const std::string which = shared_link ? ", one shared link" : ", one receiver";
      outcome.Add(arm.name, "Jain's index" + which, "", JainIndex(goodputs));
      outcome.Add(arm.name, "least goodput" + which, "Gb/s", Quantile(goodputs, 0));
      outcome.Add(arm.name, "most goodput" + which, "Gb/s", Quantile(goodputs, 1));
      outcome.samples[arm.name + which] = goodputs;
      outcome.packet_hops += results->packet_hops;
    }
  }
  return outcome;
}

Result<Outcome> PluginTwoJobs(const RunConfig& config) {
  Outcome outcome;
  constexpr uint32_t kRanks = 8;
  constexpr double kCommunication = 0.3;  // of a step, alone
  const uint32_t steps = config.size == Size::kCi ? 10 : 30;
  for (const PluginArm& arm : PluginArms(config)) {
    // The link between the leaves carries one job's ring at full rate, or two at half.
    Result<PluginNetwork> network = PluginNetworkOf(
        config, "leaf-spine:hosts=16,rate=400G,hosts_per_leaf=8,spines=1,spine_rate=1600G", arm, 2 * kRanks);
    if (!network.ok()) return network.status();
    const auto hosts = static_cast<uint32_t>(network->topology.hosts.size());
    const auto job_of = [&](uint32_t number, uint32_t iterations, double compute_us) {
      Job job{.name = "job" + std::to_string(number)};
      // Ranks alternate between the two halves of the hosts, so every hop crosses.
      for (uint32_t i = 0; i < kRanks; ++i)
        job.hosts.push_back(number * kRanks / 2 + i / 2 + (i % 2) * hosts / 2);
      job.calls = {{.bytes = config.size == Size::kCi ? 2U << 20 : 8U << 20, .proto = "simple"}};
      job.iterations = iterations;
      job.compute_us = compute_us;
      return job;
    };
    const auto run = [&](std::vector<Job> jobs) {
      Workload workload;
      workload.jobs = std::move(jobs);
      return RunOverPlugin(config, *network, arm, workload);
    };
    Result<Results> bare = run({job_of(0, 3, 0)});
    if (!bare.ok()) return bare.status();
    const double communication_us = Quantile(StepsUs(bare->jobs[0]), 0.5);
    const double compute_us = communication_us * (1 - kCommunication) / kCommunication;
    Result<Results> alone = run({job_of(0, steps, compute_us)});
    if (!alone.ok()) return alone.status();
    const double alone_us = Mean(StepsUs(alone->jobs[0]));
    Job second = job_of(1, steps, compute_us);
    second.start_us = soft::Random(config.seed, soft::kRandomStart, 0).Unit() * alone_us;
    Result<Results> both = run({job_of(0, steps, compute_us), second});
    if (!both.ok()) return both.status();
    std::vector<double> ratios;
    for (const workload::JobResult& job : both->jobs) {
      std::vector<double> steps_us = StepsUs(job);
      if (job.name == second.name && !steps_us.empty()) steps_us[0] -= second.start_us;
      for (const double us : steps_us) ratios.push_back(us / alone_us);
    }
    outcome.Add(arm.name, "step alone", "us", alone_us);
    outcome.Add(arm.name, "step / alone", "", Mean(ratios));
    outcome.Add(arm.name, "longest step / alone", "", Quantile(ratios, 1));
    outcome.samples[arm.name] = std::move(ratios);
    outcome.packet_hops += bare->packet_hops + alone->packet_hops + both->packet_hops;
  }
  return outcome;
}

}  // namespace sluice::scenario
