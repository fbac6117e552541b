#include "verbs/soft/model/topology_network.h"

#include <algorithm>
#include <charconv>

#include "verbs/soft/model/topology_names.h"

namespace sluice::soft {
namespace {

template <typename T>
struct Key {
  std::string_view name;
  Status (*set)(T* settings, const TextEntry& entry);
};

constexpr uint64_t kMaxBufferBytes = uint64_t{64} << 30;

bool ParseNumber(std::string_view text, uint64_t high, uint64_t* out) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *out);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && *out <= high;
}

// "0/3": a bit per priority; "none": no bit.
Status ReadPriorities(const TextEntry& entry, uint8_t* out) {
  unsigned bits = 0;
  for (const std::string& part :
       entry.value == "none" ? std::vector<std::string>() : SplitText(entry.value, '/')) {
    uint64_t priority = 0;
    if (!ParseNumber(part, kLanes - 1, &priority)) {
      return BadValue(entry, "priorities 0 to 7, such as [0, 3] (in one line 0/3), or none");
    }
    bits |= 1u << priority;
  }
  *out = static_cast<uint8_t>(bits);
  return {};
}

struct Pair {
  uint64_t first;
  uint64_t second;
};

// "26:3/48:6"; when no part has a ":", the parts count from 0: "0/1/2" is 0:0, 1:1, 2:2.
Status ReadPairs(const TextEntry& entry, uint64_t high_first, uint64_t high_second,
                 const std::string& allowed, std::vector<Pair>* out) {
  const bool counted = entry.value.find(':') == std::string::npos;
  for (const std::string& part : SplitText(entry.value, '/')) {
    const size_t colon = part.find(':');
    Pair pair{out->size(), 0};
    const bool good =
        (counted || (colon != std::string::npos &&
                     ParseNumber(std::string_view(part).substr(0, colon), high_first, &pair.first))) &&
        pair.first <= high_first &&
        ParseNumber(counted ? std::string_view(part) : std::string_view(part).substr(colon + 1), high_second,
                    &pair.second);
    if (!good) return BadValue(entry, allowed);
    out->push_back(pair);
  }
  return {};
}

Status ReadVlTable(const TextEntry& entry, std::vector<VlWeight>* out) {
  const std::string allowed =
      "VL 0 to 7 and weight 0 to 255 (64 bytes), such as [[0, 64], [1, 128]] (in one line 0:64/1:128), or "
      "none";
  std::vector<Pair> pairs;
  if (entry.value != "none") SLUICE_RETURN_IF_ERROR(ReadPairs(entry, 15, 255, allowed, &pairs));
  if (pairs.size() > 64) return BadValue(entry, "at most 64 entries");
  out->clear();
  for (const Pair& pair : pairs) {
    if (pair.first == 15) {
      return BadValue(entry, "VL 0 to 7; VL15 is for management and takes no part in arbitration");
    }
    if (pair.first >= kLanes) return BadValue(entry, allowed);
    out->push_back({static_cast<uint8_t>(pair.first), static_cast<uint8_t>(pair.second)});
  }
  return {};
}

// "1/8", "2": in eighths.
Status ReadAlpha(const TextEntry& entry, uint32_t* eighths) {
  const std::vector<std::string> parts = SplitText(entry.value, '/');
  uint64_t above = 0, below = 1;
  const bool good = !parts.empty() && parts.size() <= 2 && ParseNumber(parts[0], 64, &above) &&
                    (parts.size() == 1 || ParseNumber(parts[1], 8, &below)) && below != 0 &&
                    8 * above % below == 0 && above > 0 && 8 * above / below <= 64;
  if (!good) return BadValue(entry, "1/8 to 8 in steps of 1/8, such as \"1/8\" or 2");
  *eighths = static_cast<uint32_t>(8 * above / below);
  return {};
}

// A rate, or "unlimited".
Status ReadLimitRate(const TextEntry& entry, uint64_t* out) {
  if (entry.value != "unlimited") return ReadRate(entry, out);
  *out = 0;
  return {};
}

