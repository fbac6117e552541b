// Words that people type: the nearest known one for a misspelt one, and text made safe for a one-line message.
// Threads: any.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice {

// Insertions, deletions, substitutions and swaps of neighbours between two words.
int EditDistance(std::string_view a, std::string_view b);

// The word that was probably meant: one letter in three may be wrong, three at most. Empty: none is near.
std::string_view NearestWord(std::string_view word, std::span<const std::string_view> known);

// "a, b or c".
std::string WordList(std::span<const std::string_view> words);

// `text` in double quotes, on one line and short: control characters become '?', what is long is cut.
std::string Quoted(std::string_view text);
// The same without the quotes and uncut.
std::string OneLine(std::string_view text);

}  // namespace sluice
