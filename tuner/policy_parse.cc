// TOML to Policy.
#include "tuner/policy_parse.h"

#include <array>
#include <new>

#include "base/words.h"
#include "tuner/policy_rules.h"
#include "tuner/policy_toml.h"

namespace sluice {
namespace {

constexpr size_t kLongestClassName = 32;
constexpr size_t kLongestRuleName = 64;
constexpr size_t kLongestGlob = 256;
constexpr int kMaxQueuePairs = 16;
constexpr int kBackgroundWeight = 1;

constexpr std::string_view kSlMeaning = "a service level has 4 bits; leave it out for the communicator's";
constexpr std::string_view kTrafficClassMeaning =
    "the traffic class is DSCP x 4 + ECN, one byte; leave it out for the communicator's";

std::vector<ServiceClass> BuiltInClasses() {
  std::vector<ServiceClass> classes(kBuiltInClasses);
  const auto at = [&](BuiltInClass built_in) -> ServiceClass& { return classes[ClassIndex(built_in)]; };
  at(BuiltInClass::kControl) = {.name = "control", .strict = true, .priority = 0};
  at(BuiltInClass::kLatency) = {.name = "latency", .strict = true, .priority = 1};
  at(BuiltInClass::kBulk) = {.name = "bulk"};
  at(BuiltInClass::kBackground) = {.name = "background", .weight = kBackgroundWeight};
  return classes;
}

bool IsClassName(std::string_view name) {
  if (name.empty() || name.size() > kLongestClassName) return false;
  for (const char c : name) {
    if ((c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-') return false;
  }
  return true;
}

// ECN bits by name, in the order of their codes.
constexpr std::array<std::string_view, 4> kEcnNames = {"not-ect", "ect1", "ect0", "ce"};

}  // namespace

Status PolicyParser::ParseMarks(const TomlTable& table, ServiceClass* service_class) {
  SLUICE_RETURN_IF_ERROR(table.Int("sl", 0, 15, kSlMeaning, &service_class->sl));
  SLUICE_RETURN_IF_ERROR(
      table.Int("traffic_class", 0, 255, kTrafficClassMeaning, &service_class->traffic_class));
  std::optional<int> dscp;
  SLUICE_RETURN_IF_ERROR(table.Int("dscp", 0, 63, "a DSCP has 6 bits", &dscp));
  std::optional<std::string> ecn;
  SLUICE_RETURN_IF_ERROR(table.Text("ecn", 16, &ecn));
  if (dscp && service_class->traffic_class)
    return table.Bad("dscp",
                     "contradicts traffic_class = " + table.Shown("traffic_class") + "; give one of them");
  if (ecn && !dscp) {
    return table.Bad("ecn", table.Has("traffic_class") ? "contradicts traffic_class, which holds the ECN bits"
                                                       : "belongs to a dscp; give one");
  }
  if (!dscp) return Status::Ok();
  int bits = 2;  // ECT(0): what switches mark instead of dropping, and what NICs send
  if (ecn) {
    bits = -1;
    for (int i = 0; i < 4; ++i) {
      if (kEcnNames[static_cast<size_t>(i)] == *ecn) bits = i;
    }
    if (bits < 0) return table.Bad("ecn", "is unknown; use " + WordList(kEcnNames));
  }
  service_class->traffic_class = *dscp * 4 + bits;
  return Status::Ok();
}

Status PolicyParser::ParseClass(TomlTable table) {
  static constexpr std::string_view kKeys[] = {"name",        "sl",         "traffic_class", "dscp",
                                               "ecn",         "strict",     "priority",      "weight",
                                               "queue_pairs", "flow_labels"};
  SLUICE_RETURN_IF_ERROR(table.CheckKeys(kKeys));
  std::optional<std::string> name;
  SLUICE_RETURN_IF_ERROR(table.Text("name", kLongestClassName, &name));
  if (!name) return table.Bad("a class needs a name");
  if (!IsClassName(*name)) {
    return table.Bad("name", "is not a name of a class; use 1.." + std::to_string(kLongestClassName) +
                                 " of a-z, 0-9, _ and -");
  }
  table.set_context("class " + *name);
  for (const auto& [other, where] : class_lines_) {
    if (other == *name) return table.Bad("name", "is taken: the class is defined at " + where + " too");
  }
  class_lines_.emplace_back(*name, table.Where());
  size_t index = 0;
  while (index < policy_.classes_.size() && policy_.classes_[index].name != *name) ++index;
  if (index == policy_.classes_.size()) {
    if (index == kMaxServiceClasses) {
      return table.Bad("more than " + std::to_string(kMaxServiceClasses) +
                       " classes; control, latency, bulk and background always exist and count");
    }
    policy_.classes_.push_back({.name = *name});
  }
  ServiceClass& service_class = policy_.classes_[index];
  SLUICE_RETURN_IF_ERROR(ParseMarks(table, &service_class));
  if (index == ClassIndex(BuiltInClass::kControl)) {
    for (const std::string_view key : {"strict", "priority", "weight", "queue_pairs", "flow_labels"}) {
      if (table.Has(key)) {
        return table.Bad(
            key, "cannot be set: control is the most urgent class and has one queue pair per port pair");
      }
    }
    return Status::Ok();
  }
  std::optional<bool> strict;
  std::optional<int> priority, weight, queue_pairs, flow_labels;
  SLUICE_RETURN_IF_ERROR(table.Bool("strict", &strict));
  SLUICE_RETURN_IF_ERROR(table.Int("priority", 0, 7, "0 is the most urgent", &priority));
  SLUICE_RETURN_IF_ERROR(
      table.Int("weight", 1, 1000, "the share among classes that are not strict", &weight));
  SLUICE_RETURN_IF_ERROR(table.Int("queue_pairs", 1, kMaxQueuePairs, "", &queue_pairs));
  SLUICE_RETURN_IF_ERROR(table.Int("flow_labels", 1, kMaxQueuePairs, "", &flow_labels));
  service_class.strict = strict.value_or(service_class.strict);
  if (priority && !service_class.strict)
    return table.Bad("priority", "orders strict classes only; add strict = true, or give a weight");
  if (weight && service_class.strict)
    return table.Bad("weight", "has no meaning for a strict class; add strict = false, or give a priority");
  if (flow_labels && queue_pairs && *flow_labels > *queue_pairs) {
    return table.Bad("flow_labels", "is more than queue_pairs = " + table.Shown("queue_pairs") +
                                        ": a queue pair has one flow label");
  }
  service_class.priority = service_class.strict ? priority.value_or(service_class.priority) : 0;
  service_class.weight = weight.value_or(service_class.weight);
  service_class.queue_pairs = queue_pairs.value_or(0);
  service_class.flow_labels = flow_labels.value_or(0);
  return Status::Ok();
}

namespace {

// Names to a mask; the condition in words.
template <typename Enum>
Status ParseNames(const TomlTable& table, std::string_view key,
                  std::optional<Enum> (*from_name)(std::string_view), int count, Mask allowed, Mask* mask) {
  std::vector<std::string> names;
  SLUICE_RETURN_IF_ERROR(table.Texts(key, 64, &names));
  if (names.empty()) return Status::Ok();
  *mask = 0;
  for (const std::string& name : names) {
    const std::optional<Enum> value = from_name(name);
    if (value && (allowed & Bit(*value)) != 0) {
      *mask |= Bit(*value);
      continue;
    }
    std::vector<std::string_view> known;
    for (int i = 0; i < count; ++i) {
      if ((allowed & Mask{1} << i) != 0) known.push_back(Name(static_cast<Enum>(i)));
    }
    const std::string_view nearest = NearestWord(name, known);
    return table.Bad(
        key, "does not name a known " + std::string(key) + ": " + Quoted(name) + "; " +
                 (nearest.empty() ? "use " + WordList(known) : "did you mean " + std::string(nearest) + "?"));
  }
  return Status::Ok();
}

constexpr std::string_view kRuleKeys[] = {"name",
                                          "class",
                                          "kind",
                                          "function",
                                          "algorithm",
                                          "protocol",
                                          "bytes",
                                          "unknown_bytes",
                                          "parallelism",
                                          "communicator",
                                          "communicator_traffic_class",
                                          "nodes"};

Status ParseOperation(const TomlTable& table, Rule* rule) {
  std::optional<std::string> kind;
  SLUICE_RETURN_IF_ERROR(table.Text("kind", 64, &kind));
  if (kind) {
    if (*kind != "collective" && *kind != "point_to_point")
      return table.Bad("kind", "is unknown; use collective or point_to_point");
    rule->kind = FunctionsOfKind(*kind == "point_to_point");
  }
  const Mask named =
      kAnyFunction & ~(Bit(Function::kUnknown) | Bit(Function::kCollective) | Bit(Function::kPointToPoint));
  SLUICE_RETURN_IF_ERROR(
      ParseNames<Function>(table, "function", FunctionFromName, kFunctions, named, &rule->function));
  // Both directions of the pair.
  if (table.Has("function") && (rule->function & Bit(Function::kSendRecv)) != 0)
    rule->function |= Bit(Function::kSend) | Bit(Function::kRecv);
  if (rule->functions() == 0)
    return table.Bad("function", "never is of kind " + table.Shown("kind") + ": the rule can match nothing");
  SLUICE_RETURN_IF_ERROR(ParseNames<Algorithm>(table, "algorithm", AlgorithmFromName, kAlgorithms,
                                               kAnyAlgorithm & ~Bit(Algorithm::kUnknown), &rule->algorithm));
  SLUICE_RETURN_IF_ERROR(ParseNames<Protocol>(table, "protocol", ProtocolFromName, kProtocols,
                                              kAnyProtocol & ~Bit(Protocol::kUnknown), &rule->protocol));
  std::optional<std::string> bytes;
  SLUICE_RETURN_IF_ERROR(table.Text("bytes", 64, &bytes));
  std::optional<bool> unknown_bytes;
  SLUICE_RETURN_IF_ERROR(table.Bool("unknown_bytes", &unknown_bytes));
  if (unknown_bytes && !bytes)
    return table.Bad("unknown_bytes",
                     "has no effect without bytes: such a rule takes any size, known or not");
  if (bytes) {
    const Result<Interval> interval = IntervalFromText(*bytes, true);
    if (!interval.ok()) return table.Bad("bytes", interval.status().message());
    rule->bytes = *interval;
    rule->unknown_bytes = unknown_bytes.value_or(false);
  }
  return Status::Ok();
}

Status ParseCommunicator(const TomlTable& table, Rule* rule) {
  SLUICE_RETURN_IF_ERROR(ParseNames<Parallelism>(table, "parallelism", ParallelismFromName, kParallelisms,
                                                 kAnyParallelism & ~Bit(Parallelism::kUnknown),
                                                 &rule->parallelism));
  SLUICE_RETURN_IF_ERROR(table.Texts("communicator", kLongestGlob, &rule->communicators));
  SLUICE_RETURN_IF_ERROR(table.Ints("communicator_traffic_class", 0, 255,
                                    "it is compared with trafficClass of ncclConfig_t",
                                    &rule->traffic_classes));
  if (!table.Has("nodes")) return Status::Ok();
  rule->any_nodes = false;
  std::optional<int> nodes;
  if (table.Int("nodes", 1, 1 << 30, "", &nodes).ok()) {
    rule->nodes = {static_cast<uint64_t>(*nodes), static_cast<uint64_t>(*nodes) + 1};
    return Status::Ok();
  }
  std::optional<std::string> range;
  if (!table.Text("nodes", 64, &range).ok())
    return table.Bad("nodes", "is neither a number of nodes from 1 nor a range such as \"[2, 8]\"");
  const Result<Interval> interval = IntervalFromText(*range, false);
  if (!interval.ok()) return table.Bad("nodes", interval.status().message());
  rule->nodes = *interval;
  return Status::Ok();
}

}  // namespace

Status PolicyParser::ParseRule(TomlTable table) {
  Rule rule;
  const std::string number = "rule " + std::to_string(policy_.rules_->rules.size() + 1);
  table.set_context(number);
  SLUICE_RETURN_IF_ERROR(table.CheckKeys(kRuleKeys));
  std::optional<std::string> name;
  SLUICE_RETURN_IF_ERROR(table.Text("name", kLongestRuleName, &name));
  rule.name = name ? OneLine(*name) : number;
  if (name) table.set_context(number + " " + Quoted(*name));
  rule.where = built_in_ ? "built-in" : table.Where();
  if (policy_.rules_->rules.size() == kMaxRules)
    return table.Bad("more than " + std::to_string(kMaxRules) +
                     " rules; put several values into one rule's lists");
  SLUICE_RETURN_IF_ERROR(ParseOperation(table, &rule));
  SLUICE_RETURN_IF_ERROR(ParseCommunicator(table, &rule));
  std::optional<std::string> service_class;
  SLUICE_RETURN_IF_ERROR(table.Text("class", kLongestClassName, &service_class));
  if (!service_class) return table.Bad("a rule needs a class");
  std::vector<std::string_view> known;
  for (const ServiceClass& one : policy_.classes_) known.push_back(one.name);
  size_t index = 0;
  while (index < known.size() && known[index] != *service_class) ++index;
  if (index == ClassIndex(BuiltInClass::kControl))
    return table.Bad("class", "carries only Sluice's own messages; use latency for what is urgent");
  if (index == known.size()) {
    const std::string_view nearest = NearestWord(*service_class, known);
    return table.Bad("class",
                     "is not defined; " + (nearest.empty() ? "the classes are " + WordList(known)
                                                           : "did you mean " + std::string(nearest) + "?"));
  }
  rule.service_class = static_cast<uint8_t>(index);
  for (const std::string_view key : std::span(kRuleKeys).subspan(2)) {
    if (table.Has(key)) rule.conditions.emplace_back(key, table.Shown(key));
  }
  std::vector<Rule>& rules = policy_.rules_->rules;
  rules.push_back(std::move(rule));
  const std::vector<size_t> shadows = ShadowedBy(rules, rules.size() - 1);
  if (shadows.empty()) return Status::Ok();
  if (built_in_) {  // the policy's own rules decide first
    rules.pop_back();
    return Status::Ok();
  }
  std::string by;
  for (const size_t i : shadows) by += (by.empty() ? "" : ", ") + rules[i].name + " (" + rules[i].where + ")";
  return table.Bad("it can never match: what it describes is taken by " + by +
                   "; the first match wins, so put the narrower rule first");
}

Status PolicyParser::ParseParallelism(const TomlTable& table) {
  static constexpr std::string_view kKeys[] = {"tensor", "pipeline", "expert", "data"};
  SLUICE_RETURN_IF_ERROR(table.CheckKeys(kKeys));
  for (const std::string_view key : kKeys) {
    std::vector<std::string> globs;
    SLUICE_RETURN_IF_ERROR(table.Texts(key, kLongestGlob, &globs));
    for (std::string& glob : globs)
      policy_.rules_->patterns.push_back({std::move(glob), *ParallelismFromName(key)});
  }
  return Status::Ok();
}

Status PolicyParser::ForEachTable(const toml::table& top, std::string_view key,
                                  Status (PolicyParser::*parse)(TomlTable)) {
  const toml::node* node = top.get(key);
  if (node == nullptr) return Status::Ok();
  const std::string name(key);
  const auto malformed = [&] {
    return TomlTable(top, policy_.origin_, "").Bad(key, "is not a list of tables; write [[" + name + "]]");
  };
  const toml::array* array = node->as_array();
  if (array == nullptr) return malformed();
  for (const toml::node& element : *array) {
    const toml::table* table = element.as_table();
    if (table == nullptr) return malformed();
    SLUICE_RETURN_IF_ERROR((this->*parse)(TomlTable(*table, policy_.origin_, name)));
  }
  return Status::Ok();
}

Status PolicyParser::ParseText(std::string_view text) {
  const toml::parse_result parsed = toml::parse(text, policy_.origin_);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return InvalidArgument(OneLine(policy_.origin_ + ":" + std::to_string(error.source().begin.line) +
                                   ": not TOML: " + std::string(error.description())));
  }
  const toml::table& top = parsed.table();
  const TomlTable view(top, policy_.origin_, "");
  if (top.empty())
    return InvalidArgument(
        OneLine(policy_.origin_ + ": the policy is empty; leave SLUICE_POLICY unset for the built-in one"));
  static constexpr std::string_view kKeys[] = {"class", "rule", "parallelism", "default_rules"};
  SLUICE_RETURN_IF_ERROR(view.CheckKeys(kKeys));
  SLUICE_RETURN_IF_ERROR(ForEachTable(top, "class", &PolicyParser::ParseClass));
  SLUICE_RETURN_IF_ERROR(ForEachTable(top, "rule", &PolicyParser::ParseRule));
  if (const toml::node* node = top.get("parallelism")) {
    const toml::table* table = node->as_table();
    if (table == nullptr) return view.Bad("parallelism", "is not a table; write [parallelism]");
    SLUICE_RETURN_IF_ERROR(ParseParallelism(TomlTable(*table, policy_.origin_, "parallelism")));
  }
  std::optional<bool> default_rules;
  SLUICE_RETURN_IF_ERROR(view.Bool("default_rules", &default_rules));
  default_rules_ = default_rules.value_or(policy_.rules_->rules.empty());
  return Status::Ok();
}

Status PolicyParser::AddDefaultRules() {
  built_in_ = true;
  const toml::parse_result parsed = toml::parse(std::string_view(kDefaultRules), policy_.origin_);
  if (!parsed)
    return InternalError("the built-in policy is not TOML: " + std::string(parsed.error().description()));
  return ForEachTable(parsed.table(), "rule", &PolicyParser::ParseRule);
}

void PolicyParser::Finish() {
  const auto reach = [&](uint8_t index) { policy_.reachable_ |= 1u << index; };
  reach(ClassIndex(BuiltInClass::kControl));
  reach(ClassIndex(BuiltInClass::kBulk));
  for (const Rule& rule : policy_.rules_->rules) reach(rule.service_class);
  for (const auto& [name, where] : class_lines_) {
    for (size_t i = 0; i < policy_.classes_.size(); ++i) {
      if (policy_.classes_[i].name == name && (policy_.reachable_ >> i & 1) == 0) {
        policy_.notes_.push_back(
            OneLine(where + ": class " + name + ": no rule leads to it, so it has no effect"));
      }
    }
  }
}

Result<std::shared_ptr<const Policy>> PolicyParser::Parse(std::string_view text, const std::string& origin) {
  try {
    std::shared_ptr<Policy> policy(new Policy);
    policy->origin_ = OneLine(origin);
    policy->classes_ = BuiltInClasses();
    PolicyParser parser(*policy);
    SLUICE_RETURN_IF_ERROR(parser.ParseText(text));
    if (parser.default_rules_) SLUICE_RETURN_IF_ERROR(parser.AddDefaultRules());
    parser.Finish();
    return std::shared_ptr<const Policy>(std::move(policy));
  } catch (const std::exception& error) {  // no memory
    return SystemError(OneLine(origin) + ": cannot be read: " + error.what());
  }
}

Result<std::shared_ptr<const Policy>> PolicyParser::BuiltIn() {
  std::shared_ptr<Policy> policy(new Policy);
  policy->origin_ = "built-in";
  policy->classes_ = BuiltInClasses();
  PolicyParser parser(*policy);
  SLUICE_RETURN_IF_ERROR(parser.AddDefaultRules());
  parser.Finish();
  return std::shared_ptr<const Policy>(std::move(policy));
}

}  // namespace sluice
