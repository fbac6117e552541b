// The parts of a topology by name, as files, faults and messages write them:
//
//   host3          NIC 0, port 1 of host3         leaf0     the switch
//   host3/soft1    NIC soft1, port 1              leaf0/5   its port 5 (switch ports count from 0)
//   host3/soft1/2  NIC soft1, port 2
//
// Thread rule: as a value type; it refers to the topology, which must outlive it and not change.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/topology.h"

namespace sluice::soft {

class TopologyNames {
 public:
  explicit TopologyNames(const Topology& topology);

  // By name, or by number for hosts of a topology without a host of that name.
  Result<uint32_t> Host(std::string_view text) const;
  Result<uint32_t> Switch(std::string_view text) const;
  // Names or ranges, "host0..host7" in the order of the topology; none: all. In order, each once.
  Result<std::vector<uint32_t>> Hosts(const std::vector<std::string>& texts) const;
  // A port of a NIC or of a switch. `port_given`: whether a switch end names its port.
  Result<LinkEnd> End(std::string_view text, bool* port_given) const;
  // Index of a NIC of `host` by device name or number.
  Result<uint32_t> Nic(uint32_t host, std::string_view device) const;

  // Links by what they connect: "host3/soft1/2", "host3" (every link of the host), "leaf0" (every link of the
  // switch), "leaf0/5", "leaf0-spine1" (all links between the two), "host3-leaf0", "#17" (by index). At least
  // one.
  Result<std::vector<uint32_t>> Links(std::string_view text) const;
  // The same links in the direction away from what is named first: 2 * index, + 1 for b to a ("#17": a to b).
  Result<std::vector<uint32_t>> DirectedLinks(std::string_view text) const;

 private:
  struct Node {
    bool is_switch = false;
    uint32_t index = 0;
  };
  bool FindNode(std::string_view text, Node* node) const;

  const Topology& topology_;
  std::unordered_map<std::string, Node> nodes_;
};

// "host3/soft1/2" or "leaf0/5".
std::string EndText(const Topology& topology, const LinkEnd& end);

}  // namespace sluice::soft
