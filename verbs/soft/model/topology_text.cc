#include "verbs/soft/model/topology_text.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace sluice::soft {
namespace {

std::string At(std::string_view file, const toml::node& node) {
  return std::string(file) + ":" + std::to_string(node.source().begin.line);
}

// False: a date, or lists in lists in lists, which no key takes.
bool ValueText(const toml::node& node, int depth, std::string* text) {
  if (const auto* string = node.as_string()) {
    *text = string->get();
  } else if (const auto* integer = node.as_integer()) {
    *text = std::to_string(integer->get());
  } else if (const auto* boolean = node.as_boolean()) {
    *text = boolean->get() ? "true" : "false";
  } else if (const auto* number = node.as_floating_point()) {
    char buffer[40];
    snprintf(buffer, sizeof(buffer), "%.17g", number->get());
    char shorter[40];
    snprintf(shorter, sizeof(shorter), "%g", number->get());
    *text = strtod(shorter, nullptr) == number->get() ? shorter : buffer;
  } else if (const auto* array = node.as_array(); array != nullptr && depth < 2) {
    text->clear();
    for (const toml::node& element : *array) {
      std::string part;
      if (!ValueText(element, depth + 1, &part)) return false;
      if (!text->empty()) text->push_back(depth != 0 ? ':' : element.is_string() ? '+' : '/');
      *text += part;
    }
  } else if (const auto* table = node.as_table(); table != nullptr && depth == 0) {
    text->clear();
    for (const auto& [key, element] : *table) {
      std::string part;
      if (!ValueText(element, 2, &part)) return false;
      if (!text->empty()) text->push_back('/');
      *text += std::string(key.str()) + ":" + part;
    }
  } else {
    return false;
  }
  return true;
}

Result<TextSection> SectionOfTable(const toml::table& table, std::string_view file, const std::string& name) {
  TextSection section;
  section.name = name;
  section.where = At(file, table);
  for (const auto& [key, node] : table) {
    TextEntry entry{std::string(key.str()), {}, At(file, node)};
    if (!ValueText(node, 0, &entry.value)) {
      return InvalidArgument(entry.where + ": " + entry.key + " in [" + name +
                             "] must be a number, a text, true, false or a list of these");
    }
    section.entries.push_back(std::move(entry));
  }
  std::stable_sort(section.entries.begin(), section.entries.end(),
                   [](const TextEntry& a, const TextEntry& b) {
                     return strtoul(a.where.c_str() + a.where.rfind(':') + 1, nullptr, 10) <
                            strtoul(b.where.c_str() + b.where.rfind(':') + 1, nullptr, 10);
                   });
  return section;
}

struct Unit {
  std::string_view name;
  int64_t factor;
};

// A decimal number with up to three digits behind the point, and a unit. Exact: no floating point.
bool ReadQuantity(const std::string& text, const std::vector<Unit>& units, int64_t* out) {
  size_t i = 0;
  int64_t thousandths = 0;
  int decimals = -1;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && decimals < 0 && i != 0) {
      decimals = 0;
    } else if (c >= '0' && c <= '9') {
      if (decimals >= 3 || thousandths > 1'000'000'000'000) return false;
      if (decimals >= 0) ++decimals;
      thousandths = thousandths * 10 + (c - '0');
    } else {
      break;
    }
  }
  if (i == 0 || decimals == 0) return false;
  for (int d = std::max(decimals, 0); d < 3; ++d) thousandths *= 10;
  const std::string_view unit = std::string_view(text).substr(i);
  for (const Unit& u : units) {
    if (u.name != unit) continue;
    const __int128 scaled = static_cast<__int128>(thousandths) * u.factor / 1000;
    if (scaled > INT64_MAX) return false;
    *out = static_cast<int64_t>(scaled);
    return true;
  }
  return false;
}

std::string Quantity(int64_t value, const std::vector<Unit>& units) {
  for (const Unit& unit : units) {
    if (value < unit.factor && &unit != &units.back()) continue;
    char text[48];
    const double scaled = static_cast<double>(value) / static_cast<double>(unit.factor);
    snprintf(text, sizeof(text), "%.4g%.*s", scaled, static_cast<int>(unit.name.size()), unit.name.data());
    return text;
  }
  return std::to_string(value);
}

}  // namespace

