// Generators: hosts, switches and links of the usual shapes.
//
//   single      every NIC port on one switch
//   leaf-spine  hosts in order on leaves, every leaf linked with every spine
//   fat-tree    three levels of switches with k ports (k/2 down, k/2 up), pods of k/2 edge and k/2
//   aggregation
//               switches, (k/2)^2 core switches; aggregation switch i of a pod reaches cores i*k/2 ... +k/2-1
//   rail        NIC i of every host on rail switch i of its group of hosts, the rail switches joined by
//   spines
//
// Numbering, which tests and injected routes rely on: link i hangs on NIC port i (host, NIC, port order),
// links between switches follow; a switch numbers its ports from 0, those towards hosts first, then those up;
// a spine's or core's ports follow the order of the switches below. Switches: leaves (edges, rails) first,
// then aggregation, then spines (cores). Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/topology.h"

namespace sluice::soft {

// What one host is made of.
struct HostSettings {
  uint32_t nics = 1;
  uint32_t ports = 1;
  PortSpec port;
  std::string device = "soft";
  bool pci = true;
};

struct NamedHost {
  std::string name;
  HostSettings settings;
};

enum class TopologyKind : uint8_t { kSingle, kLeafSpine, kFatTree, kRail, kExplicit };

// 0 and -1: derived from the rest, see BuildTopology.
struct TopologyShape {
  TopologyKind kind = TopologyKind::kSingle;
  // leaf-spine: the greatest power of two that is at most sqrt(hosts), so 64 hosts are 8 x 8 and 8192 are
  // 128 x 64. rail: 64, or all hosts if fewer.
  uint32_t hosts_per_leaf = 0;
  uint32_t spines = 0;
  uint32_t links_per_spine = 0;   // parallel links from a leaf to a spine
  uint32_t oversubscription = 0;  // rate down / rate up of a leaf (fat-tree: of an edge switch); default 1
  uint32_t radix = 0;             // fat-tree: k. Default: the smallest that carries the hosts
  uint64_t spine_rate_bps = 0;    // of links between switches; default: the hosts' rate
  Picos spine_delay = -1;         // default: the hosts' delay
};

struct TopologyPlan {
  std::vector<NamedHost> hosts;
  HostSettings default_host;  // what sizes and rates of switches derive from
  ResourceLimits limits;
  TopologyShape shape;
  bool on_demand = false;
};

// Hosts with their NICs, no links: where explicit links start.
Topology BuildHosts(const TopologyPlan& plan);
// kExplicit gives BuildHosts. The error of an impossible shape starts with `where`.
Result<Topology> BuildTopology(const TopologyPlan& plan, const std::string& where);
// k*k*k/4 * oversubscription NIC ports fit; for a fat-tree given by k alone.
uint64_t FatTreePorts(uint32_t radix, uint32_t oversubscription);

}  // namespace sluice::soft
