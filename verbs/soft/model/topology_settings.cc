#include "verbs/soft/model/topology_settings.h"

#include <algorithm>
#include <cctype>

namespace sluice::soft {
namespace {

constexpr uint64_t kMaxHosts = 8192;

const std::vector<std::string_view>& KindNames() {
  static const std::vector<std::string_view> kNames = {"single", "leaf-spine", "fat-tree", "rail",
                                                       "explicit"};
  return kNames;
}

struct LimitKey {
  std::string_view name;
  uint32_t ResourceLimits::*field;
  uint64_t low;
  uint64_t high;
};

constexpr LimitKey kLimitKeys[] = {
    {"max_qp", &ResourceLimits::max_qp, 1, 1 << 22},
    {"max_qp_wr", &ResourceLimits::max_qp_wr, 1, 1 << 20},
    {"max_sge", &ResourceLimits::max_sge, 1, 64},
    {"max_inline", &ResourceLimits::max_inline, 0, 4096},
    {"max_cq", &ResourceLimits::max_cq, 1, 1 << 24},
    {"max_cqe", &ResourceLimits::max_cqe, 1, 1 << 24},
    {"max_mr", &ResourceLimits::max_mr, 1, 1 << 23},
    {"max_pd", &ResourceLimits::max_pd, 1, 1 << 24},
    {"max_srq", &ResourceLimits::max_srq, 1, 1 << 24},
    {"max_srq_wr", &ResourceLimits::max_srq_wr, 1, 1 << 20},
    {"max_srq_sge", &ResourceLimits::max_srq_sge, 1, 64},
    {"max_rd_atomic", &ResourceLimits::max_rd_atomic, 0, 128},
};

// Which kinds a key of the shape belongs to: a bit per TopologyKind.
constexpr unsigned Bit(TopologyKind kind) {
  return 1u << static_cast<unsigned>(kind);
}
constexpr unsigned kWithSpines = Bit(TopologyKind::kLeafSpine) | Bit(TopologyKind::kRail);
constexpr unsigned kWithLevels = kWithSpines | Bit(TopologyKind::kFatTree);

struct ShapeKey {
  std::string_view name;
  unsigned kinds;
};

constexpr ShapeKey kShapeKeys[] = {
    {"hosts_per_leaf", kWithSpines},
    {"spines", kWithSpines},
    {"links_per_spine", kWithSpines},
    {"oversubscription", kWithLevels},
    {"k", Bit(TopologyKind::kFatTree)},
    {"spine_rate", kWithLevels | Bit(TopologyKind::kExplicit)},
    {"spine_delay", kWithLevels | Bit(TopologyKind::kExplicit)},
};

Status SetShapeKey(TopologyShape* shape, const TextEntry& entry) {
  if (entry.key == "hosts_per_leaf") return ReadCount(entry, 1, kMaxHosts, &shape->hosts_per_leaf);
  if (entry.key == "spines") return ReadCount(entry, 1, 1024, &shape->spines);
  if (entry.key == "links_per_spine") return ReadCount(entry, 1, 64, &shape->links_per_spine);
  if (entry.key == "oversubscription") return ReadCount(entry, 1, 64, &shape->oversubscription);
  if (entry.key == "spine_rate") return ReadRate(entry, &shape->spine_rate_bps);
  if (entry.key == "spine_delay") return ReadTime(entry, kPicosPerSecond, &shape->spine_delay);
  SLUICE_RETURN_IF_ERROR(ReadCount(entry, 2, 64, &shape->radix));
  return shape->radix % 2 == 0 ? Status() : BadValue(entry, "an even number, 2 to 64");
}

Status ReadMtu(const TextEntry& entry, uint32_t* out) {
  for (const uint32_t mtu : {256, 512, 1024, 2048, 4096}) {
    if (entry.value != std::to_string(mtu)) continue;
    *out = mtu;
    return {};
  }
  return BadValue(entry, "256, 512, 1024, 2048, 4096");
}

}  // namespace

Status SetHostKey(HostSettings* settings, const TextEntry& entry, bool* known) {
  *known = true;
  const std::string& key = entry.key;
  if (key == "nics") return ReadCount(entry, 1, 16, &settings->nics);
  if (key == "ports") return ReadCount(entry, 1, 2, &settings->ports);
  if (key == "rate") return ReadRate(entry, &settings->port.rate_bps);
  if (key == "delay") return ReadTime(entry, kPicosPerSecond, &settings->port.delay);
  if (key == "mtu") return ReadMtu(entry, &settings->port.mtu_bytes);
  if (key == "pci") return ReadBool(entry, &settings->pci);
  if (key == "link") {
    if (entry.value == "infiniband" || entry.value == "ib") {
      settings->port.link_layer = LinkLayer::kInfiniBand;
    } else if (entry.value == "roce" || entry.value == "ethernet") {
      settings->port.link_layer = LinkLayer::kEthernet;
    } else {
      return BadValue(entry, "infiniband, roce");
    }
    return {};
  }
  if (key == "device") {
    const std::string& value = entry.value;
    const bool name = !value.empty() && value.size() <= 16 &&
                      std::all_of(value.begin(), value.end(),
                                  [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (!name) return BadValue(entry, "1 to 16 letters, digits and underscores");
    settings->device = value;
    return {};
  }
  *known = false;
  return {};
}

Status SetTopologyKey(TopologySettings* settings, const TextEntry& entry, bool* known) {
  *known = true;
  if (entry.key == "hosts") {
    settings->hosts_given = true;
    return ReadCount(entry, 1, kMaxHosts, &settings->hosts);
  }
  if (entry.key == "on_demand") {
    bool value = false;
    SLUICE_RETURN_IF_ERROR(ReadBool(entry, &value));
    settings->on_demand = value;
    return {};
  }
  if (entry.key == "seed") return ReadCount(entry, 0, INT64_MAX, &settings->seed);
  if (entry.key == "kind") {
    size_t kind = 0;
    SLUICE_RETURN_IF_ERROR(ReadChoice(entry, KindNames(), &kind));
    settings->shape.kind = static_cast<TopologyKind>(kind);
    settings->kind_given = true;
    return {};
  }
  for (const ShapeKey& shape_key : kShapeKeys) {
    if (shape_key.name != entry.key) continue;
    settings->shape_entries.push_back(entry);
    return SetShapeKey(&settings->shape, entry);
  }
  return SetHostKey(&settings->host, entry, known);
}

Status SetLimitKey(ResourceLimits* limits, const TextEntry& entry, bool* known) {
  *known = true;
  for (const LimitKey& limit : kLimitKeys) {
    if (limit.name == entry.key) return ReadCount(entry, limit.low, limit.high, &(limits->*limit.field));
  }
  *known = false;
  return {};
}

std::string HostKeys() {
  return "nics, ports, link, rate, delay, mtu, device, pci";
}

std::string TopologyKeys() {
  std::string names = "kind, hosts, on_demand, seed, " + HostKeys();
  for (const ShapeKey& key : kShapeKeys) names += ", " + std::string(key.name);
  return names;
}

std::string LimitKeys() {
  std::string names;
  for (const LimitKey& limit : kLimitKeys) names += (names.empty() ? "" : ", ") + std::string(limit.name);
  return names;
}

bool IsTopologyKind(std::string_view text) {
  const auto& names = KindNames();
  return std::find(names.begin(), names.end(), text) != names.end();
}

Status FinishSettings(TopologySettings* settings, const std::string& where) {
  TopologyShape& shape = settings->shape;
  const std::string kind(KindNames()[static_cast<size_t>(shape.kind)]);
  for (const TextEntry& entry : settings->shape_entries) {
    for (const ShapeKey& key : kShapeKeys) {
      if (key.name != entry.key || (key.kinds & Bit(shape.kind)) != 0) continue;
      std::string kinds;
      for (size_t i = 0; i < KindNames().size(); ++i) {
        if ((key.kinds >> i & 1) != 0) kinds += (kinds.empty() ? "" : ", ") + std::string(KindNames()[i]);
      }
      return InvalidArgument(entry.where + ": " + entry.key + " = " + entry.value +
                             " means nothing for kind " + kind + "; it belongs to: " + kinds);
    }
  }
  if (settings->hosts_given || shape.kind == TopologyKind::kSingle) return {};
  if (shape.kind == TopologyKind::kFatTree && shape.radix != 0) {
    const uint64_t hosts =
        FatTreePorts(shape.radix, shape.oversubscription) / (settings->host.nics * settings->host.ports);
    if (hosts < 1 || hosts > kMaxHosts) {
      return InvalidArgument(where + ": k = " + std::to_string(shape.radix) + " gives " +
                             std::to_string(hosts) + " hosts; allowed: 1 to 8192, set hosts or another k");
    }
    settings->hosts = static_cast<uint32_t>(hosts);
    settings->hosts_given = true;
    return {};
  }
  return InvalidArgument(where + ": kind " + kind + " needs hosts, such as hosts = 128 (1 to 8192)");
}

TopologyPlan PlanOf(const TopologySettings& settings) {
  TopologyPlan plan;
  for (uint32_t i = 0; i < settings.hosts; ++i) {
    plan.hosts.push_back({"host" + std::to_string(i), settings.host});
  }
  plan.default_host = settings.host;
  plan.limits = settings.limits;
  plan.shape = settings.shape;
  plan.on_demand = settings.on_demand.value_or(!settings.hosts_given);
  return plan;
}

}  // namespace sluice::soft
