#include "base/words.h"

#include <algorithm>
#include <climits>
#include <utility>
#include <vector>

namespace sluice {

int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string_view NearestWord(std::string_view word, std::span<const std::string_view> known) {
  constexpr size_t kLongestWord = 64;
  if (word.size() > kLongestWord) return {};
  std::string_view nearest;
  int best = INT_MAX;
  for (const std::string_view candidate : known) {
    const int distance = EditDistance(word, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  const int allowed = std::clamp(static_cast<int>(nearest.size()) / 3, 1, 3);
  return best <= allowed ? nearest : std::string_view();
}

std::string WordList(std::span<const std::string_view> words) {
  std::string list;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) list += i + 1 == words.size() ? " or " : ", ";
    list += words[i];
  }
  return list;
}

std::string OneLine(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return line;
}

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 60;
  if (text.size() <= kShown) return "\"" + OneLine(text) + "\"";
  size_t end = kShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // a whole UTF-8 character
  return "\"" + OneLine(text.substr(0, end)) + "...\"";
}

}  // namespace sluice
