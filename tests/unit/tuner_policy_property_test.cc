// The table that a communicator is bound to decides as a naive reading of the same rules does, for every operation.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <vector>

#include "tuner/policy.h"

namespace sluice {
namespace {

// A rule as its text says it, interpreted one condition after another.
struct NaiveRule {
  std::optional<bool> point_to_point;
  std::vector<Function> functions;
  std::vector<Algorithm> algorithms;
  std::vector<Protocol> protocols;
  std::optional<std::pair<uint64_t, std::optional<uint64_t>>> bytes;  // both included
  bool unknown_bytes = false;
  std::vector<std::string> globs;
  std::vector<int> traffic_classes;
  std::optional<std::pair<int, int>> nodes;  // both included
  std::vector<Parallelism> parallelisms;
  std::string service_class;
};

bool Glob(const char* glob, const char* text) {
  if (*glob == '\0') return *text == '\0';
  if (*glob == '*') return Glob(glob + 1, text) || (*text != '\0' && Glob(glob, text + 1));
  return *text != '\0' && (*glob == '?' || *glob == *text) && Glob(glob + 1, text + 1);
}

template <typename T>
bool Holds(const std::vector<T>& list, const T& value) {
  for (const T& one : list) {
    if (one == value) return true;
  }
  return list.empty();
}

bool Matches(const NaiveRule& rule, const Communicator& communicator, Parallelism parallelism,
             const Operation& operation) {
  if (rule.point_to_point) {
    if (operation.function == Function::kUnknown) return false;
    if (*rule.point_to_point != IsPointToPoint(operation.function)) return false;
  }
  std::vector<Function> functions = rule.functions;
  if (!functions.empty() && Holds(functions, Function::kSendRecv)) {
    functions.push_back(Function::kSend);
    functions.push_back(Function::kRecv);
  }
  if (!Holds(functions, operation.function)) return false;
  if (!Holds(rule.algorithms, operation.algorithm)) return false;
  if (!Holds(rule.protocols, operation.protocol)) return false;
  if (rule.bytes) {
    if (operation.bytes == kUnknownBytes) {
      if (!rule.unknown_bytes) return false;
    } else {
      if (operation.bytes < rule.bytes->first) return false;
      if (rule.bytes->second && operation.bytes > *rule.bytes->second) return false;
    }
  }
  if (!rule.globs.empty()) {
    if (communicator.name.empty()) return false;
    bool found = false;
    for (const std::string& glob : rule.globs) found = found || Glob(glob.c_str(), communicator.name.c_str());
    if (!found) return false;
  }
  if (!Holds(rule.traffic_classes, communicator.traffic_class)) return false;
  if (rule.nodes && (communicator.nodes < rule.nodes->first || communicator.nodes > rule.nodes->second))
    return false;
  return Holds(rule.parallelisms, parallelism);
}

template <typename T>
std::string List(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += "\"" + std::string(Name(value)) + "\", ";
  return text + "]";
}

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }
  bool One(uint32_t in) { return Below(in) == 0; }
  uint64_t Bytes() { return Below(6) == 0 ? Below(20) : uint64_t{1} << Below(34); }

  template <typename T>
  std::vector<T> Some(uint32_t count) {
    std::vector<T> values;
    while (values.empty() || One(2)) values.push_back(static_cast<T>(Below(count)));
    return values;
  }

  NaiveRule Rule() {
    NaiveRule rule;
    if (One(4)) rule.point_to_point = One(2);
    if (One(2)) rule.functions = Some<Function>(static_cast<uint32_t>(Function::kUnknown));
    if (One(4)) rule.algorithms = Some<Algorithm>(kAlgorithms - 1);
    if (One(3)) rule.protocols = Some<Protocol>(kProtocols - 1);
    if (!One(3)) {
      rule.bytes = {Bytes(), std::nullopt};
      if (!One(3)) rule.bytes->second = rule.bytes->first + Bytes();
      rule.unknown_bytes = One(3);
    }
    if (One(5)) {
      static constexpr const char* kGlobs[] = {"*", "tp*", "*_pp_*", "?p:0", "dp:?", "*x*y*", "tp:0"};
      while (rule.globs.empty() || One(2)) rule.globs.emplace_back(kGlobs[Below(7)]);
    }
    if (One(6)) {
      while (rule.traffic_classes.empty() || One(2))
        rule.traffic_classes.push_back(static_cast<int>(Below(4)));
    }
    if (One(5)) {
      const int low = 1 + static_cast<int>(Below(4));
      rule.nodes = {low, low + static_cast<int>(Below(3))};
    }
    if (One(5)) {
      for (const Parallelism one : Some<Parallelism>(kParallelisms - 1))
        rule.parallelisms.push_back(static_cast<Parallelism>(static_cast<int>(one) + 1));
    }
    static constexpr const char* kClasses[] = {"latency", "bulk", "background", "extra"};
    rule.service_class = kClasses[Below(4)];
    return rule;
  }

