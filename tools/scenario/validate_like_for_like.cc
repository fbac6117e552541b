// Recorded results of uet-htsim's htsim_roce (commit 40ccb05), see recorded_flows.cc for the command:
//   victim       incast_collateral_128, seeds 1 to 40
//   permutation  perm_128n_128c_2MB, seeds 1 to 20; perm_1024n_1024c_0u_2000000b, seeds 1 to 8 (its last
//                completion is one flow, 1139 to 1512 us: no figure to compare with)
//   incast       incast_128 with 1 MiB flows, all senders and the first 8, -q 400 -pfc_thresholds 100 120
//                -linkspeed 400000, seeds 1 to 10 and 1 to 20
// Every figure is the median over the seeds of the quantile within a run.
#include <algorithm>
#include <cmath>

#include "tools/scenario/like_for_like.h"
#include "tools/scenario/seed_runner.h"
#include "tools/scenario/validate.h"

namespace sluice::scenario {
namespace {

constexpr double kAloneUs = 176.2;  // of the longest path, and the unit of the recorded slowdowns

// Runs an experiment made for the seed; the samples "us" of each outcome are its completion times.
SeedResults RunMany(const std::string& name, uint32_t seeds, const ValidateOptions& options,
                    const std::function<RoceExperiment(uint64_t seed)>& make) {
  std::vector<uint64_t> list;
  for (uint32_t i = 0; i < seeds; ++i) list.push_back(options.seed + i);
  return RunSeeds("validate " + name, list, options.jobs, [&](uint64_t seed) -> Result<Outcome> {
    Result<RoceResult> result = RunRoce(make(seed), seed);
    if (!result.ok()) return result.status();
    Outcome outcome;
    outcome.samples["us"] = result->completion_us;
    outcome.packet_hops = result->packet_hops;
    return outcome;
  });
}

// Median over the runs of the quantile within a run. `skip_last`: without the last flow.
double MedianQuantile(const SeedResults& results, double fraction, bool skip_last = false) {
  std::vector<double> values;
  for (const Outcome& outcome : results.outcomes) {
    std::vector<double> us = outcome.samples.at("us");
    if (skip_last) us.pop_back();
    values.push_back(Quantile(us, fraction));
  }
  return Quantile(values, 0.5);
}

bool Collect(const SeedResults& results, Checks* out) {
  out->failures.insert(out->failures.end(), results.failures.begin(), results.failures.end());
  if (results.interrupted) out->failures.push_back("interrupted");
  return !results.outcomes.empty();
}

void CheckVictim(const ValidateOptions& options, Checks* out) {
  const SeedResults alone = RunMany("alone", 1, options, [](uint64_t) {
    RoceExperiment experiment;
    experiment.flows = {{0, 127}};
    return experiment;
  });
  if (!Collect(alone, out)) return;
  out->Within("victim", "a flow alone, us", MedianQuantile(alone, 1), kAloneUs, 0.01);
  const SeedResults runs = RunMany("victim", options.seeds == 0 ? 40 : options.seeds, options, [](uint64_t) {
    RoceExperiment experiment;
    experiment.flows = VictimFlows();
    return experiment;
  });
  if (!Collect(runs, out)) return;
  std::vector<double> slowdowns;
  for (const Outcome& outcome : runs.outcomes)
    slowdowns.push_back(outcome.samples.at("us")[kVictimFlow] / kAloneUs);
  out->Between("victim", "slowdown, mean", Mean(slowdowns), 34.6, 27, 43);
  out->Between("victim", "slowdown, 10 %", Quantile(slowdowns, 0.1), 20.0, 15, 24);
  out->Between("victim", "slowdown, 90 %", Quantile(slowdowns, 0.9), 59.1, 40, 80);
  out->Within("victim", "incast, 10 % done, us", MedianQuantile(runs, 0.1, true), 8849, 0.1);
  out->Within("victim", "incast, half done, us", MedianQuantile(runs, 0.5, true), 16435, 0.1);
  out->Within("victim", "incast, 90 % done, us", MedianQuantile(runs, 0.9, true), 20048, 0.1);
  out->Within("victim", "incast, all done, us", MedianQuantile(runs, 1, true), 20532, 0.01);
}

void CheckInjected(const ValidateOptions& options, const std::string& name,
                   std::span<const RecordedFlow> recorded, Checks* out) {
  const SeedResults runs = RunMany(name + ", recorded paths", 1, options, [&](uint64_t) {
    RoceExperiment experiment;
    experiment.flows = FlowsOf(recorded);
    experiment.routes = recorded;
    return experiment;
  });
  if (!Collect(runs, out)) return;
  constexpr double kBand = 0.05;
  const std::vector<double>& us = runs.outcomes[0].samples.at("us");
  double worst = 1;
  size_t inside = 0;
  for (size_t i = 0; i < us.size(); ++i) {
    const double ratio = us[i] / recorded[i].completion_us;
    if (std::fabs(ratio - 1) <= kBand) ++inside;
    if (std::fabs(ratio - 1) > std::fabs(worst - 1)) worst = ratio;
  }
  out->Within("recorded paths", name + ": the flow that differs most, ours / theirs", worst, 1, kBand);
  const auto count = static_cast<double>(us.size());
  out->Between("recorded paths", name + ": flows within 5 %", static_cast<double>(inside), count, count,
               count);
}

void CheckPermutations(const ValidateOptions& options, Checks* out) {
  const SeedResults small = RunMany("permutation of 128", 20, options, [](uint64_t) {
    RoceExperiment experiment;
    experiment.flows = FlowsOf(RecordedPermutationFlows());
    // All at once, as in the matrix.
    for (RoceFlow& flow : experiment.flows) flow.start_us = 0;
    return experiment;
  });
  if (Collect(small, out)) {
    out->Within("permutation", "128 hosts, half done, us", MedianQuantile(small, 0.5), 470.4, 0.1);
    out->Within("permutation", "128 hosts, 90 % done, us", MedianQuantile(small, 0.9), 689.5, 0.1);
    out->Within("permutation", "128 hosts, all done, us", MedianQuantile(small, 1), 853.6, 0.1);
  }
  if (options.size == Size::kCi) return;
  const SeedResults large = RunMany("permutation of 1024", 4, options, [](uint64_t seed) {
    RoceExperiment experiment;
    experiment.hosts = 1024;
    experiment.flows = PermutationFlows(experiment.hosts, seed);
    return experiment;
  });
  if (Collect(large, out)) {
    out->Within("permutation", "1024 hosts, half done, us", MedianQuantile(large, 0.5), 509.9, 0.1);
    out->Within("permutation", "1024 hosts, 90 % done, us", MedianQuantile(large, 0.9), 787.0, 0.1);
  }
}

void CheckIncasts(const ValidateOptions& options, Checks* out) {
  // The first eight senders of the recorded matrix.
  const std::vector<RoceFlow> eight = {{104, 33}, {35, 33}, {60, 33}, {97, 33},
                                       {19, 33},  {75, 33}, {99, 33}, {26, 33}};
  const auto make = [](std::vector<RoceFlow> flows) {
    RoceExperiment experiment;
    experiment.flows = std::move(flows);
    experiment.rate_bps = 400'000'000'000;
    experiment.flow_bytes = 1 << 20;
    experiment.xoff_packets = 120;
    experiment.xon_packets = 100;
    return experiment;
  };
  const SeedResults few = RunMany("incast 8:1", 20, options, [&](uint64_t) { return make(eight); });
  if (Collect(few, out)) {
    out->Within("incast 400G", "8:1, first done, us", MedianQuantile(few, 0), 76.18, 0.1);
    out->Within("incast 400G", "8:1, half done, us", MedianQuantile(few, 0.5), 156.5, 0.1);
    out->Within("incast 400G", "8:1, all done, us", MedianQuantile(few, 1), 179.1, 0.1);
  }
  std::vector<RoceFlow> all;
  for (uint32_t host = 0; host < 128; ++host) {
    if (host != 33) all.push_back({host, 33});
  }
  const SeedResults many = RunMany("incast 127:1", 10, options, [&](uint64_t) { return make(all); });
  if (Collect(many, out)) {
    out->Within("incast 400G", "127:1, first done, us", MedianQuantile(many, 0), 143.97, 0.1);
    out->Within("incast 400G", "127:1, half done, us", MedianQuantile(many, 0.5), 2209, 0.1);
    out->Within("incast 400G", "127:1, all done, us", MedianQuantile(many, 1), 2722.9, 0.1);
  }
}

}  // namespace

void CheckLikeForLike(const ValidateOptions& options, Checks* out) {
  CheckVictim(options, out);
  CheckInjected(options, "victim", RecordedVictimFlows(), out);
  CheckInjected(options, "permutation", RecordedPermutationFlows(), out);
  CheckPermutations(options, out);
  CheckIncasts(options, out);
}

}  // namespace sluice::scenario
