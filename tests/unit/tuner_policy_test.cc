// What a policy makes of operations and communicators: conditions, order, defaults, names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tuner/policy.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::shared_ptr<const Policy> Parse(const std::string& toml) {
  const Result<std::shared_ptr<const Policy>> policy = Policy::Parse(toml, "policy.toml");
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  return policy.ok() ? *policy : Policy::Default();
}

std::string ClassOf(const Policy& policy, const Operation& operation, const Communicator& communicator = {}) {
  const uint8_t index = policy.Bind(communicator).Of(operation);
  // The explanation and the table never disagree.
  EXPECT_THAT(policy.Explain(communicator, operation),
              HasSubstr("class: " + policy.classes()[index].name + "\n"));
  return policy.classes()[index].name;
}

Communicator Named(const std::string& name) {
  return {.hash = 1, .name = name};
}

Operation AllReduce(uint64_t bytes, Protocol protocol = Protocol::kSimple) {
  return {Function::kAllReduce, Algorithm::kRing, protocol, bytes};
}

constexpr Operation kSend1M = {Function::kSend, Algorithm::kUnknown, Protocol::kSimple, 1 << 20};

TEST(DefaultPolicyTest, ExpectedClassesWithoutConfiguration) {
  const Policy& policy = *Policy::Default();
  EXPECT_EQ(ClassOf(policy, AllReduce(64 << 10, Protocol::kLl128)), "latency");
  EXPECT_EQ(ClassOf(policy, AllReduce(1 << 20)), "latency");
  EXPECT_EQ(ClassOf(policy, AllReduce((1 << 20) + 1)), "bulk");
  EXPECT_EQ(ClassOf(policy, AllReduce(256 << 20)), "bulk");
  EXPECT_EQ(ClassOf(policy, AllReduce(256 << 20), Named("tp:0")), "latency");
  EXPECT_EQ(ClassOf(policy, AllReduce(256 << 20), Named("DATA_PARALLEL_GROUP")), "bulk");
  EXPECT_EQ(ClassOf(policy, kSend1M), "bulk");
  EXPECT_EQ(ClassOf(policy, kSend1M, Named("PIPELINE_MODEL_PARALLEL_GROUP")), "latency");
  EXPECT_EQ(ClassOf(policy, {Function::kSend, Algorithm::kUnknown, Protocol::kSimple, 4096}), "latency");
  EXPECT_EQ(ClassOf(policy, {Function::kAllToAll, Algorithm::kUnknown, Protocol::kSimple, 1 << 20}), "bulk");
}

TEST(DefaultPolicyTest, WhatIsUnknownIsBulkUnlessNcclsProtocolTellsTheSize) {
  const Policy& policy = *Policy::Default();
  EXPECT_EQ(ClassOf(policy, {}), "bulk");
  EXPECT_EQ(ClassOf(policy, AllReduce(kUnknownBytes)), "bulk");
  EXPECT_EQ(ClassOf(policy, AllReduce(kUnknownBytes, Protocol::kLl)), "latency");
  EXPECT_EQ(ClassOf(policy, {Function::kCollective, Algorithm::kUnknown, Protocol::kLl128, kUnknownBytes}),
            "latency");
  EXPECT_EQ(ClassOf(policy, {Function::kPointToPoint, Algorithm::kUnknown, Protocol::kSimple, kUnknownBytes}),
            "bulk");
  EXPECT_EQ(ClassMap().Of(AllReduce(1)), ClassIndex(BuiltInClass::kBulk));
  EXPECT_EQ(ClassMap().Of({}), ClassIndex(BuiltInClass::kBulk));
}

TEST(DefaultPolicyTest, NamesNoMarksAndReachesThreeClasses) {
  const Policy& policy = *Policy::Default();
  ASSERT_EQ(policy.classes().size(), 4u);
  for (const ServiceClass& one : policy.classes()) {
    EXPECT_FALSE(one.sl.has_value()) << one.name;
    EXPECT_FALSE(one.traffic_class.has_value()) << one.name;
  }
  EXPECT_EQ(policy.reachable(), 0b0111u);
  EXPECT_EQ(policy.origin(), "built-in");
  EXPECT_THAT(policy.notes(), IsEmpty());
}

