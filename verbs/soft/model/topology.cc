// Reading topologies: TOML files and the one-line form.
#include "verbs/soft/model/topology.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>

#include "verbs/soft/model/faults_plan.h"
#include "verbs/soft/model/topology_check.h"
#include "verbs/soft/model/topology_effect.h"
#include "verbs/soft/model/topology_names.h"
#include "verbs/soft/model/topology_network.h"
#include "verbs/soft/model/topology_settings.h"

namespace sluice::soft {
namespace {

constexpr char kSections[] =
    "[topology] (or [fabric]), [limits], [[host]], [[switch]], [[link]], [switches], [nics], [routing], "
    "[[route]], [[fault]], [[background]]";

// The message of a look-up, at the line that asked for it.
Status Located(const TextEntry& entry, const Status& status) {
  return InvalidArgument(entry.where + ": " + entry.key + " = " + entry.value + ": " + status.message());
}

Status ApplyTopology(const TextSection& section, TopologySettings* settings) {
  for (const TextEntry& entry : section.entries) {
    if (entry.key == "switch" || entry.key == "nic") continue;
    bool known = false;
    SLUICE_RETURN_IF_ERROR(SetTopologyKey(settings, entry, &known));
    if (!known) return UnknownKey(entry, section.name, TopologyKeys() + ", switch, nic");
  }
  return {};
}

Status ApplyLimits(const TextSection& section, ResourceLimits* limits) {
  for (const TextEntry& entry : section.entries) {
    bool known = false;
    SLUICE_RETURN_IF_ERROR(SetLimitKey(limits, entry, &known));
    if (!known) return UnknownKey(entry, section.name, LimitKeys());
  }
  return {};
}

Status ApplyHost(const TextSection& section, std::vector<NamedHost>* hosts) {
  NamedHost* host = nullptr;
  if (const TextEntry* name = section.Find("name")) {
    for (NamedHost& candidate : *hosts) {
      if (candidate.name == name->value) host = &candidate;
    }
    if (host == nullptr) {
      return InvalidArgument(name->where + ": name = " + name->value +
                             "; no such host, there are host0 to host" + std::to_string(hosts->size() - 1) +
                             " and those renamed by index");
    }
  } else if (const TextEntry* entry = section.Find("index")) {
    uint32_t index = 0;
    SLUICE_RETURN_IF_ERROR(ReadCount(*entry, 0, hosts->size() - 1, &index));
    host = &(*hosts)[index];
  } else {
    return InvalidArgument(section.where +
                           ": [[host]] has neither name nor index; give one, such as index = 0");
  }
  for (const TextEntry& entry : section.entries) {
    if (entry.key == "name" || entry.key == "index") continue;
    if (entry.key == "rename") {
      SLUICE_RETURN_IF_ERROR(ReadName(entry, &host->name));
      continue;
    }
    bool known = false;
    SLUICE_RETURN_IF_ERROR(SetHostKey(&host->settings, entry, &known));
    if (!known) return UnknownKey(entry, "host", "name, index, rename, " + HostKeys());
  }
  return {};
}

Status ApplySwitch(const TextSection& section, Topology* topology) {
  SwitchSpec spec;
  uint32_t count = 1;
  for (const TextEntry& entry : section.entries) {
    if (entry.key == "name") {
      SLUICE_RETURN_IF_ERROR(ReadName(entry, &spec.name));
    } else if (entry.key == "count") {
      SLUICE_RETURN_IF_ERROR(ReadCount(entry, 1, 4096, &count));
    } else {
      return UnknownKey(entry, section.name, "name, count");
    }
  }
  if (spec.name.empty()) return InvalidArgument(section.where + ": [[switch]] has no name; give one");
  if (section.Find("count") == nullptr) {
    topology->switches.push_back(std::move(spec));
    return {};
  }
  for (uint32_t i = 0; i < count; ++i) topology->switches.push_back({spec.name + std::to_string(i)});
  return {};
}

// Explicit links, with the line of each for messages.
class LinkReader {
 public:
  LinkReader(const TopologySettings& settings, Topology* topology)
      : settings_(settings), topology_(*topology), names_(*topology), next_port_(topology->switches.size()) {}

