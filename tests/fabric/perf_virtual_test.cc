// `sluice perf --fabric virtual`: right, the same again, and an end with a reason when nothing can move.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fabric/perf_run.h"

namespace sluice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kOps[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                "reduce",     "all_to_all", "sendrecv"};

PerfResult RunVirtual(std::vector<std::string> arguments, const Environment& environment = {}) {
  arguments.insert(arguments.begin(), {"--fabric", "virtual"});
  std::string line;
  for (const std::string& a : arguments) line += " " + a;
  SCOPED_TRACE(line);
  return RunPerf(arguments, environment);
}

// `rows` rows without a wrong value, then the line about the fabric.
void ExpectRight(std::vector<std::string> arguments, size_t rows, const Environment& environment = {}) {
  std::string line;
  for (const std::string& a : arguments) line += " " + a;
  SCOPED_TRACE(line);
  arguments.push_back("--json");
  const PerfResult result = RunVirtual(arguments, environment);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(result.rows.size(), rows + 1);
  for (size_t i = 0; i < rows; ++i) {
    EXPECT_EQ(result.rows[i]["wrong"], 0) << result.rows[i];
    EXPECT_GT(result.rows[i]["time_us"], 0) << result.rows[i];
  }
  EXPECT_EQ(result.rows[rows]["fabric"], "virtual");
  EXPECT_GT(result.rows[rows]["virtual_time_us"], 0);
}