const TextEntry* TextSection::Find(std::string_view key) const {
  for (const TextEntry& entry : entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

Result<std::vector<TextSection>> SectionsOfToml(std::string_view toml, std::string_view file_name) {
  toml::parse_result parsed = toml::parse(toml, file_name);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return InvalidArgument(std::string(file_name) + ":" + std::to_string(error.source().begin.line) +
                           ": not TOML: " + std::string(error.description()));
  }
  struct Placed {
    uint32_t line;
    TextSection section;
  };
  std::vector<Placed> placed;
  const auto add = [&](const toml::table& table, const std::string& name) -> Status {
    Result<TextSection> section = SectionOfTable(table, file_name, name);
    if (!section.ok()) return section.status();
    placed.push_back({table.source().begin.line, std::move(*section)});
    return {};
  };
  for (const auto& [key, node] : parsed.table()) {
    const std::string name(key.str());
    if (const toml::table* table = node.as_table()) {
      SLUICE_RETURN_IF_ERROR(add(*table, name));
      continue;
    }
    const toml::array* array = node.as_array();
    const bool tables = array != nullptr && array->is_homogeneous(toml::node_type::table);
    if (!tables) {
      return InvalidArgument(At(file_name, node) + ": unexpected " + name + "; write it below a section, [" +
                             "topology] for what describes the whole fabric");
    }
    for (const toml::node& element : *array) SLUICE_RETURN_IF_ERROR(add(*element.as_table(), name));
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const Placed& a, const Placed& b) { return a.line < b.line; });
  std::vector<TextSection> sections;
  for (Placed& p : placed) sections.push_back(std::move(p.section));
  return sections;
}

Result<TextSection> SectionOfLine(std::string_view line, const std::string& name) {
  const std::string where = name + " \"" + std::string(line) + "\"";
  const size_t colon = line.find(':');
  const std::string kind(line.substr(0, colon));
  if (kind.find('=') != std::string::npos) {
    return InvalidArgument(where + ": starts with no kind; write KIND:key=value,...");
  }
  TextSection section{name, where, {{"kind", kind, where}}};
  if (colon == std::string_view::npos) return section;
  const Result<std::vector<TextEntry>> entries =
      EntriesOfLine(line.substr(colon + 1), where, "see the kind's");
  if (!entries.ok()) return entries.status();
  section.entries.insert(section.entries.end(), entries->begin(), entries->end());
  return section;
}

std::vector<std::string> SplitText(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
    if (text.empty()) parts.emplace_back();
  }
  return parts;
}

