// Questions to a real subnet administrator: opensm, which routes a ring of switches simulated by ibsim with engines that own
// the service level and others that do not. saquery, of infiniband-diags, is asked the same for comparison.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/fabric/child.h"

namespace sluice::soft {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kSwitches = 6;

class SaOpenSmTest : public testing::Test {
 protected:
  SaOpenSmTest() {
    char name[] = "/tmp/sluice-sa-XXXXXX";
    dir_ = mkdtemp(name);
    setenv("PATH", (std::string(getenv("PATH")) + ":/usr/sbin:/sbin").c_str(), 1);
    setenv("IBSIM_SOCKNAME", dir_.filename().c_str(), 1);
    setenv("OSM_CACHE_DIR", dir_.c_str(), 1);
    setenv("OSM_TMP_DIR", dir_.c_str(), 1);
    std::ofstream net(dir_ / "net");
    for (int i = 0; i < kSwitches; ++i) {
      net << "Switch 4 \"S" << i << "\"\n[1] \"Hca" << i << "\"[1]\n[2] \"S" << (i + 1) % kSwitches
          << "\"[3]\n[3] \"S" << (i + kSwitches - 1) % kSwitches << "\"[2]\n\n";
    }
    for (int i = 0; i < kSwitches; ++i) net << "Hca 1 \"Hca" << i << "\"\n[1] \"S" << i << "\"[1]\n\n";
  }
  ~SaOpenSmTest() override {
    manager_.reset();
    fabric_.reset();
    std::filesystem::remove_all(dir_);
  }

