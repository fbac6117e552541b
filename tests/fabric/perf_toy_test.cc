// `sluice perf` with a plugin that fails on demand: what it detects, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "tests/fabric/perf_run.h"

namespace sluice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

PerfResult RunToy(std::vector<std::string> arguments, Environment environment = {}) {
  const std::vector<std::string> common = {
      "--plugin", Built("lib/libperf_toy_plugin.so"), "--fabric", "verbs", "--json", "-n", "2", "-w", "1"};
  arguments.insert(arguments.begin(), common.begin(), common.end());
  return RunPerf(arguments, environment);
}

Environment InRank(int rank, const std::string& fault) {
  return {{"PERF_TOY", fault}, {"PERF_TOY_RANK", std::to_string(rank)}};
}

void ExpectRight(const PerfResult& result, size_t rows) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.rows.size(), rows);
  for (const auto& row : result.rows) EXPECT_EQ(row["wrong"], 0) << row;
  EXPECT_THAT(result.complaints(), testing::IsEmpty());
}

// One line that says all of `parts`; nothing left running.
void ExpectFailure(const PerfResult& result, std::vector<std::string> parts) {
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_EQ(result.complaints().size(), 1u) << result.err;
  for (const std::string& part : parts) EXPECT_THAT(result.complaints()[0], HasSubstr(part));
}

TEST(PerfToyTest, EveryVersionOfTheInterface) {
  for (int api = 7; api <= 12; ++api) {
    for (const char* op : {"all_reduce", "all_to_all", "broadcast"}) {
      SCOPED_TRACE(std::string(op) + " api " + std::to_string(api));
      ExpectRight(RunToy({"--api", std::to_string(api), "--op", op, "--channels", "2", "-b", "8", "-e",
                          "512K", "-f", "256"}),
                  3);
    }
  }
}

TEST(PerfToyTest, EveryOperationAndProtocol) {
  for (const char* op :
       {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "sendrecv"}) {
    for (const char* proto : {"simple", "ll", "ll128"}) {
      SCOPED_TRACE(std::string(op) + " " + proto);
      ExpectRight(RunToy({"--op", op, "--proto", proto, "--ranks", "3", "--root", "1", "-b", "12", "-e", "3M",
                          "-f", "500"}),
                  3);
    }
  }
  for (const char* proto : {"simple", "ll", "ll128"}) {
    ExpectRight(RunToy({"--algo", "tree", "--proto", proto, "--ranks", "5", "--channels", "2", "-b", "8",
                        "-e", "2M", "-f", "512"}),
                3);
  }
}

TEST(PerfToyTest, OneRankAndRegisteredBuffersAndSeveralCommunicators) {
  for (const char* op :
       {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "sendrecv"}) {
    SCOPED_TRACE(op);
    ExpectRight(RunToy({"--op", op, "--ranks", "1", "-b", "64K", "-e", "64K"}), 1);
    ExpectRight(RunToy({"--op", op, "--ranks", "3", "--register", "-b", "12", "-e", "3M", "-f", "500"}), 3);
    ExpectRight(RunToy({"--op", op, "--ranks", "2", "--multi-comm", "3", "--channels", "2", "-b", "8", "-e",
                        "512K", "-f", "256"}),
                3);
  }
}

TEST(PerfToyTest, RefusalsFlushesAndGroupsChangeNothing) {
  for (const char* op : {"all_reduce", "all_to_all"}) {
    for (const char* fault : {"refuse=2", "flush", "group=8", "group=3"}) {
      SCOPED_TRACE(std::string(op) + " " + fault);
      ExpectRight(RunToy({"--op", op, "--ranks", "3", "--channels", "4", "-b", "8", "-e", "2M", "-f", "512"},
                         {{"PERF_TOY", fault}}),
                  3);
    }
  }
}

TEST(PerfToyTest, JsonRowsHaveTheseKeys) {
  const PerfResult result = RunToy({"-b", "8", "-e", "16"});
  ASSERT_EQ(result.rows.size(), 2u);
  for (const auto& row : result.rows) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : row.items()) keys.push_back(key);
    EXPECT_THAT(keys, testing::UnorderedElementsAre("op", "algo", "proto", "channels", "bytes", "time_us",
                                                    "p50_us", "p99_us", "algbw_GBps", "busbw_GBps", "wrong"));
    EXPECT_EQ(row["op"], "all_reduce");
    EXPECT_EQ(row["algo"], "ring");
    EXPECT_EQ(row["proto"], "ll");
    EXPECT_EQ(row["channels"], 1);
    EXPECT_GT(row["time_us"], 0.0);
    EXPECT_GE(row["p99_us"], row["p50_us"]);
  }
  EXPECT_EQ(result.rows[0]["bytes"], 8);
  EXPECT_EQ(result.rows[1]["bytes"], 16);
  // Standard output is JSON and nothing else.
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2);
}

