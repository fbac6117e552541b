// The Sluice plugin under `sluice perf`, between processes on the software fabric: no wrong value in any
// combination.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
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
