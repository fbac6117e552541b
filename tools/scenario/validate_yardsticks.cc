// NSCC and RCCC against the recorded 400G table: uet-htsim (commit 40ccb05), in htsim/sim/datacenter:
//   htsim_uec -tm connection_matrices/incast/gen_random_incast_8192n_<D>c_0us_1Ms.cm -linkspeed 400000
//     -topo topologies/leaf_spine_8192_400g.topo -q 100 -ecn 25 75 -cwnd 150 -end 6000
//     {-sender_cc_only | -receiver_cc_only} -seed <S>
// Figures are medians over seeds of the quantile within a run: NSCC seeds 1 to 30 (first of 128:1 from 1534 to
// 2209 us), RCCC, whose seeds hardly differ, seed 1.
#include "tools/scenario/seed_runner.h"
#include "tools/scenario/uec_experiment.h"
#include "tools/scenario/validate.h"

namespace sluice::scenario {
namespace {

struct RecordedIncast {
  const char* name;
  soft::Transport transport;
  uint32_t senders;
  uint32_t seeds;
  double first_us;
  double half_us;
  double last_us;
};
constexpr RecordedIncast kRecorded[] = {
    {"NSCC 8:1", soft::Transport::kNscc, 8, 20, 149.9, 169.7, 188.7},
    {"NSCC 128:1", soft::Transport::kNscc, 128, 40, 2004.7, 2622.8, 2771.8},
    {"RCCC 8:1", soft::Transport::kRccc, 8, 3, 176.5, 178.9, 179.5},
    {"RCCC 128:1", soft::Transport::kRccc, 128, 3, 2738, 2757, 2773.6},
};

}  // namespace

void CheckYardsticks(const ValidateOptions& options, Checks* out) {
  for (const RecordedIncast& recorded : kRecorded) {
    std::vector<uint64_t> seeds;
    for (uint64_t i = 0; i < recorded.seeds; ++i) seeds.push_back(options.seed + i);
    const SeedResults results = RunSeeds(std::string("validate ") + recorded.name, seeds, options.jobs,
                                         [&](uint64_t seed) -> Result<Outcome> {
                                           UecExperiment experiment;
                                           experiment.transport = recorded.transport;
                                           experiment.senders = recorded.senders;
                                           Result<UecResult> result = RunUecIncast(experiment, seed);
                                           if (!result.ok()) return result.status();
                                           Outcome outcome;
                                           outcome.samples["us"] = result->completion_us;
                                           return outcome;
                                         });
    out->failures.insert(out->failures.end(), results.failures.begin(), results.failures.end());
    if (results.interrupted) out->failures.push_back("interrupted");
    if (results.outcomes.empty()) continue;
    const auto median = [&](double fraction) {
      std::vector<double> values;
      for (const Outcome& outcome : results.outcomes)
        values.push_back(Quantile(outcome.samples.at("us"), fraction));
      return Quantile(values, 0.5);
    };
    const std::string name = recorded.name;
    out->Within("400G table", name + ", first done, us", median(0), recorded.first_us, 0.1);
    out->Within("400G table", name + ", half done, us", median(0.5), recorded.half_us, 0.1);
    out->Within("400G table", name + ", all done, us", median(1), recorded.last_us, 0.05);
  }
}

}  // namespace sluice::scenario