TEST(PolicyTest, FieldsOfClasses) {
  const auto policy = Parse(R"(
[[class]]
name = "latency"
sl = 5
dscp = 26
priority = 3
queue_pairs = 2
flow_labels = 1
[[class]]
name = "bulk"
traffic_class = 41
weight = 7
[[class]]
name = "background"
dscp = 8
ecn = "not-ect"
strict = true
priority = 7
[[class]]
name = "experts"
dscp = 10
ecn = "ect1"
[[class]]
name = "control"
sl = 1
dscp = 48
[[rule]]
function = "all_to_all"
class = "experts"
)");
  const std::vector<ServiceClass>& classes = policy->classes();
  ASSERT_EQ(classes.size(), 5u);
  EXPECT_EQ(classes[0].sl, 1);
  EXPECT_EQ(classes[0].traffic_class, 194);
  EXPECT_EQ(classes[1].sl, 5);
  EXPECT_EQ(classes[1].traffic_class, 106);
  EXPECT_EQ(classes[1].priority, 3);
  EXPECT_EQ(classes[1].queue_pairs, 2);
  EXPECT_EQ(classes[1].flow_labels, 1);
  EXPECT_TRUE(classes[1].strict);
  EXPECT_EQ(classes[2].traffic_class, 41);
  EXPECT_EQ(classes[2].weight, 7);
  EXPECT_FALSE(classes[2].strict);
  EXPECT_EQ(classes[3].traffic_class, 32);
  EXPECT_TRUE(classes[3].strict);
  EXPECT_EQ(classes[4].name, "experts");
  EXPECT_EQ(classes[4].traffic_class, 41);
  // Rules of the policy replace the built-in ones: nothing leads to latency.
  EXPECT_EQ(policy->reachable(), 0b10101u);
  EXPECT_THAT(policy->notes(), ElementsAre(HasSubstr("policy.toml:2: class latency: no rule leads to it"),
                                           HasSubstr("class background")));
}

TEST(PolicyTest, FirstMatchWinsAndBulkIsTheRest) {
  const auto policy = Parse(R"toml(
[[rule]]
function = ["all_reduce", "ReduceScatter"]
bytes = "[0, 1MiB)"
class = "latency"
[[rule]]
function = "all_reduce"
class = "background"
)toml");
  EXPECT_EQ(ClassOf(*policy, AllReduce((1 << 20) - 1)), "latency");
  EXPECT_EQ(ClassOf(*policy, AllReduce(1 << 20)), "background");
  EXPECT_EQ(ClassOf(*policy, AllReduce(kUnknownBytes)), "background");
  EXPECT_EQ(ClassOf(*policy, {Function::kReduceScatter, Algorithm::kRing, Protocol::kSimple, 1 << 20}),
            "bulk");
  EXPECT_EQ(ClassOf(*policy, {Function::kReduceScatter, Algorithm::kRing, Protocol::kSimple, 0}), "latency");
}

TEST(PolicyTest, RangesOfBytes) {
  const auto class_of = [](const std::string& range, uint64_t bytes) {
    return ClassOf(*Parse("[[rule]]\nbytes = \"" + range + "\"\nclass = \"latency\"\n"), AllReduce(bytes));
  };
  EXPECT_EQ(class_of("(64KiB, 1MiB]", 65536), "bulk");
  EXPECT_EQ(class_of("(64KiB, 1MiB]", 65537), "latency");
  EXPECT_EQ(class_of("(64KiB, 1MiB]", 1 << 20), "latency");
  EXPECT_EQ(class_of("(64KiB, 1MiB]", (1 << 20) + 1), "bulk");
  EXPECT_EQ(class_of("[1MiB, )", uint64_t{1} << 60), "latency");
  EXPECT_EQ(class_of("[1MiB, inf)", kUnknownBytes - 1), "latency");
  EXPECT_EQ(class_of("[1MiB, )", kUnknownBytes), "bulk");
  EXPECT_EQ(class_of("( , 8]", 0), "latency");
  EXPECT_EQ(class_of("[0,0]", 0), "latency");
  EXPECT_EQ(class_of("[0,0]", 1), "bulk");
  EXPECT_EQ(class_of("[1KB, 2kB]", 1000), "latency");
  EXPECT_EQ(class_of("[1KB, 2kB]", 2001), "bulk");
}

TEST(PolicyTest, UnknownBytesOnlyWhenTheRuleSaysSo) {
  const auto policy = Parse("[[rule]]\nbytes = \"[1GiB, )\"\nunknown_bytes = true\nclass = \"background\"\n");
  EXPECT_EQ(ClassOf(*policy, AllReduce(kUnknownBytes)), "background");
  EXPECT_EQ(ClassOf(*policy, AllReduce(1)), "bulk");
}

