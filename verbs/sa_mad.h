// PathRecord questions to the subnet administrator (SA) of an InfiniBand subnet, and its answers, as they lie in a
// management datagram (IBTA volume 1, chapters 13.4 and 15.2).
//
//   Mad mad = EncodePathQuestion({.slid = 4, .dlid = 9, .sl = 2}, transaction);
//   std::optional<SaReply> reply = DecodeSaReply(bytes);
//   if (reply && reply->transaction == transaction && reply->status == kSaOk) Use(reply->sl);
//
// Thread rule: any.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace sluice {

inline constexpr size_t kMadBytes = 256;
using Mad = std::array<std::byte, kMadBytes>;

// One reversible path between two ports, named by LID; by GID where a LID is 0.
struct PathQuestion {
  uint16_t slid = 0;
  uint16_t dlid = 0;
  std::array<uint8_t, 16> sgid{};
  std::array<uint8_t, 16> dgid{};
  uint16_t pkey = 0;  // 0: any partition
  int sl = -1;        // -1: what the subnet manager gives; otherwise only a path with this one

  auto operator<=>(const PathQuestion&) const = default;
  // "from LID 4 to LID 9 with SL 2"
  std::string Describe() const;
};

// Status of a datagram: common values, then those of the SA.
inline constexpr uint16_t kSaOk = 0;
inline constexpr uint16_t kMadBusy = 0x0001;  // a bit
inline constexpr uint16_t kSaNoResources = 0x0100;
inline constexpr uint16_t kSaNoRecords = 0x0300;
// "0x0700 (not allowed)"
std::string DescribeSaStatus(uint16_t status);

struct SaReply {
  uint32_t transaction = 0;
  uint16_t status = kSaOk;
  // Of the record; meaningless with another status.
  uint16_t slid = 0;
  uint16_t dlid = 0;
  uint8_t sl = 0;
};

// The upper half of the transaction number stays 0: the kernel writes its agent's number there.
Mad EncodePathQuestion(const PathQuestion& question, uint32_t transaction);
// Empty for what is no whole answer to a PathRecord question.
std::optional<SaReply> DecodeSaReply(std::span<const std::byte> mad);

}  // namespace sluice