TEST(PerfToyTest, TheTableLooksLikeThatOfNcclTests) {
  const PerfResult result = RunPerf({"--plugin", Built("lib/libperf_toy_plugin.so"), "--fabric", "verbs",
                                     "-b", "8", "-e", "1K", "-f", "2", "-n", "1", "-w", "0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("plugin Toy (NET v12), device toy0"));
  EXPECT_THAT(result.out,
              testing::ContainsRegex("size +count +type +redop +root +time +algbw +busbw +#wrong"));
  EXPECT_THAT(result.out, testing::ContainsRegex("\n +8 +2 +float +sum +-1 "));
  EXPECT_THAT(result.out, HasSubstr("# Out of bounds values : 0 OK"));
  EXPECT_THAT(result.out, HasSubstr("# Avg bus bandwidth"));
}

TEST(PerfToyTest, WrongDataIsCounted) {
  // All messages before the checked iteration come first: 2 ranks, 3 iterations, 1 message that has bytes
  // each.
  const PerfResult result =
      RunToy({"--op", "broadcast", "--proto", "simple", "-b", "64K", "-e", "64K"}, InRank(1, "corrupt=4"));
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_EQ(result.rows.size(), 1u);
  EXPECT_EQ(result.rows[0]["wrong"], 1);
  EXPECT_THAT(result.complaints(), ElementsAre("sluice perf: 1 wrong values"));
}

TEST(PerfToyTest, AnErrorOfThePluginIsNamed) {
  const std::vector<std::string> large = {"--ranks", "3", "-b", "1M", "-e", "1M", "-n", "1000"};
  ExpectFailure(RunToy(large, InRank(1, "fail_isend=100")),
                {"rank 1: sending to rank 2", "isend returned ncclRemoteError", "the wire is cut"});
  ExpectFailure(RunToy(large, InRank(2, "fail_test=200")),
                {"rank 2:", "test returned", "retry count exceeded"});
  ExpectFailure(RunToy(large, InRank(1, "fail_connect")),
                {"rank 1: connecting to rank 2", "no route to the peer"});
  ExpectFailure(RunToy(large, InRank(0, "crash=50")), {"rank 0: ended by signal 11"});
  ExpectFailure(RunToy({"-b", "8", "-e", "8", "--proto", "simple"}, InRank(1, "short_size=1")),
                {"rank 1: receiving from rank 0", "test reports 7 bytes"});
  ExpectFailure(RunToy(large, InRank(0, "extra_size")),
                {"rank 0: receiving from rank 2", "size of buffer 1"});
  ExpectFailure(RunToy(large, InRank(1, "unset")), {"rank 1:", "maxP2pBytes", "toy0"});
  ExpectFailure(RunToy(large, InRank(1, "no_device")), {"rank 1:", "no network device"});
}

TEST(PerfToyTest, NothingHangs) {
  ExpectFailure(RunToy({"--ranks", "3", "--timeout", "3"}, InRank(1, "hang_connect")),
                {"timed out after 3 s", "rank 1"});
  ExpectFailure(RunToy({"--timeout", "3", "-b", "8", "-e", "8"}, InRank(1, "hang_test=5")),
                {"timed out after 3 s", "running all_reduce of 8 bytes"});
}

TEST(PerfToyTest, ATimeoutNamesTheRanksThatAreMissing) {
  ExpectFailure(RunToy({"--ranks", "3", "--timeout", "3"}, InRank(2, "stop_init")),
                {"timed out after 3 s (--timeout) while waiting for rank 2 (initialising communicator 0)"});
  ExpectFailure(RunToy({"--ranks", "3", "--timeout", "3"}, InRank(0, "stop_init")),
                {"timed out after 3 s (--timeout) while waiting for rank 0, which does not answer ("});
}

// The file that is there and does not load is the one that was meant.
TEST(PerfToyTest, WhyAPluginDoesNotLoad) {
  char directory[] = "/tmp/sluice-perf-plugin-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string file = std::string(directory) + "/libnccl-net-broken.so";
  std::ofstream(file) << "no library";
  const auto load = [&](const char* plugin) {
    return RunPerf({"--plugin", plugin, "--fabric", "verbs", "-b", "8", "-e", "8"},
                   {{"LD_LIBRARY_PATH", directory}});
  };
  ExpectFailure(load("broken"), {"cannot load the plugin broken: " + file + ": file too short"});
  ExpectFailure(load("nosuch"), {"cannot load the plugin nosuch: nosuch: cannot open shared object file",
                                 "libnccl-net-nosuch.so: cannot open shared object file"});
  std::filesystem::remove_all(directory);
}

// A run that goes on until it is ended, and a value of PERF_TOY_MARK by which its processes are known.
class LongRun {
 public:
  LongRun()
      : mark_(std::to_string(getpid()) + "-" + std::to_string(++count_)),
        run_({"--plugin", Built("lib/libperf_toy_plugin.so"), "--fabric", "verbs", "--json", "--ranks", "4",
              "-b", "64K", "-e", "64M", "-i", "4", "-n", "2", "-w", "0"},
             {{"PERF_TOY_MARK", mark_}}) {}
  PerfRun& run() { return run_; }
  void ExpectAllGone() {
    while (!ProcessesWith("PERF_TOY_MARK", mark_).empty())
      usleep(1000);  // the test's own time limit ends a failure
  }
  void WaitUntilRunning() { run_.WaitForOutput(1); }

 private:
  static inline int count_ = 0;
  std::string mark_;
  PerfRun run_;
};

TEST(PerfToyTest, AKilledRankIsNamedAndTheOthersEnd) {
  LongRun job;
  job.WaitUntilRunning();
  kill(job.run().WaitForRank(2), SIGKILL);
  ExpectFailure(job.run().Finish(), {"rank 2: ended by signal 9"});
  job.ExpectAllGone();
}

TEST(PerfToyTest, ASignalEndsAllRanks) {
  for (int signal : {SIGTERM, SIGINT}) {
    LongRun job;
    job.WaitUntilRunning();
    kill(job.run().pid(), signal);
    const PerfResult result = job.run().Finish();
    EXPECT_EQ(result.exit_code, 128 + signal);
    ASSERT_EQ(result.complaints().size(), 1u) << result.err;
    EXPECT_THAT(result.complaints()[0], HasSubstr("ended by signal"));
    job.ExpectAllGone();
  }
}

TEST(PerfToyTest, RanksDieWithTheirLauncher) {
  LongRun job;
  job.WaitUntilRunning();
  kill(job.run().pid(), SIGKILL);
  job.ExpectAllGone();
}

// Three processes that meet as ranks of one job, as on three hosts.
std::vector<PerfResult> RunJoined(int port, std::vector<std::string> arguments,
                                  const Environment& extra = {}) {
  std::vector<PerfResult> results(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Environment environment = extra;
      environment["RANK"] = std::to_string(rank);
      environment["WORLD_SIZE"] = "3";
      environment["MASTER_ADDR"] = "localhost";
      environment["MASTER_PORT"] = std::to_string(port);
      results[static_cast<size_t>(rank)] = RunToy(arguments, environment);
    });
  }
  for (std::thread& t : threads) t.join();
  return results;
}

