#include "verbs/soft/model/topology_network_check.h"

#include <algorithm>
#include <vector>

#include "verbs/soft/model/topology_names.h"
#include "verbs/soft/model/topology_text.h"

namespace sluice::soft {
namespace {

constexpr uint32_t kRoceHeaderBytes = 82;  // of a data packet on the wire
constexpr uint32_t kInfiniBandHeaderBytes = 26;
constexpr uint32_t kInfiniBandGrhBytes = 40;  // more with an address of another subnet
constexpr uint32_t kFirstAndLastBytes = 20;   // RETH and immediate data

struct LinkLayers {
  bool ethernet = false;
  bool infiniband = false;
  uint32_t mtu_bytes = 0;  // the greatest
};

LinkLayers LayersOf(const Topology& topology) {
  LinkLayers layers;
  for (const HostSpec& host : topology.hosts) {
    for (const NicSpec& nic : host.nics) {
      for (const PortSpec& port : nic.ports) {
        (port.link_layer == LinkLayer::kEthernet ? layers.ethernet : layers.infiniband) = true;
        layers.mtu_bytes = std::max(layers.mtu_bytes, port.mtu_bytes);
      }
    }
  }
  return layers;
}

class Checker {
 public:
  Checker(const Topology& topology, const WhereOf& where)
      : topology_(topology),
        switches_(topology.switch_settings),
        where_(where),
        layers_(LayersOf(topology)) {}

  Status Run() const {
    if (topology_.switches.empty()) return CheckRouting();
    SLUICE_RETURN_IF_ERROR(CheckQueues());
    if (layers_.ethernet) SLUICE_RETURN_IF_ERROR(CheckEthernet());
    if (layers_.infiniband) SLUICE_RETURN_IF_ERROR(CheckInfiniBand());
    SLUICE_RETURN_IF_ERROR(CheckNics());
    return CheckRouting();
  }

 private:
  Status Bad(std::string_view section, std::string_view key, const std::string& value,
             const std::string& why) const {
    return InvalidArgument(where_(section, key) + ": " + std::string(section) + "." + std::string(key) +
                           " = " + value + ": " + why);
  }
  Status BadSwitch(std::string_view key, uint64_t value, const std::string& why) const {
    return Bad("switches", key, std::to_string(value), why);
  }

  Status BadRoute(const StaticRoute& route, const std::string& why) const {
    const std::string flow = std::to_string(route.flow);
    return InvalidArgument(where_("route", flow) + ": the route of flow " + flow + ": " + why);
  }

  Status CheckQueues() const {
    const uint64_t packet_bytes = layers_.mtu_bytes + kFirstAndLastBytes +
                                  (layers_.ethernet ? kRoceHeaderBytes : kInfiniBandHeaderBytes);
    const bool drops = switches_.queue == QueueMode::kDropTail || switches_.queue == QueueMode::kTrim;
    if (drops && switches_.queue_bytes < packet_bytes) {
      return BadSwitch("queue_limit", switches_.queue_bytes,
                       "queues that drop or trim need a limit of at least one packet, " +
                           std::to_string(packet_bytes) + " bytes; set it, such as queue_limit = \"400K\"");
    }
    if (drops && layers_.infiniband) {
      return Bad("switches", "queue", switches_.queue == QueueMode::kTrim ? "trim" : "drop-tail",
                 "InfiniBand switches neither drop nor trim; use lossless, or link = \"roce\"");
    }
    if (switches_.queue == QueueMode::kLossless && switches_.queue_bytes != 0 &&
        switches_.queue_bytes < packet_bytes) {
      return BadSwitch("queue_limit", switches_.queue_bytes,
                       "a packet of " + std::to_string(packet_bytes) + " bytes never fits; raise it");
    }
    const EcnSettings& ecn = switches_.ecn;
    if (ecn.k_min_bytes > ecn.k_max_bytes) {
      return BadSwitch(
          "ecn_min", ecn.k_min_bytes,
          "marking starts above where it ends, ecn_max = " + std::to_string(ecn.k_max_bytes) + "; lower it");
    }
    return {};
  }

