// What a policy does, in words.
#include "base/words.h"
#include "tuner/policy.h"
#include "tuner/policy_rules.h"

namespace sluice {

std::vector<RuleText> Policy::rules() const {
  std::vector<RuleText> texts;
  for (const Rule& rule : rules_->rules) {
    RuleText text{rule.name, rule.where, "", rule.service_class};
    for (const auto& [key, value] : rule.conditions)
      text.conditions += (text.conditions.empty() ? "" : ", ") + key + " = " + value;
    if (text.conditions.empty()) text.conditions = "everything";
    texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<RuleVerdict> Policy::Trace(const Communicator& communicator, const Operation& operation) const {
  const Parallelism parallelism = ParallelismOf(communicator);
  std::vector<RuleVerdict> verdicts;
  for (size_t i = 0; i < rules_->rules.size(); ++i) {
    RuleVerdict verdict{i, false, rules_->rules[i].WhyNot(communicator, parallelism, operation)};
    verdict.matches = verdict.why.empty();
    verdicts.push_back(std::move(verdict));
    if (verdicts.back().matches) break;
  }
  return verdicts;
}

std::string DescribeOperation(const Operation& operation) {
  const auto known = [](std::string_view what, std::string_view name) {
    return name == "unknown" ? std::string(what) + " unknown" : std::string(name);
  };
  std::string text = operation.function == Function::kCollective ? "some collective"
                     : operation.function == Function::kPointToPoint
                         ? "some point-to-point call"
                         : known("function", Name(operation.function));
  text += ", " + known("algorithm", Name(operation.algorithm));
  text += ", " + known("protocol", Name(operation.protocol));
  text += operation.bytes == kUnknownBytes ? ", bytes unknown" : ", bytes " + BytesText(operation.bytes);
  return text;
}

std::string DescribeCommunicator(const Communicator& communicator, Parallelism parallelism) {
  std::string text = communicator.name.empty() ? "no name" : Quoted(communicator.name);
  text += ", parallelism " + std::string(Name(parallelism));
  text += communicator.nodes < 0 ? ", nodes unknown" : ", nodes " + std::to_string(communicator.nodes);
  text += communicator.traffic_class < 0 ? ", no traffic class"
                                         : ", traffic class " + std::to_string(communicator.traffic_class);
  return text;
}

std::string Policy::Explain(const Communicator& communicator, const Operation& operation) const {
  std::string text = "operation: " + DescribeOperation(operation) + "\n";
  text += "communicator: " + DescribeCommunicator(communicator, ParallelismOf(communicator)) + "\n";
  const std::vector<RuleText> texts = rules();
  uint8_t service_class = ClassIndex(BuiltInClass::kBulk);
  for (const RuleVerdict& verdict : Trace(communicator, operation)) {
    const RuleText& rule = texts[verdict.rule];
    text += rule.name + " (" + rule.where +
            "): " + (verdict.matches ? "matches: " + rule.conditions : "no: " + verdict.why) + "\n";
    if (verdict.matches)
      service_class = rule.service_class;
    else if (verdict.rule + 1 == texts.size())
      text += "no rule matches\n";
  }
  return text + "class: " + classes_[service_class].name + "\n";
}

}  // namespace sluice