template <typename Enum>
Status ReadEnum(const TextEntry& entry, const std::vector<std::string_view>& names, Enum* out) {
  size_t index = 0;
  SLUICE_RETURN_IF_ERROR(ReadChoice(entry, names, &index));
  *out = static_cast<Enum>(index);
  return {};
}

Status ReadSmall(const TextEntry& entry, uint64_t low, uint64_t high, uint8_t* out) {
  uint32_t number = 0;
  SLUICE_RETURN_IF_ERROR(ReadCount(entry, low, high, &number));
  *out = static_cast<uint8_t>(number);
  return {};
}

using S = SwitchSettings;
constexpr Key<S> kSwitchKeys[] = {
    {"queue",
     [](S* s, const TextEntry& e) {
       return ReadEnum(e, {"unbounded", "lossless", "drop-tail", "trim"}, &s->queue);
     }},
    {"forwarding",
     [](S* s, const TextEntry& e) {
       return ReadEnum(e, {"store-and-forward", "cut-through"}, &s->forwarding);
     }},
    {"buffer",
     [](S* s, const TextEntry& e) {
       return ReadEnum(e, {"static", "dynamic"}, &s->buffer);
     }},
    {"lossless_priorities",
     [](S* s, const TextEntry& e) { return ReadPriorities(e, &s->lossless_priorities); }},
    {"pool", [](S* s, const TextEntry& e) { return ReadBytes(e, 1 << 16, kMaxBufferBytes, &s->pool_bytes); }},
    {"ports_per_chip", [](S* s, const TextEntry& e) { return ReadCount(e, 1, 1024, &s->ports_per_chip); }},
    {"alpha", [](S* s, const TextEntry& e) { return ReadAlpha(e, &s->alpha_eighths); }},
    {"xoff", [](S* s, const TextEntry& e) { return ReadBytes(e, 0, kMaxBufferBytes, &s->xoff_bytes); }},
    {"xon", [](S* s, const TextEntry& e) { return ReadBytes(e, 0, kMaxBufferBytes, &s->xon_bytes); }},
    {"xon_offset",
     [](S* s, const TextEntry& e) { return ReadBytes(e, 0, kMaxBufferBytes, &s->xon_offset_bytes); }},
    {"pause_response",
     [](S* s, const TextEntry& e) { return ReadTime(e, 100 * kPicosPerUs, &s->pause_response); }},
    {"pause_quanta",
     [](S* s, const TextEntry& e) {
       uint32_t quanta = 0;
       SLUICE_RETURN_IF_ERROR(ReadCount(e, 2, 65535, &quanta));
       s->pause_quanta = static_cast<uint16_t>(quanta);
       return Status();
     }},
    {"staged_events", [](S* s, const TextEntry& e) { return ReadBool(e, &s->staged_events); }},
    {"pause_on_wire", [](S* s, const TextEntry& e) { return ReadBool(e, &s->pause_on_wire); }},
    {"queue_limit",
     [](S* s, const TextEntry& e) { return ReadBytes(e, 0, kMaxBufferBytes, &s->queue_bytes); }},
    {"trim_bytes", [](S* s, const TextEntry& e) { return ReadBytes(e, 64, 512, &s->trim_bytes); }},
    {"trim_priority",
     [](S* s, const TextEntry& e) { return ReadSmall(e, 0, kLanes - 1, &s->trim_priority); }},
    {"ets",
     [](S* s, const TextEntry& e) {
       std::vector<Pair> pairs;
       SLUICE_RETURN_IF_ERROR(ReadPairs(
           e, kLanes - 1, 255,
           "weights 0 to 255 of priorities 0 to 7, such as [1, 1, 1, 4, 1, 1, 1, 1] or { 3 = 4 }", &pairs));
       for (const Pair& pair : pairs) s->ets_weight[pair.first] = static_cast<uint8_t>(pair.second);
       return Status();
     }},
    {"strict_priorities", [](S* s, const TextEntry& e) { return ReadPriorities(e, &s->strict_priorities); }},
    {"dscp",
     [](S* s, const TextEntry& e) {
       std::vector<Pair> pairs;
       SLUICE_RETURN_IF_ERROR(ReadPairs(
           e, 63, kLanes - 1,
           "DSCP 0 to 63 and priority 0 to 7, such as { 26 = 3, 48 = 6 } (in one line 26:3/48:6)", &pairs));
       for (const Pair& pair : pairs) s->dscp_to_priority[pair.first] = static_cast<uint8_t>(pair.second);
       return Status();
     }},
    {"ecn", [](S* s, const TextEntry& e) { return ReadBool(e, &s->ecn.enabled); }},
    {"ecn_min",
     [](S* s, const TextEntry& e) { return ReadBytes(e, 0, kMaxBufferBytes, &s->ecn.k_min_bytes); }},
    {"ecn_max",
     [](S* s, const TextEntry& e) { return ReadBytes(e, 0, kMaxBufferBytes, &s->ecn.k_max_bytes); }},
    {"ecn_probability", [](S* s, const TextEntry& e) { return ReadFraction(e, 0, 1, &s->ecn.p_max); }},
    {"ecn_per_25g", [](S* s, const TextEntry& e) { return ReadBool(e, &s->ecn.per_25g); }},
    {"ecn_at_dequeue", [](S* s, const TextEntry& e) { return ReadBool(e, &s->ecn.at_dequeue); }},
    {"sl2vl",
     [](S* s, const TextEntry& e) {
       const std::string allowed =
           "service level 0 to 15 and VL 0 to 7, such as [0, 1, 0, 1] for SL 0 to 3 or { 5 = 1 }";
       std::vector<Pair> pairs;
       SLUICE_RETURN_IF_ERROR(ReadPairs(e, 15, 15, allowed, &pairs));
       for (const Pair& pair : pairs) {
         if (pair.second == 15) {
           return BadValue(e, "VL 0 to 7; SL " + std::to_string(pair.first) +
                                  " would put data on VL15, which carries management only");
         }
         if (pair.second >= kLanes) return BadValue(e, allowed);
         s->sl_to_vl[pair.first] = static_cast<uint8_t>(pair.second);
       }
       return Status();
     }},
    {"vl_high", [](S* s, const TextEntry& e) { return ReadVlTable(e, &s->vl_high); }},
    {"vl_low", [](S* s, const TextEntry& e) { return ReadVlTable(e, &s->vl_low); }},
    {"vl_high_limit", [](S* s, const TextEntry& e) { return ReadSmall(e, 0, 255, &s->vl_high_limit); }},
    {"vl_buffer",
     [](S* s, const TextEntry& e) { return ReadBytes(e, 0, kMaxBufferBytes, &s->vl_buffer_bytes); }},
    {"credit_processing",
     [](S* s, const TextEntry& e) { return ReadTime(e, 100 * kPicosPerUs, &s->credit_processing); }},
};

