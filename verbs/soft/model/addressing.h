// Names and numbers of the simulated hardware. All derive from position in the topology, so that two runs, or
// two processes that start in another order, see the same LIDs, GUIDs and GIDs.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "verbs/soft/model/nic.h"
#include "verbs/soft/model/topology.h"

namespace sluice::soft {

inline constexpr uint32_t kNoEndpoint = UINT32_MAX;
inline constexpr uint32_t kGidTableSize = 8;
inline constexpr uint32_t kVendorId =
    0x5356;  // "SV": none of the real vendors, whose quirks programs would apply
inline constexpr uint32_t kDeviceId = 0x0001;

// `endpoint` counts NIC ports over the whole topology, by host, NIC, port.
uint64_t PortGuid(uint32_t endpoint);  // host byte order
uint16_t PortLid(uint32_t endpoint);
uint32_t PortIpv4(uint32_t endpoint);  // host byte order
std::array<GidEntry, kGidTableSize> InitialGids(uint32_t endpoint, LinkLayer link_layer);
std::string PciAddress(uint32_t nic_index);
// "4X NDR" and the like as the two verbs codes.
void WidthAndSpeed(uint64_t rate_bps, uint8_t* width, uint8_t* speed);

// Which endpoint a GID or LID leads to.
class AddressMap {
 public:
  void AddGid(const ibv_gid& gid, uint32_t endpoint) { by_gid_[gid] = endpoint; }
  void RemoveGid(const ibv_gid& gid, uint32_t endpoint) {
    const auto found = by_gid_.find(gid);
    if (found != by_gid_.end() && found->second == endpoint) by_gid_.erase(found);
  }
  void AddLid(uint16_t lid, uint32_t endpoint) { by_lid_[lid] = endpoint; }
  uint32_t FindGid(const ibv_gid& gid) const {
    const auto found = by_gid_.find(gid);
    return found == by_gid_.end() ? kNoEndpoint : found->second;
  }
  uint32_t FindLid(uint16_t lid) const {
    const auto found = by_lid_.find(lid);
    return found == by_lid_.end() ? kNoEndpoint : found->second;
  }

 private:
  struct Hash {
    size_t operator()(const ibv_gid& gid) const {
      return gid.global.subnet_prefix * 0x9E3779B97F4A7C15ULL ^ gid.global.interface_id;
    }
  };
  struct Equal {
    bool operator()(const ibv_gid& a, const ibv_gid& b) const { return std::memcmp(&a, &b, sizeof a) == 0; }
  };
  std::unordered_map<ibv_gid, uint32_t, Hash, Equal> by_gid_;
  std::unordered_map<uint16_t, uint32_t> by_lid_;
};

}  // namespace sluice::soft