// Differs between test processes of one host, below the range that the kernel hands out.
int JobPort() {
  return 20000 + getpid() % 10000;
}

TEST(PerfToyTest, RanksOfSeveralHostsMeet) {
  const std::vector<PerfResult> results = RunJoined(JobPort(), {"-b", "8", "-e", "512K", "-f", "256"});
  ExpectRight(results[0], 3);
  for (const PerfResult& result : {results[1], results[2]}) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST(PerfToyTest, EveryHostLearnsTheCause) {
  const std::vector<PerfResult> results =
      RunJoined(JobPort(), {"-b", "1M", "-e", "1M", "-n", "1000"}, InRank(1, "fail_isend=100"));
  for (const PerfResult& result : results) ExpectFailure(result, {"rank 1", "the wire is cut"});
  const std::vector<PerfResult> crashed =
      RunJoined(JobPort(), {"-b", "1M", "-e", "1M", "-n", "1000"}, InRank(1, "crash=100"));
  ExpectFailure(crashed[0], {"rank 1 on", "ended without goodbye"});
  ExpectFailure(crashed[2], {"rank 1 on", "ended without goodbye"});
}

TEST(PerfToyTest, BadArgumentsAreOneLineAndExitCode2) {
  const std::string plugin = Built("lib/libperf_toy_plugin.so");
  for (const auto& [arguments, text] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--op", "gather"}, "--op gather"},
           {{"--bogus"}, "--bogus"},
           {{"-b", "12Q"}, "-b 12Q"},
           {{"-b", "1M", "-e", "1K"}, "-e 1K"},
           {{"--ranks", "many"}, "--ranks"},
           {{"--ranks", "0"}, ""},
           {{"--root", "2"}, "--root 2"},
           {{"--api", "13"}, "--api 13"},
           {{"--plugin", "/nowhere/libnccl-net-x.so"}, "/nowhere/libnccl-net-x.so"},
           {{"--topology", "/nowhere/topology.toml"}, "/nowhere/topology.toml"},
           {{"--timeout", "-1"}, "--timeout"}}) {
    if (text.empty()) continue;
    std::vector<std::string> all = {"--plugin", plugin};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const PerfResult result = RunPerf(all);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    ASSERT_EQ(result.complaints().size(), 1u) << result.err;
    EXPECT_THAT(result.complaints()[0], HasSubstr(text));
  }
  for (const Environment& environment :
       {Environment{{"RANK", "0"}},
        Environment{{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}},
        Environment{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "x"}}}) {
    const PerfResult result = RunPerf({"--plugin", plugin}, environment);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.complaints().size(), 1u) << result.err;
  }
}

TEST(PerfToyTest, DeviceChoiceIsChecked) {
  ExpectRight(RunToy({"--device", "1", "-b", "8", "-e", "8"}), 1);
  ExpectFailure(RunToy({"--device", "2", "-b", "8", "-e", "8"}), {"--device 2", "devices 0 to 1"});
  ExpectFailure(RunToy({"--merge", "2", "-b", "8", "-e", "8"}), {"cannot merge"});
}

}  // namespace
}  // namespace sluice::test
