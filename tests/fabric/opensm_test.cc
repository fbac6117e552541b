// The OpenSM options that `sluice fabric-config` prints, read by the real opensm, which configures a fabric of two switches
// simulated by ibsim; the tables are then read back from every port with smpquery.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tools/fabric_config/plan.h"

namespace sluice::fabric_config {
namespace {

using ::testing::HasSubstr;

using Clock = std::chrono::steady_clock;
using Pairs = std::vector<std::pair<int, int>>;

constexpr auto kDeadline = std::chrono::seconds(120);

constexpr const char* kNet = R"(Switch 4 "Switch1"
[1] "Hca1"[1]
[2] "Hca2"[1]
[3] "Switch2"[3]

Switch 4 "Switch2"
[1] "Hca3"[1]
[3] "Switch1"[3]

Hca 1 "Hca1"
[1] "Switch1"[1]

Hca 1 "Hca2"
[1] "Switch1"[2]

Hca 1 "Hca3"
[1] "Switch2"[1]
)";
constexpr int kNodes = 5;

// A child with its input and output on pipes; dies with this object, and with this process.
class Child {
 public:
  Child(const std::vector<std::string>& command, const std::string& directory) {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) abort();
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent || chdir(directory.c_str()) != 0) _exit(126);
      dup2(in[0], 0);
      dup2(out[1], 1);
      dup2(out[1], 2);
      execvp(arguments[0], arguments.data());
      dprintf(2, "%s cannot be run: scripts/install-deps.sh test installs it\n", arguments[0]);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    close(in_);
    close(out_);
    if (!ended_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  // All output so far, once it holds `text`, ends, or the deadline is over. Nothing given: to the end.
  std::string ReadUntil(const std::optional<std::string>& text = std::nullopt) {
    const Clock::time_point deadline = Clock::now() + kDeadline;
    while (!text || output_.find(*text) == std::string::npos) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      pollfd ready{out_, POLLIN, 0};
      if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) break;
      char chunk[4096];
      const ssize_t count = read(out_, chunk, sizeof(chunk));
      if (count <= 0) break;
      output_.append(chunk, static_cast<size_t>(count));
    }
    return output_;
  }

  // After the output has ended.
  int ExitCode() {
    int status = 0;
    waitpid(pid_, &status, 0);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  bool ended_ = false;
  std::string output_;
};

class OpenSmTest : public testing::Test {
 protected:
  OpenSmTest() {
    char name[] = "/tmp/sluice-opensm-XXXXXX";
    dir_ = mkdtemp(name);
    setenv("PATH", (std::string(getenv("PATH")) + ":/usr/sbin:/sbin").c_str(), 1);
    // ibsim and its clients meet under this name; others on the machine have their own.
    setenv("IBSIM_SOCKNAME", dir_.filename().c_str(), 1);
    setenv("SIM_HOST", "Hca1", 1);
    setenv("OSM_CACHE_DIR", dir_.c_str(), 1);
    setenv("OSM_TMP_DIR", dir_.c_str(), 1);
    std::ofstream(dir_ / "net") << kNet;
  }
  ~OpenSmTest() override {
    fabric_.reset();
    std::filesystem::remove_all(dir_);
  }

  std::string Run(const std::vector<std::string>& command, int expected = 0) {
    Child child(command, dir_);
    const std::string output = child.ReadUntil();
    EXPECT_EQ(child.ExitCode(), expected) << command[0] << ": " << output;
    return output;
  }

  std::string FabricConfig(const std::string& policy, int vls) {
    const std::string sluice = std::string(std::getenv("SLUICE_BUILD_DIR")) + "/bin/sluice";
    // Warnings are on standard error and not part of the file.
    return Run({"sh", "-c", "exec \"$@\" 2>/dev/null", "sh", sluice, "fabric-config", "--policy", policy,
                "--for", "opensm", "--vls", std::to_string(vls)});
  }

