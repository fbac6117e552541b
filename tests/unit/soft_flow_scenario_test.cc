// The parts of `sluice scenario`: statistics, seeds in processes, reports, plots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tools/scenario/like_for_like.h"
#include "tools/scenario/outcome.h"
#include "tools/scenario/recorded.h"
#include "tools/scenario/report.h"
#include "tools/scenario/seed_runner.h"
#include "tools/scenario/svg.h"

namespace sluice::scenario {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ScenarioStatistics, QuantilesMeanAndJain) {
  EXPECT_EQ(Quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(Quantile({0, 10}, 0.25), 2.5);
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({7}, 0.99), 7);
  EXPECT_EQ(Mean({1, 2, 6}), 3);
  EXPECT_DOUBLE_EQ(JainIndex({2, 2, 2, 2}), 1);
  EXPECT_DOUBLE_EQ(JainIndex({4, 0, 0, 0}), 0.25);
}

TEST(ScenarioOutcome, SurvivesItsWayThroughJson) {
  Outcome outcome;
  outcome.seed = 17;
  outcome.packet_hops = 123;
  outcome.Add("static", "a \"quoted\" name", "us", 1.25);
  outcome.samples["static"] = {1, 2.5};
  const Result<Outcome> back = Outcome::FromJson(outcome.ToJson());
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->seed, 17U);
  EXPECT_EQ(back->metrics[0].name, "a \"quoted\" name");
  EXPECT_EQ(back->metrics[0].value, 1.25);
  EXPECT_THAT(back->samples.at("static"), ElementsAre(1, 2.5));
  EXPECT_FALSE(Outcome::FromJson("{\"se").ok());
}

TEST(SeedRunner, KeepsTheOrderOfSeedsAndWhatOthersFound) {
  const SeedResults results = RunSeeds("test", {5, 6, 7, 8}, 2, [](uint64_t seed) -> Result<Outcome> {
    if (seed == 6) return InvalidArgument("no sixes");
    if (seed == 7) raise(SIGKILL);
    Outcome outcome;
    outcome.Add("a", "b", "", static_cast<double>(seed));
    return outcome;
  });
  ASSERT_EQ(results.outcomes.size(), 2U);
  EXPECT_EQ(results.outcomes[0].seed, 5U);
  EXPECT_EQ(results.outcomes[1].seed, 8U);
  ASSERT_EQ(results.failures.size(), 2U);
  const std::string all = results.failures[0] + results.failures[1];
  EXPECT_THAT(all, HasSubstr("seed 6: no sixes"));
  EXPECT_THAT(all, HasSubstr("seed 7: ended by signal"));
}

TEST(SeedRunner, CarriesResultsLargerThanAPipe) {
  const SeedResults results = RunSeeds("test", {1}, 1, [](uint64_t) -> Result<Outcome> {
    Outcome outcome;
    outcome.samples["a"].assign(200'000, 1.5);
    return outcome;
  });
  ASSERT_EQ(results.outcomes.size(), 1U);
  EXPECT_EQ(results.outcomes[0].samples.at("a").size(), 200'000U);
}

class RecordedPaths : public testing::TestWithParam<std::span<const RecordedFlow> (*)()> {};

// The reference's order of simultaneous events included: then its 20 ms under PFC repeat to the last digit that it
// printed, six in all.
TEST_P(RecordedPaths, EveryFlowEndsWhenTheReferenceSays) {
  const std::span<const RecordedFlow> recorded = GetParam()();
  RoceExperiment experiment;
  experiment.flows = FlowsOf(recorded);
  experiment.routes = recorded;
  const Result<RoceResult> result = RunRoce(experiment, 1);
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->completion_us.size(), recorded.size());
  for (size_t i = 0; i < recorded.size(); ++i) {
    EXPECT_NEAR(result->completion_us[i] / recorded[i].completion_us, 1, 2e-4)
        << recorded[i].source << " to " << recorded[i].destination;
  }
  EXPECT_GT(result->pauses, 100U);
}

INSTANTIATE_TEST_SUITE_P(Htsim, RecordedPaths,
                         testing::Values(&RecordedVictimFlows, &RecordedPermutationFlows));

TEST(ScenarioReport, SummarisesBySeed) {
  Outcome one;
  one.Add("a", "x", "us", 1);
  Outcome two;
  two.Add("a", "x", "us", 3);
  two.Add("b", "x", "us", 5);
  const std::vector<Summary> summaries = Summarise({one, two});
  ASSERT_EQ(summaries.size(), 2U);
  EXPECT_THAT(summaries[0].values, ElementsAre(1, 3));
  EXPECT_THAT(summaries[1].values, ElementsAre(5));
}

TEST(ScenarioReport, NumbersAreReadable) {
  EXPECT_EQ(Number(0), "0");
  EXPECT_EQ(Number(123456), "123456");
  EXPECT_EQ(Number(1234.56), "1234.6");
  EXPECT_EQ(Number(0.01234), "0.01234");
  EXPECT_EQ(Number(1e-5), "1.000e-05");
}

TEST(Svg, DrawsCurvesAndEscapesText) {
  SvgPlot plot;
  plot.title = "a < b & c";
  plot.curves = {{"one", {{1, 0.5}, {200, 1}}}, {"two", {{2, 0.1}, {3, 1}}}};
  const std::string svg = RenderSvg(plot);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  EXPECT_THAT(svg, HasSubstr("<polyline"));
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
  EXPECT_THAT(svg, testing::Not(HasSubstr("inf")));
  EXPECT_THAT(RenderSvg({}), HasSubstr("</svg>"));
  plot.curves = {{"flat", {{5, 5}, {5, 5}}}};
  EXPECT_THAT(RenderSvg(plot), testing::Not(HasSubstr("nan")));
}

TEST(Svg, AFileThatCannotBeWrittenIsNamed) {
  const Status status = WriteSvg("/nonexistent/plot.svg", {});
  EXPECT_THAT(status.message(), HasSubstr("--plot /nonexistent/plot.svg"));
}

}  // namespace
}  // namespace sluice::scenario