using N = NicSettings;
constexpr Key<N> kNicKeys[] = {
    {"doorbell", [](N* n, const TextEntry& e) { return ReadTime(e, kPicosPerMs, &n->doorbell); }},
    {"pcie_read", [](N* n, const TextEntry& e) { return ReadTime(e, kPicosPerMs, &n->pcie_read); }},
    {"pcie_read_rate", [](N* n, const TextEntry& e) { return ReadLimitRate(e, &n->pcie_read_bps); }},
    {"pcie_write_rate", [](N* n, const TextEntry& e) { return ReadLimitRate(e, &n->pcie_write_bps); }},
    {"receive_buffer",
     [](N* n, const TextEntry& e) { return ReadBytes(e, 1 << 14, 1 << 30, &n->receive_buffer_bytes); }},
    {"work_requests_per_second_qp",
     [](N* n, const TextEntry& e) {
       return ReadCount(e, 0, 1'000'000'000, &n->work_requests_per_second_qp);
     }},
    {"work_requests_per_second",
     [](N* n, const TextEntry& e) { return ReadCount(e, 0, 1'000'000'000, &n->work_requests_per_second); }},
    {"burst_packets", [](N* n, const TextEntry& e) { return ReadCount(e, 1, 1024, &n->burst_packets); }},
    {"timer_factor", [](N* n, const TextEntry& e) { return ReadFraction(e, 1, 4, &n->timer_factor); }},
    {"reorder_packets", [](N* n, const TextEntry& e) { return ReadCount(e, 0, 512, &n->reorder_packets); }},
    {"acks_first", [](N* n, const TextEntry& e) { return ReadBool(e, &n->acks_first); }},
    {"rate_control",
     [](N* n, const TextEntry& e) {
       return ReadEnum(e, {"none", "dcqcn"}, &n->rate_control);
     }},
    {"cnp_priority", [](N* n, const TextEntry& e) { return ReadSmall(e, 0, kLanes - 1, &n->cnp_priority); }},
    {"dcqcn_alpha_timer",
     [](N* n, const TextEntry& e) { return ReadTime(e, kPicosPerSecond, &n->dcqcn.alpha_timer); }},
    {"dcqcn_rate_timer",
     [](N* n, const TextEntry& e) { return ReadTime(e, kPicosPerSecond, &n->dcqcn.rate_timer); }},
    {"dcqcn_byte_counter",
     [](N* n, const TextEntry& e) { return ReadBytes(e, 1, 1 << 30, &n->dcqcn.byte_counter_bytes); }},
    {"dcqcn_g", [](N* n, const TextEntry& e) { return ReadFraction(e, 1e-6, 1, &n->dcqcn.g); }},
    {"dcqcn_rate_ai", [](N* n, const TextEntry& e) { return ReadRate(e, &n->dcqcn.rate_ai_bps); }},
    {"dcqcn_rate_hai", [](N* n, const TextEntry& e) { return ReadRate(e, &n->dcqcn.rate_hai_bps); }},
    {"dcqcn_fast_recovery",
     [](N* n, const TextEntry& e) { return ReadCount(e, 1, 100, &n->dcqcn.fast_recovery_rounds); }},
    {"dcqcn_cnp_interval",
     [](N* n, const TextEntry& e) { return ReadTime(e, kPicosPerSecond, &n->dcqcn.cnp_interval); }},
    {"dcqcn_reduce_period",
     [](N* n, const TextEntry& e) { return ReadTime(e, kPicosPerSecond, &n->dcqcn.reduce_period); }},
    {"dcqcn_min_rate", [](N* n, const TextEntry& e) { return ReadRate(e, &n->dcqcn.min_rate_bps); }},
};

using R = RoutingSettings;
constexpr Key<R> kRoutingKeys[] = {
    {"mode",
     [](R* r, const TextEntry& e) {
       return ReadEnum(e, {"ecmp", "adaptive"}, &r->mode);
     }},
    {"hash",
     [](R* r, const TextEntry& e) {
       return ReadEnum(e, {"crc32", "toeplitz"}, &r->hash);
     }},
    {"seed", [](R* r, const TextEntry& e) { return ReadCount(e, 0, INT64_MAX, &r->seed); }},
    {"equal_seeds", [](R* r, const TextEntry& e) { return ReadBool(e, &r->equal_seeds); }},
    {"reroute_delay",
     [](R* r, const TextEntry& e) { return ReadTime(e, 100 * kPicosPerSecond, &r->reroute_delay); }},
};

template <typename T, size_t Count>
std::string Names(const Key<T> (&keys)[Count], std::string_view prefix) {
  std::string names;
  for (const Key<T>& key : keys) {
    names += (names.empty() ? "" : ", ") + std::string(prefix) + std::string(key.name);
  }
  return names;
}

template <typename T, size_t Count>
Status Apply(const Key<T> (&keys)[Count], const std::string& section, const std::vector<TextEntry>& entries,
             T* settings) {
  for (const TextEntry& entry : entries) {
    if (entry.key == "preset") continue;
    const auto* key =
        std::find_if(std::begin(keys), std::end(keys), [&](const auto& k) { return k.name == entry.key; });
    if (key == std::end(keys)) return UnknownKey(entry, section, Names(keys, ""));
    SLUICE_RETURN_IF_ERROR(key->set(settings, entry));
  }
  return {};
}

template <typename T>
Status ApplyPreset(const std::vector<TextEntry>& entries, T* settings) {
  for (const TextEntry& entry : entries) {
    if (entry.key != "preset") continue;
    Result<T> preset = T::Preset(entry.value);
    if (!preset.ok()) return InvalidArgument(entry.where + ": " + preset.status().message());
    *settings = std::move(*preset);
  }
  return {};
}

}  // namespace

bool IsNetworkSection(std::string_view name) {
  return name == "switches" || name == "nics" || name == "routing";
}

Status ApplyNetworkSection(const std::string& name, const std::vector<TextEntry>& entries,
                           Topology* topology) {
  if (name == "routing") return Apply(kRoutingKeys, name, entries, &topology->routing);
  if (name == "nics") {
    SLUICE_RETURN_IF_ERROR(ApplyPreset(entries, &topology->nic_settings));
    return Apply(kNicKeys, name, entries, &topology->nic_settings);
  }
  SLUICE_RETURN_IF_ERROR(ApplyPreset(entries, &topology->switch_settings));
  return Apply(kSwitchKeys, name, entries, &topology->switch_settings);
}

Status ApplyOverrides(std::string_view text, Topology* topology) {
  if (text.empty()) return {};
  const std::string where = "overrides \"" + std::string(text) + "\"";
  const Result<std::vector<TextEntry>> entries = EntriesOfLine(text, where, NetworkKeys());
  if (!entries.ok()) return entries.status();
  for (const TextEntry& entry : *entries) {
    const size_t dot = entry.key.find('.');
    const std::string section = entry.key.substr(0, dot);
    if (dot == std::string::npos || !IsNetworkSection(section)) {
      return InvalidArgument(where + ": no key " + entry.key + "; there are: " + NetworkKeys());
    }
    SLUICE_RETURN_IF_ERROR(
        ApplyNetworkSection(section, {{entry.key.substr(dot + 1), entry.value, entry.where}}, topology));
  }
  return {};
}

Status ApplyRoute(const TextSection& section, Topology* topology) {
  StaticRoute route;
  const TextEntry* flow = section.Find("flow");
  const TextEntry* links = section.Find("links");
  if (flow == nullptr || links == nullptr) {
    return InvalidArgument(section.where +
                           ": [[route]] needs flow and links, such as flow = 1, links = [\"leaf0-spine1\"]");
  }
  SLUICE_RETURN_IF_ERROR(ReadCount(*flow, 0, UINT32_MAX, &route.flow));
  const TopologyNames names(*topology);
  for (const std::string& name : SplitText(links->value, '+')) {
    const Result<std::vector<uint32_t>> found = names.Links(name);
    if (!found.ok()) return InvalidArgument(links->where + ": links: " + found.status().message());
    if (found->size() != 1) {
      return InvalidArgument(links->where + ": links: \"" + name + "\" names " +
                             std::to_string(found->size()) + " links; name one by its index, such as #" +
                             std::to_string((*found)[0]));
    }
    route.links.push_back((*found)[0]);
  }
  for (const TextEntry& entry : section.entries) {
    if (entry.key != "flow" && entry.key != "links") return UnknownKey(entry, section.name, "flow, links");
  }
  topology->routing.static_routes.push_back(std::move(route));
  return {};
}

std::string NetworkKeys() {
  return "switches.preset, " + Names(kSwitchKeys, "switches.") + ", nics.preset, " +
         Names(kNicKeys, "nics.") + ", " + Names(kRoutingKeys, "routing.");
}

}  // namespace sluice::soft
