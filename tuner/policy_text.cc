#include "tuner/policy_text.h"

#include <cctype>

#include "base/words.h"
#include "tuner/policy.h"

namespace sluice {
namespace {

// Beyond any message, and far from overflow when an end is included.
constexpr uint64_t kMaxNumber = uint64_t{1} << 62;

std::string_view Trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

bool TakeNumber(std::string_view& text, uint64_t* number) {
  size_t digits = 0;
  *number = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
    if (*number > kMaxNumber / 10) return false;
    *number = *number * 10 + static_cast<uint64_t>(text[digits] - '0');
  }
  text.remove_prefix(digits);
  return digits > 0 && *number <= kMaxNumber;
}

struct Unit {
  std::string_view name;
  uint64_t bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},
    {"B", 1},
    {"KiB", uint64_t{1} << 10},
    {"MiB", uint64_t{1} << 20},
    {"GiB", uint64_t{1} << 30},
    {"TiB", uint64_t{1} << 40},
    {"K", uint64_t{1} << 10},
    {"M", uint64_t{1} << 20},
    {"G", uint64_t{1} << 30},
    {"T", uint64_t{1} << 40},
    {"k", uint64_t{1} << 10},
    {"KB", 1000},
    {"kB", 1000},
    {"MB", 1000 * 1000},
    {"GB", 1000 * 1000 * 1000},
    {"TB", uint64_t{1000} * 1000 * 1000 * 1000},
};

Result<uint64_t> CountFromText(std::string_view text) {
  const std::string_view whole = text;
  uint64_t number = 0;
  if (!TakeNumber(text, &number) || !text.empty()) {
    return InvalidArgument(Quoted(whole) + " is not a whole number");
  }
  return number;
}

// A glob as text may only be matched by what matches everything that it stands for.
template <bool kTextIsGlob>
bool Match(std::string_view glob, std::string_view text) {
  size_t g = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;  // the last '*', which takes one more character at each retry
  size_t star_text = 0;
  while (t < text.size()) {
    const bool wild_text = kTextIsGlob && (text[t] == '*' || text[t] == '?');
    const bool one = g < glob.size() && glob[g] != '*' &&
                     (glob[g] == '?' ? !kTextIsGlob || text[t] != '*' : glob[g] == text[t] && !wild_text);
    if (one) {
      ++g;
      ++t;
    } else if (g < glob.size() && glob[g] == '*') {
      star = g++;
      star_text = t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

}  // namespace

Result<uint64_t> BytesFromText(std::string_view text) {
  const std::string_view whole = text;
  uint64_t number = 0;
  if (TakeNumber(text, &number)) {
    text = Trim(text);
    for (const Unit& unit : kUnits) {
      if (text != unit.name) continue;
      if (number > kMaxNumber / unit.bytes) break;
      return number * unit.bytes;
    }
  }
  return InvalidArgument(Quoted(whole) + " is not a size; write for example 65536, 64KiB or 1MiB");
}

std::string BytesText(uint64_t bytes) {
  if (bytes == kUnknownBytes) return "unknown";
  for (const Unit* unit = kUnits + 5; unit > kUnits + 1; --unit) {
    if (bytes != 0 && bytes % unit->bytes == 0)
      return std::to_string(bytes / unit->bytes) + std::string(unit->name);
  }
  return std::to_string(bytes);
}

Result<Interval> IntervalFromText(std::string_view text, bool bytes) {
  const auto malformed = [&] {
    return InvalidArgument(
        "is not a range; write for example " +
        std::string(bytes ? "\"[0, 1MiB)\", \"(64KiB, 1MiB]\" or \"[1MiB, )\"" : "\"[2, 8]\" or \"[16, )\""));
  };
  text = Trim(text);
  if (text.size() < 3) return malformed();
  const char open = text.front();
  const char close = text.back();
  const size_t comma = text.find(',');
  if ((open != '[' && open != '(') || (close != ']' && close != ')') || comma == std::string_view::npos) {
    return malformed();
  }
  const std::string_view low = Trim(text.substr(1, comma - 1));
  const std::string_view high = Trim(text.substr(comma + 1, text.size() - comma - 2));
  const auto number = [&](std::string_view end) { return bytes ? BytesFromText(end) : CountFromText(end); };
  Interval interval;
  if (!low.empty()) {
    const Result<uint64_t> value = number(low);
    if (!value.ok()) return InvalidArgument("is not a range: " + value.status().message());
    interval.low = *value + (open == '(' ? 1 : 0);
  }
  if (!high.empty() && high != "inf") {
    const Result<uint64_t> value = number(high);
    if (!value.ok()) return InvalidArgument("is not a range: " + value.status().message());
    interval.high = *value + (close == ']' ? 1 : 0);
  }
  if (interval.empty()) return InvalidArgument("is an empty range: nothing lies in it");
  return interval;
}

bool GlobMatches(std::string_view glob, std::string_view text) {
  return Match<false>(glob, text);
}

bool GlobCovers(std::string_view wide, std::string_view narrow) {
  return Match<true>(wide, narrow);
}

}  // namespace sluice
