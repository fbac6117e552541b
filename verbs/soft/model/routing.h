// Which ports lead from a switch to an endpoint, and which of them a flow takes.
//
// All shortest paths are candidates; links that are down are left out. ECMP draws by hash of the flow and of
// a seed of the switch: CRC32 and Toeplitz are linear, so two seeds that were merely combined with the hash
// would make every tier draw alike (polarisation); the seed is therefore mixed in by a multiplication, which
// stands for the different hash functions that real switches are configured with. With equal_seeds every
// switch draws alike, as when nobody configured them.
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "verbs/soft/model/network_settings.h"
#include "verbs/soft/model/topology.h"

namespace sluice::soft {

// What a switch hashes of a RoCE v2 packet. InfiniBand and the yardstick transports fill it in their way.
struct FiveTuple {
  uint32_t source_address = 0;
  uint32_t destination_address = 0;
  uint16_t source_port = 0;
  uint16_t destination_port = 4791;
  uint8_t protocol = 17;
};
// Value for Packet::flow.
uint32_t HashOf(const FiveTuple& tuple, FlowHashKind kind);
// UDP source port of a queue pair, in the range 0xC000 to 0xFFFF, from both queue pair numbers, as rdma-core
// does.
uint16_t UdpSourcePort(uint32_t own_qp, uint32_t peer_qp);

class RouteTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Both must outlive the table.
  RouteTable(const Topology* topology, const RoutingSettings* settings);
  // One flag per link of the topology. Before the first call there are no routes. Routes towards a switch are
  // found when a packet first asks for them; a change of few links touches what it must and no more.
  void Update(const std::vector<bool>& link_up);

  // Ports of `node` on shortest paths to the endpoint; empty: none.
  std::span<const uint32_t> Candidates(uint32_t node, uint32_t endpoint) const {
    if (endpoint >= edges_.size()) return {};
    const Edge& edge = edges_[endpoint];
    if (edge.node == node) return {&edge.port, edge.up ? size_t{1} : size_t{0}};
    if (edge.node == kNone) return {};
    uint32_t list = routes_[size_t{node} * switches_ + edge.node];
    if (list == kUnknown) list = Find(node, edge.node);
    return candidates_[list];
  }
  // Index of the candidate that the flow draws at `node`.
  uint32_t Draw(uint32_t node, uint32_t flow, size_t count) const {
    uint64_t hash = (flow ^ seeds_[node]) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32;
    hash *= 0xD6E8FEB86659FD93ULL;
    return static_cast<uint32_t>((hash >> 32) * count >> 32);
  }
  // Static port of the flow at `node`, or kNone.
  uint32_t Static(uint32_t node, uint32_t flow) const {
    const auto found = static_routes_.find(uint64_t{node} << 32 | flow);
    return found == static_routes_.end() ? kNone : found->second;
  }
  bool has_static() const { return !static_routes_.empty(); }
  void AddStatic(const StaticRoute& route);

 private:
  struct Edge {
    uint32_t node = kNone;  // switch the endpoint hangs on; kNone: another endpoint
    uint32_t port = 0;
    uint32_t link = 0;
    bool up = true;
  };
  struct Neighbour {
    uint32_t node;
    uint32_t port;
    uint32_t link;
  };
  static constexpr uint32_t kUnknown = UINT32_MAX;
  static constexpr uint16_t kFar = UINT16_MAX;  // no way

  // Routes from everywhere to `target`; returns the list of `node`.
  uint32_t Find(uint32_t node, uint32_t target) const;
  void Forget(uint32_t target) const;
  // By the distances that are known; 0: none.
  uint32_t ListOf(uint32_t node, uint32_t target) const;
  void LinkChanged(uint32_t link, bool up);

  const Topology* topology_;
  const RoutingSettings* settings_;
  size_t switches_;
  std::vector<Edge> edges_;                         // by endpoint
  std::vector<std::vector<Neighbour>> neighbours_;  // by switch
  std::vector<uint64_t> seeds_;                     // by switch
  std::vector<bool> link_up_;
  // Found on demand, by edge switch. One list per distinct set, the first empty; routes_[node * switches + edge
  // switch] names a list.
  mutable std::vector<std::vector<uint32_t>> candidates_;
  mutable std::map<std::vector<uint32_t>, uint32_t> lists_;
  mutable std::vector<uint32_t> routes_;
  mutable std::vector<uint16_t> distances_;  // [edge switch * switches + node]
  mutable std::vector<bool> known_;          // by edge switch
  std::unordered_map<uint64_t, uint32_t> static_routes_;
};

}  // namespace sluice::soft