TEST(PolicyTest, ConditionsOnTheCommunicator) {
  const auto policy = Parse(R"(
[[rule]]
communicator = ["ckpt*", "?eights"]
class = "background"
[[rule]]
communicator_traffic_class = [3, 5]
class = "latency"
[[rule]]
nodes = "[2, 4]"
kind = "point_to_point"
class = "latency"
[[rule]]
nodes = 1
class = "background"
)");
  EXPECT_EQ(ClassOf(*policy, AllReduce(8), Named("ckpt-7")), "background");
  EXPECT_EQ(ClassOf(*policy, AllReduce(8), Named("weights")), "background");
  EXPECT_EQ(ClassOf(*policy, AllReduce(8), Named("my-ckpt")), "bulk");
  EXPECT_EQ(ClassOf(*policy, AllReduce(8), Named("")), "bulk");
  EXPECT_EQ(ClassOf(*policy, AllReduce(8), {.traffic_class = 5}), "latency");
  EXPECT_EQ(ClassOf(*policy, AllReduce(8), {.traffic_class = 4}), "bulk");
  EXPECT_EQ(ClassOf(*policy, kSend1M, {.nodes = 4}), "latency");
  EXPECT_EQ(ClassOf(*policy, kSend1M, {.nodes = 5}), "bulk");
  EXPECT_EQ(ClassOf(*policy, AllReduce(8), {.nodes = 4}), "bulk");
  EXPECT_EQ(ClassOf(*policy, AllReduce(8), {.nodes = 1}), "background");
}

TEST(PolicyTest, SendRecvMeansBothDirections) {
  const auto policy = Parse("[[rule]]\nfunction = \"send_recv\"\nclass = \"latency\"\n");
  for (const Function function : {Function::kSendRecv, Function::kSend, Function::kRecv})
    EXPECT_EQ(ClassOf(*policy, {function, Algorithm::kUnknown, Protocol::kSimple, 1 << 20}), "latency");
  EXPECT_EQ(ClassOf(*policy, {Function::kAllToAll, Algorithm::kUnknown, Protocol::kSimple, 1 << 20}), "bulk");
}

TEST(PolicyTest, DefaultRulesCanFollowOwnOnes) {
  const std::string own = "[[rule]]\ncommunicator = \"tp_slow\"\nclass = \"background\"\n";
  EXPECT_EQ(ClassOf(*Parse(own), AllReduce(8)), "bulk");
  const auto policy = Parse("default_rules = true\n" + own);
  EXPECT_EQ(ClassOf(*policy, AllReduce(8)), "latency");
  EXPECT_EQ(ClassOf(*policy, AllReduce(8), Named("tp_slow")), "background");
  // Default rules that can no longer match are left out, so that their class costs no queue pairs.
  const auto all = Parse("default_rules = true\n[[rule]]\nclass = \"background\"\n");
  EXPECT_EQ(all->rules().size(), 1u);
  EXPECT_EQ(all->reachable(), 0b1101u);
  EXPECT_EQ(Parse("default_rules = false\n[[class]]\nname = \"bulk\"\nsl = 1\n")->rules().size(), 0u);
  EXPECT_EQ(Parse("[[class]]\nname = \"bulk\"\nsl = 1\n")->rules().size(), Policy::Default()->rules().size());
}

TEST(ParallelismTest, NamesOfProcessGroups) {
  const struct {
    const char* name;
    Parallelism parallelism;
  } kNames[] = {
      {"", Parallelism::kUnknown},
      {"default_pg", Parallelism::kUnknown},
      {"MODEL_PARALLEL_GROUP", Parallelism::kUnknown},
      {"TENSOR_MODEL_PARALLEL_GROUP", Parallelism::kTensor},
      {"PIPELINE_MODEL_PARALLEL_GROUP", Parallelism::kPipeline},
      {"DATA_PARALLEL_GROUP", Parallelism::kData},
      {"DATA_PARALLEL_GROUP_WITH_CP", Parallelism::kData},
      {"INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", Parallelism::kData},
      {"TENSOR_AND_DATA_PARALLEL_GROUP", Parallelism::kData},
      {"EXPERT_MODEL_PARALLEL_GROUP", Parallelism::kExpert},
      {"EXPERT_TENSOR_PARALLEL_GROUP", Parallelism::kTensor},
      {"EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", Parallelism::kExpert},
      {"EXPERT_DATA_PARALLEL_GROUP", Parallelism::kData},
      {"mesh_tp", Parallelism::kTensor},
      {"mesh_dp_shard", Parallelism::kData},
      {"mesh_pp", Parallelism::kPipeline},
      {"mesh_ep", Parallelism::kExpert},
      {"dp_replicate", Parallelism::kData},
      {"tp:0", Parallelism::kTensor},
      {"pp:1", Parallelism::kPipeline},
      {"ep:0", Parallelism::kExpert},
      {"attn_tp", Parallelism::kTensor},
      {"fsdp", Parallelism::kData},
      {"tppp", Parallelism::kUnknown},
      {"steps", Parallelism::kUnknown},
      {"data", Parallelism::kUnknown},
  };
  for (const auto& [name, parallelism] : kNames)
    EXPECT_EQ(Name(Policy::Default()->ParallelismOf(Named(name))), Name(parallelism)) << name;
}

