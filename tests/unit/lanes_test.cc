// Precedence of service levels and traffic classes, their ranges, and queue pairs per class.
#include "plugin/lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <map>
#include <string>

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Params ParamsOf(const Variables& variables) {
  const Result<Params> params = ParseParams([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  EXPECT_TRUE(params.ok()) << params.status().message();
  return *params;
}

std::shared_ptr<const Policy> PolicyOf(const std::string& toml) {
  const Result<std::shared_ptr<const Policy>> policy = Policy::Load(toml);
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  return *policy;
}

std::vector<LaneSpec> Lanes(const Variables& variables, const std::string& policy, int communicator,
                            bool infiniband) {
  const Result<std::vector<LaneSpec>> lanes =
      ResolveLanes(ParamsOf(variables), *PolicyOf(policy), communicator, infiniband);
  EXPECT_TRUE(lanes.ok()) << lanes.status().message();
  return *lanes;
}

std::string ErrorOf(const Variables& variables, const std::string& policy, int communicator,
                    bool infiniband) {
  const Result<std::vector<LaneSpec>> lanes =
      ResolveLanes(ParamsOf(variables), *PolicyOf(policy), communicator, infiniband);
  EXPECT_FALSE(lanes.ok());
  EXPECT_EQ(lanes.status().code(), Code::kInvalidArgument);
  return lanes.status().message();
}

// Where a value can come from, strongest first; each sets its own number.
struct Source {
  const char* name;  // "policy", a variable, "communicator"
  int value;
};

// For every pair of sources, with both set, and for every one alone: the stronger decides, and is named.
void CheckOrder(const std::vector<Source>& order, bool infiniband, BuiltInClass built_in,
                bool service_level) {
  const auto check = [&](const Source& winner, const Source* loser) {
    Variables variables;
    std::string policy;
    int communicator = -1;
    for (const Source* source : {&winner, loser}) {
      if (source == nullptr) continue;
      const std::string name = source->name;
      if (name == "policy") {
        policy = "[[class]]\nname = \"" + PolicyOf("")->classes()[ClassIndex(built_in)].name + "\"\n" +
                 (service_level ? "sl" : "traffic_class") + " = " + std::to_string(source->value) + "\n";
      } else if (name == "communicator") {
        communicator = source->value;
      } else {
        variables[name] = std::to_string(source->value);
      }
    }
    const std::vector<LaneSpec> lanes = Lanes(variables, policy, communicator, infiniband);
    const LaneSpec& lane = LaneOf(lanes, built_in);
    const std::string context =
        std::string(winner.name) + " over " + (loser == nullptr ? "nothing" : loser->name);
    EXPECT_EQ(service_level ? lane.sl : lane.traffic_class, winner.value) << context;
    EXPECT_STREQ(service_level ? lane.sl_source : lane.traffic_class_source, winner.name) << context;
  };
  for (size_t i = 0; i < order.size(); ++i) {
    check(order[i], nullptr);
    for (size_t j = i + 1; j < order.size(); ++j) check(order[i], &order[j]);
  }
}

TEST(LanesTest, PrecedenceOfEveryPair) {
  const std::vector<Source> sl = {{"policy", 1}, {"SLUICE_SL", 2}, {"NCCL_IB_SL", 3}};
  const std::vector<Source> sl_infiniband = {
      {"policy", 1}, {"SLUICE_SL", 2}, {"NCCL_IB_SL", 3}, {"communicator", 4}};
  const std::vector<Source> tc = {{"policy", 10}, {"SLUICE_TC", 20}, {"NCCL_IB_TC", 40}};
  const std::vector<Source> tc_roce = {
      {"policy", 10}, {"SLUICE_TC", 20}, {"NCCL_IB_TC", 40}, {"communicator", 50}};
  const std::vector<Source> control = {
      {"policy", 10}, {"SLUICE_TC", 20}, {"NCCL_IB_FIFO_TC", 30}, {"NCCL_IB_TC", 40}};
  std::vector<Source> control_roce = control;
  control_roce.push_back({"communicator", 50});
  for (const BuiltInClass built_in : {BuiltInClass::kControl, BuiltInClass::kLatency, BuiltInClass::kBulk}) {
    CheckOrder(sl_infiniband, true, built_in, true);
    CheckOrder(sl, false, built_in, true);
    const bool is_control = built_in == BuiltInClass::kControl;
    CheckOrder(is_control ? control : tc, true, built_in, false);
    CheckOrder(is_control ? control_roce : tc_roce, false, built_in, false);
  }
}

TEST(LanesTest, ValuesAreDistinctPerClassAndField) {
  // The policy's value is for its class only; NCCL_IB_FIFO_TC for control only; the communicator sets one field, never both.
  const std::vector<LaneSpec> lanes =
      Lanes({{"NCCL_IB_FIFO_TC", "192"}}, "[[class]]\nname = \"latency\"\nsl = 2\ndscp = 26\n", 7, false);
  ASSERT_EQ(lanes.size(), 3u);
  EXPECT_EQ(lanes[0].name, "control");
  EXPECT_EQ(lanes[0].traffic_class, 192);
  EXPECT_EQ(lanes[0].sl, 0);
  EXPECT_EQ(lanes[1].traffic_class, 106);
  EXPECT_EQ(lanes[1].sl, 2);
  EXPECT_EQ(lanes[2].traffic_class, 7);
  EXPECT_STREQ(lanes[2].traffic_class_source, "communicator");
  EXPECT_STREQ(lanes[2].sl_source, "default");
  const std::vector<LaneSpec> infiniband = Lanes({}, "", 7, true);
  for (const LaneSpec& lane : infiniband) {
    EXPECT_EQ(lane.sl, 7) << lane.name;
    EXPECT_EQ(lane.traffic_class, 0) << lane.name;
  }
}

// Row by row: which values of the communicator, the environment and the policy are accepted.
TEST(LanesTest, RangesOfServiceLevelsAndTrafficClasses) {
  const struct {
    int value;
    bool infiniband;  // as the communicator's service level
    bool roce;        // as its traffic class
  } kCommunicator[] = {{-1, true, true},    {INT_MIN, true, true}, {0, true, true},    {15, true, true},
                       {16, false, true},   {135, false, true},    {255, false, true}, {256, false, false},
                       {300, false, false}, {-2, false, false}};
  for (const auto& [value, as_sl, as_traffic_class] : kCommunicator) {
    for (const bool infiniband : {true, false}) {
      if (infiniband ? as_sl : as_traffic_class) {
        const int expected = value < 0 ? 0 : value;
        for (const LaneSpec& lane : Lanes({}, "", value, infiniband))
          EXPECT_EQ(infiniband ? lane.sl : lane.traffic_class, expected) << value << " " << lane.name;
      } else {
        EXPECT_THAT(ErrorOf({}, "", value, infiniband),
                    AllOf(HasSubstr("trafficClass " + std::to_string(value)),
                          HasSubstr(infiniband ? "0..15" : "0..255")));
      }
    }
  }
  const auto variable_accepted = [](const char* name, int value) {
    const std::string text = std::to_string(value);
    return ParseParams([&](const char* asked) { return std::string(asked) == name ? text.c_str() : nullptr; })
        .ok();
  };
  const auto policy_accepted = [](const char* key, int value) {
    return Policy::Parse(
               "[[class]]\nname = \"bulk\"\n" + std::string(key) + " = " + std::to_string(value) + "\n", "p")
        .ok();
  };
  for (const int sl : {-1, 0, 15, 16, 135}) {
    const bool good = sl >= 0 && sl <= 15;
    EXPECT_EQ(variable_accepted("SLUICE_SL", sl), good || sl == -1) << sl;
    EXPECT_EQ(variable_accepted("NCCL_IB_SL", sl), good || sl == -1) << sl;
    EXPECT_EQ(policy_accepted("sl", sl), good) << sl;
  }
  for (const int tc : {-1, INT_MIN, 0, 255, 256, 300}) {
    const bool good = tc >= 0 && tc <= 255;
    for (const char* name : {"SLUICE_TC", "NCCL_IB_TC", "NCCL_IB_FIFO_TC"})
      EXPECT_EQ(variable_accepted(name, tc), good || tc == -1) << tc;
    EXPECT_EQ(policy_accepted("traffic_class", tc), good) << tc;
  }
}

TEST(LanesTest, NobodyReadsACommunicatorsNumberThatIsOverridden) {
  EXPECT_EQ(Lanes({{"NCCL_IB_SL", "1"}}, "", 300, true)[0].sl, 1);
  EXPECT_EQ(Lanes({{"SLUICE_TC", "1"}}, "", 300, false)[0].traffic_class, 1);
  const std::string all =
      "[[class]]\nname = \"control\"\nsl = 1\n[[class]]\nname = \"latency\"\nsl = 1\n[[class]]\nname = "
      "\"bulk\"\nsl = 0\n";
  EXPECT_EQ(Lanes({}, all, 300, true)[2].sl, 0);
  // One class that is left to the communicator needs a sound number.
  EXPECT_THAT(ErrorOf({}, "[[class]]\nname = \"latency\"\nsl = 1\n", 300, true), HasSubstr("0..15"));
}

TEST(LanesTest, OneLanePerReachableClass) {
  const std::vector<LaneSpec> lanes = Lanes({}, R"(
[[class]]
name = "control"
[[class]]
name = "storage"
weight = 5
[[rule]]
communicator = "ckpt*"
class = "storage"
)",
                                            -1, true);
  ASSERT_EQ(lanes.size(), 3u);
  EXPECT_EQ(lanes[0].name, "control");
  EXPECT_EQ(lanes[1].name, "bulk");
  EXPECT_EQ(lanes[2].name, "storage");
  EXPECT_EQ(lanes[2].service_class, 4);
  EXPECT_EQ(lanes[2].weight, 5);
  EXPECT_FALSE(lanes[2].strict);
  EXPECT_TRUE(lanes[0].strict);
  EXPECT_EQ(LaneOf(lanes, BuiltInClass::kLatency).name, "bulk");
}

TEST(LanesTest, QueuePairs) {
  const auto queue_pairs = [](const Variables& variables, const std::string& policy) {
    std::vector<int> counts;
    for (const LaneSpec& lane : Lanes(variables, policy, -1, true)) counts.push_back(lane.queue_pairs);
    return counts;
  };
  EXPECT_EQ(queue_pairs({}, ""), (std::vector<int>{0, 1, 4}));
  EXPECT_EQ(queue_pairs({{"SLUICE_QPS_PER_CLASS", "2"}, {"NCCL_IB_QPS_PER_CONNECTION", "3"}}, ""),
            (std::vector<int>{0, 1, 6}));
  EXPECT_EQ(queue_pairs({{"NCCL_IB_QPS_PER_CONNECTION", "128"}}, ""), (std::vector<int>{0, 1, 63}));
  EXPECT_EQ(
      queue_pairs(
          {{"NCCL_IB_QPS_PER_CONNECTION", "128"}},
          "[[class]]\nname = \"latency\"\nqueue_pairs = 2\n[[class]]\nname = \"bulk\"\nqueue_pairs = 8\n"),
      (std::vector<int>{0, 2, 8}));
  std::string many;
  std::string rules;
  for (const char* name : {"latency", "bulk", "background", "a", "b"}) {
    many += "[[class]]\nname = \"" + std::string(name) + "\"\nqueue_pairs = 16\n";
    rules += "[[rule]]\nclass = \"" + std::string(name) + "\"\ncommunicator = \"" + name + "\"\n";
  }
  EXPECT_THAT(ErrorOf({}, many + rules, -1, true),
              AllOf(HasSubstr("80"), HasSubstr("64"), HasSubstr("queue_pairs")));
}

}  // namespace
}  // namespace sluice
