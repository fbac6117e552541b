#include "tuner/policy_rules.h"

#include <algorithm>
#include <bit>

#include "base/words.h"

namespace sluice {
namespace {

std::string Value(const Rule& rule, std::string_view key) {
  for (const auto& [name, value] : rule.conditions) {
    if (name == key) return value;
  }
  return {};
}

// "algorithm ring is not tree or nvls".
std::string IsNot(std::string_view key, std::string_view value, const std::string& wanted) {
  return std::string(key) + " " + std::string(value) + " is not " + wanted;
}

}  // namespace

Mask FunctionsOfKind(bool point_to_point) {
  Mask mask = 0;
  for (int i = 0; i < kFunctions; ++i) {
    const auto function = static_cast<Function>(i);
    if (point_to_point ? IsPointToPoint(function) : IsCollective(function)) mask |= Bit(function);
  }
  return mask;
}

bool Rule::TakesCommunicator(const Communicator& communicator, Parallelism its_parallelism) const {
  const auto named = [&](const std::string& glob) { return GlobMatches(glob, communicator.name); };
  return (parallelism & Bit(its_parallelism)) != 0 &&
         (communicators.empty() ||
          (!communicator.name.empty() && std::any_of(communicators.begin(), communicators.end(), named))) &&
         (traffic_classes.empty() || std::find(traffic_classes.begin(), traffic_classes.end(),
                                               communicator.traffic_class) != traffic_classes.end()) &&
         (any_nodes ||
          (communicator.nodes >= 0 && nodes.Contains(static_cast<uint64_t>(communicator.nodes))));
}

bool Rule::TakesOperation(const Operation& operation) const {
  return (functions() & Bit(operation.function)) != 0 && (algorithm & Bit(operation.algorithm)) != 0 &&
         (protocol & Bit(operation.protocol)) != 0 &&
         (operation.bytes == kUnknownBytes ? unknown_bytes : bytes.Contains(operation.bytes));
}

std::string Rule::WhyNot(const Communicator& communicator, Parallelism its_parallelism,
                         const Operation& operation) const {
  if ((kind & Bit(operation.function)) == 0)
    return IsNot("function", Name(operation.function), Value(*this, "kind"));
  if ((function & Bit(operation.function)) == 0)
    return IsNot("function", Name(operation.function), Value(*this, "function"));
  if ((algorithm & Bit(operation.algorithm)) == 0)
    return IsNot("algorithm", Name(operation.algorithm), Value(*this, "algorithm"));
  if ((protocol & Bit(operation.protocol)) == 0)
    return IsNot("protocol", Name(operation.protocol), Value(*this, "protocol"));
  if (operation.bytes == kUnknownBytes) {
    if (!unknown_bytes) return "bytes are unknown and the rule does not say unknown_bytes = true";
  } else if (!bytes.Contains(operation.bytes)) {
    return "bytes " + BytesText(operation.bytes) + " are not in " + Value(*this, "bytes");
  }
  Rule probe = *this;
  probe.communicators.clear();
  probe.traffic_classes.clear();
  probe.any_nodes = true;
  if (!probe.TakesCommunicator(communicator, its_parallelism))
    return IsNot("parallelism", Name(its_parallelism), Value(*this, "parallelism"));
  probe.communicators = communicators;
  if (!probe.TakesCommunicator(communicator, its_parallelism)) {
    if (communicator.name.empty()) return "the communicator has no name";
    return "communicator " + Quoted(communicator.name) + " does not match " + Value(*this, "communicator");
  }
  probe.traffic_classes = traffic_classes;
  if (!probe.TakesCommunicator(communicator, its_parallelism)) {
    if (communicator.traffic_class < 0) return "the communicator has no traffic class";
    return IsNot("communicator_traffic_class", std::to_string(communicator.traffic_class),
                 Value(*this, "communicator_traffic_class"));
  }
  if (!TakesCommunicator(communicator, its_parallelism)) {
    if (communicator.nodes < 0) return "the number of nodes is unknown";
    return "nodes " + std::to_string(communicator.nodes) + " are not " + Value(*this, "nodes");
  }
  return {};
}

bool Rule::CoversCommunicatorsOf(const Rule& other) const {
  const auto named = [&](const std::string& narrow) {
    return std::any_of(communicators.begin(), communicators.end(),
                       [&](const std::string& wide) { return GlobCovers(wide, narrow); });
  };
  const auto marked = [&](int traffic_class) {
    return std::find(traffic_classes.begin(), traffic_classes.end(), traffic_class) != traffic_classes.end();
  };
  return (other.parallelism & ~parallelism) == 0 &&
         (communicators.empty() ||
          (!other.communicators.empty() &&
           std::all_of(other.communicators.begin(), other.communicators.end(), named))) &&
         (traffic_classes.empty() ||
          (!other.traffic_classes.empty() &&
           std::all_of(other.traffic_classes.begin(), other.traffic_classes.end(), marked))) &&
         (any_nodes || (!other.any_nodes && nodes.Contains(other.nodes)));
}

std::vector<Decision> DecideByBytes(const std::vector<Rule>& all, const std::vector<int>& rules) {
  std::vector<uint64_t> ends = {kUnknownBytes};
  for (const int rule : rules) {
    const Interval& bytes = all[static_cast<size_t>(rule)].bytes;
    if (bytes.low > 0) ends.push_back(bytes.low);
    ends.push_back(bytes.high);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  std::vector<Decision> decisions;
  uint64_t from = 0;
  for (const uint64_t below : ends) {
    const auto first = std::find_if(rules.begin(), rules.end(), [&](int rule) {
      return all[static_cast<size_t>(rule)].bytes.Contains(from);
    });
    const int rule = first == rules.end() ? -1 : *first;
    if (!decisions.empty() && decisions.back().rule == rule) {
      decisions.back().below_bytes = below;
    } else {
      decisions.push_back({below, rule});
    }
    from = below;
  }
  return decisions;
}

std::vector<size_t> ShadowedBy(const std::vector<Rule>& rules, size_t index) {
  const Rule& rule = rules[index];
  std::vector<size_t> candidates;
  for (size_t i = 0; i < index; ++i) {
    if (rules[i].CoversCommunicatorsOf(rule)) candidates.push_back(i);
  }
  uint64_t used = 0;  // bit by candidate
  // Whether the candidates with these functions, algorithms and protocols take all sizes that the rule takes.
  const auto covered = [&](Function function, Algorithm algorithm, Protocol protocol) {
    uint64_t next = rule.bytes.low;
    bool unknown = !rule.unknown_bytes;
    const auto takes = [&](const Rule& other) {
      return (other.functions() & Bit(function)) != 0 && (other.algorithm & Bit(algorithm)) != 0 &&
             (other.protocol & Bit(protocol)) != 0;
    };
    for (bool grown = true; grown;) {
      grown = false;
      for (size_t c = 0; c < candidates.size(); ++c) {
        const Rule& other = rules[candidates[c]];
        if (!takes(other)) continue;
        const bool sizes = next < rule.bytes.high && other.bytes.Contains(next);
        const bool unknowns = !unknown && other.unknown_bytes;
        if (!sizes && !unknowns) continue;
        if (sizes) next = other.bytes.high;
        unknown = unknown || unknowns;
        used |= uint64_t{1} << c;
        grown = true;
      }
    }
    return unknown && next >= rule.bytes.high;
  };
  for (int f = 0; f < kFunctions; ++f) {
    for (int a = 0; a < kAlgorithms; ++a) {
      for (int p = 0; p < kProtocols; ++p) {
        const auto function = static_cast<Function>(f);
        const auto algorithm = static_cast<Algorithm>(a);
        const auto protocol = static_cast<Protocol>(p);
        const bool taken = (rule.functions() & Bit(function)) != 0 &&
                           (rule.algorithm & Bit(algorithm)) != 0 && (rule.protocol & Bit(protocol)) != 0;
        if (taken && !covered(function, algorithm, protocol)) return {};
      }
    }
  }
  std::vector<size_t> by;
  for (; used != 0; used &= used - 1) by.push_back(candidates[static_cast<size_t>(std::countr_zero(used))]);
  return by;
}

}  // namespace sluice