  Communicator Comm() {
    static constexpr const char* kNames[] = {"", "tp:0", "mesh_pp_1", "dp:3", "axbyc", "ep", "other"};
    Communicator communicator;
    communicator.name = kNames[Below(7)];
    communicator.nodes = static_cast<int>(Below(7)) - 1;
    communicator.traffic_class = static_cast<int>(Below(5)) - 1;
    return communicator;
  }

 private:
  std::mt19937 random_;
};

std::string Toml(const NaiveRule& rule) {
  std::string text = "[[rule]]\nclass = \"" + rule.service_class + "\"\n";
  if (rule.point_to_point)
    text += std::string("kind = \"") + (*rule.point_to_point ? "point_to_point" : "collective") + "\"\n";
  if (!rule.functions.empty()) text += "function = " + List(rule.functions) + "\n";
  if (!rule.algorithms.empty()) text += "algorithm = " + List(rule.algorithms) + "\n";
  if (!rule.protocols.empty()) text += "protocol = " + List(rule.protocols) + "\n";
  if (!rule.parallelisms.empty()) text += "parallelism = " + List(rule.parallelisms) + "\n";
  if (rule.bytes) {
    const auto& [low, high] = *rule.bytes;
    // The same range in one of its notations.
    text += "bytes = \"";
    text += low > 0 && low % 3 == 0 ? "(" + std::to_string(low - 1) : "[" + BytesText(low);
    text += ", ";
    text += !high ? ")" : *high % 3 == 0 ? BytesText(*high + 1) + ")" : std::to_string(*high) + "]";
    text += "\"\n";
    if (rule.unknown_bytes) text += "unknown_bytes = true\n";
  }
  if (rule.nodes)
    text += "nodes = \"[" + std::to_string(rule.nodes->first) + ", " + std::to_string(rule.nodes->second) +
            "]\"\n";
  if (!rule.globs.empty()) {
    text += "communicator = [";
    for (const std::string& glob : rule.globs) text += "\"" + glob + "\", ";
    text += "]\n";
  }
  if (!rule.traffic_classes.empty()) {
    text += "communicator_traffic_class = [";
    for (const int traffic_class : rule.traffic_classes) text += std::to_string(traffic_class) + ", ";
    text += "]\n";
  }
  return text;
}

constexpr const char* kHead = "[[class]]\nname = \"extra\"\n";

