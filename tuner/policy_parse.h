// The parser of policies. Private to tuner/policy*; call Policy::Parse.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tuner/policy.h"
#include "tuner/policy_toml.h"

namespace sluice {

class PolicyParser {
 public:
  static Result<std::shared_ptr<const Policy>> Parse(std::string_view text, const std::string& origin);
  static Result<std::shared_ptr<const Policy>> BuiltIn();

 private:
  explicit PolicyParser(Policy& policy) : policy_(policy) {}

  Status ParseText(std::string_view text);
  Status ParseMarks(const TomlTable& table, ServiceClass* service_class);
  Status ParseClass(TomlTable table);
  Status ParseRule(TomlTable table);
  Status ParseParallelism(const TomlTable& table);
  Status AddDefaultRules();
  Status ForEachTable(const toml::table& top, std::string_view key, Status (PolicyParser::*parse)(TomlTable));
  // What only shows when everything is known.
  void Finish();

  Policy& policy_;
  bool default_rules_ = true;
  bool built_in_ = false;                                         // the rules that are being added
  std::vector<std::pair<std::string, std::string>> class_lines_;  // name and place of each [[class]]
};

}  // namespace sluice
