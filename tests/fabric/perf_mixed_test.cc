// Every operation, algorithm and protocol in one communicator: the plugin names each message as the benchmark knows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/fabric/perf_run.h"

namespace sluice::test {
namespace {

// Rules that need every part of an operation.
constexpr char kPolicy[] = R"toml(
[[rule]]
function = "all_reduce"
algorithm = "tree"
protocol = "ll"
class = "background"

[[rule]]
function = "all_reduce"
bytes = "[0, 64KiB)"
class = "latency"

[[rule]]
function = ["send", "recv"]
class = "latency"

[[rule]]
function = "all_to_all"
bytes = "[32KiB, )"
class = "background"

[[rule]]
function = "broadcast"
protocol = "ll128"
class = "latency"
)toml";

nlohmann::json RunMixed(int net, int profiler, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"--op",
                                        "mixed",
                                        "--fabric",
                                        "soft",
                                        "--json",
                                        "--api",
                                        std::to_string(net),
                                        "-b",
                                        "8",
                                        "-e",
                                        "256K",
                                        "-f",
                                        "180",
                                        "-n",
                                        "3",
                                        "--profiler",
                                        std::to_string(profiler),
                                        "--timeout",
                                        "100"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const PerfResult result = RunPerf(arguments, {{"SLUICE_POLICY", kPolicy}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.rows.size(), 1u) << result.out;
  return result.rows.empty() ? nlohmann::json() : result.rows[0];
}

void ExpectAllRight(const nlohmann::json& row) {
  SCOPED_TRACE(row.dump());
  EXPECT_EQ(row["wrong"], 0);
  EXPECT_GT(row["messages"], 500);
  EXPECT_EQ(row["right"], row["messages"]);
  EXPECT_EQ(row["disagreed"], 0);
}

TEST(PerfMixedTest, AttributesAloneNameEveryMessage) {
  for (const int net : {11, 12}) {
    const nlohmann::json row = RunMixed(net, 0);
    ExpectAllRight(row);
    EXPECT_EQ(row["sources"]["attributes"], row["messages"]);
  }
}

TEST(PerfMixedTest, AttributesAndProfilerAgreeOnEveryMessage) {
  for (const auto& [net, profiler] : {std::pair{11, 5}, std::pair{12, 6}}) {
    const nlohmann::json row = RunMixed(net, profiler, {"--ranks", "3", "--channels", "2"});
    ExpectAllRight(row);
    EXPECT_EQ(row["compared"], row["messages"]);
    EXPECT_EQ(row["bytes_known"], row["messages"]);
  }
}

// Of these only v8 to v10 met a profiler in a release of NCCL.
TEST(PerfMixedTest, TheProfilerAloneNamesEveryMessage) {
  for (const auto& [net, profiler] :
       {std::pair{7, 1}, std::pair{8, 1}, std::pair{9, 2}, std::pair{10, 3}, std::pair{10, 4}}) {
    const nlohmann::json row = RunMixed(net, profiler);
    ExpectAllRight(row);
    EXPECT_EQ(row["sources"]["profiler"], row["messages"]);
    EXPECT_EQ(row["bytes_known"], row["messages"]);
  }
}

TEST(PerfMixedTest, WithoutASourceKindAndProtocolAreKnown) {
  for (const int net : {7, 8, 9, 10}) {
    const nlohmann::json row = RunMixed(net, 0);
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row["wrong"], 0);
    EXPECT_EQ(row["kind_only"], row["messages"]);
    EXPECT_EQ(row["sources"]["connection"], row["messages"]);
    printf(
        "NET v%d without a source: %.1f %% of messages with the right operation, %.1f %% with the right kind "
        "and "
        "protocol\n",
        net, 100.0 * row["right"].get<double>() / row["messages"].get<double>(),
        100.0 * (row["right"].get<double>() + row["kind_only"].get<double>()) /
            row["messages"].get<double>());
  }
}

TEST(PerfMixedTest, ShowLanesAddsUpToTheMessages) {
  const PerfResult result = RunPerf({"--op", "mixed", "--fabric", "soft", "--json", "-b", "64K", "-e", "64K",
                                     "-n", "1", "--show-lanes", "--timeout", "100"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_GT(result.rows.size(), 10u);
  uint64_t messages = 0, sent = 0, received = 0;
  for (size_t i = 1; i < result.rows.size(); ++i) {
    if (result.rows[i].contains("fabric_wire_bytes")) {
      uint64_t wire = 0;
      for (const auto& [sl, bytes] : result.rows[i]["fabric_wire_bytes"]["sl"].items())
        wire += bytes.get<uint64_t>();
      EXPECT_GT(wire, sent);
      continue;
    }
    messages += result.rows[i]["messages"].get<uint64_t>();
    (result.rows[i]["direction"] == "sent" ? sent : received) += result.rows[i]["bytes"].get<uint64_t>();
  }
  EXPECT_EQ(messages, result.rows[0]["messages"]);
  EXPECT_EQ(sent, received);
}

TEST(PerfMixedTest, SwitchedOffTheHalvesAreNotThere) {
  const PerfResult result = RunPerf({"--op", "mixed", "--fabric", "soft", "--json", "-b", "64K", "-e", "64K",
                                     "-n", "1", "--api", "10", "--timeout", "100"},
                                    {{"SLUICE_PROFILER", "0"}, {"SLUICE_TUNER", "0"}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(result.rows.size(), 1u);
  EXPECT_EQ(result.rows[0]["sources"]["profiler"], 0);
}

}  // namespace
}  // namespace sluice::test
