// What must hold of the settings of switches, NICs and routes, alone and together with the topology, before a
// fabric is made: what a switch would refuse or what could never carry a packet.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "verbs/soft/model/topology.h"

namespace sluice::soft {

// Bytes that still arrive at a switch port after it has sent a pause: the round trip of the link, a packet
// that is being sent at either end, and the sender's time to react.
uint64_t HeadroomBytes(uint64_t rate_bps, Picos delay, uint32_t mtu_bytes, Picos pause_response);

// Where a setting was written, to start the error message: ("switches", "xon") gives "cluster.toml:7". The
// key of a "route" is its flow.
using WhereOf = std::function<std::string(std::string_view section, std::string_view key)>;

Status CheckNetwork(const Topology& topology, const WhereOf& where);

}  // namespace sluice::soft
