#include "verbs/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <tuple>

namespace sluice {
namespace {

constexpr int kIpv4PrefixOffset = 96;  // bits of ::ffff:0:0 before an IPv4 address

uint64_t LoadBigEndian(const uint8_t* bytes) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | bytes[i];
  return value;
}

// As NCCL: also IPv4-mapped multicast, ff0e::ffff:a.b.c.d.
bool IsIpv4(const union ibv_gid& gid) {
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  constexpr std::array<uint8_t, 12> kMulticast = {0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kMapped.data(), kMapped.size()) == 0 ||
         std::memcmp(gid.raw, kMulticast.data(), kMulticast.size()) == 0;
}

bool SamePrefix(const union ibv_gid& a, const union ibv_gid& b, int bits) {
  const int whole = bits / 8;
  if (std::memcmp(a.raw, b.raw, static_cast<size_t>(whole)) != 0) return false;
  const int rest = bits % 8;
  if (rest == 0) return true;
  const auto mask = static_cast<uint8_t>(0xff << (8 - rest));
  return ((a.raw[whole] ^ b.raw[whole]) & mask) == 0;
}

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

Status BadRange(std::string_view source, std::string_view text, std::string_view part,
                std::string_view cause) {
  std::string message;
  message.append(source).append("=").append(text).append(": ").append(cause).append(" in `").append(part);
  message.append("`; write address/bits, as in 10.1.0.0/16 or fd00:1::/64, several separated by commas");
  return InvalidArgument(std::move(message));
}

// "index 0 RoCE v1 fe80::1, index 3 RoCE v2 10.0.0.1"; long tables are cut.
std::string ListTable(std::span<const GidEntry> table) {
  constexpr size_t kMost = 16;
  std::string list;
  for (const GidEntry& entry : table.first(std::min(table.size(), kMost))) {
    if (!list.empty()) list.append(", ");
    list.append("index ").append(std::to_string(entry.index)).append(" ").append(GidTypeName(entry.type));
    list.append(" ").append(FormatGid(entry.gid));
  }
  if (table.size() > kMost)
    list.append(", and ").append(std::to_string(table.size() - kMost)).append(" more");
  return list;
}

const GidEntry* FindIndex(std::span<const GidEntry> table, int index) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const GidEntry& e) { return e.index == index; });
  return found == table.end() ? nullptr : &*found;
}

Result<GidEntry> ChooseInfiniBand(std::span<const GidEntry> table, std::string_view port_name,
                                  const GidOptions& options) {
  if (options.routable_flid_index >= 0) {
    const GidEntry* routable = FindIndex(table, options.routable_flid_index);
    if (routable != nullptr && GidFlid(routable->gid) != 0) return *routable;
  }
  if (const GidEntry* first = FindIndex(table, 0)) return *first;
  return SystemError(std::string(port_name) + ": no GID at index 0 (the table has " + ListTable(table) +
                     "); check that the subnet manager has configured the port");
}

Result<GidEntry> ChooseRoce(std::span<const GidEntry> table, std::string_view port_name,
                            const GidOptions& options) {
  if (options.forced_index >= 0) {
    if (const GidEntry* forced = FindIndex(table, options.forced_index)) return *forced;
    return InvalidArgument(
        std::string(port_name) + ": no GID at the index that is set, " +
        std::to_string(options.forced_index) + " (the table has " + ListTable(table) +
        "); HCAs differ in their tables: unset the GID index so that each chooses its own");
  }
  const GidType wanted_type = options.roce_version == 1 ? GidType::kRoceV1 : GidType::kRoceV2;
  const AddressFamily wanted_family =
      options.family == AddressFamily::kAny ? AddressFamily::kIpv4 : options.family;
  // Routability first: a link-local address of the right version still reaches nobody behind a router.
  const auto rank = [&](const GidEntry& entry) {
    return std::tuple(IsLinkLocalGid(entry.gid), entry.type != wanted_type,
                      GidFamily(entry.gid) != wanted_family, entry.index);
  };
  const GidEntry* best = nullptr;
  for (const GidEntry& entry : table) {
    if (!IsConfiguredGid(entry.gid)) continue;
    if (!options.ranges.empty() && !options.ranges.Contains(entry.gid)) continue;
    if (best == nullptr || rank(entry) < rank(*best)) best = &entry;
  }
  if (best != nullptr) return *best;
  if (!options.ranges.empty()) {
    return InvalidArgument(std::string(port_name) + ": no GID inside the address range " +
                           options.ranges.text() + " (the table has " + ListTable(table) +
                           "); widen the range, or leave this HCA out of the HCA list");
  }
  return SystemError(std::string(port_name) + ": no usable GID (the table has " + ListTable(table) +
                     "); give the network device behind it an address");
}

}  // namespace

std::string_view GidTypeName(GidType type) {
  switch (type) {
    case GidType::kInfiniBand:
      return "IB";
    case GidType::kRoceV1:
      return "RoCE v1";
    case GidType::kRoceV2:
      return "RoCE v2";
    case GidType::kUnknown:
      break;
  }
  return "unknown type";
}

