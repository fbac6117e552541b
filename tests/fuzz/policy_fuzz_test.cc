// Hostile text for the parser of policies: it never crashes, and either gives a policy that can be used or one clean line.
#include <gtest/gtest.h>

#include <random>

#include "tuner/policy.h"

namespace sluice {
namespace {

constexpr const char* kSeed = R"(# all keys
default_rules = true
[[class]]
name = "latency"
sl = 1
dscp = 26
ecn = "ect0"
strict = true
priority = 1
queue_pairs = 2
flow_labels = 1
[[class]]
name = "experts"
traffic_class = 0x29
weight = 1_0
[parallelism]
tensor = ["shard-*", "tp?"]
expert = '''moe*'''
[[rule]]
name = "one \u00e9"
function = ["all_reduce", "AllGather"]
kind = "collective"
algorithm = ["ring", "tree"]
protocol = "ll128"
bytes = "(64KiB, 1MiB]"
unknown_bytes = true
class = "latency"
[[rule]]
communicator = ["ckpt*", "?w"]
communicator_traffic_class = [3, 5]
nodes = "[2, 8]"
parallelism = ["tensor", "pipeline"]
class = "experts"
)";

constexpr std::string_view kTokens[] = {"[[",
                                        "]]",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "\"",
                                        "'''",
                                        "=",
                                        "\n",
                                        ",",
                                        "\\u",
                                        "0x",
                                        "1e999",
                                        "-",
                                        "inf",
                                        "nan",
                                        "true",
                                        "99999999999999999999",
                                        "\xff",
                                        "\xc3",
                                        "\xef\xbb\xbf",
                                        "#",
                                        ".",
                                        "1979-05-27",
                                        "name",
                                        "class",
                                        "rule",
                                        "bytes",
                                        "*",
                                        "?",
                                        "(",
                                        ")",
                                        "KiB",
                                        "sl",
                                        "[[rule]]\n",
                                        "class = \"bulk\"\n"};

void Use(const Policy& policy, std::mt19937& random) {
  ASSERT_LE(policy.classes().size(), static_cast<size_t>(kMaxServiceClasses));
  ASSERT_GE(policy.classes().size(), 4u);
  ASSERT_LT(policy.reachable(), 1u << policy.classes().size());
  for (const ServiceClass& one : policy.classes()) {
    ASSERT_TRUE(one.sl.value_or(0) >= 0 && one.sl.value_or(0) <= 15);
    ASSERT_TRUE(one.traffic_class.value_or(0) >= 0 && one.traffic_class.value_or(0) <= 255);
    ASSERT_TRUE(one.weight >= 1 && one.weight <= 1000);
  }
  const Communicator communicator{.hash = 1, .name = "tp", .nodes = 4, .traffic_class = 3};
  const ClassMap map = policy.Bind(communicator);
  for (int i = 0; i < 50; ++i) {
    const Operation operation{static_cast<Function>(random() % kFunctions),
                              static_cast<Algorithm>(random() % kAlgorithms),
                              static_cast<Protocol>(random() % kProtocols),
                              i % 5 == 0 ? kUnknownBytes : uint64_t{random()} << random() % 31};
    const uint8_t index = map.Of(operation);
    ASSERT_LT(index, policy.classes().size());
    if (i >= 3) continue;
    ASSERT_TRUE(
        policy.Explain(communicator, operation).ends_with("class: " + policy.classes()[index].name + "\n"));
  }
}

// 1: accepted.
int Try(const std::string& text, std::mt19937& random) {
  const Result<std::shared_ptr<const Policy>> policy = Policy::Parse(text, "fuzz.toml");
  if (policy.ok()) {
    Use(**policy, random);
    return 1;
  }
  const std::string& message = policy.status().message();
  EXPECT_TRUE(message.starts_with("fuzz.toml:")) << message;
  EXPECT_EQ(message.find_first_of("\n\r\x1b"), std::string::npos) << message;
  EXPECT_LT(message.size(), 2000u) << message;
  return 0;
}

std::string Mutated(std::string text, std::mt19937& random) {
  for (uint32_t edits = 1 + static_cast<uint32_t>(random() % 4); edits > 0; --edits) {
    const size_t at = text.empty() ? 0 : random() % text.size();
    switch (random() % 6) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, random() % 8);
        break;
      case 2:
        text.insert(at, kTokens[random() % std::size(kTokens)]);
        break;
      case 3:
        text.insert(at, std::to_string(static_cast<int64_t>(random()) - 1000));
        break;
      case 4: {  // a piece of it elsewhere
        const std::string piece = text.substr(at, random() % 80);
        text.insert(text.empty() ? 0 : random() % text.size(), piece);
        break;
      }
      default:
        text.resize(at);
    }
  }
  return text;
}

TEST(PolicyFuzzTest, MutatedPolicies) {
  std::mt19937 random(1);
  ASSERT_EQ(Try(kSeed, random), 1);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) accepted += Try(Mutated(kSeed, random), random);
  EXPECT_GT(accepted, 500);
  EXPECT_LT(accepted, 19000);
}

TEST(PolicyFuzzTest, RandomTokens) {
  std::mt19937 random(2);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint32_t count = static_cast<uint32_t>(random() % 40); count > 0; --count)
      text += kTokens[random() % std::size(kTokens)];
    Try(text, random);
  }
}

TEST(PolicyFuzzTest, RandomBytes) {
  std::mt19937 random(3);
  for (int round = 0; round < 5000; ++round) {
    std::string text(random() % 300, ' ');
    for (char& c : text) c = static_cast<char>(round % 2 == 0 ? random() : 0x20 + random() % 0x5f);
    Try(text, random);
  }
}

TEST(PolicyFuzzTest, EveryTruncation) {
  std::mt19937 random(4);
  const std::string seed = kSeed;
  for (size_t size = 0; size < seed.size(); ++size) Try(seed.substr(0, size), random);
}

// Conditions are small languages of their own.
TEST(PolicyFuzzTest, RangesAndGlobs) {
  std::mt19937 random(5);
  constexpr std::string_view kAlphabet = "[]() ,0123456789KMGTiBkinf-*?ab";
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint32_t count = 1 + static_cast<uint32_t>(random() % 24); count > 0; --count)
      text += kAlphabet[random() % kAlphabet.size()];
    for (const char* key : {"bytes", "nodes", "communicator"})
      Try("[[rule]]\nclass = \"latency\"\n" + std::string(key) + " = \"" + text + "\"\n", random);
  }
}

}  // namespace
}  // namespace sluice
