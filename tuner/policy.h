// The policy: which service class an operation belongs to. docs/policy.md is its reference.
//
//   Result<std::shared_ptr<const Policy>> policy = Policy::Parse(toml, "policy.toml");
//   ClassMap classes = (*policy)->Bind(communicator);            // once per communicator
//   uint8_t index = classes.Of(operation);                       // per operation: two loads and a short scan
//   const ServiceClass& service_class = (*policy)->classes()[index];
//
// Rules are tried in order and the first that matches wins; without a match the class is `bulk`. A rule on bytes
// does not match unknown bytes unless it says `unknown_bytes = true`; the same holds for every other condition on
// something that is not known.
//
// Threads: a Policy never changes after Parse; any thread may use it. A ClassMap is read by any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tuner/operation.h"

namespace sluice {

inline constexpr int kMaxServiceClasses = 8;
inline constexpr size_t kMaxPolicyBytes = size_t{1} << 20;

// Indices of the classes that every policy has, in this order; user-defined ones follow.
enum class BuiltInClass : uint8_t { kControl = 0, kLatency = 1, kBulk = 2, kBackground = 3 };
inline constexpr int kBuiltInClasses = 4;

constexpr uint8_t ClassIndex(BuiltInClass built_in) {
  return static_cast<uint8_t>(built_in);
}

struct ServiceClass {
  std::string name;  // 1 to 32 of a-z, 0-9, '_' and '-'
  // Unset: the communicator's value (see ResolveLanes).
  std::optional<int> sl = {};             // 0 to 15
  std::optional<int> traffic_class = {};  // 0 to 255: DSCP x 4 + ECN bits
  // Strict classes are served before all others, the smallest priority first. Others share by weight.
  bool strict = false;
  int priority = 0;     // 0 to 7, 0 is the most urgent; orders strict classes
  int weight = 50;      // 1 to 1000; of classes that are not strict
  int queue_pairs = 0;  // per port pair, 1 to 16; 0: not said, see ResolveLanes
  int flow_labels = 0;  // distinct flow labels over the queue pairs, 1 to 16; 0: one for each
};

// Service class by operation, for one communicator. Everything is bulk in a default constructed one.
class ClassMap {
 public:
  ClassMap();
  // Never allocates. Thread safe.
  uint8_t Of(const Operation& operation) const noexcept {
    const Entry entry = entries_[Index(operation)];
    if (operation.bytes == kUnknownBytes) return entry.unknown_bytes;
    uint32_t i = entry.first;
    while (operation.bytes >= ranges_[i].below_bytes) ++i;
    return ranges_[i].service_class;
  }

 private:
  friend class Policy;
  struct Entry {
    uint32_t first = 0;  // in ranges_; the last range of an entry is below kUnknownBytes
    uint8_t unknown_bytes = 0;
  };
  struct Range {
    uint64_t below_bytes = kUnknownBytes;
    uint8_t service_class = 0;
    bool operator==(const Range&) const = default;
  };
  static constexpr size_t kEntries = size_t{kFunctions} * kAlgorithms * kProtocols;
  static size_t Index(const Operation& operation) {
    return (static_cast<size_t>(operation.function) * kAlgorithms +
            static_cast<size_t>(operation.algorithm)) *
               kProtocols +
           static_cast<size_t>(operation.protocol);
  }
  std::array<Entry, kEntries> entries_{};
  std::vector<Range> ranges_;
};

// A rule in words, for those who print it.
struct RuleText {
  std::string name;        // as the policy calls it, else "rule 3"
  std::string where;       // "policy.toml:12", "built-in"
  std::string conditions;  // "function all_reduce, bytes [0, 1MiB)"; "everything"
  uint8_t service_class = 0;
};

// What one rule says to an operation.
struct RuleVerdict {
  size_t rule = 0;  // in Policy::rules()
  bool matches = false;
  std::string why;  // "bytes 4 MiB are not in [0, 1MiB)"; empty when it matches
};

class Policy {
 public:
  // The built-in policy: names no SL and no traffic class.
  static std::shared_ptr<const Policy> Default();
  // TOML text. `origin` names it in messages ("policy.toml", "SLUICE_POLICY").
  static Result<std::shared_ptr<const Policy>> Parse(std::string_view toml, const std::string& origin);
  static Result<std::shared_ptr<const Policy>> ReadFile(const std::string& path);
  // SLUICE_POLICY: empty is the built-in policy, text with a line break or a '=' is TOML itself, else a file.
  static Result<std::shared_ptr<const Policy>> Load(const std::string& value);

  const std::vector<ServiceClass>& classes() const { return classes_; }
  // Classes that some rule, or the default, can reach; control always. Bit by index.
  uint32_t reachable() const { return reachable_; }
  ClassMap Bind(const Communicator& communicator) const;
  // The rules that are looked at for this operation, in order: the last one matches, or none does and it is bulk.
  std::vector<RuleVerdict> Trace(const Communicator& communicator, const Operation& operation) const;
  // What happens to this operation and why: the operation, one line per rule that was looked at, the class.
  std::string Explain(const Communicator& communicator, const Operation& operation) const;
  // The parallelism that the communicator's name says.
  Parallelism ParallelismOf(const Communicator& communicator) const;

  const std::string& origin() const { return origin_; }  // "built-in", or as given to Parse
  std::vector<RuleText> rules() const;
  // Questionable but usable: one line each.
  const std::vector<std::string>& notes() const { return notes_; }

  ~Policy();

 private:
  Policy();
  struct Rules;
  friend class PolicyParser;
  std::string origin_;
  std::vector<ServiceClass> classes_;
  uint32_t reachable_ = 0;
  std::vector<std::string> notes_;
  std::unique_ptr<Rules> rules_;
};

// "all_reduce, ring, simple, bytes 1MiB".
std::string DescribeOperation(const Operation& operation);
// "\"tp:0\", parallelism tensor, nodes 4, no traffic class".
std::string DescribeCommunicator(const Communicator& communicator, Parallelism parallelism);

// "65536", "64K", "64KiB", "1MB": K, M, G, T and KiB ... are powers of 1024, KB, MB, GB, TB powers of 1000.
Result<uint64_t> BytesFromText(std::string_view text);
// The shortest exact form: "64KiB", "1MiB", "1000".
std::string BytesText(uint64_t bytes);

}  // namespace sluice
