// Plans for the fabric, and their texts against committed ones (tests/unit/golden/fabric_config).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "tools/fabric_config/plan.h"
#include "tools/fabric_config/writers.h"

namespace sluice::fabric_config {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::filesystem::path SourceDir() {
  const char* const dir = std::getenv("SLUICE_SOURCE_DIR");
  return dir == nullptr ? "." : dir;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// With SLUICE_UPDATE_GOLDEN set, writes the text instead of comparing it.
void ExpectGolden(const std::string& name, const std::string& text) {
  const std::filesystem::path path = SourceDir() / "tests/unit/golden/fabric_config" / name;
  if (std::getenv("SLUICE_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  EXPECT_EQ(ReadFile(path), text) << name
                                  << ": review the change, then run again with SLUICE_UPDATE_GOLDEN=1";
}

std::shared_ptr<const Policy> Example(const std::string& name) {
  const auto policy = Policy::ReadFile(SourceDir() / "docs/policies" / name);
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  return policy.ok() ? *policy : Policy::Default();
}

// Classes with these lines, each reachable.
std::shared_ptr<const Policy> With(const std::vector<std::pair<std::string, std::string>>& classes) {
  std::string toml = "default_rules = true\n";
  for (const auto& [name, lines] : classes) toml += "[[class]]\nname = \"" + name + "\"\n" + lines + "\n";
  for (const auto& [name, lines] : classes) {
    if (name != "control") toml += "[[rule]]\ncommunicator = \"" + name + "\"\nclass = \"" + name + "\"\n";
  }
  const auto policy = Policy::Parse(toml, "test");
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  return *policy;
}

RocePlan Roce(const Policy& policy, const Options& options = {}) {
  const Result<RocePlan> plan = PlanRoce(policy, options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *plan;
}

TEST(FabricConfigTest, GoldenTexts) {
  const Options options;
  for (const int vls : {1, 2, 4, 8}) {
    Options few = options;
    few.vls = vls;
    ExpectGolden("lossless-infiniband-" + std::to_string(vls) + ".conf",
                 OpenSmText(PlanInfiniBand(*Example("lossless-infiniband.toml"), few), "the policy", few));
  }
  const RocePlan roce = Roce(*Example("roce.toml"));
  ExpectGolden("roce-mlnx_qos.sh", MlnxQosText(roce, "the policy", options));
  ExpectGolden("roce-dcb.sh", DcbText(roce, "the policy"));
  Options ports = options;
  ports.ports = {"Ethernet0", "Ethernet8"};
  ports.rate_gbps = 100;
  ExpectGolden("roce-sonic.json", SonicJson(roce, ports));
  ExpectGolden("roce-sonic.txt", SonicNotes(roce, ports));
  ExpectGolden("shared-cluster-sonic.json", SonicJson(Roce(*Example("shared-cluster.toml")), options));
  ExpectGolden("shared-cluster-opensm.conf",
               OpenSmText(PlanInfiniBand(*Example("shared-cluster.toml"), options), "the policy", options));
}

TEST(FabricConfigTest, NothingToConfigure) {
  const InfiniBandPlan infiniband = PlanInfiniBand(*Policy::Default(), {});
  EXPECT_TRUE(infiniband.nothing);
  EXPECT_THAT(infiniband.warnings, ElementsAre(HasSubstr("names no service level")));
  EXPECT_THAT(OpenSmText(infiniband, "x", {}), AllOf(HasSubstr("# WARNING: "), Not(HasSubstr("\nqos"))));
  const RocePlan roce = Roce(*Policy::Default());
  EXPECT_TRUE(roce.nothing);
  EXPECT_THAT(roce.warnings, ElementsAre(HasSubstr("names no traffic class or dscp")));
  EXPECT_EQ(SonicJson(roce, {}), "{}\n");
  EXPECT_THAT(MlnxQosText(roce, "x", {}), Not(HasSubstr("\nmlnx_qos")));
  EXPECT_THAT(DcbText(roce, "x"), Not(HasSubstr("\ndcb")));
}

TEST(FabricConfigTest, InfiniBandWarnings) {
  const auto warnings = [](const Policy& policy, int vls) {
    Options options;
    options.vls = vls;
    return PlanInfiniBand(policy, options).warnings;
  };
  const auto shared = With({{"control", "sl = 1"}, {"latency", "sl = 1"}, {"bulk", "sl = 0"}});
  EXPECT_THAT(warnings(*shared, 4), ElementsAre(HasSubstr("classes control, latency share sl 1"),
                                                HasSubstr("class bulk has sl 0")));
  const auto part = With({{"latency", "sl = 3"}});
  EXPECT_THAT(warnings(*part, 4),
              ElementsAre(HasSubstr("class control names no sl"), HasSubstr("class bulk names no sl")));
  const auto four = With({{"control", "sl = 1"}, {"latency", "sl = 2"}, {"bulk", "sl = 3"}});
  EXPECT_THAT(warnings(*four, 4), IsEmpty());
  EXPECT_THAT(warnings(*four, 3),
              ElementsAre(HasSubstr("control and latency share one virtual lane: 3 are too few")));
  EXPECT_THAT(warnings(*four, 1), Contains(HasSubstr("1 is too few")));
}

// Whatever the policy and the fabric: every class has a lane that exists, urgent ones are in the high table, others keep a share.
TEST(FabricConfigTest, InfiniBandPlansAreSound) {
  for (int seed = 0; seed < 400; ++seed) {
    std::vector<std::pair<std::string, std::string>> classes;
    uint32_t random = static_cast<uint32_t>(seed) * 2654435761u + 12345;
    const auto draw = [&](uint32_t end) {
      random = random * 1664525 + 1013904223;
      return (random >> 8) % end;
    };
    for (const char* name : {"control", "latency", "bulk", "background", "a", "b", "c", "d"}) {
      if (draw(4) == 0) continue;
      std::string lines = "sl = " + std::to_string(draw(16)) + "\n";
      if (name != std::string("control") && draw(2) == 0)
        lines += draw(2) == 0 ? "strict = true\npriority = " + std::to_string(draw(8)) + "\n"
                              : "strict = false\nweight = " + std::to_string(1 + draw(1000)) + "\n";
      classes.emplace_back(name, lines);
    }
    if (classes.empty()) continue;
    const auto policy = With(classes);
    Options options;
    options.vls = 1 + static_cast<int>(draw(15));
    options.arbitration_entries = 8 + static_cast<int>(draw(57));
    const InfiniBandPlan plan = PlanInfiniBand(*policy, options);
    ASSERT_FALSE(plan.nothing);
    ASSERT_LE(plan.groups.size(), static_cast<size_t>(options.vls));
    ASSERT_EQ(plan.vl_of_sl[0], 0);
    ASSERT_LE(plan.high.size(), static_cast<size_t>(options.arbitration_entries));
    ASSERT_LE(plan.low.size(),
              std::max<size_t>(plan.groups.size(), static_cast<size_t>(options.arbitration_entries)));
    ASSERT_FALSE(plan.low.empty());
    std::array<bool, 16> served{};
    for (const auto* table : {&plan.high, &plan.low}) {
      for (const auto& [vl, weight] : *table) {
        ASSERT_LT(vl, options.vls);
        ASSERT_GE(weight, 64);
        ASSERT_LE(weight, 255);
        served[static_cast<size_t>(vl)] = true;
      }
    }
    for (const int vl : plan.vl_of_sl) ASSERT_TRUE(served[static_cast<size_t>(vl)]);
    size_t classes_in_groups = 0;
    for (const Group& group : plan.groups) classes_in_groups += group.classes.size();
    size_t reachable = 0;
    for (size_t i = 0; i < policy->classes().size(); ++i) reachable += policy->reachable() >> i & 1;
    ASSERT_EQ(classes_in_groups, reachable);
  }
}

TEST(FabricConfigTest, RocePlan) {
  const RocePlan plan = Roce(*With({{"control", "dscp = 40"},
                                    {"latency", "dscp = 34"},
                                    {"bulk", "dscp = 26"},
                                    {"background", "dscp = 10"}}));
  EXPECT_EQ(plan.priority_of_dscp[40], 5);
  EXPECT_EQ(plan.priority_of_dscp[34], 4);
  EXPECT_EQ(plan.priority_of_dscp[26], 3);
  EXPECT_EQ(plan.priority_of_dscp[10], 2);
  EXPECT_EQ(plan.priority_of_dscp[48], 6);
  EXPECT_EQ(plan.priority_of_dscp[0], 0);
  EXPECT_THAT(plan.LosslessPriorities(), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(plan.warnings, ElementsAre(HasSubstr("PFC on 4 priorities")));
  EXPECT_THAT(plan.percent, ElementsAre(10, 0, 1, 89, 0, 0, 0, 0));
  EXPECT_THAT(plan.strict, ElementsAre(false, false, false, false, true, true, true, true));
}

TEST(FabricConfigTest, RoceWarningsAndLossyClasses) {
  const auto policy = With(
      {{"control", "dscp = 48"}, {"latency", "dscp = 34\necn = \"not-ect\""}, {"background", "dscp = 34"}});
  EXPECT_THAT(Roce(*policy).warnings, ElementsAre(HasSubstr("class control uses DSCP 48"),
                                                  HasSubstr("class latency is not ECN-capable"),
                                                  HasSubstr("class bulk names no dscp"),
                                                  HasSubstr("classes latency, background share DSCP 34")));
  Options options;
  options.lossy = {"control"};
  EXPECT_THAT(Roce(*policy, options).LosslessPriorities(), ElementsAre(3));
  options.lossy = {"none"};
  EXPECT_THAT(PlanRoce(*policy, options).status().message(), HasSubstr("--lossy none"));
  const auto many = With({{"control", "dscp = 1"},
                          {"latency", "dscp = 2"},
                          {"bulk", "dscp = 3"},
                          {"background", "dscp = 4"},
                          {"a", "dscp = 5"},
                          {"b", "dscp = 6"},
                          {"c", "dscp = 7\nstrict = true\npriority = 3"}});
  const RocePlan plan = Roce(*many);
  EXPECT_THAT(plan.warnings, Contains(HasSubstr("latency and c share one priority")));
  EXPECT_EQ(plan.groups.size(), 6u);
  EXPECT_EQ(std::accumulate(plan.percent.begin(), plan.percent.end(), 0), 100);
}

TEST(FabricConfigTest, SonicTablesAreComplete) {
  const Options options;
  const auto json = nlohmann::json::parse(SonicJson(Roce(*Example("roce.toml")), options));
  EXPECT_EQ(json["DSCP_TO_TC_MAP"]["SLUICE"].size(), 64u);
  for (const char* table : {"TC_TO_QUEUE_MAP", "TC_TO_PRIORITY_GROUP_MAP", "MAP_PFC_PRIORITY_TO_QUEUE"})
    EXPECT_EQ(json[table]["SLUICE"].size(), 8u) << table;
  // Every reference leads to something.
  for (const auto& [name, queue] : json["QUEUE"].items()) {
    EXPECT_TRUE(json["SCHEDULER"].contains(queue["scheduler"].get<std::string>())) << name;
    EXPECT_TRUE(json["WRED_PROFILE"].contains(queue.value("wred_profile", "SLUICE"))) << name;
  }
  EXPECT_EQ(json["PORT_QOS_MAP"]["Ethernet0"]["pfc_enable"], "3,5");
}

}  // namespace
}  // namespace sluice::fabric_config
