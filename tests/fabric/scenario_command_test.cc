// `sluice scenario` from outside: exit codes, one-line errors, output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/fabric/scenario_run.h"

namespace {

using sluice::Ran;
using sluice::ReadFile;
using sluice::RunScenario;
using testing::HasSubstr;

size_t Lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST(ScenarioCommand, ListNamesEveryScenarioInALine) {
  const Ran ran = RunScenario("list");
  EXPECT_EQ(ran.exit_code, 0);
  for (const char* name : {"uncontended", "incast", "victim", "priority", "storage", "fairness", "lossy",
                           "all-to-all", "permutation", "two-jobs", "validate"}) {
    EXPECT_THAT(ran.out, HasSubstr(std::string(name) + " ")) << ran.out;
  }
}

TEST(ScenarioCommand, BadUsageIsOneLineAndExitTwo) {
  for (const char* arguments : {"",
                                "nonsense",
                                "incast --size huge",
                                "incast --seeds 100000000",
                                "lossy --host typical",
                                "lossy --plugin x.so",
                                "victim --topology hosts=4",
                                "incast --topology hosts=zero",
                                "validate --plot x.svg",
                                "incast --bogus",
                                "lossy --engine plugin",
                                "incast --engine flows --host ideal",
                                "incast --engine both",
                                "incast --host fast",
                                "incast --seeds 0",
                                "incast --seeds -3",
                                "incast --seed -1",
                                "incast --jobs 0",
                                "incast --jobs -1",
                                "validate --seeds 0",
                                "list --jobs 0",
                                "incast --plot /nonexistent/x.svg",
                                "incast --plot /tmp",
                                "victim --fault loss:probability=0.1",
                                "lossy --background permutation",
                                "incast --topology hosts=300 --fault link-down:link=host999",
                                "incast --topology /nonexistent.toml"}) {
    const Ran ran = RunScenario(arguments);
    EXPECT_EQ(ran.exit_code, 2) << arguments << ": " << ran.err;
    EXPECT_EQ(ran.out, "") << arguments;
    EXPECT_THAT(ran.err, testing::StartsWith("sluice")) << arguments;
    EXPECT_EQ(Lines(ran.err), 1U) << arguments << ": " << ran.err;
  }
}

TEST(ScenarioCommand, TheSameSeedGivesTheSameBytes) {
  const std::string arguments = "incast --size ci --seeds 2 --json";
  const Ran one = RunScenario(arguments + " --jobs 1");
  const Ran two = RunScenario(arguments + " --jobs 2");
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.out, two.out);
  const nlohmann::json json = nlohmann::json::parse(one.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << one.out;
  EXPECT_EQ(json["scenario"], "incast");
  EXPECT_EQ(json["seeds"], nlohmann::json::array({1, 2}));
  EXPECT_GT(json["metrics"].size(), 5U);
}

// The real plugin drives the scenario, and what is set for it has its effect.
TEST(ScenarioCommand, TheEnginePlugin) {
  const std::string fairness = "fairness --size ci --topology leaf-spine:hosts=32,rate=100G --json";
  const Ran one = RunScenario(fairness + " --engine plugin");
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.out, RunScenario(fairness + " --engine plugin").out);
  const nlohmann::json json = nlohmann::json::parse(one.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << one.out;
  EXPECT_EQ(json["engine"], "plugin");
  EXPECT_EQ(json["host"], "ideal");
  EXPECT_EQ(json["metrics"].size(), 6U);
  const Ran typical = RunScenario(fairness + " --host typical");
  EXPECT_EQ(typical.exit_code, 0) << typical.err;
  EXPECT_EQ(nlohmann::json::parse(typical.out, nullptr, false)["host"], "typical");
  EXPECT_NE(typical.out, one.out);
  const Ran wrong = RunScenario(fairness + " --plugin /nowhere.so");
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("seed 1: arm plugin: --plugin /nowhere.so: No such file"));
  setenv("NCCL_IB_TC", "300", 1);
  const Ran setting = RunScenario(fairness + " --engine plugin");
  unsetenv("NCCL_IB_TC");
  EXPECT_EQ(setting.exit_code, 1);
  EXPECT_THAT(setting.err, HasSubstr("NCCL_IB_TC"));
}

