#include "verbs/soft/model/topology_check.h"

#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "verbs/soft/model/topology_network_check.h"
#include "verbs/soft/model/topology_text.h"

namespace sluice::soft {
namespace {

constexpr uint32_t kMaxSwitchPort = 65535;

std::string Describe(const Topology& topology, const LinkEnd& end) {
  if (end.is_switch) return "port " + std::to_string(end.port) + " of switch " + std::to_string(end.node);
  const std::string host =
      end.node < topology.hosts.size() ? topology.hosts[end.node].name : std::to_string(end.node);
  return "host " + host + " NIC " + std::to_string(end.nic) + " port " + std::to_string(end.port + 1);
}

Status CheckEnd(const Topology& topology, const LinkEnd& end) {
  const bool exists = end.is_switch ? end.node < topology.switches.size()
                                    : end.node < topology.hosts.size() &&
                                          end.nic < topology.hosts[end.node].nics.size() &&
                                          end.port < topology.hosts[end.node].nics[end.nic].ports.size();
  if (exists) return {};
  return InvalidArgument("topology: a link names " + Describe(topology, end) +
                         ", which does not exist; correct the link");
}

Status CheckHosts(const Topology& topology) {
  if (topology.hosts.empty()) return InvalidArgument("topology: no hosts; give at least 1");
  std::unordered_set<std::string> names;
  for (const HostSpec& host : topology.hosts) {
    if (!names.insert(host.name).second) {
      return InvalidArgument("topology: host name \"" + host.name + "\" is used twice; rename one of them");
    }
    std::set<std::string> devices;
    for (const NicSpec& nic : host.nics) {
      const std::string where = "topology: device " + nic.name + " of host " + host.name;
      if (!devices.insert(nic.name).second)
        return InvalidArgument(where + " appears twice; rename one of them");
      if (nic.ports.empty() || nic.ports.size() > 2) {
        return InvalidArgument(where + ": " + std::to_string(nic.ports.size()) + " ports; allowed 1 to 2");
      }
      for (const PortSpec& port : nic.ports) {
        if (port.rate_bps < 1'000'000 || port.rate_bps > 3'200'000'000'000) {
          return InvalidArgument(where + ": rate " + std::to_string(port.rate_bps) +
                                 " bit/s; allowed 1M to 3200G");
        }
        if (port.delay < 0 || port.delay > kPicosPerSecond) {
          return InvalidArgument(where + ": delay " + std::to_string(port.delay) + " ps; allowed 0 to 1s");
        }
        if (port.mtu_bytes < 256 || port.mtu_bytes > 4096 || (port.mtu_bytes & (port.mtu_bytes - 1)) != 0) {
          return InvalidArgument(where + ": mtu " + std::to_string(port.mtu_bytes) +
                                 "; allowed 256, 512, 1024, 2048, 4096");
        }
      }
    }
  }
  for (const SwitchSpec& node : topology.switches) {
    if (!names.insert(node.name).second) {
      return InvalidArgument("topology: the name \"" + node.name +
                             "\" of a switch is used twice; rename one of them");
    }
  }
  return {};
}

Status CheckReach(const Topology& topology, const EndpointIndex& endpoints) {
  // One node number space: switches, then endpoints.
  const size_t switches = topology.switches.size();
  const size_t count = switches + endpoints.count();
  std::vector<size_t> parent(count);
  for (size_t i = 0; i < count; ++i) parent[i] = i;
  const auto root = [&](size_t node) {
    while (parent[node] != node) node = parent[node] = parent[parent[node]];
    return node;
  };
  const auto node_of = [&](const LinkEnd& end) {
    return end.is_switch ? size_t{end.node} : switches + endpoints.Find(end);
  };
  for (const LinkSpec& link : topology.links) parent[root(node_of(link.a))] = root(node_of(link.b));
  for (size_t i = switches; i < count; ++i) {
    if (root(i) == root(switches)) continue;
    return InvalidArgument(
        "topology: NIC port number " + std::to_string(i - switches) +
        " (counted over all hosts) cannot reach port 0; add a link between their switches");
  }
  return {};
}

}  // namespace

EndpointIndex::EndpointIndex(const Topology& topology) {
  for (const HostSpec& host : topology.hosts) {
    first_nic_.push_back(static_cast<uint32_t>(first_port_.size()));
    for (const NicSpec& nic : host.nics) {
      first_port_.push_back(count_);
      count_ += static_cast<uint32_t>(nic.ports.size());
    }
  }
}

Status CheckTopology(const Topology& topology) {
  return CheckTopology(topology, [](std::string_view, std::string_view) { return std::string("topology"); });
}

Status CheckTopology(const Topology& topology, const WhereOf& where) {
  SLUICE_RETURN_IF_ERROR(CheckHosts(topology));
  const EndpointIndex endpoints(topology);
  if (endpoints.count() > 49151) {
    return InvalidArgument("topology: " + std::to_string(endpoints.count()) +
                           " NIC ports; InfiniBand has 49151 LIDs: use fewer hosts or NICs");
  }
  std::vector<int> links(endpoints.count());
  std::vector<std::vector<bool>> switch_ports(topology.switches.size());
  for (const LinkSpec& link : topology.links) {
    for (const LinkEnd* end : {&link.a, &link.b}) {
      SLUICE_RETURN_IF_ERROR(CheckEnd(topology, *end));
      bool used = false;
      if (end->is_switch) {
        std::vector<bool>& ports = switch_ports[end->node];
        if (end->port > kMaxSwitchPort) {
          return InvalidArgument("topology: a link names " + Describe(topology, *end) +
                                 "; the highest port is " + std::to_string(kMaxSwitchPort));
        }
        if (ports.size() <= end->port) ports.resize(end->port + 1);
        used = ports[end->port];
        ports[end->port] = true;
      } else {
        used = links[endpoints.Find(*end)]++ != 0;
      }
      if (used) {
        return InvalidArgument("topology: " + Describe(topology, *end) + " has two links; a port takes one");
      }
    }
    if (link.rate_bps == 0 || link.delay < 0) {
      return InvalidArgument("topology: the link from " + Describe(topology, link.a) +
                             " has no rate or a negative delay; give both");
    }
    for (const LinkEnd* end : {&link.a, &link.b}) {
      if (end->is_switch) continue;
      const uint64_t port_bps = topology.hosts[end->node].nics[end->nic].ports[end->port].rate_bps;
      if (port_bps == link.rate_bps) continue;
      return InvalidArgument("topology: " + Describe(topology, *end) + " runs at " + RateText(port_bps) +
                             ", its link at " + RateText(link.rate_bps) + "; give both one rate");
    }
  }
  for (uint32_t endpoint = 0; endpoint < endpoints.count(); ++endpoint) {
    if (links[endpoint] == 0) {
      return InvalidArgument("topology: NIC port number " + std::to_string(endpoint) +
                             " (counted over all hosts) has no link; connect it");
    }
  }
  SLUICE_RETURN_IF_ERROR(CheckReach(topology, endpoints));
  return CheckNetwork(topology, where);
}

}  // namespace sluice::soft
