#include "verbs/soft/model/routing.h"

#include <algorithm>
#include <array>
#include <utility>

#include "verbs/soft/model/random.h"
#include "verbs/soft/model/topology_check.h"

namespace sluice::soft {
namespace {

constexpr uint64_t kHashPurpose = 0x45434D50;
constexpr size_t kTupleBytes = 13;

std::array<uint8_t, kTupleBytes> BytesOf(const FiveTuple& tuple) {
  std::array<uint8_t, kTupleBytes> bytes;
  for (size_t i = 0; i < 4; ++i) {
    bytes[i] = static_cast<uint8_t>(tuple.source_address >> (24 - 8 * i));
    bytes[4 + i] = static_cast<uint8_t>(tuple.destination_address >> (24 - 8 * i));
  }
  for (size_t i = 0; i < 2; ++i) {
    bytes[8 + i] = static_cast<uint8_t>(tuple.source_port >> (8 - 8 * i));
    bytes[10 + i] = static_cast<uint8_t>(tuple.destination_port >> (8 - 8 * i));
  }
  bytes[12] = tuple.protocol;
  return bytes;
}

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0xEDB88320U : crc >> 1;
    table[i] = crc;
  }
  return table;
}();

uint32_t Crc32(const std::array<uint8_t, kTupleBytes>& bytes) {
  uint32_t crc = UINT32_MAX;
  for (const uint8_t byte : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ byte) & 0xFF];
  return ~crc;
}

// The key of the verification suite of receive-side scaling.
constexpr uint8_t kToeplitzKey[40] = {0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
                                      0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
                                      0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
                                      0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};

// For every bit that is set, the 32 bits of the key that begin at its place.
uint32_t Toeplitz(std::span<const uint8_t> bytes) {
  uint32_t hash = 0;
  uint64_t window = 0;
  for (size_t i = 0; i < 8; ++i) window = window << 8 | kToeplitzKey[i];
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 7; bit >= 0; --bit) {
      if ((bytes[i] >> bit & 1) != 0) hash ^= static_cast<uint32_t>(window >> (25 + bit));
    }
    window = window << 8 | kToeplitzKey[i + 8];
  }
  return hash;
}

}  // namespace

uint32_t HashOf(const FiveTuple& tuple, FlowHashKind kind) {
  const std::array<uint8_t, kTupleBytes> bytes = BytesOf(tuple);
  if (kind == FlowHashKind::kCrc32) return Crc32(bytes);
  // Receive-side scaling leaves the protocol out.
  return Toeplitz({bytes.data(), 12});
}

uint16_t UdpSourcePort(uint32_t own_qp, uint32_t peer_qp) {
  // rdma_calc_flow_label and rdma_flow_label_to_udp_sport of the Linux kernel.
  uint64_t value = uint64_t{own_qp} * peer_qp;
  value ^= value >> 20;
  value ^= value >> 40;
  const auto label = static_cast<uint32_t>(value & 0xFFFFF);
  return static_cast<uint16_t>(((label & 0x3FFF) ^ (label & 0xFC000) >> 14) | 0xC000);
}

RouteTable::RouteTable(const Topology* topology, const RoutingSettings* settings)
    : topology_(topology), settings_(settings), switches_(topology->switches.size()) {
  const EndpointIndex endpoints(*topology);
  edges_.resize(endpoints.count());
  neighbours_.resize(switches_);
  for (uint32_t node = 0; node < switches_; ++node) {
    seeds_.push_back(Random(settings->seed, kHashPurpose, settings->equal_seeds ? 0 : node).Next());
  }
  for (uint32_t i = 0; i < topology->links.size(); ++i) {
    const LinkSpec& link = topology->links[i];
    const LinkEnd* ends[2] = {&link.a, &link.b};
    for (int direction = 0; direction < 2; ++direction) {
      const LinkEnd& from = *ends[direction];
      const LinkEnd& to = *ends[1 - direction];
      if (!to.is_switch) continue;
      if (from.is_switch) {
        neighbours_[from.node].push_back({to.node, from.port, i});
      } else {
        edges_[endpoints.Find(from)] = {to.node, to.port, i, true};
      }
    }
  }
  for (const StaticRoute& route : settings->static_routes) AddStatic(route);
}

