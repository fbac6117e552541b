#include "verbs/soft/model/topology_names.h"

#include <algorithm>
#include <charconv>

#include "verbs/soft/model/topology_text.h"

namespace sluice::soft {
namespace {

bool Number(std::string_view text, uint32_t* out) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *out);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

std::string Quoted(std::string_view text) {
  return "\"" + std::string(text) + "\"";
}

}  // namespace

TopologyNames::TopologyNames(const Topology& topology) : topology_(topology) {
  nodes_.reserve(topology.hosts.size() + topology.switches.size());
  for (uint32_t i = 0; i < topology.hosts.size(); ++i) nodes_[topology.hosts[i].name] = {false, i};
  for (uint32_t i = 0; i < topology.switches.size(); ++i)
    nodes_.insert({topology.switches[i].name, {true, i}});
}

bool TopologyNames::FindNode(std::string_view text, Node* node) const {
  const auto found = nodes_.find(std::string(text));
  if (found != nodes_.end()) {
    *node = found->second;
    return true;
  }
  *node = {};
  return Number(text, &node->index) && node->index < topology_.hosts.size();
}

Result<uint32_t> TopologyNames::Host(std::string_view text) const {
  Node node;
  if (FindNode(text, &node) && !node.is_switch) return node.index;
  return InvalidArgument("no host " + Quoted(text) + "; there are " + std::to_string(topology_.hosts.size()) +
                         " hosts, " + topology_.hosts.front().name + " to " + topology_.hosts.back().name);
}

Result<std::vector<uint32_t>> TopologyNames::Hosts(const std::vector<std::string>& texts) const {
  std::vector<bool> chosen(topology_.hosts.size(), texts.empty());
  for (const std::string& text : texts) {
    const size_t dots = text.find("..");
    const Result<uint32_t> first = Host(text.substr(0, dots));
    if (!first.ok()) return first.status();
    const Result<uint32_t> last = dots == std::string::npos ? first : Host(text.substr(dots + 2));
    if (!last.ok()) return last.status();
    if (*last < *first) {
      return InvalidArgument(Quoted(text) + " is no range of hosts: the first comes after the last");
    }
    std::fill(chosen.begin() + *first, chosen.begin() + *last + 1, true);
  }
  std::vector<uint32_t> hosts;
  for (uint32_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i]) hosts.push_back(i);
  }
  return hosts;
}

Result<uint32_t> TopologyNames::Switch(std::string_view text) const {
  Node node;
  if (FindNode(text, &node) && node.is_switch) return node.index;
  if (topology_.switches.empty()) return InvalidArgument("no switch " + Quoted(text) + "; there is none");
  return InvalidArgument("no switch " + Quoted(text) + "; there are " +
                         std::to_string(topology_.switches.size()) + " switches, " +
                         topology_.switches.front().name + " to " + topology_.switches.back().name);
}

Result<uint32_t> TopologyNames::Nic(uint32_t host, std::string_view device) const {
  const HostSpec& spec = topology_.hosts[host];
  for (uint32_t i = 0; i < spec.nics.size(); ++i) {
    if (spec.nics[i].name == device) return i;
  }
  uint32_t number = 0;
  if (Number(device, &number) && number < spec.nics.size()) return number;
  std::string names;
  for (const NicSpec& nic : spec.nics) names += (names.empty() ? "" : ", ") + nic.name;
  return InvalidArgument("no NIC " + Quoted(device) + " in host " + spec.name + "; there are: " + names);
}