  Status Apply(const TextSection& section) {
    const TextEntry* a = section.Find("a");
    const TextEntry* b = section.Find("b");
    if (a == nullptr || b == nullptr) {
      return InvalidArgument(section.where +
                             ": [[link]] needs both ends, such as a = \"host0\", b = \"leaf0\"");
    }
    LinkSpec link;
    uint32_t count = 1;
    bool ports_given[2] = {};
    SLUICE_RETURN_IF_ERROR(ReadEnd(*a, &link.a, &ports_given[0]));
    SLUICE_RETURN_IF_ERROR(ReadEnd(*b, &link.b, &ports_given[1]));
    const TopologyShape& shape = settings_.shape;
    link.rate_bps = shape.spine_rate_bps != 0 ? shape.spine_rate_bps : settings_.host.port.rate_bps;
    link.delay = shape.spine_delay >= 0 ? shape.spine_delay : settings_.host.port.delay;
    for (const LinkEnd* end : {&link.b, &link.a}) {
      if (end->is_switch) continue;
      link.rate_bps = PortOf(*end).rate_bps;
      link.delay = PortOf(*end).delay;
    }
    for (const TextEntry& entry : section.entries) {
      if (entry.key == "a" || entry.key == "b") continue;
      if (entry.key == "rate") {
        SLUICE_RETURN_IF_ERROR(ReadRate(entry, &link.rate_bps));
      } else if (entry.key == "delay") {
        SLUICE_RETURN_IF_ERROR(ReadTime(entry, kPicosPerSecond, &link.delay));
      } else if (entry.key == "count") {
        SLUICE_RETURN_IF_ERROR(ReadCount(entry, 1, 64, &count));
      } else {
        return UnknownKey(entry, section.name, "a, b, rate, delay, count");
      }
    }
    if (count > 1 && (!link.a.is_switch || !link.b.is_switch || ports_given[0] || ports_given[1])) {
      return InvalidArgument(
          section.where + ": count = " + std::to_string(count) +
          " is for links between two switches without port numbers; write one [[link]] each");
    }
    for (uint32_t i = 0; i < count; ++i) SLUICE_RETURN_IF_ERROR(Add(link, ports_given, *a, *b));
    return {};
  }

 private:
  const PortSpec& PortOf(const LinkEnd& end) const {
    return topology_.hosts[end.node].nics[end.nic].ports[end.port];
  }
  Status ReadEnd(const TextEntry& entry, LinkEnd* end, bool* port_given) const {
    const Result<LinkEnd> found = names_.End(entry.value, port_given);
    if (!found.ok()) return Located(entry, found.status());
    *end = *found;
    return {};
  }
  Status Add(LinkSpec link, const bool ports_given[2], const TextEntry& a, const TextEntry& b) {
    LinkEnd* ends[2] = {&link.a, &link.b};
    const TextEntry* entries[2] = {&a, &b};
    for (int i = 0; i < 2; ++i) {
      LinkEnd& end = *ends[i];
      if (end.is_switch && !ports_given[i]) {
        while (used_.contains({true, end.node, 0, next_port_[end.node]})) ++next_port_[end.node];
        end.port = next_port_[end.node];
      }
      if (!used_.insert({end.is_switch, end.node, end.nic, end.port}).second) {
        return InvalidArgument(entries[i]->where + ": " + entries[i]->key + " = " + entries[i]->value + ": " +
                               EndText(topology_, end) + " has two links; a port takes one");
      }
      if (!end.is_switch && PortOf(end).rate_bps != link.rate_bps) {
        return InvalidArgument(entries[i]->where + ": the link runs at " + RateText(link.rate_bps) +
                               ", but " + EndText(topology_, end) + " at " + RateText(PortOf(end).rate_bps) +
                               "; both ends of a link have one rate, set the host's rate in [[host]]");
      }
    }
    topology_.links.push_back(link);
    return {};
  }