Result<AddressRanges> AddressRanges::Parse(std::string_view text, std::string_view source) {
  AddressRanges ranges;
  ranges.text_ = std::string(Trim(text));
  std::string_view list = text;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view part = Trim(list.substr(0, comma));
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    if (part.empty()) continue;
    const size_t slash = part.find('/');
    if (slash == std::string_view::npos) return BadRange(source, text, part, "prefix length missing");
    const std::optional<union ibv_gid> base = ParseGid(part.substr(0, slash));
    if (!base) return BadRange(source, text, part, "not an IPv4 or IPv6 address");
    const bool dotted = part.substr(0, slash).find(':') == std::string_view::npos;
    const std::string_view digits = part.substr(slash + 1);
    int bits = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
    if (error != std::errc() || end != digits.data() + digits.size() || bits < 0 ||
        bits > (dotted ? 32 : 128)) {
      return BadRange(source, text, part,
                      dotted ? "prefix length is not 0 to 32" : "prefix length is not 0 to 128");
    }
    ranges.ranges_.push_back({*base, dotted ? kIpv4PrefixOffset + bits : bits});
  }
  return ranges;
}

bool AddressRanges::Contains(const union ibv_gid& gid) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const Range& range) { return SamePrefix(range.base, gid, range.prefix_bits); });
}

Result<GidEntry> ChooseGid(std::span<const GidEntry> table, LinkLayer link_layer, std::string_view port_name,
                           const GidOptions& options) {
  if (table.empty()) {
    return SystemError(std::string(port_name) + ": the GID table is empty; " +
                       (link_layer == LinkLayer::kEthernet
                            ? "give the network device behind it an address"
                            : "check that the subnet manager has configured the port"));
  }
  return link_layer == LinkLayer::kInfiniBand ? ChooseInfiniBand(table, port_name, options)
                                              : ChooseRoce(table, port_name, options);
}

std::optional<GidEntry> FindGid(std::span<const GidEntry> table, const GidEntry& wanted) {
  // The old index first, in case the same GID is listed for several network devices.
  const GidEntry* same = FindIndex(table, wanted.index);
  if (same != nullptr && same->type == wanted.type && SameGid(same->gid, wanted.gid)) return *same;
  const auto found = std::find_if(table.begin(), table.end(), [&](const GidEntry& entry) {
    return entry.type == wanted.type && SameGid(entry.gid, wanted.gid);
  });
  if (found == table.end()) return std::nullopt;
  return *found;
}

std::string FormatGid(const union ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::memcmp(gid.raw, kMapped.data(), kMapped.size()) == 0) {
    inet_ntop(AF_INET, gid.raw + kMapped.size(), text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
  }
  return text;
}

std::optional<union ibv_gid> ParseGid(std::string_view text) {
  const std::string copy(text);
  union ibv_gid gid {};
  if (inet_pton(AF_INET6, copy.c_str(), gid.raw) == 1) return gid;
  gid = {};
  gid.raw[10] = gid.raw[11] = 0xff;
  if (inet_pton(AF_INET, copy.c_str(), gid.raw + 12) == 1) return gid;
  return std::nullopt;
}

bool SameGid(const union ibv_gid& a, const union ibv_gid& b) {
  return std::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0;
}

bool IsConfiguredGid(const union ibv_gid& gid) {
  const uint64_t high = LoadBigEndian(gid.raw);
  const uint64_t low = LoadBigEndian(gid.raw + 8);
  return low != 0 || (high != 0 && high != 0xfe80'0000'0000'0000);
}

bool IsLinkLocalGid(const union ibv_gid& gid) {
  return SubnetPrefix(gid) == 0xfe80'0000'0000'0000;
}

AddressFamily GidFamily(const union ibv_gid& gid) {
  return IsIpv4(gid) ? AddressFamily::kIpv4 : AddressFamily::kIpv6;
}

uint64_t SubnetPrefix(const union ibv_gid& gid) {
  return LoadBigEndian(gid.raw);
}

uint16_t GidFlid(const union ibv_gid& gid) {
  // Layout of a prefix with FLID: 10 bits fe80, 22 zero, 16 FLID, 16 subnet. Other prefixes have none.
  const uint64_t prefix = SubnetPrefix(gid);
  return prefix >> 32 == 0xfe80'0000 ? static_cast<uint16_t>(prefix >> 16) : 0;
}

bool SameSubnet(LinkLayer link_layer, const union ibv_gid& a, const union ibv_gid& b, int ipv4_prefix_bits) {
  if (link_layer == LinkLayer::kInfiniBand) {
    const uint64_t flid_mask = 0xffff'0000;
    const uint64_t pa = SubnetPrefix(a);
    const uint64_t pb = SubnetPrefix(b);
    if (pa >> 32 == 0xfe80'0000 && pb >> 32 == 0xfe80'0000) return (pa & ~flid_mask) == (pb & ~flid_mask);
    return pa == pb;
  }
  const AddressFamily family = GidFamily(a);
  if (family != GidFamily(b)) return false;
  const int bits =
      family == AddressFamily::kIpv4 ? kIpv4PrefixOffset + std::clamp(ipv4_prefix_bits, 0, 32) : 64;
  return SamePrefix(a, b, bits);
}

Result<Route> PlanRoute(LinkLayer link_layer, const union ibv_gid& local, const union ibv_gid& remote,
                        uint16_t remote_lid, uint8_t port_flags) {
  if (link_layer == LinkLayer::kEthernet) {
    if (!IsConfiguredGid(remote)) {
      return RemoteError("the peer's GID " + FormatGid(remote) +
                         " is not configured; give its network device an address");
    }
    return Route{true, 0};
  }
  const bool same_subnet = SameSubnet(link_layer, local, remote);
  Route route{!same_subnet || (port_flags & IBV_QPF_GRH_REQUIRED) != 0, remote_lid};
  if (!same_subnet && GidFlid(remote) != 0) route.dlid = GidFlid(remote);
  if (route.dlid == 0 && !route.is_global) {
    return RemoteError("the peer's port has LID 0 in the subnet of GID " + FormatGid(remote) +
                       "; check that the subnet manager has configured it");
  }
  return route;
}

}  // namespace sluice