Result<std::vector<TextEntry>> EntriesOfLine(std::string_view line, const std::string& where,
                                             const std::string& keys) {
  std::vector<TextEntry> entries;
  for (const std::string& item : SplitText(line, ',')) {
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    if (equals == std::string::npos) {
      return InvalidArgument(where + ": \"" + item + "\" is neither KEY=VALUE nor a file; keys: " + keys);
    }
    TextEntry entry{item.substr(0, equals), item.substr(equals + 1), where};
    for (const TextEntry& earlier : entries) {
      if (earlier.key != entry.key) continue;
      return InvalidArgument(where + ": " + entry.key + " = " + entry.value + ", but it was " +
                             earlier.value + " before; give it once");
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

Status BadValue(const TextEntry& entry, const std::string& allowed) {
  return InvalidArgument(entry.where + ": " + entry.key + " = " + entry.value + "; allowed: " + allowed);
}

Status UnknownKey(const TextEntry& entry, const std::string& section, const std::string& keys) {
  return InvalidArgument(entry.where + ": no key " + entry.key + " in [" + section + "]; there are: " + keys);
}

Status ReadCount(const TextEntry& entry, uint64_t low, uint64_t high, uint64_t* out) {
  uint64_t number = 0;
  bool good = !entry.value.empty() && entry.value.size() <= 19;
  for (const char c : entry.value) {
    good = good && c >= '0' && c <= '9';
    if (good) number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  if (!good || number < low || number > high) {
    return BadValue(entry, std::to_string(low) + " to " + std::to_string(high));
  }
  *out = number;
  return {};
}

Status ReadCount(const TextEntry& entry, uint64_t low, uint64_t high, uint32_t* out) {
  uint64_t number = 0;
  SLUICE_RETURN_IF_ERROR(ReadCount(entry, low, high, &number));
  *out = static_cast<uint32_t>(number);
  return {};
}

Status ReadBool(const TextEntry& entry, bool* out) {
  if (entry.value != "true" && entry.value != "false") return BadValue(entry, "true or false");
  *out = entry.value == "true";
  return {};
}

Status ReadName(const TextEntry& entry, std::string* out) {
  const std::string& name = entry.value;
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (name.empty() || name.size() > 63 || !std::all_of(name.begin(), name.end(), allowed) ||
      name.find("..") != std::string::npos) {
    return BadValue(entry, "1 to 63 letters, digits, \".\", \"_\" and \"-\", no two dots in a row");
  }
  *out = name;
  return {};
}

Status ReadRate(const TextEntry& entry, uint64_t* out_bps) {
  static const std::vector<Unit> kUnits = {
      {"M", 1'000'000},        {"Mb/s", 1'000'000},     {"Mbps", 1'000'000},      {"G", 1'000'000'000},
      {"Gb/s", 1'000'000'000}, {"Gbps", 1'000'000'000}, {"T", 1'000'000'000'000},
  };
  int64_t rate = 0;
  if (!ReadQuantity(entry.value, kUnits, &rate) || rate < 1'000'000 || rate > 3'200'000'000'000) {
    return BadValue(entry, "1M to 3200G (bits per second), such as 400G");
  }
  *out_bps = static_cast<uint64_t>(rate);
  return {};
}

Status ReadTime(const TextEntry& entry, Picos high, Picos* out) {
  static const std::vector<Unit> kUnits = {
      {"ps", 1}, {"ns", kPicosPerNs}, {"us", kPicosPerUs}, {"ms", kPicosPerMs}, {"s", kPicosPerSecond}};
  int64_t time = 0;
  if (!ReadQuantity(entry.value, kUnits, &time) || time > high) {
    return BadValue(entry, "0ns to " + TimeText(high) + ", such as 1us or 300ns");
  }
  *out = time;
  return {};
}

Status ReadBytes(const TextEntry& entry, uint64_t low, uint64_t high, uint64_t* out) {
  static const std::vector<Unit> kUnits = {
      {"", 1},        {"B", 1},         {"K", 1 << 10},        {"KiB", 1 << 10},
      {"KB", 1'000},  {"M", 1 << 20},   {"MiB", 1 << 20},      {"MB", 1'000'000},
      {"G", 1 << 30}, {"GiB", 1 << 30}, {"GB", 1'000'000'000},
  };
  int64_t bytes = 0;
  if (!ReadQuantity(entry.value, kUnits, &bytes) || static_cast<uint64_t>(bytes) < low ||
      static_cast<uint64_t>(bytes) > high) {
    return BadValue(entry,
                    std::to_string(low) + " to " + std::to_string(high) + " bytes, such as 64K or 16M");
  }
  *out = static_cast<uint64_t>(bytes);
  return {};
}

Status ReadBytes(const TextEntry& entry, uint64_t low, uint64_t high, uint32_t* out) {
  uint64_t bytes = 0;
  SLUICE_RETURN_IF_ERROR(ReadBytes(entry, low, high, &bytes));
  *out = static_cast<uint32_t>(bytes);
  return {};
}

Status ReadFraction(const TextEntry& entry, double low, double high, double* out) {
  std::string text = entry.value;
  const bool percent = text.ends_with('%');
  if (percent) text.pop_back();
  double number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  if (percent) number /= 100;
  if (!whole || !(number >= low) || !(number <= high)) {
    char range[80];
    snprintf(range, sizeof(range), "%g to %g", low, high);
    return BadValue(entry, range);
  }
  *out = number;
  return {};
}

Status ReadChoice(const TextEntry& entry, const std::vector<std::string_view>& names, size_t* out) {
  std::string all;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == entry.value) {
      *out = i;
      return {};
    }
    all += (i == 0 ? "" : ", ") + std::string(names[i]);
  }
  return BadValue(entry, all);
}

std::string TimeText(Picos time) {
  return Quantity(
      time,
      {{"s", kPicosPerSecond}, {"ms", kPicosPerMs}, {"us", kPicosPerUs}, {"ns", kPicosPerNs}, {"ps", 1}});
}

std::string RateText(uint64_t rate_bps) {
  return Quantity(static_cast<int64_t>(rate_bps), {{"G", 1'000'000'000}, {"M", 1'000'000}, {" bit/s", 1}});
}

}  // namespace sluice::soft