TEST(ParallelismTest, OwnPatternsWin) {
  const auto policy = Parse("[parallelism]\ndata = [\"mesh_tp\", \"shard-*\"]\npipeline = \"stage?\"\n");
  EXPECT_EQ(policy->ParallelismOf(Named("mesh_tp")), Parallelism::kData);
  EXPECT_EQ(policy->ParallelismOf(Named("shard-1")), Parallelism::kData);
  EXPECT_EQ(policy->ParallelismOf(Named("stage3")), Parallelism::kPipeline);
  EXPECT_EQ(policy->ParallelismOf(Named("mesh_ep")), Parallelism::kExpert);
  EXPECT_EQ(ClassOf(*policy, kSend1M, Named("stage3")), "latency");
}

TEST(ExplainTest, SaysWhatWasLookedAtAndWhy) {
  const auto policy = Parse(R"toml(
[[rule]]
name = "small"
function = "all_gather"
class = "latency"
[[rule]]
bytes = "[0, 64KiB)"
class = "latency"
[[rule]]
nodes = "[4, )"
class = "background"
[[rule]]
protocol = "ll"
class = "latency"
)toml");
  const std::string text = policy->Explain({.name = "dp:0", .nodes = 8}, AllReduce(4 << 20));
  EXPECT_EQ(text,
            "operation: all_reduce, ring, simple, bytes 4MiB\n"
            "communicator: \"dp:0\", parallelism data, nodes 8, no traffic class\n"
            "small (policy.toml:2): no: function all_reduce is not \"all_gather\"\n"
            "rule 2 (policy.toml:6): no: bytes 4MiB are not in \"[0, 64KiB)\"\n"
            "rule 3 (policy.toml:9): matches: nodes = \"[4, )\"\n"
            "class: background\n");
  EXPECT_THAT(policy->Explain({}, AllReduce(kUnknownBytes)),
              AllOf(HasSubstr("rule 2 (policy.toml:6): no: bytes are unknown"),
                    HasSubstr("number of nodes is unknown"), HasSubstr("no rule matches\nclass: bulk\n"),
                    Not(HasSubstr("matches: "))));
}

TEST(BytesTest, TextAndBack) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{1024}, uint64_t{1} << 20,
                               uint64_t{3} << 30, (uint64_t{1} << 40) + 1, uint64_t{1} << 62})
    EXPECT_EQ(*BytesFromText(BytesText(bytes)), bytes);
  EXPECT_EQ(*BytesFromText("1M"), 1u << 20);
  EXPECT_EQ(*BytesFromText("1MB"), 1000000u);
  EXPECT_EQ(*BytesFromText("8 KiB"), 8192u);
  for (const char* bad : {"", "M", "-1", "1.5M", "1Q", "0x10", "99999999999999999999", "9999999999T", " 1"})
    EXPECT_FALSE(BytesFromText(bad).ok()) << bad;
}

TEST(NamesTest, EveryNameIsReadBack) {
  for (int i = 0; i < kFunctions; ++i) {
    const auto function = static_cast<Function>(i);
    if (function == Function::kUnknown) continue;
    EXPECT_EQ(FunctionFromName(Name(function)), function);
    EXPECT_FALSE(IsCollective(function) && IsPointToPoint(function));
  }
  EXPECT_EQ(FunctionFromName("AllReduce"), Function::kAllReduce);
  EXPECT_EQ(FunctionFromName("alltoall"), Function::kAllToAll);
  EXPECT_EQ(ProtocolFromName("LL128"), Protocol::kLl128);
  EXPECT_EQ(AlgorithmFromName("NVLSTree"), Algorithm::kNvlsTree);
  EXPECT_EQ(FunctionFromName("unknown"), std::nullopt);
  EXPECT_EQ(Name(static_cast<Function>(99)), "unknown");
}

}  // namespace
}  // namespace sluice
