// Numbering of NIC ports, and what must hold of a topology before a fabric is made of it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/topology.h"
#include "verbs/soft/model/topology_network_check.h"

namespace sluice::soft {

// Endpoints: the NIC ports of the topology in the order host, NIC, port.
class EndpointIndex {
 public:
  explicit EndpointIndex(const Topology& topology);
  uint32_t count() const { return count_; }
  // `end` names a host's port that exists.
  uint32_t Find(const LinkEnd& end) const { return first_port_[first_nic_[end.node] + end.nic] + end.port; }

 private:
  std::vector<uint32_t> first_nic_;   // by host
  std::vector<uint32_t> first_port_;  // by NIC over all hosts
  uint32_t count_ = 0;
};

// Every port has one link, link ends exist, names are unique, rates and MTUs are possible, all hosts reach
// each other, and the settings of switches, NICs and routes are possible. `where`: see CheckNetwork.
Status CheckTopology(const Topology& topology);
Status CheckTopology(const Topology& topology, const WhereOf& where);

}  // namespace sluice::soft
