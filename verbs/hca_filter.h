// Which ports a list such as NCCL_IB_HCA selects. Grammar, as NCCL has it:
//
//   list   := [ '^' ] [ '=' ] entry { ',' entry }      '^' excludes what matches, '=' compares whole names
//   entry  := name [ ':' port [ ':' rail [ ':' plane ] ] ]
//
//   Result<HcaFilter> filter = HcaFilter::Parse("=mlx5_0:1,mlx5_1", "NCCL_IB_HCA");
//   if (filter->Matches("mlx5_1", 2)) ...
//
// Without '=' a name is a prefix: "mlx5_1" selects mlx5_1 and mlx5_11. An entry without port selects every
// port. Rail and plane (NCCL 2.30) are labels of what the entry matches; either may be empty. Empty entries
// and blanks around entries are ignored. What NCCL would misread is refused: repeated modifiers (each applies
// to the whole list), a port without name, an empty port ("mlx5_0:", "mlx5_0::2"), a port that is not 1 to
// 255.
//
// Thread rule: immutable after Parse; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice {

struct HcaEntry {
  std::string name{};
  int port = -1;   // -1: every port
  int rail = -1;   // -1: not given
  int plane = -1;  // -1: not given
};

class HcaFilter {
 public:
  // `text` empty or blank: everything matches. `source` names the setting in error messages.
  static Result<HcaFilter> Parse(std::string_view text, std::string_view source);

  bool Matches(std::string_view device, int port) const;
  // Whether any port of the device can match: what is ruled out by name need not be opened.
  bool MayMatch(std::string_view device) const;
  // The entry that made an including filter match: carries rail and plane. Null when excluding, or without a
  // list.
  const HcaEntry* Find(std::string_view device, int port) const;

  bool empty() const { return entries_.empty(); }
  bool excludes() const { return exclude_; }
  bool exact() const { return exact_; }
  const std::vector<HcaEntry>& entries() const { return entries_; }

 private:
  bool IsNamed(const HcaEntry& entry, std::string_view device) const;
  const HcaEntry* FirstMatch(std::string_view device, int port) const;

  bool exclude_ = false;
  bool exact_ = false;
  std::vector<HcaEntry> entries_;
};

}  // namespace sluice