TEST(PolicyPropertyTest, TableDecidesAsTheRulesDo) {
  Draw draw(7);
  int policies = 0;
  int rules_in_all = 0;
  for (int round = 0; round < 250; ++round) {
    // Rules that can never match are refused, so each is added only if the policy still stands.
    std::vector<NaiveRule> rules;
    std::string toml = kHead;
    std::shared_ptr<const Policy> policy;
    for (uint32_t i = draw.Below(12); i > 0; --i) {
      NaiveRule rule = draw.Rule();
      const Result<std::shared_ptr<const Policy>> more = Policy::Parse(toml + Toml(rule), "random");
      if (!more.ok()) {
        const std::string& message = more.status().message();
        ASSERT_TRUE(message.find("never match") != std::string::npos ||
                    message.find("match nothing") != std::string::npos)
            << message << "\n"
            << toml << Toml(rule);
        continue;
      }
      policy = *more;
      toml += Toml(rule);
      rules.push_back(std::move(rule));
    }
    if (policy == nullptr) continue;
    ++policies;
    rules_in_all += static_cast<int>(rules.size());
    std::vector<uint64_t> sizes = {0, 1, kUnknownBytes, kUnknownBytes - 1};
    for (const NaiveRule& rule : rules) {
      if (!rule.bytes) continue;
      for (const uint64_t end : {rule.bytes->first, rule.bytes->second.value_or(77)}) {
        sizes.insert(sizes.end(), {end, end + 1});
        if (end > 0) sizes.push_back(end - 1);
      }
    }
    for (int c = 0; c < 4; ++c) {
      const Communicator communicator = draw.Comm();
      const Parallelism parallelism = policy->ParallelismOf(communicator);
      const ClassMap map = policy->Bind(communicator);
      for (int index = 0; index < kFunctions * kAlgorithms * kProtocols; ++index) {
        Operation operation{static_cast<Function>(index % kFunctions),
                            static_cast<Algorithm>(index / kFunctions % kAlgorithms),
                            static_cast<Protocol>(index / kFunctions / kAlgorithms), 0};
        for (const uint64_t bytes : sizes) {
          operation.bytes = bytes;
          std::string expected = "bulk";
          for (const NaiveRule& rule : rules) {
            if (!Matches(rule, communicator, parallelism, operation)) continue;
            expected = rule.service_class;
            break;
          }
          const uint8_t found = map.Of(operation);
          ASSERT_LT(found, policy->classes().size());
          ASSERT_EQ(policy->classes()[found].name, expected)
              << toml << policy->Explain(communicator, operation);
          ASSERT_TRUE((policy->reachable() >> found & 1) != 0);
        }
      }
      // The explanation agrees; it is slow, so for a few only.
      for (int i = 0; i < 20; ++i) {
        const Operation operation{static_cast<Function>(draw.Below(kFunctions)),
                                  static_cast<Algorithm>(draw.Below(kAlgorithms)),
                                  static_cast<Protocol>(draw.Below(kProtocols)),
                                  sizes[draw.Below(static_cast<uint32_t>(sizes.size()))]};
        const std::string line = "class: " + policy->classes()[map.Of(operation)].name + "\n";
        ASSERT_TRUE(policy->Explain(communicator, operation).ends_with(line))
            << line << policy->Explain(communicator, operation);
      }
    }
  }
  EXPECT_GT(policies, 200);
  EXPECT_GT(rules_in_all, 900);
}

// Each refused rule indeed never decides: the policy with it, read naively, is the policy without it.
TEST(PolicyPropertyTest, RefusedRulesNeverMatch) {
  Draw draw(11);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<NaiveRule> rules;
    std::string toml = kHead;
    for (int i = 0; i < 4; ++i) {
      NaiveRule rule = draw.Rule();
      // Few conditions, so that they meet.
      if (draw.One(2)) rule.functions.clear();
      if (draw.One(2)) rule.protocols.clear();
      const Result<std::shared_ptr<const Policy>> more = Policy::Parse(toml + Toml(rule), "random");
      if (more.ok()) {
        toml += Toml(rule);
        rules.push_back(std::move(rule));
        continue;
      }
      ++refused;
      for (int probe = 0; probe < 300; ++probe) {
        const Communicator communicator = draw.Comm();
        const Operation operation{static_cast<Function>(draw.Below(kFunctions)),
                                  static_cast<Algorithm>(draw.Below(kAlgorithms)),
                                  static_cast<Protocol>(draw.Below(kProtocols)),
                                  draw.One(4)  ? kUnknownBytes
                                  : rule.bytes ? rule.bytes->first + draw.Below(2) * draw.Bytes()
                                               : draw.Bytes()};
        const Parallelism parallelism = Policy::Default()->ParallelismOf(communicator);
        if (!Matches(rule, communicator, parallelism, operation)) continue;
        bool earlier = false;
        for (const NaiveRule& one : rules)
          earlier = earlier || Matches(one, communicator, parallelism, operation);
        ASSERT_TRUE(earlier) << toml << Toml(rule) << more.status().message() << "\n"
                             << DescribeOperation(operation);
      }
    }
  }
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace sluice
