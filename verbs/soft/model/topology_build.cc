#include "verbs/soft/model/topology_build.h"

#include <algorithm>

#include "verbs/soft/model/topology_text.h"

namespace sluice::soft {
namespace {

// Makes switches and cables; ports are taken in the order of the cables.
class Cabler {
 public:
  Cabler(Topology* topology, const TopologyPlan& plan) : topology_(topology) {
    rate_bps_ = plan.shape.spine_rate_bps != 0 ? plan.shape.spine_rate_bps : plan.default_host.port.rate_bps;
    delay_ = plan.shape.spine_delay >= 0 ? plan.shape.spine_delay : plan.default_host.port.delay;
  }

  uint32_t AddSwitch(std::string name) {
    topology_->switches.push_back({std::move(name)});
    next_port_.push_back(0);
    return static_cast<uint32_t>(next_port_.size()) - 1;
  }
  void AddSwitches(const std::string& prefix, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) AddSwitch(prefix + std::to_string(i));
  }
  void ConnectNic(uint32_t host, uint32_t nic, uint32_t node) {
    const NicSpec& spec = topology_->hosts[host].nics[nic];
    for (uint32_t port = 0; port < spec.ports.size(); ++port) {
      topology_->links.push_back({{false, host, nic, port},
                                  {true, node, 0, next_port_[node]++},
                                  spec.ports[port].rate_bps,
                                  spec.ports[port].delay});
    }
  }
  void ConnectHost(uint32_t host, uint32_t node) {
    for (uint32_t nic = 0; nic < topology_->hosts[host].nics.size(); ++nic) ConnectNic(host, nic, node);
  }
  void ConnectSwitches(uint32_t below, uint32_t above) {
    topology_->links.push_back(
        {{true, below, 0, next_port_[below]++}, {true, above, 0, next_port_[above]++}, rate_bps_, delay_});
  }
  uint64_t rate_bps() const { return rate_bps_; }

