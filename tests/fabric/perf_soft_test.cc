// The Sluice plugin under `sluice perf`, between processes on the software fabric: no wrong value in any
// combination.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fabric/perf_run.h"

namespace sluice::test {
namespace {

using testing::HasSubstr;

constexpr const char* kOps[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                "reduce",     "all_to_all", "sendrecv"};

void ExpectRight(std::vector<std::string> arguments, size_t rows, const Environment& environment = {}) {
  const std::vector<std::string> common = {"--fabric", "soft", "--json", "-n",        "2", "-w",
                                           "1",        "-c",   "1",      "--timeout", "60"};
  arguments.insert(arguments.begin(), common.begin(), common.end());
  std::string line;
  for (const std::string& a : arguments) line += " " + a;
  SCOPED_TRACE(line);
  const PerfResult result = RunPerf(arguments, environment);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.rows.size(), rows);
  for (const auto& row : result.rows) EXPECT_EQ(row["wrong"], 0) << row;
}

TEST(PerfSoftTest, EveryOperationProtocolAndNumberOfChannels) {
  for (const char* op : kOps) {
    for (const char* proto : {"simple", "ll", "ll128"}) {
      for (const char* channels : {"1", "2", "8"}) {
        ExpectRight({"--op", op, "--proto", proto, "--channels", channels, "--ranks", "2", "-b", "8", "-e",
                     "2M", "-f", "512"},
                    3);
      }
    }
  }
}

TEST(PerfSoftTest, EveryOperationOnFourRanks) {
  for (const char* op : kOps) {
    ExpectRight(
        {"--op", op, "--channels", "2", "--ranks", "4", "--root", "3", "-b", "16", "-e", "4M", "-f", "512"},
        3);
  }
}

TEST(PerfSoftTest, Trees) {
  for (const char* proto : {"simple", "ll", "ll128"}) {
    for (const char* channels : {"1", "2", "8"}) {
      ExpectRight({"--algo", "tree", "--proto", proto, "--channels", channels, "--ranks", "4", "-b", "8",
                   "-e", "2M", "-f", "512"},
                  3);
    }
  }
}

TEST(PerfSoftTest, EveryVersionOfTheInterface) {
  for (int api = 7; api <= 12; ++api) {
    for (const char* op : kOps) {
      ExpectRight(
          {"--api", std::to_string(api), "--op", op, "--ranks", "2", "-b", "8", "-e", "1M", "-f", "512"}, 2);
    }
    ExpectRight(
        {"--api", std::to_string(api), "--algo", "tree", "--ranks", "3", "-b", "8", "-e", "1M", "-f", "512"},
        2);
  }
}

TEST(PerfSoftTest, RegisteredBuffersSeveralCommunicatorsAndOneRank) {
  for (const char* op : kOps) {
    ExpectRight({"--op", op, "--ranks", "3", "--register", "-b", "12", "-e", "6M", "-f", "700"}, 3);
    ExpectRight({"--op", op, "--ranks", "2", "--multi-comm", "2", "-b", "8", "-e", "1M", "-f", "512"}, 2);
  }
  ExpectRight({"--op", "sendrecv", "--ranks", "1", "-b", "8", "-e", "1M", "-f", "512"}, 2);
}

TEST(PerfSoftTest, GroupedReceives) {
  ExpectRight({"--op", "all_to_all", "--ranks", "3", "--channels", "4", "--proto", "simple", "-b", "12", "-e",
               "6M", "-f", "700"},
              3, {{"SLUICE_MAX_RECVS", "8"}});
}

TEST(PerfSoftTest, AKilledRankEndsTheJobAndTheFabric) {
  const std::string instance = "perf-soft-test-" + std::to_string(getpid());
  PerfRun run({"--fabric", "soft", "--json", "--ranks", "4", "-b", "64K", "-e", "64M", "-i", "4", "-n", "2",
               "-w", "0"},
              {{"SLUICE_FABRIC", instance}});
  run.WaitForOutput(1);
  kill(run.WaitForRank(2), SIGKILL);
  const PerfResult result = run.Finish();
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_EQ(result.complaints().size(), 1u) << result.err;
  EXPECT_THAT(result.complaints()[0], HasSubstr("rank 2: ended by signal 9"));
  while (!ProcessesWith("SLUICE_FABRIC", instance).empty())
    usleep(1000);  // the fabric ends with its last process
}

TEST(PerfSoftTest, TopologiesPlaceTheRanks) {
  // Two ranks share each host, and every host has two devices.
  ExpectRight(
      {"--topology", "hosts=2,nics=2", "--ranks", "4", "--channels", "2", "-b", "8", "-e", "1M", "-f", "512"},
      2);
  ExpectRight({"--topology", "hosts=3,link=infiniband", "--ranks", "3", "-b", "8", "-e", "1M", "-f", "512"},
              2);
  ExpectRight({"--topology", "hosts=2,nics=2", "--merge", "2", "-b", "8", "-e", "4M", "-f", "512"}, 3);
}

std::string DilationLine(const std::string& text) {
  const size_t at = text.find("# Software fabric");
  return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
}

double DilationIn(const std::string& text) {
  const std::string line = DilationLine(text);
  const size_t at = line.find("dilation ");
  return at == std::string::npos ? 0 : strtod(line.c_str() + at + strlen("dilation "), nullptr);
}

TEST(PerfSoftTest, AnOverloadedFabricTellsItsDilationAndTimesAreModelTime) {
  const std::vector<std::string> quiet = {
      "--fabric", "soft", "--topology", "hosts=4,rate=400G", "--ranks", "2", "-b", "1M", "-e", "1M", "-n",
      "10",       "-w",   "1",          "--timeout",         "120"};
  const PerfResult alone = RunPerf(quiet);
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(DilationLine(alone.out), HasSubstr("times are model time; dilation ")) << alone.out;
  EXPECT_GE(DilationIn(alone.out), 1);
  // Two hosts that nobody measures exchange far more packets than a processor can move in their time.
  std::vector<std::string> overloaded = quiet;
  overloaded.insert(overloaded.end(),
                    {"--json", "--background", "permutation:hosts=host2..host3,bytes=1G,count=1000"});
  const auto start = std::chrono::steady_clock::now();
  const PerfResult busy = RunPerf(overloaded);
  const double wall_us =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e6;
  EXPECT_EQ(busy.exit_code, 0) << busy.err;
  EXPECT_GT(DilationIn(busy.err), 2) << busy.err;
  ASSERT_EQ(busy.rows.size(), 1u);
  EXPECT_EQ(busy.rows[0]["wrong"], 0);
  ASSERT_TRUE(busy.rows[0].contains("dilation")) << busy.rows[0];
  const double dilation = busy.rows[0]["dilation"];
  EXPECT_GT(dilation, 2);
  // What the ten iterations took by the wall clock is part of the whole run.
  EXPECT_LT(10 * dilation * busy.rows[0]["time_us"].get<double>(), wall_us);
}

TEST(PerfSoftTest, FaultsAndBackgroundOfTheCommandLine) {
  ExpectRight({"--topology", "hosts=4", "--ranks", "2", "-b", "64K", "-e", "1M", "-f", "16", "--background",
               "storage:hosts=host2,targets=host1,load=0.01,stop=100s", "--fault", "loss:probability=1e-4"},
              2, {{"NCCL_IB_TIMEOUT", "10"}});
  const PerfResult refused =
      RunPerf({"--fabric", "soft", "--topology", "hosts=2", "--background", "incast:targets=host7"});
  EXPECT_EQ(refused.exit_code, 2);
  ASSERT_EQ(refused.complaints().size(), 1u) << refused.err;
  EXPECT_THAT(refused.complaints()[0], HasSubstr("host7"));
}

TEST(PerfSoftTest, NumbersOutOfRangeAreRefusedWithOptionValueAndRange) {
  struct Case {
    std::vector<std::string> arguments;
    const char* range;
  };
  const std::vector<Case> cases = {
      {{"--ranks", "0"}, "1 to 4096"},       {{"--ranks", "-1"}, "1 to 4096"},
      {{"--ranks", "4097"}, "1 to 4096"},    {{"-n", "0"}, "1 to 1000000"},
      {{"-n", "-1"}, "1 to 1000000"},        {{"-w", "-1"}, "0 to 1000000"},
      {{"-c", "-1"}, "0 to 1000"},           {{"--channels", "0"}, "1 to 64"},
      {{"--multi-comm", "0"}, "1 to 64"},    {{"--root", "-1"}, "0 to"},
      {{"--root", "2"}, "0 to 1"},           {{"--api", "0"}, "7 to 12"},
      {{"--api", "6"}, "7 to 12"},           {{"--max-recvs", "0"}, "1 to 64"},
      {{"--device", "-1"}, "0 to 1023"},     {{"--merge", "0"}, "2 to 8"},
      {{"--merge", "1"}, "2 to 8"},          {{"--traffic-class", "-2"}, "-1 to 255"},
      {{"--traffic-class", "256"}, "-1 to"}, {{"--timeout", "0"}, "1 to 1000000"},
      {{"--timeout", "-5"}, "1 to 1000000"}, {{"--ranks-per-host", "0"}, "1 to 256"},
      {{"-f", "1"}, "greater than 1"},       {{"-f", "-2"}, "greater than 1"},
      {{"-i", "0"}, "at least 1"},           {{"-b", "0"}, "smallest size is 4"},
      {{"-e", "-1"}, "not a size"},
  };
  for (const auto& [arguments, range] : cases) {
    const PerfResult result = RunPerf(arguments);
    const std::string line = arguments[0] + " " + arguments[1];
    EXPECT_EQ(result.exit_code, 2) << line << ": " << result.err;
    ASSERT_EQ(result.complaints().size(), 1u) << line << ": " << result.err;
    EXPECT_THAT(result.complaints()[0], HasSubstr(line));
    EXPECT_THAT(result.complaints()[0], HasSubstr(range));
  }
}

TEST(PerfSoftTest, WhatIsNoPluginIsRefusedInALine) {
  const std::string file = testing::TempDir() + "no-plugin-" + std::to_string(getpid());
  fclose(fopen(file.c_str(), "w"));
  for (const char* fabric : {"soft", "virtual"}) {
    for (const std::string& plugin : {std::string("/tmp"), std::string("/nonexistent.so"), file}) {
      const PerfResult result = RunPerf({"--fabric", fabric, "--plugin", plugin, "-b", "8", "-e", "8"});
      EXPECT_EQ(result.exit_code, 2) << plugin << ": " << result.err;
      ASSERT_EQ(result.complaints().size(), 1u) << result.err;
      EXPECT_THAT(result.complaints()[0], HasSubstr("--plugin " + plugin));
    }
  }
  unlink(file.c_str());
}

TEST(PerfSoftTest, NoDeviceNamesTheCause) {
  const PerfResult result = RunPerf({"--fabric", "soft", "-b", "8", "-e", "8"}, {{"NCCL_IB_HCA", "nosuch"}});
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_EQ(result.complaints().size(), 1u) << result.err;
  EXPECT_THAT(result.complaints()[0], HasSubstr("NCCL_IB_HCA=nosuch selects no active port"));
}

TEST(PerfSoftTest, AFailureOfTheFabricIsOneLine) {
  const std::string name = "perf-soft-test-" + std::to_string(getpid());
  const std::string long_host(100, 'h');
  for (const auto& [environment, cause] : std::vector<std::pair<Environment, std::string>>{
           {{{"SLUICE_FABRIC", "a/b"}}, "SLUICE_FABRIC=\"a/b\""},
           {{{"SLUICE_FABRIC_HOST", long_host}}, "SLUICE_FABRIC_HOST=\"" + long_host + "\" is longer"},
           {{{"SLUICE_FABRIC_TOPOLOGY", "hosts=2"}, {"SLUICE_FABRIC_HOST", "nowhere"}},
            "no host \"nowhere\""},
           {{{"SLUICE_FABRIC_TOPOLOGY", "hosts=2,colour=red"}}, "colour"},
           {{{"SLUICE_FABRIC_LOG", "/nowhere/log"}}, "/nowhere/log"},
           {{{"NCCL_IB_DISABLE", "1"}}, "NCCL_IB_DISABLE=1 turns all off"}}) {
    SCOPED_TRACE(cause);
    Environment all = {{"SLUICE_FABRIC", name}};
    for (const auto& [key, value] : environment) all[key] = value;
    const PerfResult result = RunPerf({"--fabric", "soft", "--ranks", "3", "-b", "8", "-e", "8"}, all);
    EXPECT_EQ(result.exit_code, 1);
    ASSERT_EQ(result.complaints().size(), 1u) << result.err;
    EXPECT_THAT(result.complaints()[0], testing::StartsWith("sluice perf: rank "));
    EXPECT_THAT(result.complaints()[0], HasSubstr("finds no network device: "));
    EXPECT_THAT(result.complaints()[0], HasSubstr(cause));
  }
}

TEST(PerfSoftTest, TwoTopologiesOneAfterTheOther) {
  const std::string name = "perf-soft-test-" + std::to_string(getpid());
  for (const char* topology : {"hosts=2", "hosts=2,nics=2", "hosts=2"}) {
    ExpectRight({"--topology", topology, "-b", "8", "-e", "8"}, 1, {{"SLUICE_FABRIC", name}});
  }
}

TEST(PerfSoftTest, AHugeFactorEndsAfterTheFirstRow) {
  ExpectRight({"--ranks", "2", "-b", "8", "-e", "1K", "-f", "1e300"}, 1);
}

// Runs `sluice perf` in a shell, which sets limits and redirects. Returns its exit code; `err` receives what
// it says.
int RunInShell(const std::string& before, const std::string& arguments, std::string* err) {
  const std::string command = "(" + before + " exec '" + Built("bin/sluice") +
                              "' perf --fabric soft --ranks 2 -n 1 -w 0 --timeout 60 " + arguments +
                              ") 2>&1 >/dev/full";
  FILE* const shell = popen(command.c_str(), "r");
  if (shell == nullptr) return -1;
  err->clear();
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, shell)) > 0;) err->append(buffer, n);
  const int status = pclose(shell);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(PerfSoftTest, ResultsThatCannotBeWritten) {
  std::string err;
  EXPECT_EQ(RunInShell("", "-b 8 -e 8", &err), 1);
  EXPECT_EQ(err, "sluice perf: cannot write the results to standard output; is its disk full?\n");
}

