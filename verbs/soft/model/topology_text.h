// Settings as text: what a TOML file and the one-line form have in common, so that every key has one grammar,
// one range and one error message wherever it is written.
//
//   Result<std::vector<TextSection>> sections = SectionsOfToml(text, "cluster.toml");
//   TextSection section = ...;            // name "switch", entries {"pool", "64M", "cluster.toml:7"}
//
// Lists are one text: [0, 3] reads "0/3", [[0, 64], [1, 128]] reads "0:64/1:128", ["a", "b"] reads "a+b"; a
// table {26 = 3, 48 = 6} reads "26:3/48:6". Thread rule: as value types.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/clock.h"

namespace sluice::soft {

struct TextEntry {
  std::string key;
  std::string value;
  std::string where;  // starts an error message: `cluster.toml:7` or `topology "hosts=8"`
};

struct TextSection {
  std::string name;
  std::string where;
  std::vector<TextEntry> entries;

  const TextEntry* Find(std::string_view key) const;
};

// Sections in the order of their lines; [[link]] written twice gives two sections of that name.
Result<std::vector<TextSection>> SectionsOfToml(std::string_view toml, std::string_view file_name);
// "hosts=8,switches.pool=64M": entries in order, `where` given. An item without "=" is an error that lists
// `keys`, and so is a key given twice.
Result<std::vector<TextEntry>> EntriesOfLine(std::string_view line, const std::string& where,
                                             const std::string& keys);
// "KIND:key=value,...": a section `name` whose first entry is `kind`.
Result<TextSection> SectionOfLine(std::string_view line, const std::string& name);
// Splits at `separator`; an empty text has no parts.
std::vector<std::string> SplitText(std::string_view text, char separator);
// Several specs, separated by ";". An empty text is none.
template <typename Spec>
Result<std::vector<Spec>> SpecsFromText(std::string_view text) {
  std::vector<Spec> specs;
  for (const std::string& part : SplitText(text, ';')) {
    if (part.empty()) continue;
    Result<Spec> spec = Spec::FromText(part);
    if (!spec.ok()) return spec.status();
    specs.push_back(std::move(*spec));
  }
  return specs;
}

// "<where>: <key> = <value>; allowed: <allowed>".
Status BadValue(const TextEntry& entry, const std::string& allowed);
Status UnknownKey(const TextEntry& entry, const std::string& section, const std::string& keys);

// Each reads one value. `low` and `high` bound it and are named in the error.
Status ReadCount(const TextEntry& entry, uint64_t low, uint64_t high, uint64_t* out);
Status ReadCount(const TextEntry& entry, uint64_t low, uint64_t high, uint32_t* out);
Status ReadBool(const TextEntry& entry, bool* out);
// Of a host or switch: what host names may consist of, and no ".." (a range) in it.
Status ReadName(const TextEntry& entry, std::string* out);
// "400G", "100M", "1.5T": 1M to 3200G bits per second.
Status ReadRate(const TextEntry& entry, uint64_t* out_bps);
// "1us", "300ns", "2.5ms": 0 to `high`.
Status ReadTime(const TextEntry& entry, Picos high, Picos* out);
// "64M", "16K", "4096", "100KB": K, M, G (and KiB ...) are powers of 1024, KB, MB, GB powers of 1000.
Status ReadBytes(const TextEntry& entry, uint64_t low, uint64_t high, uint64_t* out);
Status ReadBytes(const TextEntry& entry, uint64_t low, uint64_t high, uint32_t* out);
// "0.001", "1e-4", "5%": low to high.
Status ReadFraction(const TextEntry& entry, double low, double high, double* out);
// One of `names`; the index is the answer.
Status ReadChoice(const TextEntry& entry, const std::vector<std::string_view>& names, size_t* out);

// For messages: "2us", "400G".
std::string TimeText(Picos time);
std::string RateText(uint64_t rate_bps);

}  // namespace sluice::soft
