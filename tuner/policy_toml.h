// Typed access to the tables of a policy, with errors that name file, line, key, value and range. Private to the parser.
#pragma once

// TOML_HEADER_ONLY and TOML_EXCEPTIONS are set by the build: the plugin gains no library and no exception.
#include <toml++/toml.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice {

class TomlTable {
 public:
  // `context` starts messages: "class latency". `table` must outlive this.
  TomlTable(const toml::table& table, const std::string& origin, std::string context)
      : table_(table), origin_(origin), context_(std::move(context)) {}

  void set_context(std::string context) { context_ = std::move(context); }
  const std::string& context() const { return context_; }
  bool Has(std::string_view key) const { return table_.contains(key); }
  std::string Where() const { return At(table_); }
  std::string Where(std::string_view key) const;

  // Refuses keys that are not in `known`, with the nearest one.
  Status CheckKeys(std::span<const std::string_view> known) const;

  // Each leaves `out` alone when the key is absent.
  Status Int(std::string_view key, int64_t low, int64_t high, std::string_view meaning,
             std::optional<int>* out) const;
  Status Bool(std::string_view key, std::optional<bool>* out) const;
  Status Text(std::string_view key, size_t longest, std::optional<std::string>* out) const;
  // A string, or a list of them that is not empty.
  Status Texts(std::string_view key, size_t longest, std::vector<std::string>* out) const;
  Status Ints(std::string_view key, int64_t low, int64_t high, std::string_view meaning,
              std::vector<int>* out) const;
  // As it was written, more or less: for messages and for people.
  std::string Shown(std::string_view key) const;

  // "policy.toml:7: class latency: sl = 16 <problem>".
  Status Bad(std::string_view key, const std::string& problem) const;
  // "policy.toml:7: class latency: <problem>"; about the whole table.
  Status Bad(const std::string& problem) const;

 private:
  std::string At(const toml::node& node) const;
  Status Range(std::string_view key, int64_t low, int64_t high, std::string_view meaning) const;

  const toml::table& table_;
  const std::string& origin_;
  std::string context_;
};

}  // namespace sluice