  Status CheckEthernet() const {
    for (uint32_t priority = 0; priority < kLanes; ++priority) {
      if ((switches_.strict_priorities >> priority & 1) != 0 || switches_.ets_weight[priority] != 0) continue;
      return Bad("switches", "ets", "0 for priority " + std::to_string(priority),
                 "a priority that is not strict needs a weight of at least 1, or it never sends");
    }
    if (switches_.queue != QueueMode::kLossless || switches_.lossless_priorities == 0) return {};
    if (switches_.buffer == BufferMode::kStatic) {
      if (switches_.xoff_bytes == 0) {
        return BadSwitch("xoff", 0,
                         "a static buffer needs a pause threshold; set xoff and xon, or buffer = "
                         "\"dynamic\"");
      }
      if (switches_.xon_bytes > switches_.xoff_bytes) {
        return BadSwitch("xon", switches_.xon_bytes,
                         "sending would resume above where it pauses, xoff = " +
                             std::to_string(switches_.xoff_bytes) + "; lower it");
      }
      return {};
    }
    return CheckHeadroom();
  }

  // Headroom of every chip of every switch against its pool.
  Status CheckHeadroom() const {
    const auto priorities = static_cast<uint64_t>(__builtin_popcount(switches_.lossless_priorities));
    struct ChipLoad {
      uint64_t headroom_bytes = 0;
      uint64_t port_bytes = 0;
      uint32_t ports = 0;
    };
    std::vector<std::vector<ChipLoad>> chips(topology_.switches.size());
    for (const LinkSpec& link : topology_.links) {
      const uint64_t bytes =
          HeadroomBytes(link.rate_bps, link.delay, layers_.mtu_bytes, switches_.pause_response);
      for (const LinkEnd* end : {&link.a, &link.b}) {
        if (!end->is_switch) continue;
        auto& loads = chips[end->node];
        const size_t chip = end->port / switches_.ports_per_chip;
        if (loads.size() <= chip) loads.resize(chip + 1);
        loads[chip].headroom_bytes += priorities * bytes;
        loads[chip].port_bytes = std::max(loads[chip].port_bytes, bytes);
        ++loads[chip].ports;
      }
    }
    for (uint32_t node = 0; node < chips.size(); ++node) {
      for (const ChipLoad& load : chips[node]) {
        if (load.headroom_bytes < switches_.pool_bytes) continue;
        return BadSwitch(
            "pool", switches_.pool_bytes,
            "the headroom does not fit: switch " + topology_.switches[node].name + " needs " +
                std::to_string(load.headroom_bytes) + " bytes for " + std::to_string(load.ports) +
                " ports x " + std::to_string(priorities) + " lossless priorities, up to " +
                std::to_string(load.port_bytes) +
                " each (rate x round trip + packets); use fewer lossless_priorities, fewer ports_per_chip, "
                "shorter links or a larger pool, such as the preset deep");
      }
    }
    return {};
  }

  Status CheckInfiniBand() const {
    unsigned served = 0;
    const std::pair<const char*, const std::vector<VlWeight>*> tables[] = {{"vl_high", &switches_.vl_high},
                                                                           {"vl_low", &switches_.vl_low}};
    for (const auto& [key, table] : tables) {
      for (const VlWeight& entry : *table) {
        if (entry.lane >= kLanes) {
          return Bad("switches", key, "VL " + std::to_string(entry.lane),
                     "data lanes are VL 0 to 7; VL15 carries management only");
        }
        if (entry.weight != 0) served |= 1u << entry.lane;
      }
    }
    for (uint32_t sl = 0; sl < 16; ++sl) {
      const uint32_t lane = switches_.sl_to_vl[sl];
      const std::string pair = "SL " + std::to_string(sl) + " on VL " + std::to_string(lane);
      if (lane >= kLanes) {
        return Bad("switches", "sl2vl", pair, "data lanes are VL 0 to 7; VL15 carries management only");
      }
      if ((served >> lane & 1) == 0) {
        return Bad("switches", "sl2vl", pair,
                   "that VL has no weight in vl_high or vl_low and would never send; add it to a table");
      }
    }
    // Buffers are counted in whole blocks.
    const uint32_t packet_bytes = kCreditBytes * CreditsOf(layers_.mtu_bytes + kInfiniBandHeaderBytes +
                                                           kInfiniBandGrhBytes + kFirstAndLastBytes);
    if (switches_.vl_buffer_bytes != 0 && switches_.vl_buffer_bytes < packet_bytes) {
      return BadSwitch(
          "vl_buffer", switches_.vl_buffer_bytes,
          "a packet of " + std::to_string(packet_bytes) + " bytes never gets credits; raise it or lower mtu");
    }
    return {};
  }

