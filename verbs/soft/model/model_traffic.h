// Traffic that the model itself sends beside that of processes: it uses the ports of the NICs, and so shares
// links, lanes, switches and counters with theirs.
//
//   Fabric::Create(topology, &pool, MakeBackgroundPlayer);     // flows/background_player.h
//
// Its connections have numbers that no queue pair can have. Thread rule: the thread that drives the fabric.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/packet.h"

namespace sluice::soft {

class Port;
struct NetworkContext;
struct Topology;

// Queue pair numbers have 24 bits; Packet::destination_qp has more.
inline constexpr uint32_t kFirstTrafficNumber = 1 << 24;

class ModelTraffic {
 public:
  virtual ~ModelTraffic() = default;
  // A packet for a connection of the model has arrived.
  virtual void Deliver(const Packet& packet) = 0;
  // The NIC of this port is dead: nothing is sent or received by it any more.
  virtual void EndpointDied(uint32_t endpoint) = 0;
};

// What traffic is made of. Everything outlives it.
struct TrafficGround {
  NetworkContext* network = nullptr;
  const Topology* topology = nullptr;
  std::vector<Port*> ports;  // by endpoint: NIC ports in topology order
};
using TrafficMaker = Result<std::unique_ptr<ModelTraffic>> (*)(const TrafficGround& ground);

}  // namespace sluice::soft