TEST(ScenarioCommand, WhatCannotBeWrittenFails) {
  for (const char* arguments : {"list", "uncontended --size ci", "uncontended --size ci --json"}) {
    const std::string command =
        std::string(getenv("SLUICE_BUILD_DIR")) + "/bin/sluice scenario " + arguments + " >/dev/full 2>&1";
    const int status = system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << arguments << ": " << status;
  }
}

TEST(ScenarioCommand, TheTableOfTheSameSeedIsTheSame) {
  EXPECT_EQ(RunScenario("uncontended --size ci").out, RunScenario("uncontended --size ci").out);
}

TEST(ScenarioCommand, EndsWhereNoSeedCanStart) {
  // Whoever runs this may have left descriptors open, and the loader needs one.
  const std::string command = "(exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ulimit -n 4; exec timeout 60 " +
                              std::string(getenv("SLUICE_BUILD_DIR")) +
                              "/bin/sluice scenario uncontended --size ci) >/dev/null 2>&1";
  const int status = system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
}

TEST(ScenarioCommand, FaultsAndBackgroundTakePart) {
  const auto last = [](const std::string& more) {
    const Ran ran = RunScenario("incast --size ci --json --topology leaf-spine:hosts=64,rate=100G " + more);
    EXPECT_EQ(ran.exit_code, 0) << more << ": " << ran.err;
    const nlohmann::json json = nlohmann::json::parse(ran.out, nullptr, false);
    for (const auto& metric : json["metrics"]) {
      if (metric["name"] == "last completion, 8:1") return metric["mean"].get<double>();
    }
    return 0.0;
  };
  const double quiet = last("");
  EXPECT_GT(last("--fault slow-link:link=host0,rate=50G"), 1.9 * quiet);
  EXPECT_GT(last("--background incast:targets=host0,bytes=1M"), 3 * quiet);
}

TEST(ScenarioCommand, ARunThatDoesNotFinishHasNoFigures) {
  for (const char* name : {"uncontended", "incast", "priority", "storage", "fairness", "all-to-all",
                           "permutation", "two-jobs"}) {
    const Ran ran =
        RunScenario(std::string(name) + " --engine flows --size ci --fault link-down:link=host0,at=50us");
    EXPECT_EQ(ran.exit_code, 1) << name;
    EXPECT_EQ(ran.out, "") << name;
    EXPECT_THAT(ran.err, testing::AnyOf(HasSubstr("seed 1: flow "), HasSubstr("seed 1: no flow "))) << name;
  }
  for (const char* name : {"priority", "storage", "two-jobs"}) {
    const Ran ran =
        RunScenario(std::string(name) + " --engine plugin --size ci --fault link-down:link=host0,at=50us");
    EXPECT_EQ(ran.exit_code, 1) << name;
    EXPECT_EQ(ran.out, "") << name;
    EXPECT_THAT(ran.err, HasSubstr("seed 1: arm ")) << name;
  }
}

TEST(ScenarioCommand, AnIncastIsNeverFasterThanItsIdeal) {
  const Ran ran = RunScenario("incast --size ci --seeds 8 --json");
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const nlohmann::json json = nlohmann::json::parse(ran.out, nullptr, false);
  for (const auto& metric : json["metrics"]) {
    if (!metric["name"].get<std::string>().starts_with("last / ideal")) continue;
    for (const double value : metric["values"]) EXPECT_GE(value, 1) << metric;
  }
}

TEST(ScenarioCommand, AnotherTopologyAndAPlot) {
  const std::string plot = testing::TempDir() + "scenario_plot_" + std::to_string(getpid()) + ".svg";
  const Ran ran = RunScenario("incast --size ci --topology leaf-spine:hosts=64,rate=100G --plot " + plot);
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("last completion, 8:1"));
  EXPECT_THAT(ReadFile(plot), HasSubstr("<polyline"));
  unlink(plot.c_str());
}

}  // namespace
