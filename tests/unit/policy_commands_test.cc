// `sluice policy` and `sluice fabric-config` as people call them: output, JSON, exit codes; and the example policies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tuner/policy.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::filesystem::path Policies() {
  return std::filesystem::path(std::getenv("SLUICE_SOURCE_DIR")) / "docs/policies";
}

struct Outcome {
  int code = -1;
  std::string out;  // standard output, or standard error where the test asks for it
};

// `redirect`: "2>/dev/null", or "2>&1 >/dev/null" for what goes to standard error.
Outcome Sluice(const std::string& arguments, const std::string& environment = "",
               const std::string& redirect = "2>/dev/null") {
  const std::string command = "env -u SLUICE_POLICY " + environment + " " + std::getenv("SLUICE_BUILD_DIR") +
                              "/bin/sluice " + arguments + " " + redirect;
  Outcome outcome;
  FILE* const pipe = popen(command.c_str(), "r");
  char chunk[4096];
  for (size_t count; (count = fread(chunk, 1, sizeof(chunk), pipe)) > 0;) outcome.out.append(chunk, count);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

std::string Errors(const std::string& arguments, int code, const std::string& environment = "") {
  const Outcome outcome = Sluice(arguments, environment, "2>&1 >/dev/null");
  EXPECT_EQ(outcome.code, code) << arguments;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1) << outcome.out;
  return outcome.out;
}

class PolicyCommandsTest : public testing::Test {
 protected:
  PolicyCommandsTest() {
    char name[] = "/tmp/sluice-policy-XXXXXX";
    dir_ = mkdtemp(name);
  }
  ~PolicyCommandsTest() override { std::filesystem::remove_all(dir_); }
  std::string Write(const std::string& text) const {
    std::ofstream(dir_ / "p.toml") << text;
    return dir_ / "p.toml";
  }
  std::filesystem::path dir_;
};

TEST_F(PolicyCommandsTest, EveryExamplePolicyIsSound) {
  int examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(Policies())) {
    const Outcome check = Sluice("policy check " + entry.path().string());
    EXPECT_EQ(check.code, 0) << check.out;
    EXPECT_THAT(check.out, HasSubstr(": sound: "));
    const auto policy = Policy::ReadFile(entry.path());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    EXPECT_THAT((*policy)->notes(), IsEmpty()) << entry.path();
    EXPECT_EQ(Sluice("policy show " + entry.path().string()).code, 0);
    ++examples;
  }
  EXPECT_GE(examples, 4);
}

TEST_F(PolicyCommandsTest, Check) {
  const std::string bad = Write("[[class]]\nname = \"bulk\"\nsl = 16\n");
  EXPECT_THAT(Errors("policy check " + bad, 1),
              StartsWith("sluice policy: " + bad + ":3: class bulk: sl = 16 "));
  const Outcome json = Sluice("policy check --json " + bad);
  EXPECT_EQ(json.code, 1);
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_EQ(parsed["valid"], false);
  EXPECT_THAT(parsed["error"].get<std::string>(), HasSubstr("0..15"));
  const auto good =
      nlohmann::json::parse(Sluice("policy check --json " + (Policies() / "roce.toml").string()).out);
  EXPECT_EQ(good["valid"], true);
  EXPECT_EQ(good["classes"], 4);
  EXPECT_THAT(Errors("policy check " + (dir_ / "none").string(), 1), HasSubstr("No such file"));
  EXPECT_THAT(Errors("policy check " + dir_.string(), 1), HasSubstr("is a directory"));
  EXPECT_THAT(Errors("policy check", 2), HasSubstr("sluice policy --help"));
  EXPECT_THAT(Errors("policy", 2), HasSubstr("sluice policy --help"));
  EXPECT_EQ(Sluice("policy show", "", ">/dev/full 2>&1").code, 1);
}