Result<LinkEnd> TopologyNames::End(std::string_view text, bool* port_given) const {
  const std::vector<std::string> parts = SplitText(text, '/');
  LinkEnd end;
  Node node;
  if (parts.empty() || !FindNode(parts[0], &node)) {
    return InvalidArgument("no host or switch " + Quoted(parts.empty() ? text : std::string_view(parts[0])) +
                           "; write host3, host3/soft1/2, leaf0 or leaf0/5 with the names of this topology");
  }
  end.is_switch = node.is_switch;
  end.node = node.index;
  *port_given = parts.size() == (node.is_switch ? 2 : 3);
  if (node.is_switch) {
    if (parts.size() > 2 || (*port_given && (!Number(parts[1], &end.port) || end.port > 65535))) {
      return InvalidArgument(Quoted(text) + " is no port of switch " + parts[0] + "; write " + parts[0] +
                             "/0 to " + parts[0] + "/65535");
    }
    return end;
  }
  if (parts.size() > 3) {
    return InvalidArgument(Quoted(text) + " is no port of host " + parts[0] + "; write " + parts[0] +
                           "/soft0/1");
  }
  if (parts.size() > 1) {
    const Result<uint32_t> nic = Nic(end.node, parts[1]);
    if (!nic.ok()) return nic.status();
    end.nic = *nic;
  }
  const size_t ports = topology_.hosts[end.node].nics[end.nic].ports.size();
  if (*port_given) {
    uint32_t number = 0;
    if (!Number(parts[2], &number) || number < 1 || number > ports) {
      return InvalidArgument("no port " + Quoted(parts[2]) + " of NIC " +
                             topology_.hosts[end.node].nics[end.nic].name + " in host " + parts[0] +
                             "; there are 1 to " + std::to_string(ports));
    }
    end.port = number - 1;
  }
  return end;
}

Result<std::vector<uint32_t>> TopologyNames::Links(std::string_view text) const {
  Result<std::vector<uint32_t>> links = DirectedLinks(text);
  if (links.ok()) {
    for (uint32_t& link : *links) link /= 2;
  }
  return links;
}

Result<std::vector<uint32_t>> TopologyNames::DirectedLinks(std::string_view text) const {
  std::vector<uint32_t> links;
  if (text.starts_with('#')) {
    uint32_t index = 0;
    if (!Number(text.substr(1), &index) || index >= topology_.links.size()) {
      return InvalidArgument("no link " + Quoted(text) + "; there are #0 to #" +
                             std::to_string(topology_.links.size() - 1));
    }
    links.push_back(2 * index);
    return links;
  }
  // Whether `end` lies in what `pattern` names: `depth` of its parts (node, NIC or switch port, NIC port).
  struct Pattern {
    LinkEnd end;
    size_t depth = 0;
    bool Matches(const LinkEnd& other) const {
      if (other.is_switch != end.is_switch || other.node != end.node) return false;
      if (end.is_switch) return depth < 2 || other.port == end.port;
      return (depth < 2 || other.nic == end.nic) && (depth < 3 || other.port == end.port);
    }
  };
  const auto pattern_of = [&](std::string_view part, Pattern* pattern) -> Status {
    bool port_given = false;
    const Result<LinkEnd> end = End(part, &port_given);
    if (!end.ok()) return end.status();
    *pattern = {*end, SplitText(part, '/').size()};
    return {};
  };
  // A name may itself contain "-" ("group0-rail1"): the first cut at which both sides are names counts.
  Pattern first, second;
  bool two = false;
  Status status = pattern_of(text, &first);
  for (size_t dash = text.find('-'); !status.ok() && dash != std::string_view::npos;
       dash = text.find('-', dash + 1)) {
    const Status left = pattern_of(text.substr(0, dash), &first);
    const Status both = left.ok() ? pattern_of(text.substr(dash + 1), &second) : left;
    if (!both.ok()) {
      if (left.ok()) status = both;
      if (left.ok() && text.find('-', dash + 1) == std::string_view::npos) return both;
      continue;
    }
    two = true;
    status = {};
  }
  SLUICE_RETURN_IF_ERROR(status);
  for (uint32_t i = 0; i < topology_.links.size(); ++i) {
    const LinkEnd& a = topology_.links[i].a;
    const LinkEnd& b = topology_.links[i].b;
    if (first.Matches(a) && (!two || second.Matches(b))) {
      links.push_back(2 * i);
    } else if (first.Matches(b) && (!two || second.Matches(a))) {
      links.push_back(2 * i + 1);
    }
  }
  if (links.empty()) {
    return InvalidArgument("no link " + Quoted(text) + "; nothing connects these, name both ends of a cable");
  }
  return links;
}

std::string EndText(const Topology& topology, const LinkEnd& end) {
  if (end.is_switch) return topology.switches[end.node].name + "/" + std::to_string(end.port);
  const HostSpec& host = topology.hosts[end.node];
  return host.name + "/" + host.nics[end.nic].name + "/" + std::to_string(end.port + 1);
}

}  // namespace sluice::soft
