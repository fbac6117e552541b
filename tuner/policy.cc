#include "tuner/policy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <unordered_map>

#include "base/words.h"
#include "tuner/policy_parse.h"
#include "tuner/policy_rules.h"

namespace sluice {

ClassMap::ClassMap() : ranges_{{kUnknownBytes, ClassIndex(BuiltInClass::kBulk)}} {
  entries_.fill({.first = 0, .unknown_bytes = ClassIndex(BuiltInClass::kBulk)});
}

Policy::Policy() : rules_(new Rules) {}
Policy::~Policy() = default;

std::shared_ptr<const Policy> Policy::Default() {
  static const auto* const policy = new Result<std::shared_ptr<const Policy>>(PolicyParser::BuiltIn());
  return **policy;
}

Result<std::shared_ptr<const Policy>> Policy::Parse(std::string_view toml, const std::string& origin) {
  if (toml.size() > kMaxPolicyBytes) {
    return InvalidArgument(OneLine(origin) + ": has " + std::to_string(toml.size()) +
                           " bytes; a policy has at most " + std::to_string(kMaxPolicyBytes));
  }
  return PolicyParser::Parse(toml, origin);
}

Result<std::shared_ptr<const Policy>> Policy::ReadFile(const std::string& path) {
  const std::string shown = OneLine(path);
  constexpr std::string_view kRemedy = "give the path of a policy in TOML";
  // Not blocking: opening a pipe that nobody writes to would never return.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(shown + ": cannot be read", errno, kRemedy);
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};
  struct stat about {};
  if (fstat(fd, &about) != 0) return SystemError(shown + ": cannot be read", errno, kRemedy);
  if (!S_ISREG(about.st_mode)) {
    return InvalidArgument(shown + ": is " + (S_ISDIR(about.st_mode) ? "a directory" : "not a regular file") +
                           "; " + std::string(kRemedy));
  }
  std::string text;
  char chunk[16384];
  while (text.size() <= kMaxPolicyBytes) {
    const ssize_t count = read(fd, chunk, sizeof(chunk));
    if (count == 0) return Parse(text, path);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError(shown + ": cannot be read", errno, kRemedy);
    text.append(chunk, static_cast<size_t>(count));
  }
  return InvalidArgument(shown + ": has more than " + std::to_string(kMaxPolicyBytes) +
                         " bytes, so it is no policy; " + std::string(kRemedy));
}

Result<std::shared_ptr<const Policy>> Policy::Load(const std::string& value) {
  if (value.empty()) return Default();
  if (value.find_first_of("\n=") != std::string::npos) return Parse(value, "SLUICE_POLICY");
  return ReadFile(value);
}

Parallelism Policy::ParallelismOf(const Communicator& communicator) const {
  return ParallelismOfName(communicator.name, rules_->patterns);
}

ClassMap Policy::Bind(const Communicator& communicator) const {
  const std::vector<Rule>& rules = rules_->rules;
  const Parallelism parallelism = ParallelismOf(communicator);
  const auto class_of = [&](int rule) {
    return rule < 0 ? ClassIndex(BuiltInClass::kBulk) : rules[static_cast<size_t>(rule)].service_class;
  };
  std::vector<int> candidates;
  for (size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].TakesCommunicator(communicator, parallelism)) candidates.push_back(static_cast<int>(i));
  }
  ClassMap map;
  map.ranges_.clear();
  // Most entries share one of a few sets of rules.
  std::unordered_map<uint64_t, ClassMap::Entry> by_rules;
  for (size_t index = 0; index < ClassMap::kEntries; ++index) {
    Operation operation;
    operation.protocol = static_cast<Protocol>(index % kProtocols);
    operation.algorithm = static_cast<Algorithm>(index / kProtocols % kAlgorithms);
    operation.function = static_cast<Function>(index / kProtocols / kAlgorithms);
    std::vector<int> taking;
    uint64_t key = 0;
    for (const int i : candidates) {
      const Rule& rule = rules[static_cast<size_t>(i)];
      if ((rule.functions() & Bit(operation.function)) == 0 ||
          (rule.algorithm & Bit(operation.algorithm)) == 0 ||
          (rule.protocol & Bit(operation.protocol)) == 0) {
        continue;
      }
      taking.push_back(i);
      key |= uint64_t{1} << i;
    }
    const auto [found, added] = by_rules.try_emplace(key);
    if (added) {
      found->second.first = static_cast<uint32_t>(map.ranges_.size());
      for (const Decision& decision : DecideByBytes(rules, taking))
        map.ranges_.push_back({decision.below_bytes, class_of(decision.rule)});
      found->second.unknown_bytes = ClassIndex(BuiltInClass::kBulk);
      for (const int i : taking) {
        if (!rules[static_cast<size_t>(i)].unknown_bytes) continue;
        found->second.unknown_bytes = class_of(i);
        break;
      }
    }
    map.entries_[index] = found->second;
  }
  return map;
}

}  // namespace sluice
