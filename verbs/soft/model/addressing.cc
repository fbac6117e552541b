#include "verbs/soft/model/addressing.h"

#include <endian.h>

#include <cstdio>

namespace sluice::soft {
namespace {

constexpr uint64_t kOui = 0x025356;  // locally administered

ibv_gid MakeGid(uint64_t prefix, uint64_t interface) {
  ibv_gid gid{};
  gid.global.subnet_prefix = htobe64(prefix);
  gid.global.interface_id = htobe64(interface);
  return gid;
}

}  // namespace

uint64_t PortGuid(uint32_t endpoint) {
  // EUI-64 of the port's MAC address, the universal bit as it stands in the MAC.
  return (kOui << 40) | (uint64_t{0xFFFE} << 24) | (endpoint + 1);
}

uint16_t PortLid(uint32_t endpoint) {
  return static_cast<uint16_t>(endpoint + 1);
}

uint32_t PortIpv4(uint32_t endpoint) {
  return 0x0A000001 + endpoint;
}

std::array<GidEntry, kGidTableSize> InitialGids(uint32_t endpoint, LinkLayer link_layer) {
  std::array<GidEntry, kGidTableSize> table;
  constexpr uint64_t kLinkLocal = 0xFE80'0000'0000'0000;
  if (link_layer == LinkLayer::kInfiniBand) {
    table[0] = {MakeGid(kLinkLocal, PortGuid(endpoint)), GidType::kInfiniBand, true};
    return table;
  }
  const ibv_gid link_local = MakeGid(kLinkLocal, PortGuid(endpoint) ^ (uint64_t{2} << 56));
  const ibv_gid ipv4 = MakeGid(0, (uint64_t{0xFFFF} << 32) | PortIpv4(endpoint));
  table[0] = {link_local, GidType::kRoceV1, true};
  table[1] = {link_local, GidType::kRoceV2, true};
  table[2] = {ipv4, GidType::kRoceV1, true};
  table[3] = {ipv4, GidType::kRoceV2, true};
  return table;
}

std::string PciAddress(uint32_t nic_index) {
  char text[32];
  // One bus per NIC, below the buses that a host bridge uses for itself.
  std::snprintf(text, sizeof text, "0000:%02x:00.0", 0x10 + (nic_index * 0x10) % 0xF0 + nic_index / 15);
  return text;
}

void WidthAndSpeed(uint64_t rate_bps, uint8_t* width, uint8_t* speed) {
  struct Code {
    uint64_t lanes_or_mbps;
    uint8_t code;
  };
  // Four lanes are what ports usually have.
  constexpr Code kWidths[] = {{4, 2}, {1, 1}, {2, 16}, {8, 4}, {12, 8}};
  constexpr Code kSpeeds[] = {{2500, 1},   {5000, 2},   {10000, 4},   {14000, 16},
                              {25000, 32}, {50000, 64}, {100000, 128}};
  for (const Code& w : kWidths) {
    for (const Code& s : kSpeeds) {
      if (w.lanes_or_mbps * s.lanes_or_mbps == rate_bps / 1'000'000) {
        *width = w.code;
        *speed = s.code;
        return;
      }
    }
  }
  // No combination of that rate exists: the fastest four-lane port below it, or the slowest port.
  *width = rate_bps >= 10'000'000'000 ? 2 : 1;
  *speed = 1;
  for (const Code& s : kSpeeds) {
    if ((*width == 2 ? 4 : 1) * s.lanes_or_mbps * 1'000'000 <= rate_bps) *speed = s.code;
  }
}

}  // namespace sluice::soft
