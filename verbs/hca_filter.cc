#include "verbs/hca_filter.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

namespace sluice {
namespace {

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::optional<int> ParseNumber(std::string_view text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high)
    return std::nullopt;
  return value;
}

// Takes the text up to the next colon off the front of `rest`; empty optional when nothing is left.
std::optional<std::string_view> TakeField(std::optional<std::string_view>* rest) {
  if (!rest->has_value()) return std::nullopt;
  const size_t colon = (*rest)->find(':');
  const std::string_view field = (*rest)->substr(0, colon);
  if (colon == std::string_view::npos) {
    rest->reset();
  } else {
    *rest = (*rest)->substr(colon + 1);
  }
  return Trim(field);
}

struct Complaint {
  std::string_view source;
  std::string_view text;

  Status operator()(std::string_view cause, std::string_view remedy) const {
    std::string message;
    message.append(source).append("=").append(text).append(": ").append(cause).append("; ").append(remedy);
    return InvalidArgument(std::move(message));
  }
};

Result<HcaEntry> ParseEntry(std::string_view text, const Complaint& complain) {
  const std::string quoted = "`" + std::string(text) + "`";
  if (text.front() == '^' || text.front() == '=') {
    return complain("a modifier inside the list, at " + quoted,
                    "^ and = stand once, at the start, and apply to the whole list: ^=mlx5_8,mlx5_14");
  }
  if (text.find_first_of("^= \t") != std::string_view::npos) {
    return complain("no device name in " + quoted, "separate names with commas, as in mlx5_0,mlx5_1");
  }
  std::optional<std::string_view> rest = text;
  HcaEntry entry;
  entry.name = *TakeField(&rest);
  if (entry.name.empty()) {
    return complain("port without device name in " + quoted, "write device:port, as in mlx5_0:1");
  }
  if (const std::optional<std::string_view> port = TakeField(&rest)) {
    if (port->empty()) {
      return complain("empty port in " + quoted,
                      "leave the colon out to select every port, or name the port: " + entry.name + " or " +
                          entry.name + ":1");
    }
    const std::optional<int> number = ParseNumber(*port, 1, 255);
    if (!number)
      return complain("port `" + std::string(*port) + "` in " + quoted, "ports are numbers from 1 to 255");
    entry.port = *number;
  }
  for (int* label : {&entry.rail, &entry.plane}) {
    const std::optional<std::string_view> field = TakeField(&rest);
    if (!field || field->empty()) continue;
    const std::optional<int> number = ParseNumber(*field, 0, INT16_MAX);
    if (!number) {
      return complain("rail or plane `" + std::string(*field) + "` in " + quoted,
                      "both are numbers from 0 to 32767");
    }
    *label = *number;
  }
  if (rest) return complain("too many colons in " + quoted, "an entry is device:port:rail:plane at most");
  return entry;
}

}  // namespace

Result<HcaFilter> HcaFilter::Parse(std::string_view text, std::string_view source) {
  const Complaint complain{source, text};
  HcaFilter filter;
  std::string_view list = Trim(text);
  if (list.empty()) return filter;
  if (list.front() == '^') {
    filter.exclude_ = true;
    list.remove_prefix(1);
  }
  if (!list.empty() && list.front() == '=') {
    filter.exact_ = true;
    list.remove_prefix(1);
  }
  if (!list.empty() && (list.front() == '^' || list.front() == '=')) {
    return complain("modifiers out of order or repeated",
                    "write ^ to exclude, = for whole names, ^= for both");
  }
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view part = Trim(list.substr(0, comma));
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    if (part.empty()) continue;
    Result<HcaEntry> entry = ParseEntry(part, complain);
    if (!entry.ok()) return entry.status();
    filter.entries_.push_back(std::move(*entry));
  }
  if (filter.entries_.empty()) {
    return complain("the list names no device", "name devices, as in ^mlx5_0, or leave it empty to use all");
  }
  return filter;
}

bool HcaFilter::IsNamed(const HcaEntry& entry, std::string_view device) const {
  return exact_ ? device == entry.name : device.starts_with(entry.name);
}

const HcaEntry* HcaFilter::FirstMatch(std::string_view device, int port) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const HcaEntry& entry) {
    return IsNamed(entry, device) && (entry.port < 0 || entry.port == port);
  });
  return found == entries_.end() ? nullptr : &*found;
}

bool HcaFilter::Matches(std::string_view device, int port) const {
  if (entries_.empty()) return true;
  return (FirstMatch(device, port) != nullptr) != exclude_;
}

bool HcaFilter::MayMatch(std::string_view device) const {
  if (entries_.empty()) return true;
  const auto named = [&](const HcaEntry& entry) { return IsNamed(entry, device); };
  if (!exclude_) return std::any_of(entries_.begin(), entries_.end(), named);
  return std::none_of(entries_.begin(), entries_.end(),
                      [&](const HcaEntry& entry) { return named(entry) && entry.port < 0; });
}

const HcaEntry* HcaFilter::Find(std::string_view device, int port) const {
  return exclude_ ? nullptr : FirstMatch(device, port);
}

}  // namespace sluice