  // A NIC that falls behind pauses its switch above half of its receive buffer: what still comes must fit.
  Status CheckReceiveBuffers() const {
    bool falls_behind = topology_.nic_settings.pcie_write_bps != 0;
    for (const FaultSpec& fault : topology_.faults) falls_behind |= fault.kind == FaultKind::kStalledReceiver;
    if (!falls_behind || !layers_.ethernet || switches_.queue != QueueMode::kLossless) return {};
    const uint64_t buffer_bytes = topology_.nic_settings.receive_buffer_bytes;
    for (const LinkSpec& link : topology_.links) {
      if (link.a.is_switch && link.b.is_switch) continue;
      const uint64_t bytes =
          HeadroomBytes(link.rate_bps, link.delay, layers_.mtu_bytes, switches_.pause_response);
      if (bytes <= buffer_bytes - buffer_bytes / 2) continue;
      return Bad("nics", "receive_buffer", std::to_string(buffer_bytes),
                 EndText(topology_, link.a.is_switch ? link.b : link.a) +
                     " pauses its switch at half of it, but " + std::to_string(bytes) +
                     " bytes may still arrive (rate x round trip + packets); double that is needed");
    }
    return {};
  }

  Status CheckNics() const {
    const NicSettings& nics = topology_.nic_settings;
    SLUICE_RETURN_IF_ERROR(CheckReceiveBuffers());
    if (nics.rate_control == RateControl::kDcqcn) {
      if (!layers_.ethernet) {
        return Bad("nics", "rate_control", "dcqcn", "InfiniBand has no such rate control; use none");
      }
      if (!switches_.ecn.enabled) {
        return Bad("nics", "rate_control", "dcqcn",
                   "it acts on ECN marks, but switches.ecn = false; set ecn = true");
      }
      if (nics.dcqcn.alpha_timer <= 0 || nics.dcqcn.rate_timer <= 0) {
        return Bad("nics", "dcqcn_rate_timer", TimeText(nics.dcqcn.rate_timer),
                   "the timers of DCQCN must be longer than nothing");
      }
    }
    return {};
  }

  Status CheckRouting() const {
    for (const StaticRoute& route : topology_.routing.static_routes) {
      uint32_t node = UINT32_MAX;  // switch that the path has reached
      for (size_t i = 0; i < route.links.size(); ++i) {
        const uint32_t index = route.links[i];
        if (index >= topology_.links.size()) {
          return BadRoute(route, "there is no link #" + std::to_string(index));
        }
        const LinkEnd& a = topology_.links[index].a;
        const LinkEnd& b = topology_.links[index].b;
        const bool forward = a.is_switch && (node == UINT32_MAX ? !b.is_switch || i == 0 : a.node == node);
        const bool backward = b.is_switch && (node == UINT32_MAX || b.node == node);
        if (!forward && !backward) {
          return BadRoute(route, "link #" + std::to_string(index) + " (" + EndText(topology_, a) + " to " +
                                     EndText(topology_, b) + ") does not start where the one before ends");
        }
        // The first link may be meant in either direction: the second one tells.
        const bool use_forward = node == UINT32_MAX ? ChooseFirst(route, forward, backward) : forward;
        const LinkEnd& to = use_forward ? b : a;
        const bool last = i + 1 == route.links.size();
        if (to.is_switch == last) {
          return BadRoute(route, last ? "the last link does not lead to a host"
                                      : "the path reaches a host before its end");
        }
        node = to.node;
      }
    }
    return {};
  }

  bool ChooseFirst(const StaticRoute& route, bool forward, bool backward) const {
    if (!forward || !backward || route.links.size() < 2) return forward;
    const LinkEnd& b = topology_.links[route.links[0]].b;
    if (route.links[1] >= topology_.links.size()) return true;
    const LinkSpec& next = topology_.links[route.links[1]];
    return b.is_switch &&
           ((next.a.is_switch && next.a.node == b.node) || (next.b.is_switch && next.b.node == b.node));
  }

  const Topology& topology_;
  const SwitchSettings& switches_;
  const WhereOf& where_;
  const LinkLayers layers_;
};

}  // namespace

uint64_t HeadroomBytes(uint64_t rate_bps, Picos delay, uint32_t mtu_bytes, Picos pause_response) {
  const auto bytes_in = [&](Picos time) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(rate_bps) * static_cast<uint64_t>(time) /
                                 (8 * static_cast<uint64_t>(kPicosPerSecond)));
  };
  return bytes_in(2 * delay + pause_response) + 2 * (mtu_bytes + kRoceHeaderBytes + kFirstAndLastBytes);
}

Status CheckNetwork(const Topology& topology, const WhereOf& where) {
  return Checker(topology, where).Run();
}

}  // namespace sluice::soft
