#include "verbs/soft/model/topology_effect.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace sluice::soft {
namespace {

struct Ground {
  const SwitchSettings& switches;
  const NicSettings& nics;
  bool ethernet = false;
  bool infiniband = false;
};

// What a setting needs to matter: the first that is missing is told.
using Need = const char* (*)(const Ground& ground);

const char* Ethernet(const Ground& g) {
  return g.ethernet ? nullptr : "it is for RoCE, but no port has link = \"roce\"";
}
const char* InfiniBand(const Ground& g) {
  return g.infiniband ? nullptr : "it is for InfiniBand, but no port has link = \"infiniband\"";
}
const char* Lossless(const Ground& g) {
  return g.switches.queue == QueueMode::kLossless ? nullptr : "it is for queue = \"lossless\"";
}
const char* Pauses(const Ground& g) {
  if (const char* why = Ethernet(g)) return why;
  if (const char* why = Lossless(g)) return why;
  return g.switches.lossless_priorities != 0 ? nullptr
                                             : "it is for lossless priorities, of which there are none";
}
const char* LosslessEthernet(const Ground& g) {
  const char* why = Ethernet(g);
  return why != nullptr ? why : Lossless(g);
}
const char* LosslessInfiniBand(const Ground& g) {
  const char* why = InfiniBand(g);
  return why != nullptr ? why : Lossless(g);
}
const char* StaticBuffer(const Ground& g) {
  if (const char* why = Pauses(g)) return why;
  return g.switches.buffer == BufferMode::kStatic ? nullptr : "it is for buffer = \"static\"";
}
const char* DynamicBuffer(const Ground& g) {
  if (const char* why = LosslessEthernet(g)) return why;
  return g.switches.buffer == BufferMode::kDynamic ? nullptr : "it is for buffer = \"dynamic\"";
}
const char* LimitedQueue(const Ground& g) {
  if (const char* why = Ethernet(g)) return why;
  if (g.switches.queue == QueueMode::kUnbounded) return "queue = \"unbounded\" has no limit";
  return g.switches.queue != QueueMode::kLossless || g.switches.lossless_priorities != 0xFF
             ? nullptr
             : "queues of lossless priorities have no limit, and all priorities are lossless";
}
const char* Trims(const Ground& g) {
  return g.switches.queue == QueueMode::kTrim ? nullptr : "it is for queue = \"trim\"";
}
const char* Ecn(const Ground& g) {
  return g.switches.ecn.enabled ? nullptr : "nothing is marked, since ecn = false";
}
const char* HighTable(const Ground& g) {
  if (const char* why = InfiniBand(g)) return why;
  return g.switches.vl_high.empty() ? "the table vl_high is empty" : nullptr;
}
const char* Dcqcn(const Ground& g) {
  return g.nics.rate_control == RateControl::kDcqcn ? nullptr : "it is for rate_control = \"dcqcn\"";
}

struct Rule {
  std::string_view key;
  Need need;
};

constexpr Rule kSwitchRules[] = {
    {"buffer", Pauses},
    {"lossless_priorities", LosslessEthernet},
    {"pool", DynamicBuffer},
    {"ports_per_chip", DynamicBuffer},
    {"alpha", DynamicBuffer},
    {"xoff", StaticBuffer},
    {"xon", StaticBuffer},
    {"xon_offset", DynamicBuffer},
    {"pause_response", Pauses},
    {"pause_quanta", Pauses},
    {"pause_on_wire", Pauses},
    {"queue_limit", LimitedQueue},
    {"trim_bytes", Trims},
    {"trim_priority", Trims},
    {"ets", Ethernet},
    {"strict_priorities", Ethernet},
    {"dscp", Ethernet},
    {"ecn_min", Ecn},
    {"ecn_max", Ecn},
    {"ecn_probability", Ecn},
    {"ecn_per_25g", Ecn},
    {"ecn_at_dequeue", Ecn},
    {"sl2vl", InfiniBand},
    {"vl_high", InfiniBand},
    {"vl_low", InfiniBand},
    {"vl_high_limit", HighTable},
    {"vl_buffer", LosslessInfiniBand},
    {"credit_processing", LosslessInfiniBand},
};

constexpr Rule kNicRules[] = {
    {"cnp_priority", Dcqcn},
    {"dcqcn_alpha_timer", Dcqcn},
    {"dcqcn_rate_timer", Dcqcn},
    {"dcqcn_byte_counter", Dcqcn},
    {"dcqcn_g", Dcqcn},
    {"dcqcn_rate_ai", Dcqcn},
    {"dcqcn_rate_hai", Dcqcn},
    {"dcqcn_fast_recovery", Dcqcn},
    {"dcqcn_cnp_interval", Dcqcn},
    {"dcqcn_min_rate", Dcqcn},
};

template <size_t Count>
Status Check(const Rule (&rules)[Count], const std::vector<TextEntry>& entries, const Ground& ground) {
  for (const TextEntry& entry : entries) {
    const auto* rule =
        std::find_if(std::begin(rules), std::end(rules), [&](const Rule& r) { return r.key == entry.key; });
    const char* why = rule == std::end(rules) ? nullptr : rule->need(ground);
    if (why == nullptr) continue;
    return InvalidArgument(entry.where + ": " + entry.key + " = " + entry.value + " has no effect: " + why +
                           "; leave it out");
  }
  return {};
}

}  // namespace

Status CheckEffect(std::string_view section, const std::vector<TextEntry>& entries,
                   const Topology& topology) {
  Ground ground{topology.switch_settings, topology.nic_settings};
  for (const HostSpec& host : topology.hosts) {
    for (const NicSpec& nic : host.nics) {
      for (const PortSpec& port : nic.ports) {
        (port.link_layer == LinkLayer::kEthernet ? ground.ethernet : ground.infiniband) = true;
      }
    }
  }
  return section == "switches" ? Check(kSwitchRules, entries, ground) : Check(kNicRules, entries, ground);
}

}  // namespace sluice::soft