 private:
  Topology* topology_;
  std::vector<uint32_t> next_port_;  // by switch
  uint64_t rate_bps_;
  Picos delay_;
};

struct Uplinks {
  uint32_t spines = 0;
  uint32_t links_per_spine = 0;
};

// How a leaf with `down_bps` towards hosts reaches the spines.
Result<Uplinks> ChooseUplinks(const TopologyShape& shape, uint64_t down_bps, uint64_t rate_bps,
                              const std::string& where) {
  const uint64_t ratio = std::max<uint32_t>(shape.oversubscription, 1);
  Uplinks uplinks{shape.spines, shape.links_per_spine};
  if (uplinks.spines != 0 && shape.oversubscription == 0) {
    uplinks.links_per_spine = std::max<uint32_t>(uplinks.links_per_spine, 1);
    return uplinks;
  }
  const std::string story = where + ": a leaf has " + RateText(down_bps) + " towards its hosts, so with " +
                            "oversubscription = " + std::to_string(ratio) + " it needs " +
                            RateText(down_bps / ratio) + " towards the spines";
  if (down_bps % (ratio * rate_bps) != 0) {
    return InvalidArgument(story + ", no whole number of links of " + RateText(rate_bps) +
                           "; change oversubscription, spine_rate or hosts_per_leaf, or give spines alone");
  }
  const uint64_t links = down_bps / (ratio * rate_bps);
  if (uplinks.spines == 0) {
    uplinks.links_per_spine = std::max<uint32_t>(uplinks.links_per_spine, 1);
    uplinks.spines = static_cast<uint32_t>(links / uplinks.links_per_spine);
  } else if (uplinks.links_per_spine == 0) {
    uplinks.links_per_spine = static_cast<uint32_t>(links / uplinks.spines);
  }
  if (uint64_t{uplinks.spines} * uplinks.links_per_spine != links || links == 0) {
    return InvalidArgument(story + ", " + std::to_string(links) +
                           " links, but spines = " + std::to_string(uplinks.spines) +
                           " and links_per_spine = " + std::to_string(uplinks.links_per_spine) +
                           " do not give them; leave one of the three out");
  }
  return uplinks;
}

void ConnectSpines(uint32_t leaves, const Uplinks& uplinks, Cabler* cabler) {
  cabler->AddSwitches("spine", uplinks.spines);
  for (uint32_t leaf = 0; leaf < leaves; ++leaf) {
    for (uint32_t spine = 0; spine < uplinks.spines; ++spine) {
      for (uint32_t i = 0; i < uplinks.links_per_spine; ++i) cabler->ConnectSwitches(leaf, leaves + spine);
    }
  }
}

uint32_t DivideUp(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

Status BuildLeafSpine(const TopologyPlan& plan, const std::string& where, Topology* topology) {
  const auto hosts = static_cast<uint32_t>(plan.hosts.size());
  uint32_t per_leaf = plan.shape.hosts_per_leaf;
  if (per_leaf == 0) {
    per_leaf = 1;
    while (4 * per_leaf * per_leaf <= hosts) per_leaf *= 2;
  }
  per_leaf = std::min(per_leaf, hosts);
  Cabler cabler(topology, plan);
  const HostSettings& host = plan.default_host;
  const Result<Uplinks> uplinks = ChooseUplinks(
      plan.shape, uint64_t{per_leaf} * host.nics * host.ports * host.port.rate_bps, cabler.rate_bps(), where);
  if (!uplinks.ok()) return uplinks.status();
  const uint32_t leaves = DivideUp(hosts, per_leaf);
  cabler.AddSwitches("leaf", leaves);
  for (uint32_t h = 0; h < hosts; ++h) cabler.ConnectHost(h, h / per_leaf);
  ConnectSpines(leaves, *uplinks, &cabler);
  return {};
}

Status BuildRail(const TopologyPlan& plan, const std::string& where, Topology* topology) {
  const auto hosts = static_cast<uint32_t>(plan.hosts.size());
  const uint32_t rails = plan.default_host.nics;
  for (const NamedHost& host : plan.hosts) {
    if (host.settings.nics <= rails) continue;
    return InvalidArgument(where + ": host " + host.name + " has " + std::to_string(host.settings.nics) +
                           " NICs, but there are " + std::to_string(rails) +
                           " rails; set nics for all hosts to the greatest number");
  }
  const uint32_t per_leaf = std::min(plan.shape.hosts_per_leaf != 0 ? plan.shape.hosts_per_leaf : 64, hosts);
  Cabler cabler(topology, plan);
  const HostSettings& host = plan.default_host;
  const Result<Uplinks> uplinks = ChooseUplinks(
      plan.shape, uint64_t{per_leaf} * host.ports * host.port.rate_bps, cabler.rate_bps(), where);
  if (!uplinks.ok()) return uplinks.status();
  const uint32_t groups = DivideUp(hosts, per_leaf);
  for (uint32_t group = 0; group < groups; ++group) {
    const std::string prefix = groups == 1 ? "rail" : "group" + std::to_string(group) + "-rail";
    cabler.AddSwitches(prefix, rails);
  }
  for (uint32_t h = 0; h < hosts; ++h) {
    for (uint32_t nic = 0; nic < topology->hosts[h].nics.size(); ++nic) {
      cabler.ConnectNic(h, nic, h / per_leaf * rails + nic);
    }
  }
  ConnectSpines(groups * rails, *uplinks, &cabler);
  return {};
}

Status BuildFatTree(const TopologyPlan& plan, const std::string& where, Topology* topology) {
  const auto hosts = static_cast<uint32_t>(plan.hosts.size());
  const uint32_t ratio = std::max<uint32_t>(plan.shape.oversubscription, 1);
  const uint32_t ports_per_host = plan.default_host.nics * plan.default_host.ports;
  for (const NamedHost& host : plan.hosts) {
    if (host.settings.nics * host.settings.ports == ports_per_host) continue;
    return InvalidArgument(where + ": host " + host.name +
                           " has another number of NIC ports than the rest; a fat-tree needs the same "
                           "everywhere, leaf-spine and single do not");
  }
  uint32_t k = plan.shape.radix;
  if (k == 0) {
    k = 2;
    while (FatTreePorts(k, ratio) < uint64_t{hosts} * ports_per_host || k / 2 * ratio % ports_per_host != 0) {
      k += 2;
    }
  }
  if (FatTreePorts(k, ratio) < uint64_t{hosts} * ports_per_host) {
    return InvalidArgument(where + ": a fat-tree of k = " + std::to_string(k) + " carries " +
                           std::to_string(FatTreePorts(k, ratio)) + " NIC ports, but the hosts have " +
                           std::to_string(uint64_t{hosts} * ports_per_host) +
                           "; raise k or oversubscription, or lower hosts");
  }
  if (k / 2 * ratio % ports_per_host != 0) {
    return InvalidArgument(where + ": an edge switch of k = " + std::to_string(k) + " has " +
                           std::to_string(k / 2 * ratio) + " ports for hosts, no multiple of the " +
                           std::to_string(ports_per_host) +
                           " NIC ports of a host; choose another k, nics or ports");
  }
  const uint32_t half = k / 2;
  const uint32_t per_edge = half * ratio / ports_per_host;
  const uint32_t pods = DivideUp(hosts, per_edge * half);
  Cabler cabler(topology, plan);
  cabler.AddSwitches("edge", pods * half);
  cabler.AddSwitches("aggregation", pods * half);
  cabler.AddSwitches("core", half * half);
  for (uint32_t h = 0; h < hosts; ++h) cabler.ConnectHost(h, h / per_edge);
  const uint32_t first_aggregation = pods * half;
  const uint32_t first_core = 2 * pods * half;
  for (uint32_t edge = 0; edge < pods * half; ++edge) {
    for (uint32_t i = 0; i < half; ++i) {
      cabler.ConnectSwitches(edge, first_aggregation + edge / half * half + i);
    }
  }
  for (uint32_t aggregation = 0; aggregation < pods * half; ++aggregation) {
    for (uint32_t i = 0; i < half; ++i) {
      cabler.ConnectSwitches(first_aggregation + aggregation, first_core + aggregation % half * half + i);
    }
  }
  return {};
}

}  // namespace

uint64_t FatTreePorts(uint32_t radix, uint32_t oversubscription) {
  return uint64_t{radix} * radix * radix / 4 * std::max<uint32_t>(oversubscription, 1);
}

Topology BuildHosts(const TopologyPlan& plan) {
  Topology topology;
  topology.on_demand = plan.on_demand;
  topology.hosts.reserve(plan.hosts.size());
  for (const NamedHost& named : plan.hosts) {
    const HostSettings& settings = named.settings;
    HostSpec host;
    host.name = named.name;
    host.nics.reserve(settings.nics);
    for (uint32_t n = 0; n < settings.nics; ++n) {
      NicSpec nic;
      nic.name = settings.device + std::to_string(n);
      nic.pci = settings.pci;
      nic.limits = plan.limits;
      nic.ports.assign(settings.ports, settings.port);
      host.nics.push_back(std::move(nic));
    }
    topology.hosts.push_back(std::move(host));
  }
  return topology;
}

Result<Topology> BuildTopology(const TopologyPlan& plan, const std::string& where) {
  Topology topology = BuildHosts(plan);
  switch (plan.shape.kind) {
    case TopologyKind::kSingle: {
      Cabler cabler(&topology, plan);
      cabler.AddSwitch("switch0");
      for (uint32_t h = 0; h < plan.hosts.size(); ++h) cabler.ConnectHost(h, 0);
      break;
    }
    case TopologyKind::kLeafSpine:
      SLUICE_RETURN_IF_ERROR(BuildLeafSpine(plan, where, &topology));
      break;
    case TopologyKind::kFatTree:
      SLUICE_RETURN_IF_ERROR(BuildFatTree(plan, where, &topology));
      break;
    case TopologyKind::kRail:
      SLUICE_RETURN_IF_ERROR(BuildRail(plan, where, &topology));
      break;
    case TopologyKind::kExplicit:
      break;
  }
  return topology;
}

}  // namespace sluice::soft