TEST_F(PolicyCommandsTest, Explain) {
  const std::string example = (Policies() / "lossless-infiniband.toml").string();
  const Outcome text = Sluice(
      "policy explain " + example +
      " --op all_reduce --bytes 1M --algo ring --proto simple --comm dp:0 --traffic-class 5 --nodes 4");
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out,
              AllOf(StartsWith("operation: all_reduce, ring, simple, bytes 1MiB\n"),
                    HasSubstr("nodes 4, traffic class 5"), HasSubstr("small collectives (built-in): matches"),
                    HasSubstr("class: latency\n"), HasSubstr("on InfiniBand: sl 2 (policy)"),
                    HasSubstr("on RoCE: traffic class 5 (communicator)")));
  const auto json = nlohmann::json::parse(
      Sluice("policy explain " + example + " --json --op AllGather --bytes 2MiB --comm my-ckpt").out);
  EXPECT_EQ(json["class"], "background");
  EXPECT_EQ(json["infiniband"]["sl"], 4);
  EXPECT_EQ(json["rules"][0]["matches"], true);
  // Without a file: SLUICE_POLICY, or the built-in policy.
  EXPECT_THAT(Sluice("policy explain --op all_reduce --bytes 2M").out,
              HasSubstr("class: bulk\non InfiniBand: sl 0 (default)"));
  EXPECT_THAT(Sluice("policy explain --op send", "SLUICE_POLICY='rule = [{class = \"background\"}]'").out,
              HasSubstr("class: background"));
  EXPECT_THAT(Errors("policy explain --op all_redux", 2), HasSubstr("--op all_redux: unknown"));
  EXPECT_THAT(Errors("policy explain --bytes 1Q", 2), HasSubstr("--bytes \"1Q\" is not a size"));
  EXPECT_THAT(Errors("policy explain --nodes 0", 2), HasSubstr("--nodes 0"));
  EXPECT_THAT(Errors("policy explain --traffic-class 256", 2), HasSubstr("0 to 255"));
}

TEST_F(PolicyCommandsTest, Show) {
  const std::string example = (Policies() / "roce.toml").string();
  const Outcome text = Sluice("policy show " + example, "NCCL_IB_SL=3 SLUICE_TC=7");
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("RoCE: traffic class 106 = DSCP 26 (policy), sl 3 (NCCL_IB_SL)"),
                              HasSubstr("InfiniBand: sl 3 (NCCL_IB_SL), traffic class 106 (policy)"),
                              HasSubstr("bulk         otherwise")));
  const auto json = nlohmann::json::parse(Sluice("policy show --json", "NCCL_IB_FIFO_TC=192").out);
  EXPECT_EQ(json["policy"], "built-in");
  EXPECT_EQ(json["classes"][0]["roce"]["traffic_class"], 192);
  EXPECT_EQ(json["classes"][0]["roce"]["traffic_class_source"], "NCCL_IB_FIFO_TC");
  EXPECT_EQ(json["classes"][3]["reachable"], false);
  EXPECT_THAT(Errors("policy show", 1, "NCCL_IB_SL=16"), HasSubstr("NCCL_IB_SL=16 is out of range"));
}

TEST_F(PolicyCommandsTest, FabricConfig) {
  const std::string roce = (Policies() / "roce.toml").string();
  EXPECT_TRUE(nlohmann::json::accept(
      Sluice("fabric-config --policy " + roce + " --for sonic --ports Ethernet0,Ethernet4").out));
  for (const char* target : {"mlnx_qos", "dcb"}) {
    const Outcome script = Sluice("fabric-config --policy " + roce + " --for " + target);
    EXPECT_EQ(script.code, 0);
    std::ofstream(dir_ / "script.sh") << script.out;
    EXPECT_EQ(system(("bash -n " + (dir_ / "script.sh").string()).c_str()), 0) << script.out;
  }
  const Outcome nothing = Sluice("fabric-config --for opensm", "", "2>&1");
  EXPECT_EQ(nothing.code, 0);
  EXPECT_THAT(nothing.out, HasSubstr("warning: the policy names no service level"));
  EXPECT_THAT(Errors("fabric-config --for cisco", 2), HasSubstr("use opensm, mlnx_qos, dcb or sonic"));
  EXPECT_THAT(Errors("fabric-config --for opensm --vls 16", 2),
              HasSubstr("--vls 16: out of range; use 1 to 15"));
  EXPECT_THAT(Errors("fabric-config --policy " + roce + " --for sonic --lossy x", 2), HasSubstr("--lossy x"));
  EXPECT_THAT(Errors("fabric-config --for sonic --ports 'a b'", 2), HasSubstr("not names of ports"));
  EXPECT_THAT(Errors("fabric-config --for opensm --policy /none", 1), HasSubstr("No such file"));
}

}  // namespace
}  // namespace sluice