void RouteTable::AddStatic(const StaticRoute& route) {
  const auto touches = [&](uint32_t index, const LinkEnd& end) {
    const LinkSpec& link = topology_->links[index];
    return (link.a.is_switch && link.a.node == end.node) || (link.b.is_switch && link.b.node == end.node);
  };
  uint32_t node = kNone;  // that the path has reached
  for (size_t i = 0; i < route.links.size(); ++i) {
    const LinkSpec& link = topology_->links[route.links[i]];
    bool forward = link.a.is_switch && (node == kNone || link.a.node == node);
    // The first of several links: in the direction that leads to the second.
    if (node == kNone && link.b.is_switch && i + 1 < route.links.size()) {
      forward = touches(route.links[i + 1], link.b);
    }
    const LinkEnd& from = forward ? link.a : link.b;
    static_routes_[uint64_t{from.node} << 32 | route.flow] = from.port;
    node = forward ? link.b.node : link.a.node;
  }
}

void RouteTable::Update(const std::vector<bool>& link_up) {
  for (Edge& edge : edges_) {
    if (edge.node != kNone) edge.up = link_up[edge.link];
  }
  // Lists stay while somebody may name them; a fabric whose links change for ever starts again now and then.
  constexpr size_t kMaxLists = 1 << 20;
  if (link_up_.empty() || candidates_.size() > kMaxLists) {
    link_up_ = link_up;
    routes_.assign(switches_ * switches_, kUnknown);
    distances_.assign(switches_ * switches_, kFar);
    known_.assign(switches_, false);
    candidates_.assign(1, {});
    lists_.clear();
    lists_[{}] = 0;
    return;
  }
  std::vector<uint32_t> changed;
  for (uint32_t link = 0; link < link_up.size(); ++link) {
    if (link_up[link] != link_up_[link]) changed.push_back(link);
  }
  link_up_ = link_up;
  for (const uint32_t link : changed) LinkChanged(link, link_up[link]);
}

void RouteTable::LinkChanged(uint32_t link, bool up) {
  const LinkEnd& a = topology_->links[link].a;
  const LinkEnd& b = topology_->links[link].b;
  if (!a.is_switch || !b.is_switch) return;
  for (uint32_t target = 0; target < switches_; ++target) {
    if (!known_[target]) continue;
    const uint16_t from_a = distances_[target * switches_ + a.node];
    const uint16_t from_b = distances_[target * switches_ + b.node];
    // Between two switches that are equally far no shortest path runs.
    if (from_a == from_b) continue;
    const uint32_t farther = from_a > from_b ? a.node : b.node;
    // Distances stay where the farther one keeps a way, or wins one of the length that it has.
    const bool near = from_a != kFar && from_b != kFar && (from_a - from_b == 1 || from_b - from_a == 1);
    const uint32_t list = near ? ListOf(farther, target) : 0;
    if (list == 0 || (up && !near)) {
      Forget(target);
    } else {
      routes_[size_t{farther} * switches_ + target] = list;
    }
  }
}

void RouteTable::Forget(uint32_t target) const {
  known_[target] = false;
  for (size_t node = 0; node < switches_; ++node) routes_[node * switches_ + target] = kUnknown;
}

uint32_t RouteTable::ListOf(uint32_t node, uint32_t target) const {
  const uint16_t* distance = &distances_[target * switches_];
  std::vector<uint32_t> ports;
  for (const Neighbour& next : neighbours_[node]) {
    if (distance[next.node] + 1 == distance[node] && link_up_[next.link]) ports.push_back(next.port);
  }
  const auto [entry, added] = lists_.emplace(std::move(ports), static_cast<uint32_t>(candidates_.size()));
  if (added) candidates_.push_back(entry->first);
  return entry->second;
}

uint32_t RouteTable::Find(uint32_t node, uint32_t target) const {
  uint16_t* distance = &distances_[target * switches_];
  std::fill(distance, distance + switches_, kFar);
  distance[target] = 0;
  std::vector<uint32_t> order = {target};
  for (size_t i = 0; i < order.size(); ++i) {
    for (const Neighbour& next : neighbours_[order[i]]) {
      if (distance[next.node] != kFar || !link_up_[next.link]) continue;
      distance[next.node] = static_cast<uint16_t>(distance[order[i]] + 1);
      order.push_back(next.node);
    }
  }
  for (uint32_t from = 0; from < switches_; ++from) {
    routes_[size_t{from} * switches_ + target] =
        from == target || distance[from] == kFar ? 0 : ListOf(from, target);
  }
  known_[target] = true;
  return routes_[size_t{node} * switches_ + target];
}

}  // namespace sluice::soft