TEST(PerfSoftTest, FewDescriptorsAreNamed) {
  const std::string ended = "sluice perf: cannot write the results to standard output; is its disk full?\n";
  for (int files = 6; files <= 32; ++files) {
    SCOPED_TRACE(files);
    std::string err;
    EXPECT_EQ(RunInShell("ulimit -n " + std::to_string(files) + ";", "-b 8 -e 8", &err), 1);
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
    if (err != ended) {
      EXPECT_THAT(err, testing::AnyOf(HasSubstr("ulimit -n"), HasSubstr("ulimit -Hn")));
    }
  }
  std::string err;  // a low limit that may be raised is no limit
  EXPECT_EQ(RunInShell("ulimit -Sn 10;", "-b 8 -e 8", &err), 1);
  EXPECT_EQ(err, ended);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their shadow memory exceeds the limit
TEST(PerfSoftTest, NoMemoryIsOneLine) {
  std::string err;
  EXPECT_EQ(RunInShell("ulimit -v 1000000;", "-b 16G -e 16G", &err), 1);
  EXPECT_THAT(err, testing::MatchesRegex("sluice perf: rank [01]: out of memory; .*\n"));
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
}
#endif

TEST(PerfSoftTest, ATopologyWithErrorsIsOneLine) {
  char name[] = "/tmp/sluice-perf-topology-XXXXXX.toml";
  const int fd = mkstemps(name, 5);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(write(fd, "this is = not [toml", 19), 19);
  close(fd);
  for (const std::string& topology :
       {std::string(name), std::string("hosts=none"), std::string("/nowhere/topology.toml")}) {
    const PerfResult result = RunPerf({"--fabric", "soft", "--topology", topology, "-b", "8", "-e", "8"});
    EXPECT_EQ(result.exit_code, 2);
    ASSERT_EQ(result.complaints().size(), 1u) << result.err;
    EXPECT_THAT(result.complaints()[0], HasSubstr("--topology"));
  }
  unlink(name);
}

}  // namespace
}  // namespace sluice::test
