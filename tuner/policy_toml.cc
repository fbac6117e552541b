#include "tuner/policy_toml.h"

#include <cstdio>

#include "base/words.h"

namespace sluice {
namespace {

constexpr size_t kMaxListed = 64;

std::string ShownNode(const toml::node& node, int depth) {
  if (const auto* text = node.as_string()) return Quoted(text->get());
  if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
  if (const auto* boolean = node.as_boolean()) return boolean->get() ? "true" : "false";
  if (const auto* number = node.as_floating_point()) {
    char buffer[40];
    snprintf(buffer, sizeof(buffer), "%g", number->get());
    return buffer;
  }
  const auto* array = node.as_array();
  if (array == nullptr) return node.is_table() ? "{...}" : "(a date or time)";
  if (depth > 0) return "[...]";
  std::string list = "[";
  for (const toml::node& element : *array) {
    if (list.size() > 120) return list + ", ...]";
    if (list.size() > 1) list += ", ";
    list += ShownNode(element, depth + 1);
  }
  return list + "]";
}

// Calls add(element) for the value itself or for each of a list; false when one fails or the list has a bad size.
template <typename Add>
bool ForOneOrMany(const toml::node& node, Add add) {
  const auto* array = node.as_array();
  if (array == nullptr) return add(node);
  if (array->empty() || array->size() > kMaxListed) return false;
  for (const toml::node& element : *array) {
    if (!add(element)) return false;
  }
  return true;
}

}  // namespace

std::string TomlTable::At(const toml::node& node) const {
  return origin_ + ":" + std::to_string(node.source().begin.line);
}

std::string TomlTable::Where(std::string_view key) const {
  const toml::node* node = table_.get(key);
  return At(node == nullptr ? table_ : *node);
}

std::string TomlTable::Shown(std::string_view key) const {
  const toml::node* node = table_.get(key);
  return node == nullptr ? std::string() : ShownNode(*node, 0);
}

Status TomlTable::Bad(std::string_view key, const std::string& problem) const {
  return InvalidArgument(OneLine(Where(key) + ": " + (context_.empty() ? "" : context_ + ": ") +
                                 std::string(key) + " = " + Shown(key) + " " + problem));
}

Status TomlTable::Bad(const std::string& problem) const {
  return InvalidArgument(OneLine(Where() + ": " + (context_.empty() ? "" : context_ + ": ") + problem));
}

Status TomlTable::CheckKeys(std::span<const std::string_view> known) const {
  for (const auto& [key, node] : table_) {
    const std::string_view name = key.str();
    bool found = false;
    for (const std::string_view one : known) found = found || one == name;
    if (found) continue;
    const std::string_view nearest = NearestWord(name, known);
    return InvalidArgument(OneLine(
        At(node) + ": " + (context_.empty() ? "" : context_ + ": ") + "unknown key " + Quoted(name) + "; " +
        (nearest.empty() ? "use " + WordList(known) : "did you mean " + std::string(nearest) + "?")));
  }
  return Status::Ok();
}

Status TomlTable::Range(std::string_view key, int64_t low, int64_t high, std::string_view meaning) const {
  return Bad(key, "is not a whole number in " + std::to_string(low) + ".." + std::to_string(high) +
                      (meaning.empty() ? "" : "; " + std::string(meaning)));
}

Status TomlTable::Int(std::string_view key, int64_t low, int64_t high, std::string_view meaning,
                      std::optional<int>* out) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return Status::Ok();
  const auto* integer = node->as_integer();
  if (integer == nullptr || integer->get() < low || integer->get() > high)
    return Range(key, low, high, meaning);
  *out = static_cast<int>(integer->get());
  return Status::Ok();
}

Status TomlTable::Bool(std::string_view key, std::optional<bool>* out) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return Status::Ok();
  const auto* boolean = node->as_boolean();
  if (boolean == nullptr) return Bad(key, "is neither true nor false");
  *out = boolean->get();
  return Status::Ok();
}

Status TomlTable::Text(std::string_view key, size_t longest, std::optional<std::string>* out) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return Status::Ok();
  const auto* text = node->as_string();
  if (text == nullptr) return Bad(key, "is not text; write it in quotes");
  if (text->get().empty() || text->get().size() > longest)
    return Bad(
        key, "has " + std::to_string(text->get().size()) + " characters; use 1.." + std::to_string(longest));
  *out = text->get();
  return Status::Ok();
}

Status TomlTable::Texts(std::string_view key, size_t longest, std::vector<std::string>* out) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return Status::Ok();
  const auto add = [&](const toml::node& one) {
    const auto* text = one.as_string();
    if (text == nullptr || text->get().empty() || text->get().size() > longest) return false;
    out->push_back(text->get());
    return true;
  };
  if (ForOneOrMany(*node, add)) return Status::Ok();
  return Bad(key, "is neither a text of 1.." + std::to_string(longest) + " characters nor a list of 1.." +
                      std::to_string(kMaxListed) + " of them");
}

Status TomlTable::Ints(std::string_view key, int64_t low, int64_t high, std::string_view meaning,
                       std::vector<int>* out) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return Status::Ok();
  const auto add = [&](const toml::node& one) {
    const auto* integer = one.as_integer();
    if (integer == nullptr || integer->get() < low || integer->get() > high) return false;
    out->push_back(static_cast<int>(integer->get()));
    return true;
  };
  if (ForOneOrMany(*node, add)) return Status::Ok();
  return Bad(key, "is neither a whole number in " + std::to_string(low) + ".." + std::to_string(high) +
                      " nor a list of 1.." + std::to_string(kMaxListed) + " of them" +
                      (meaning.empty() ? "" : "; " + std::string(meaning)));
}

}  // namespace sluice