  // The fabric, configured by opensm with these options.
  void Configure(const std::string& options) {
    std::ofstream(dir_ / "opensm.conf") << options;
    fabric_.reset();
    fabric_ = std::make_unique<Child>(std::vector<std::string>{"ibsim", "-s", "net"}, dir_);
    ASSERT_THAT(fabric_->ReadUntil("sim>"), HasSubstr("Network simulator ready"));
    const std::string log = dir_ / "opensm.log";
    std::filesystem::remove(log);
    // Once: it ends when the subnet is configured.
    const std::string output =
        Run({"ibsim-run", "opensm", "--once", "--config", dir_ / "opensm.conf", "--log_file", log});
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    ASSERT_THAT(text.str(), HasSubstr("SUBNET UP")) << output;
    ASSERT_EQ(text.str().find("ERR "), std::string::npos) << text.str();
  }

  std::string Query(const std::string& what, int lid) {
    return Run({"ibsim-run", "smpquery", what, std::to_string(lid), "1"});
  }

  // The cells of the first line after `after` that begins with `begin`.
  static std::vector<int> Cells(const std::string& text, const std::string& after, const std::string& begin) {
    size_t at = text.find(after);
    at = at == std::string::npos ? at : text.find("\n" + begin, at);
    at = at == std::string::npos ? at : text.find('|', at);
    std::vector<int> cells;
    if (at == std::string::npos) return cells;
    std::istringstream line(text.substr(at + 1, text.find('\n', at) - at - 1));
    for (std::string cell; std::getline(line, cell, '|');) cells.push_back(std::stoi(cell, nullptr, 0));
    return cells;
  }

  // Entries with weight, in order.
  static Pairs Arbitration(const std::string& text, const std::string& table) {
    const std::vector<int> vls = Cells(text, table, "VL ");
    const std::vector<int> weights = Cells(text, table, "WEIGHT");
    EXPECT_EQ(vls.size(), weights.size()) << text;
    Pairs entries;
    for (size_t i = 0; i < weights.size() && i < vls.size(); ++i) {
      if (weights[i] != 0) entries.emplace_back(vls[i], weights[i]);
    }
    return entries;
  }

  void ExpectTables(const std::vector<int>& vl_of_sl, const Pairs& high, const Pairs& low) {
    for (int lid = 1; lid <= kNodes; ++lid) {
      const std::string sl2vl = Query("sl2vl", lid);
      int rows = 0;
      for (size_t at = sl2vl.find("\nports:"); at != std::string::npos;
           at = sl2vl.find("\nports:", at + 1), ++rows)
        EXPECT_EQ(Cells(sl2vl.substr(at), "", "ports:"), vl_of_sl) << "LID " << lid << "\n" << sl2vl;
      EXPECT_GE(rows, 1) << sl2vl;
      const std::string vlarb = Query("vlarb", lid);
      EXPECT_EQ(Arbitration(vlarb, "# Low priority"), low) << "LID " << lid << "\n" << vlarb;
      EXPECT_EQ(Arbitration(vlarb, "# High priority"), high) << "LID " << lid << "\n" << vlarb;
    }
  }

  std::filesystem::path dir_;
  std::unique_ptr<Child> fabric_;
};

// By hand, so that a mistake in the plan shows too.
TEST_F(OpenSmTest, TablesOfTheExamplePolicy) {
  const std::string policy =
      std::string(std::getenv("SLUICE_SOURCE_DIR")) + "/docs/policies/lossless-infiniband.toml";
  Configure(FabricConfig(policy, 8));
  // Other traffic (SL 0) on VL 0, control on 1, latency on 2, bulk on 3, background on 4; what nobody uses on VL 0.
  ExpectTables({0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {{1, 192}, {2, 192}},
               {{3, 192}, {0, 192}, {4, 64}, {3, 192}, {0, 192}, {3, 192}, {0, 192}, {3, 192}});
}

TEST_F(OpenSmTest, FewerLanesThanServiceLevels) {
  const std::string path =
      std::string(std::getenv("SLUICE_SOURCE_DIR")) + "/docs/policies/lossless-infiniband.toml";
  const Result<std::shared_ptr<const Policy>> policy = Policy::ReadFile(path);
  ASSERT_TRUE(policy.ok());
  for (const int vls : {4, 2}) {
    Options options;
    options.vls = vls;
    const InfiniBandPlan plan = PlanInfiniBand(**policy, options);
    ASSERT_LE(plan.groups.size(), static_cast<size_t>(vls));
    Configure(FabricConfig(path, vls));
    ExpectTables({plan.vl_of_sl.begin(), plan.vl_of_sl.end()}, plan.high, plan.low);
  }
}

}  // namespace
}  // namespace sluice::fabric_config