  // Starts the fabric and the subnet manager, which stays.
  void Start(const std::string& options) {
    std::ofstream(dir_ / "opensm.conf") << options << "force_log_flush TRUE\n";
    fabric_ = std::make_unique<Child>(std::vector<std::string>{"ibsim", "-s", "net"}, dir_);
    ASSERT_THAT(fabric_->ReadUntil("sim>"), HasSubstr("Network simulator ready"));
    setenv("SIM_HOST", "Hca0", 1);
    manager_ = std::make_unique<Child>(
        std::vector<std::string>{"ibsim-run", "opensm", "--config", dir_ / "opensm.conf", "--log_file",
                                 dir_ / "opensm.log"},
        dir_);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (Log().find("SUBNET UP") == std::string::npos && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_THAT(Log(), HasSubstr("SUBNET UP"));
    setenv("SIM_HOST", "Hca3", 1);
    for (int i = 0; i < kSwitches; ++i) {
      // "... Lid 5"
      const std::string found = Run({"ibsim-run", "ibaddr", "-L", "-G", Guid(i)});
      const size_t at = found.find("LID start ");
      if (at != std::string::npos) lids_.push_back(std::stoi(found.substr(at + 10), nullptr, 0));
    }
    ASSERT_EQ(lids_.size(), size_t{kSwitches});
  }

  std::string Log() const {
    std::stringstream text;
    text << std::ifstream(dir_ / "opensm.log").rdbuf();
    return text.str();
  }

  // Of the port of an adapter, as ibsim numbers them.
  static std::string Guid(int adapter) {
    char text[32];
    snprintf(text, sizeof(text), "0x%x", 0x100001 + 2 * adapter);
    return text;
  }

  std::string Run(const std::vector<std::string>& command) {
    Child child(command, dir_);
    child.CloseInput();
    return child.ReadUntil();
  }

  // Our client's answers, a line for each question.
  std::vector<std::string> Ask(const std::vector<std::array<int, 3>>& questions) {
    // ibsim preloads its library, which then stands before the address sanitizer's.
    Child child({"env", "ASAN_OPTIONS=verify_asan_link_order=0", "ibsim-run",
                 std::string(std::getenv("SLUICE_BUILD_DIR")) + "/tests/sa_ask", "ibsim0", "1"},
                dir_);
    for (const auto& [from, to, sl] : questions)
      child.Write(std::to_string(from) + " " + std::to_string(to) + " " + std::to_string(sl) + "\n");
    child.CloseInput();
    std::istringstream lines(child.ReadUntil());
    EXPECT_EQ(child.ExitCode(), 0);
    std::vector<std::string> answers;
    for (std::string line; std::getline(lines, line);) answers.push_back(line);
    EXPECT_EQ(answers.size(), questions.size());
    answers.resize(questions.size());
    return answers;
  }

  std::vector<std::array<int, 3>> AllPairs() const {
    std::vector<std::array<int, 3>> pairs;
    for (const int from : lids_) {
      for (const int to : lids_) {
        if (from != to) pairs.push_back({from, to, -1});
      }
    }
    return pairs;
  }

  // "sl......................0x2" of what saquery prints.
  int SaquerySl(int from, int to) {
    const std::string text =
        Run({"ibsim-run", "saquery", "--slid", std::to_string(from), "--dlid", std::to_string(to), "PR"});
    const size_t at = text.find("\tsl...");
    return at == std::string::npos ? -1 : std::stoi(text.substr(text.find("0x", at)), nullptr, 0);
  }

  std::filesystem::path dir_;
  std::unique_ptr<Child> fabric_;
  std::unique_ptr<Child> manager_;
  std::vector<int> lids_;
};

// LASH puts each pair of switches on a layer, and layers are service levels: without another SL there are cycles of
// buffers in a ring.
TEST_F(SaOpenSmTest, LashOwnsTheServiceLevel) {
  Start("routing_engine lash\n");
  const auto pairs = AllPairs();
  const std::vector<std::string> answers = Ask(pairs);
  EXPECT_GE(std::set<std::string>(answers.begin(), answers.end()).size(), 2u)
      << testing::PrintToString(answers);
  for (const size_t i : {size_t{0}, size_t{2}, size_t{9}, size_t{14}, size_t{29}})
    EXPECT_EQ(answers[i], std::to_string(SaquerySl(pairs[i][0], pairs[i][1])))
        << pairs[i][0] << "->" << pairs[i][1];
  // The SL of the route is allowed, every other one is not. Both directions must have it.
  size_t allowed = 0;
  for (size_t i = 0; i < 4; ++i) {
    const auto [from, to, any] = pairs[i];
    const std::string there = answers[i];
    const std::string back = Ask({{to, from, -1}})[0];
    for (int sl = 0; sl < 4; ++sl) {
      const bool fits = there == std::to_string(sl) && back == there;
      allowed += fits;
      EXPECT_EQ(Ask({{from, to, sl}})[0], fits ? std::to_string(sl) : "none")
          << from << "->" << to << " SL " << sl;
    }
  }
  EXPECT_GE(allowed, 1u);
}

// Minimum hop leaves the SL alone: 0 unless one is asked for, and any is fine.
TEST_F(SaOpenSmTest, MinimumHopAllowsEveryServiceLevel) {
  Start("routing_engine minhop\n");
  EXPECT_THAT(Ask(AllPairs()), Each("0"));
  for (int sl = 0; sl < 15; ++sl) EXPECT_EQ(Ask({{lids_[1], lids_[4], sl}})[0], std::to_string(sl));
  EXPECT_EQ(Ask({{lids_[1], 999, -1}})[0], "none");
}

// A quality-of-service policy of the subnet manager gives some pairs a level of their own and allows no other there.
TEST_F(SaOpenSmTest, PolicyOfTheSubnetManager) {
  std::ofstream(dir_ / "qos.conf")
      << "port-groups\n  port-group\n    name: ends\n    port-guid: " << Guid(1) << ", " << Guid(4)
      << "\n  end-port-group\nend-port-groups\n"
         "qos-levels\n  qos-level\n    name: DEFAULT\n    sl: 0\n  end-qos-level\n"
         "  qos-level\n    name: mine\n    sl: 5\n  end-qos-level\nend-qos-levels\n"
         "qos-match-rules\n  qos-match-rule\n    source: ends\n    destination: ends\n"
         "    qos-level-name: mine\n  end-qos-match-rule\nend-qos-match-rules\n";
  Start("routing_engine updn\nqos TRUE\nqos_policy_file " + (dir_ / "qos.conf").string() +
        "\nqos_max_vls 8\nqos_sl2vl 0,1,2,3,4,5,6,7,15,15,15,15,15,15,15,15\n");
  EXPECT_EQ(Ask({{lids_[1], lids_[4], -1}, {lids_[4], lids_[1], -1}, {lids_[1], lids_[4], 5}}),
            (std::vector<std::string>{"5", "5", "5"}));
  EXPECT_EQ(Ask({{lids_[1], lids_[4], 2}})[0], "none");
  EXPECT_EQ(Ask({{lids_[0], lids_[4], -1}, {lids_[0], lids_[4], 0}}), (std::vector<std::string>{"0", "0"}));
}

}  // namespace
}  // namespace sluice::soft