  const TopologySettings& settings_;
  Topology& topology_;
  TopologyNames names_;
  std::vector<uint32_t> next_port_;
  std::set<std::tuple<bool, uint32_t, uint32_t, uint32_t>> used_;
};

// A preset that belongs to the other link layer would do nothing, silently.
Status CheckPreset(const TextEntry& preset, const Topology& topology) {
  if (preset.value == "unbounded") return {};
  const LinkLayer layer = preset.value == "infiniband" ? LinkLayer::kInfiniBand : LinkLayer::kEthernet;
  for (const HostSpec& host : topology.hosts) {
    for (const NicSpec& nic : host.nics) {
      for (const PortSpec& port : nic.ports) {
        if (port.link_layer == layer) return {};
      }
    }
  }
  return InvalidArgument(preset.where + ": the switch preset " + preset.value + " is for " +
                         (layer == LinkLayer::kInfiniBand
                              ? "InfiniBand, but every port is RoCE; add link = \"infiniband\""
                              : "RoCE, but every port is InfiniBand; use the preset infiniband"));
}

// Settings of switches, NICs and routes, section by section, then everything together.
Status ApplyNetwork(const std::vector<TextSection>& sections, const std::vector<const TextSection*>& routes,
                    const std::string& where, Topology* topology) {
  for (const char* name : {"switches", "nics", "routing"}) {
    std::vector<TextEntry> entries;
    for (const TextSection& section : sections) {
      if (section.name == name) entries.insert(entries.end(), section.entries.begin(), section.entries.end());
    }
    SLUICE_RETURN_IF_ERROR(ApplyNetworkSection(name, entries, topology));
  }
  for (const TextSection* route : routes) SLUICE_RETURN_IF_ERROR(ApplyRoute(*route, topology));
  for (const TextSection& section : sections) {
    const TextEntry* preset = section.name == "switches" ? section.Find("preset") : nullptr;
    if (preset != nullptr) SLUICE_RETURN_IF_ERROR(CheckPreset(*preset, *topology));
  }
  const Status status = CheckTopology(*topology, [&](std::string_view name, std::string_view key) {
    for (const TextSection* route : routes) {
      if (name == "route" && route->Find("flow")->value == key) return route->where;
    }
    std::string found = where;
    for (const TextSection& section : sections) {
      if (section.name != name) continue;
      const TextEntry* entry = section.Find(key);
      if (entry != nullptr) return entry->where;
      found = section.where;
    }
    return found;
  });
  if (!status.ok()) {
    return status.message().starts_with("topology: ") ? InvalidArgument(where + ": " + status.message())
                                                      : status;
  }
  for (const TextSection& section : sections) {
    if (section.name == "routing") continue;
    SLUICE_RETURN_IF_ERROR(CheckEffect(section.name, section.entries, *topology));
  }
  return {};
}

// Cuts "switches.pool" out of the entries of a topology and puts it, as "pool", into the section it names.
// "switch" and "nic" are short for the presets.
void MoveToSection(const TextEntry& entry, std::vector<TextSection>* sections) {
  std::string name = entry.key == "switch" ? "switches" : entry.key == "nic" ? "nics" : entry.key;
  std::string key = "preset";
  if (const size_t dot = name.find('.'); dot != std::string::npos) {
    key = name.substr(dot + 1);
    name.resize(dot);
  }
  sections->push_back({name, entry.where, {{key, entry.value, entry.where}}});
}

bool BelongsToSection(const TextEntry& entry) {
  const size_t dot = entry.key.find('.');
  return entry.key == "switch" || entry.key == "nic" ||
         (dot != std::string::npos && IsNetworkSection(std::string_view(entry.key).substr(0, dot)));
}

// Refuses faults and background traffic that name nothing of this topology, before anything starts.
Status CheckEvents(const Topology& topology) {
  const auto fault_plan = FaultPlan::Make(topology, topology.faults, topology.seed);
  if (!fault_plan.ok()) return fault_plan.status();
  return CheckBackground(topology, topology.background);
}

}  // namespace

Topology Topology::Default() {
  return *BuildTopology(PlanOf(TopologySettings()), "");
}

Result<Topology> Topology::FromText(std::string_view one_line) {
  TopologySettings settings;
  const std::string where = "topology \"" + std::string(one_line) + "\"";
  const std::string keys = TopologyKeys() + ", " + LimitKeys() + ", switch, nic, " + NetworkKeys();
  // "leaf-spine:hosts=128" is short for "kind=leaf-spine,hosts=128".
  std::string_view rest = one_line;
  const size_t colon = rest.find(':');
  const std::string_view kind = rest.substr(0, colon);
  if (IsTopologyKind(kind) || (colon != std::string_view::npos && kind.find('=') == std::string_view::npos)) {
    bool known = false;
    SLUICE_RETURN_IF_ERROR(SetTopologyKey(&settings, {"kind", std::string(kind), where}, &known));
    if (settings.shape.kind == TopologyKind::kExplicit) {
      return InvalidArgument(where +
                             ": explicit links do not fit in a line; write a TOML file with [[link]]");
    }
    rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
  }
  const Result<std::vector<TextEntry>> entries = EntriesOfLine(rest, where, keys);
  if (!entries.ok()) return entries.status();
  std::vector<TextSection> sections;
  for (const TextEntry& entry : *entries) {
    if (BelongsToSection(entry)) {
      MoveToSection(entry, &sections);
      continue;
    }
    bool known = false;
    SLUICE_RETURN_IF_ERROR(SetTopologyKey(&settings, entry, &known));
    if (!known) SLUICE_RETURN_IF_ERROR(SetLimitKey(&settings.limits, entry, &known));
    if (!known) return InvalidArgument(where + ": no key " + entry.key + "; there are: " + keys);
  }
  SLUICE_RETURN_IF_ERROR(FinishSettings(&settings, where));
  Result<Topology> topology = BuildTopology(PlanOf(settings), where);
  if (topology.ok()) topology->seed = settings.seed;
  if (topology.ok()) SLUICE_RETURN_IF_ERROR(ApplyNetwork(sections, {}, where, &*topology));
  return topology;
}

Result<Topology> Topology::FromToml(std::string_view toml, std::string_view file_name) {
  Result<std::vector<TextSection>> sections = SectionsOfToml(toml, file_name);
  if (!sections.ok()) return sections.status();
  TopologySettings settings;
  std::string where(file_name);
  std::vector<const TextSection*> hosts, switches, links, routes;
  std::vector<TextSection> network;
  std::vector<FaultSpec> faults;
  std::vector<BackgroundSpec> background;
  for (const TextSection& section : *sections) {
    if (section.name == "topology" || section.name == "fabric") {
      where = section.where;
      for (const TextEntry& entry : section.entries) {
        if (BelongsToSection(entry)) MoveToSection(entry, &network);
      }
      SLUICE_RETURN_IF_ERROR(ApplyTopology(section, &settings));
    } else if (section.name == "limits") {
      SLUICE_RETURN_IF_ERROR(ApplyLimits(section, &settings.limits));
    } else if (section.name == "host") {
      hosts.push_back(&section);
    } else if (section.name == "switch") {
      switches.push_back(&section);
    } else if (section.name == "link") {
      links.push_back(&section);
    } else if (section.name == "fault") {
      Result<FaultSpec> fault = FaultSpec::FromSection(section);
      if (!fault.ok()) return fault.status();
      faults.push_back(std::move(*fault));
    } else if (section.name == "background") {
      Result<BackgroundSpec> traffic = BackgroundSpec::FromSection(section);
      if (!traffic.ok()) return traffic.status();
      background.push_back(std::move(*traffic));
    } else if (section.name == "route") {
      routes.push_back(&section);
    } else if (IsNetworkSection(section.name)) {
      network.push_back(section);
    } else {
      return InvalidArgument(section.where + ": unexpected " + section.name + "; there are the sections " +
                             kSections);
    }
  }
  if (!links.empty() || !switches.empty()) {
    const TextSection& first = links.empty() ? *switches.front() : *links.front();
    if (settings.kind_given && settings.shape.kind != TopologyKind::kExplicit) {
      return InvalidArgument(first.where + ": [[" + first.name +
                             "]] belongs to kind = \"explicit\", but another kind is given; remove one");
    }
    settings.shape.kind = TopologyKind::kExplicit;
  }
  SLUICE_RETURN_IF_ERROR(FinishSettings(&settings, where));
  TopologyPlan plan = PlanOf(settings);
  for (const TextSection* section : hosts) SLUICE_RETURN_IF_ERROR(ApplyHost(*section, &plan.hosts));
  Result<Topology> topology = BuildTopology(plan, where);
  if (!topology.ok()) return topology;
  for (const TextSection* section : switches) SLUICE_RETURN_IF_ERROR(ApplySwitch(*section, &*topology));
  LinkReader reader(settings, &*topology);
  for (const TextSection* section : links) SLUICE_RETURN_IF_ERROR(reader.Apply(*section));
  topology->seed = settings.seed;
  topology->faults = std::move(faults);
  topology->background = std::move(background);
  SLUICE_RETURN_IF_ERROR(ApplyNetwork(network, routes, where, &*topology));
  SLUICE_RETURN_IF_ERROR(CheckEvents(*topology));
  return topology;
}

Status Topology::Add(std::string_view more_faults, std::string_view more_background) {
  Result<std::vector<FaultSpec>> fault_specs = FaultSpec::ListFromText(more_faults);
  if (!fault_specs.ok()) return fault_specs.status();
  Result<std::vector<BackgroundSpec>> traffic = BackgroundSpec::ListFromText(more_background);
  if (!traffic.ok()) return traffic.status();
  faults.insert(faults.end(), fault_specs->begin(), fault_specs->end());
  background.insert(background.end(), traffic->begin(), traffic->end());
  SLUICE_RETURN_IF_ERROR(CheckEvents(*this));
  return CheckTopology(*this);
}

Result<Topology> Topology::FromFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::stringstream text;
  if (file) text << file.rdbuf();
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return SystemError("topology file " + path, EISDIR, "name a TOML file");
  }
  if (!file) {
    return SystemError("topology file " + path, errno != 0 ? errno : EIO,
                       "check the path and that the file is readable");
  }
  return FromToml(text.str(), path);
}

Result<Topology> Topology::Parse(std::string_view text) {
  if (text.empty()) return Default();
  const std::string path(text);
  if (text.ends_with(".toml") || access(path.c_str(), F_OK) == 0) return FromFile(path);
  return FromText(text);
}

}  // namespace sluice::soft
