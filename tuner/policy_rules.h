// The rules of a policy as data: what each demands of a communicator and of an operation. Private to tuner/policy*.
// Threads: any; nothing here changes after the parser is done.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tuner/operation.h"
#include "tuner/policy.h"
#include "tuner/policy_text.h"

namespace sluice {

// So that a set of rules fits into one word.
inline constexpr size_t kMaxRules = 64;

// Sets of functions, algorithms and so on: one bit by number. A full set also holds "unknown": no condition.
using Mask = uint32_t;
template <typename Enum>
constexpr Mask Bit(Enum value) {
  return Mask{1} << static_cast<int>(value);
}
inline constexpr Mask kAnyFunction = (Mask{1} << kFunctions) - 1;
inline constexpr Mask kAnyAlgorithm = (Mask{1} << kAlgorithms) - 1;
inline constexpr Mask kAnyProtocol = (Mask{1} << kProtocols) - 1;
inline constexpr Mask kAnyParallelism = (Mask{1} << kParallelisms) - 1;

// Functions of a kind, the one of which only the kind is known included.
Mask FunctionsOfKind(bool point_to_point);

struct Rule {
  std::string name;
  std::string where;
  uint8_t service_class = 0;
  std::vector<std::pair<std::string, std::string>> conditions;  // key and value as written, for people

  Mask kind = kAnyFunction;
  Mask function = kAnyFunction;
  Mask algorithm = kAnyAlgorithm;
  Mask protocol = kAnyProtocol;
  Mask parallelism = kAnyParallelism;
  Interval bytes;
  bool unknown_bytes = true;               // false with a condition on bytes, unless it says otherwise
  std::vector<std::string> communicators;  // globs; empty: any
  std::vector<int> traffic_classes;        // empty: any
  Interval nodes;
  bool any_nodes = true;

  Mask functions() const { return kind & function; }
  bool TakesCommunicator(const Communicator& communicator, Parallelism its_parallelism) const;
  bool TakesOperation(const Operation& operation) const;
  // The first condition that does not hold, "bytes 4MiB are not in [0, 1MiB)"; empty when the rule matches.
  std::string WhyNot(const Communicator& communicator, Parallelism its_parallelism,
                     const Operation& operation) const;
  // Every communicator that `other` takes is one that this rule takes. May miss cases, never claims a wrong one.
  bool CoversCommunicatorsOf(const Rule& other) const;
};

// The byte sizes at which one list of rules decides differently, and what it decides.
struct Decision {
  uint64_t below_bytes = kUnknownBytes;
  int rule = -1;  // none
};
// By ascending size; the last one is below kUnknownBytes. `rules` are those that match but for the bytes, in order.
std::vector<Decision> DecideByBytes(const std::vector<Rule>& all, const std::vector<int>& rules);

// Numbers of earlier rules that together take everything that `rules[index]` could; empty: it can match.
std::vector<size_t> ShadowedBy(const std::vector<Rule>& rules, size_t index);

struct ParallelismPattern {
  std::string glob;
  Parallelism parallelism = Parallelism::kUnknown;
};
// By the patterns, else by what PyTorch, Megatron-LM, DeepSpeed and vLLM call their process groups.
Parallelism ParallelismOfName(const std::string& name, const std::vector<ParallelismPattern>& patterns);

// The rules without a policy, as TOML.
extern const char* const kDefaultRules;

// Of policy.h; complete here for the parser and the rest of tuner/policy*.
struct Policy::Rules {
  std::vector<Rule> rules;
  std::vector<ParallelismPattern> patterns;
};

}  // namespace sluice