// Keeps a processor busy while it lives.
class Burner {
 public:
  Burner() : pid_(fork()) {
    if (pid_ != 0) return;
    for (volatile unsigned x = 0;;) {
      x = x + 1;
    }
  }
  ~Burner() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

TEST(PerfVirtualTest, EqualSeedsGiveEqualBytes) {
  for (const char* host : {"ideal", "typical"}) {
    for (const char* op : {"all_reduce", "all_to_all"}) {
      const std::vector<std::string> arguments = {"--op",   op,   "--ranks", "4",  "--channels", "2",
                                                  "-b",     "8",  "-e",      "2M", "-f",         "32",
                                                  "--host", host, "--seed",  "7"};
      const PerfResult first = RunVirtual(arguments);
      EXPECT_EQ(first.exit_code, 0) << first.err;
      EXPECT_THAT(first.out, HasSubstr("seed 7"));
      EXPECT_EQ(RunVirtual(arguments).out, first.out);
      const Burner one, two;
      EXPECT_EQ(RunVirtual(arguments).out, first.out);
    }
  }
}

TEST(PerfVirtualTest, AnotherSeedIsAnotherRunOfATypicalHost) {
  const auto run = [](const char* host, const char* seed) {
    return RunVirtual({"--ranks", "4", "--host", host, "--seed", seed, "-b", "64K", "-e", "64K", "--json"});
  };
  const PerfResult one = run("typical", "1"), two = run("typical", "2"), ideal = run("ideal", "1");
  ASSERT_EQ(one.rows.size(), 2u);
  ASSERT_EQ(two.rows.size(), 2u);
  ASSERT_EQ(ideal.rows.size(), 2u);
  EXPECT_NE(one.rows[0]["time_us"], two.rows[0]["time_us"]);
  EXPECT_GT(one.rows[0]["time_us"], ideal.rows[0]["time_us"]);
}

TEST(PerfVirtualTest, EveryOperationProtocolAndAlgorithm) {
  for (const char* op : kOps) {
    for (const char* proto : {"simple", "ll", "ll128"}) {
      ExpectRight({"--op", op, "--proto", proto, "--ranks", "4", "--channels", "2", "--root", "3", "-b", "16",
                   "-e", "4M", "-f", "512"},
                  3);
    }
    ExpectRight({"--op", op, "--ranks", "8", "--host", "typical", "-b", "32", "-e", "2M", "-f", "256"}, 3);
  }
  for (const char* proto : {"simple", "ll", "ll128"}) {
    ExpectRight({"--algo", "tree", "--proto", proto, "--ranks", "5", "--channels", "2", "-b", "8", "-e", "2M",
                 "-f", "512"},
                3);
  }
}

TEST(PerfVirtualTest, RegisteredGroupedAndSeveralCommunicators) {
  for (const char* op : {"all_reduce", "all_gather", "all_to_all"}) {
    ExpectRight({"--op", op, "--ranks", "3", "--register", "-b", "12", "-e", "6M", "-f", "700"}, 3);
    ExpectRight({"--op", op, "--ranks", "3", "--multi-comm", "2", "-b", "12", "-e", "1M", "-f", "300"}, 2);
  }
  ExpectRight({"--op", "all_to_all", "--ranks", "3", "--channels", "4", "--proto", "simple", "-b", "12", "-e",
               "6M", "-f", "700"},
              3, {{"SLUICE_MAX_RECVS", "8"}});
  ExpectRight({"--op", "sendrecv", "--ranks", "1", "-b", "8", "-e", "1M", "-f", "512"}, 2);
}

TEST(PerfVirtualTest, EveryVersionOfTheInterface) {
  for (int api = 7; api <= 12; ++api) {
    ExpectRight({"--api", std::to_string(api), "--ranks", "3", "-b", "8", "-e", "1M", "-f", "512"}, 2);
  }
}

TEST(PerfVirtualTest, HostsWithSeveralRanksAndDevices) {
  ExpectRight(
      {"--topology", "hosts=2,nics=2", "--ranks", "4", "--channels", "2", "-b", "8", "-e", "1M", "-f", "512"},
      2);
  ExpectRight(
      {"--topology", "hosts=4", "--ranks", "6", "--ranks-per-host", "2", "-b", "8", "-e", "1M", "-f", "512"},
      2);
  ExpectRight({"--topology", "hosts=3,link=infiniband", "--ranks", "3", "-b", "8", "-e", "1M", "-f", "512"},
              2);
  ExpectRight({"--topology", "hosts=2,nics=2", "--merge", "2", "-b", "8", "-e", "4M", "-f", "512"}, 3);
  const PerfResult result = RunVirtual({"--topology", "hosts=2", "--ranks", "6", "--ranks-per-host", "2"});
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_EQ(result.complaints().size(), 1u) << result.err;
  EXPECT_THAT(result.complaints()[0], HasSubstr("--ranks-per-host 2: 6 ranks need 3 hosts"));
}

double TimeOf(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  const PerfResult result = RunVirtual(arguments, environment);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  if (result.rows.empty()) return 0;
  EXPECT_EQ(result.rows[0]["wrong"], 0);
  return result.rows[0]["time_us"];
}

TEST(PerfVirtualTest, BackgroundTrafficSlowsAJobTheSameEveryTime) {
  const std::vector<std::string> alone = {
      "--ranks", "4",  "--topology", "leaf-spine:hosts=8,hosts_per_leaf=4,rate=100G", "-b", "4M",
      "-e",      "4M", "--json"};
  std::vector<std::string> beside = alone;
  beside.insert(beside.end(), {"--background",
                               "storage:hosts=host0..host3,targets=host6+host7,load=0.5,bytes=256K,"
                               "stop=1s,sl=1,traffic_class=32",
                               "--background", "incast:hosts=host4,targets=host1,bytes=8M"});
  EXPECT_GT(TimeOf(beside), 1.3 * TimeOf(alone));
  const PerfResult first = RunVirtual(beside);
  const Burner burner;
  EXPECT_EQ(RunVirtual(beside).out, first.out);
  beside.insert(beside.end(), {"--seed", "9"});
  EXPECT_NE(RunVirtual(beside).out, first.out);
}

TEST(PerfVirtualTest, FaultsOfTheCommandLineHappen) {
  const std::vector<std::string> arguments = {"--ranks", "2",      "-b",        "4M", "-e",
                                              "4M",      "--json", "--timeout", "120"};
  const double alone = TimeOf(arguments);
  std::vector<std::string> faulty = arguments;
  faulty.insert(faulty.end(), {"--fault", "slow-link:link=host1,rate=25G"});
  EXPECT_GT(TimeOf(faulty), 3 * alone);
  faulty = arguments;
  faulty.insert(faulty.end(), {"--fault", "corruption:probability=1e-3,packets=data", "--fault",
                               "loss:probability=1e-3,packets=data"});
  const PerfResult result = RunVirtual(faulty, {{"NCCL_IB_TIMEOUT", "10"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(result.rows.size(), 2u);
  EXPECT_EQ(result.rows[0]["wrong"], 0);
  EXPECT_GT(result.rows[1]["dropped_packets"], 0);
  EXPECT_GT(result.rows[1]["corrupted_packets"], 0);
}

TEST(PerfVirtualTest, FaultsAndBackgroundThatCannotBeAreRefused) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--fault", "earthquake"}, "earthquake"},
      {{"--topology", "hosts=2", "--fault", "link-down:link=host7"}, "host7"},
      {{"--topology", "hosts=2", "--background", "incast:targets=host7"}, "host7"},
      {{"--topology", "hosts=2", "--fault", "slow-link:link=host1,rate=400G"}, "not below the rate"},
      {{"--topology", "/nonexistent.toml"}, "--topology: topology file /nonexistent.toml"},
  };
  for (const auto& [arguments, part] : cases) {
    const PerfResult result = RunVirtual(arguments);
    EXPECT_EQ(result.exit_code, 2) << part;
    ASSERT_EQ(result.complaints().size(), 1u) << result.err;
    EXPECT_THAT(result.complaints()[0], HasSubstr(part));
  }
}

TEST(PerfVirtualTest, DataIsRightUnderAdaptiveRouting) {
  const std::string shape = "leaf-spine:hosts=8,hosts_per_leaf=4,spines=4,rate=100G,routing.mode=adaptive";
  const Environment adaptive = {{"NCCL_IB_ADAPTIVE_ROUTING", "1"}};
  for (const std::string reorder : {"", ",nics.reorder_packets=256"}) {
    for (const char* op : {"all_reduce", "all_to_all"}) {
      for (const char* proto : {"simple", "ll", "ll128"}) {
        ExpectRight({"--topology", shape + reorder, "--op", op, "--proto", proto, "--ranks", "8",
                     "--channels", "2", "-b", "64K", "-e", "1M", "-f", "16"},
                    2, adaptive);
      }
    }
  }
}

// Packets take turns over two ways, of which one is far: on it they are overtaken all the time.
TEST(PerfVirtualTest, DataIsRightWhereHalfOfThePacketsAreOvertaken) {
  const std::string file = testing::TempDir() + "two_ways_" + std::to_string(getpid()) + ".toml";
  const Environment adaptive = {{"NCCL_IB_ADAPTIVE_ROUTING", "1"}};
  double times[2] = {};
  for (const bool reorder : {false, true}) {
    std::ofstream out(file);
    out << "[topology]\nhosts = 2\nrate = \"100G\"\nspine_rate = \"50G\"\n"
        << "[[switch]]\nname = \"leaf\"\ncount = 2\n[[switch]]\nname = \"spine\"\ncount = 2\n";
    for (const char* ends :
         {"a = \"host0\"\nb = \"leaf0\"\n", "a = \"host1\"\nb = \"leaf1\"\n",
          "a = \"leaf0\"\nb = \"spine0\"\n", "a = \"leaf1\"\nb = \"spine0\"\n",
          "a = \"leaf0\"\nb = \"spine1\"\ndelay = \"5us\"\n", "a = \"leaf1\"\nb = \"spine1\"\n"}) {
      out << "[[link]]\n" << ends;
    }
    out << "[routing]\nmode = \"adaptive\"\n";
    if (reorder) out << "[nics]\nreorder_packets = 256\n";
    out.close();
    for (const char* proto : {"simple", "ll", "ll128"}) {
      const PerfResult result = RunVirtual({"--topology", file, "--op", "all_reduce", "--proto", proto,
                                            "--ranks", "2", "-b", "4M", "-e", "4M", "--json"},
                                           adaptive);
      EXPECT_EQ(result.exit_code, 0) << result.err;
      ASSERT_EQ(result.rows.size(), 2u);
      EXPECT_EQ(result.rows[0]["wrong"], 0) << proto << ", reordering " << reorder;
      if (std::string(proto) == "simple") times[reorder ? 1 : 0] = result.rows[0]["time_us"];
    }
  }
  unlink(file.c_str());
  // Queue pairs that answer NAKs send everything behind a gap again.
  EXPECT_LT(times[1] * 1.2, times[0]);
}

TEST(PerfVirtualTest, SyntheticPayloadGivesTheTimesOfStoredOne) {
  for (const char* op : kOps) {
    for (const char* proto : {"simple", "ll", "ll128"}) {
      const auto run = [&](const char* payload) {
        const PerfResult result =
            RunVirtual({"--op", op, "--proto", proto, "--ranks", "5", "--channels", "2", "--root", "3", "-b",
                        "20", "-e", "1M", "-f", "200", "--payload", payload});
        EXPECT_EQ(result.exit_code, 0) << result.err;
        return result.out;
      };
      EXPECT_EQ(run("stored"), run("synthetic")) << op << " " << proto;
    }
  }
  ExpectRight(
      {"--algo", "tree", "--ranks", "6", "-b", "1K", "-e", "1M", "-f", "32", "--payload", "synthetic"}, 3);
}

TEST(PerfVirtualTest, SyntheticPayloadIsNotStored) {
  constexpr uint64_t kStored = uint64_t{8} * (64 << 20);
  const auto peak = [](const char* payload) {
    const PerfResult result = RunVirtual({"--ranks", "8", "--op", "broadcast", "-b", "64M", "-e", "64M", "-n",
                                          "1", "-w", "0", "--payload", payload, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.rows[0]["wrong"], 0);
    return result.peak_bytes;
  };
  EXPECT_GT(peak("stored"), kStored);
  EXPECT_LT(peak("synthetic"), kStored / 2);
}

TEST(PerfVirtualTest, SixtyFourRanksOnLeafSpine) {
  ExpectRight({"--topology", "leaf-spine:hosts=64,rate=400G", "--ranks", "64", "-b", "1K", "-e", "1M", "-f",
               "32", "-n", "1"},
              3);
}

TEST(PerfVirtualTest, ADeadlockIsReported) {
  const PerfResult result = RunVirtual({"--plugin", Built("lib/libperf_toy_plugin.so"), "--ranks", "2",
                                        "--json", "--proto", "simple", "-b", "64", "-e", "64"},
                                       {{"PERF_TOY", "hang_test"}});
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_EQ(result.complaints().size(), 1u) << result.err;
  EXPECT_THAT(result.complaints()[0], HasSubstr("deadlock at "));
  EXPECT_THAT(result.complaints()[0], HasSubstr("no event is left"));
  EXPECT_THAT(result.err, HasSubstr("#   rank 0: all_reduce simple #1 to rank 1 channel 0: of "));
  EXPECT_THAT(result.err, HasSubstr("#   rank 1: GPU in all_reduce simple #1: slice "));
  EXPECT_THAT(result.out, Not(HasSubstr("wrong")));
}

TEST(PerfVirtualTest, APluginThatFailsOrHangsInSetUpEndsTheRun) {
  const auto run = [](const char* fault) {
    return RunVirtual(
        {"--plugin", Built("lib/libperf_toy_plugin.so"), "--ranks", "2", "--json", "--timeout", "3"},
        {{"PERF_TOY", fault}});
  };
  const PerfResult fails = run("fail_connect");
  EXPECT_EQ(fails.exit_code, 1);
  ASSERT_EQ(fails.complaints().size(), 1u) << fails.err;
  EXPECT_THAT(fails.complaints()[0], HasSubstr("rank 0: connecting to rank 1"));
  const PerfResult hangs = run("hang_connect");
  EXPECT_EQ(hangs.exit_code, 1);
  ASSERT_EQ(hangs.complaints().size(), 1u) << hangs.err;
  EXPECT_THAT(hangs.complaints()[0],
              HasSubstr("timed out after 3 s (--timeout) while connecting rank 0 to rank 1"));
}

// A host that stands still for 30 ms delays the ring by as much, and nobody takes that for a deadlock.
TEST(PerfVirtualTest, APausedHostDelaysTheRun) {
  const std::string file = testing::TempDir() + "paused-" + std::to_string(getpid()) + ".toml";
  const std::vector<std::string> arguments = {"--ranks", "4", "-b", "64K", "-e",    "64K",
                                              "-n",      "1", "-w", "0",   "--json"};
  const auto virtual_time_us = [&](const char* fault) {
    std::ofstream(file) << "[fabric]\nhosts = 4\nrate = \"100G\"\n" << fault;
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--topology", file});
    const PerfResult result = RunVirtual(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.rows.size() == 2 ? result.rows[1]["virtual_time_us"].get<double>() : 0.0;
  };
  const double healthy = virtual_time_us("");
  const double paused =
      virtual_time_us("[[fault]]\nkind = \"host-pause\"\nhost = \"host2\"\nat = \"0us\"\nfor = \"30ms\"\n");
  std::filesystem::remove(file);
  EXPECT_GT(healthy, 0);
  EXPECT_GE(paused, 30'000);
  EXPECT_LE(paused, 30'000 + 2 * healthy);
}

TEST(PerfVirtualTest, BadInputIsOneLine) {
  const auto complaint = [](std::vector<std::string> arguments) {
    const PerfResult result = RunVirtual(std::move(arguments));
    EXPECT_EQ(result.exit_code, 2);
    return result.complaints();
  };
  EXPECT_THAT(complaint({"--host", "fast"}),
              ElementsAre(HasSubstr("--host fast: unknown; use ideal or typical")));
  EXPECT_THAT(complaint({"--seed", "x"}), ElementsAre(HasSubstr("--seed x: not a number")));
  EXPECT_THAT(complaint({"--ranks", "257"}), ElementsAre(HasSubstr("--ranks 257: out of range")));
  EXPECT_THAT(complaint({"--topology", "hosts=none"}), ElementsAre(HasSubstr("--topology")));
  EXPECT_THAT(complaint({"--payload", "synthetic", "--register"}),
              ElementsAre(HasSubstr("leave --register out")));
  const PerfResult joined = RunVirtual({}, {{"RANK", "0"}});
  EXPECT_EQ(joined.exit_code, 2);
  EXPECT_THAT(joined.complaints(), ElementsAre(HasSubstr("but RANK is set")));
}

TEST(PerfVirtualTest, ASignalLeavesNothingBehind) {
  namespace fs = std::filesystem;
  const fs::path directory = fs::temp_directory_path() / ("sluice-virtual-test-" + std::to_string(getpid()));
  fs::create_directory(directory);
  PerfRun run({"--fabric", "virtual", "--json", "--ranks", "4", "-b", "64K", "-e", "64M", "-i", "4", "-n",
               "1", "-w", "0"},
              {{"TMPDIR", directory.string()}, {"XDG_RUNTIME_DIR", directory.string()}});
  run.WaitForOutput(2);
  EXPECT_FALSE(fs::is_empty(directory));
  kill(run.pid(), SIGTERM);
  const PerfResult result = run.Finish();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  ASSERT_EQ(result.complaints().size(), 1u) << result.err;
  EXPECT_THAT(result.complaints()[0], HasSubstr("ended by signal 15"));
  EXPECT_TRUE(fs::is_empty(directory));
  fs::remove_all(directory);
}

}  // namespace
}  // namespace sluice::test
