#include "verbs/soft/model/network.h"

#include <algorithm>
#include <map>

#include "verbs/soft/model/topology_check.h"

namespace sluice::soft {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Spreads flows over candidates; every switch draws differently, or a second tier would only see one
// candidate used.
uint32_t FlowHash(uint32_t flow, uint32_t node) {
  uint64_t hash = (uint64_t{node} << 32 | flow) * 0x9E3779B97F4A7C15ULL;
  hash ^= hash >> 32;
  hash *= 0xD6E8FEB86659FD93ULL;
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace

Packet* Switch::Port::NextPacket() {
  return queue.empty() ? nullptr : queue.Pop();
}

void Switch::Receive(Packet* packet) {
  const uint32_t out = network_->Route(index_, *packet);
  if (out == kNone) {
    ++network_->context_->statistics.dropped_packets;
    network_->context_->packets.Delete(packet);
    return;
  }
  Port& port = *ports_[out];
  port.queue.Push(packet);
  port.transmitter->Kick();
}

void Network::Build(const Topology& topology, std::vector<Attachment>* attachments) {
  const EndpointIndex endpoints(topology);
  edges_.resize(attachments->size());
  neighbours_.resize(topology.switches.size());
  for (uint32_t i = 0; i < topology.switches.size(); ++i) {
    switches_.push_back(std::make_unique<Switch>());
    switches_.back()->network_ = this;
    switches_.back()->index_ = i;
  }
  const auto source_of = [&](const LinkEnd& end) -> PacketSource* {
    if (!end.is_switch) return (*attachments)[endpoints.Find(end)].source;
    auto& ports = switches_[end.node]->ports_;
    if (ports.size() <= end.port) ports.resize(end.port + 1);
    if (ports[end.port] == nullptr) ports[end.port] = std::make_unique<Switch::Port>();
    return ports[end.port].get();
  };
  const auto sink_of = [&](const LinkEnd& end) -> PacketSink* {
    if (!end.is_switch) return (*attachments)[endpoints.Find(end)].sink;
    return switches_[end.node].get();
  };
  for (uint32_t i = 0; i < topology.links.size(); ++i) {
    const LinkSpec& link = topology.links[i];
    const LinkEnd* ends[2] = {&link.a, &link.b};
    for (int direction = 0; direction < 2; ++direction) {
      const LinkEnd& from = *ends[direction];
      const LinkEnd& to = *ends[1 - direction];
      transmitters_.push_back(std::make_unique<Transmitter>(context_, i * 2 + direction, link.rate_bps,
                                                            link.delay, source_of(from), sink_of(to)));
      Transmitter* transmitter = transmitters_.back().get();
      if (from.is_switch) {
        switches_[from.node]->ports_[from.port]->transmitter = transmitter;
        if (to.is_switch) neighbours_[from.node].push_back({to.node, from.port});
      } else {
        const uint32_t endpoint = endpoints.Find(from);
        (*attachments)[endpoint].uplink = transmitter;
        (*attachments)[endpoint].link = i;
        transmitter->set_from_host(true);
        if (to.is_switch) edges_[endpoint] = {to.node, to.port};
      }
    }
  }
  AddRoutes();
}

void Network::AddRoutes() {
  const uint32_t count = static_cast<uint32_t>(switches_.size());
  routes_.assign(size_t{count} * count, kNone);
  std::vector<bool> is_edge(count);
  for (const Edge& edge : edges_) {
    if (edge.node != kNone) is_edge[edge.node] = true;
  }
  std::map<std::vector<uint32_t>, uint32_t> known;
  std::vector<uint32_t> distance(count);
  std::vector<uint32_t> order;
  for (uint32_t target = 0; target < count; ++target) {
    if (!is_edge[target]) continue;
    std::fill(distance.begin(), distance.end(), kNone);
    distance[target] = 0;
    order.assign(1, target);
    for (size_t i = 0; i < order.size(); ++i) {
      for (const Neighbour& next : neighbours_[order[i]]) {
        if (distance[next.node] != kNone) continue;
        distance[next.node] = distance[order[i]] + 1;
        order.push_back(next.node);
      }
    }
    for (const uint32_t node : order) {
      if (node == target) continue;
      std::vector<uint32_t> ports;
      for (const Neighbour& next : neighbours_[node]) {
        if (distance[next.node] + 1 == distance[node]) ports.push_back(next.port);
      }
      const auto [entry, added] = known.emplace(ports, static_cast<uint32_t>(candidates_.size()));
      if (added) candidates_.push_back(ports);
      routes_[size_t{node} * count + target] = entry->second;
    }
  }
}

uint32_t Network::Route(uint32_t node, const Packet& packet) const {
  if (packet.destination >= edges_.size()) return kNone;
  const Edge& edge = edges_[packet.destination];
  if (edge.node == node) return edge.port;
  if (edge.node == kNone) return kNone;
  const uint32_t list = routes_[size_t{node} * switches_.size() + edge.node];
  if (list == kNone) return kNone;
  const std::vector<uint32_t>& ports = candidates_[list];
  if (ports.size() == 1) return ports[0];
  return ports[FlowHash(packet.flow, node) % ports.size()];
}

void Network::SetLinkRate(uint32_t link, uint64_t rate_bps) {
  transmitters_[size_t{link} * 2]->set_rate_bps(rate_bps);
  transmitters_[size_t{link} * 2 + 1]->set_rate_bps(rate_bps);
}

void Network::ResetSwitch(uint32_t switch_index) {
  for (const auto& port : switches_[switch_index]->ports_) {
    while (port != nullptr && !port->queue.empty()) {
      ++context_->statistics.dropped_packets;
      context_->packets.Delete(port->queue.Pop());
    }
  }
}

void Network::SetLinkUp(uint32_t link, bool up) {
  transmitters_[size_t{link} * 2]->SetUp(up);
  transmitters_[size_t{link} * 2 + 1]->SetUp(up);
}

}  // namespace sluice::soft
