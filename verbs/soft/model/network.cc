#include "verbs/soft/model/network.h"

#include <algorithm>
#include <utility>

#include "verbs/soft/model/topology_check.h"

namespace sluice::soft {
namespace {

constexpr uint64_t kMaxPacketBytes = 4096 + 66 + 20;

LinkLayer LayerOf(const Topology& topology, const LinkSpec& link) {
  for (const LinkEnd* end : {&link.a, &link.b}) {
    if (!end->is_switch) return topology.hosts[end->node].nics[end->nic].ports[end->port].link_layer;
  }
  return topology.hosts[0].nics[0].ports[0].link_layer;
}

uint32_t CreditBlocks(const SwitchSettings& settings, const LinkSpec& link) {
  if (settings.vl_buffer_bytes != 0) return static_cast<uint32_t>(settings.vl_buffer_bytes / kCreditBytes);
  const auto loop = static_cast<uint64_t>(2 * link.delay + settings.credit_processing);
  const auto in_flight =
      static_cast<unsigned __int128>(loop) * link.rate_bps / 8 / static_cast<uint64_t>(kPicosPerSecond);
  // A packet holds its place while it comes in and while it goes out; a third, because only whole packets fit.
  return CreditsOf(static_cast<uint32_t>(static_cast<uint64_t>(in_flight) + 3 * kMaxPacketBytes));
}

}  // namespace

void Network::Build(const Topology& topology, std::vector<Attachment>* attachments) {
  topology_ = &topology;
  context_->staged_events = topology.switch_settings.staged_events;
  adaptive_ = topology.routing.mode == RoutingMode::kAdaptive;
  const bool lossless = topology.switch_settings.queue == QueueMode::kLossless;
  for (uint32_t i = 0; i < topology.switches.size(); ++i) {
    switches_.push_back(
        std::make_unique<Switch>(context_, this, i, &topology.switch_settings, topology.routing.seed));
  }
  const EndpointIndex endpoints(topology);
  for (const LinkSpec& link : topology.links) {
    const bool infiniband = LayerOf(topology, link) == LinkLayer::kInfiniBand;
    for (const LinkEnd* end : {&link.a, &link.b}) {
      if (end->is_switch) switches_[end->node]->AddPort(end->port, infiniband, infiniband && lossless);
    }
  }
  const auto port_at = [&](const LinkEnd& end) {
    return end.is_switch ? switches_[end.node]->port(end.port) : nullptr;
  };
  for (uint32_t i = 0; i < topology.links.size(); ++i) {
    const LinkSpec& link = topology.links[i];
    const LinkEnd* ends[2] = {&link.a, &link.b};
    for (uint32_t direction = 0; direction < 2; ++direction) {
      const LinkEnd& from = *ends[direction];
      const LinkEnd& to = *ends[1 - direction];
      Wiring wiring;
      wiring.from = port_at(from);
      wiring.to = port_at(to);
      PacketSource* source = wiring.from;
      if (source == nullptr) source = (*attachments)[endpoints.Find(from)].source;
      PacketSink* sink = wiring.to;
      if (sink == nullptr) sink = (*attachments)[endpoints.Find(to)].sink;
      transmitters_.push_back(std::make_unique<Transmitter>(context_, 2 * i + direction, link.rate_bps,
                                                            link.delay, source, sink));
      if (wiring.to != nullptr && topology.switch_settings.forwarding == Forwarding::kCutThrough) {
        transmitters_.back()->set_cut_through_bytes(kCutThroughBytes);
      }
      wiring.gate = source->gate();
      wiring.sink = sink;
      wiring_.push_back(wiring);
    }
    for (uint32_t direction = 0; direction < 2; ++direction) {
      const LinkEnd& end = *ends[direction];
      ConnectEnds(2 * i + direction, link, end.is_switch ? nullptr : &(*attachments)[endpoints.Find(end)]);
    }
  }
  for (const auto& node : switches_) node->Configure();
  link_up_.assign(topology.links.size(), true);
  routes_ = std::make_unique<RouteTable>(&topology, &topology.routing);
  routes_->Update(link_up_);
}

void Network::ConnectEnds(uint32_t directed_link, const LinkSpec& link, Attachment* attachment) {
  const Wiring& wiring = wiring_[directed_link];
  Transmitter* transmitter = transmitters_[directed_link].get();
  SendGate* far_gate = wiring_[directed_link ^ 1].gate;
  const bool infiniband = LayerOf(*topology_, link) == LinkLayer::kInfiniBand;
  const bool credits = infiniband && topology_->switch_settings.queue == QueueMode::kLossless;
  if (wiring.gate != nullptr) {
    wiring.gate->set_transmitter(transmitter);
    if (credits) wiring.gate->UseCredits(CreditBlocks(topology_->switch_settings, link));
  }
  if (wiring.from != nullptr) {
    wiring.from->Connect(transmitter, far_gate);
    wiring.from->set_incoming(transmitters_[directed_link ^ 1].get());
    return;
  }
  attachment->uplink = transmitter;
  attachment->link = directed_link / 2;
  transmitter->set_from_host(true);
  attachment->sink->OnConnected({transmitter, far_gate, &topology_->switch_settings, infiniband, credits});
}

uint32_t Network::ShortestQueue(const Switch& node, std::span<const uint32_t> candidates,
                                uint32_t flow) const {
  // Where to begin is the flow's draw, so that equal queues share.
  size_t best = routes_->Draw(node.index(), flow, candidates.size());
  uint64_t least = UINT64_MAX;
  for (size_t i = 0, at = best; i < candidates.size(); ++i, at = at + 1 < candidates.size() ? at + 1 : 0) {
    const SwitchPort& port = *node.port(candidates[at]);
    uint64_t bytes = port.total_bytes();
    // The packet on the link counts as well, or empty queues would look alike whatever they send.
    if (port.transmitter()->busy_until() > context_->scheduler.Now()) ++bytes;
    if (bytes >= least) continue;
    least = bytes;
    best = at;
  }
  return candidates[best];
}

uint32_t Network::Route(const Switch& node, const Packet& packet) const {
  if (routes_->has_static()) {
    const uint32_t port = routes_->Static(node.index(), packet.flow);
    if (port != RouteTable::kNone) return port;
  }
  const std::span<const uint32_t> candidates = routes_->Candidates(node.index(), packet.destination);
  if (candidates.size() == 1) return candidates[0];
  if (candidates.empty()) return RouteTable::kNone;
  if (adaptive_) return ShortestQueue(node, candidates, packet.flow);
  return candidates[routes_->Draw(node.index(), packet.flow, candidates.size())];
}

void Network::SetLinkUp(uint32_t link, bool up) {
  if (link_up_[link] == up) return;
  link_up_[link] = up;
  for (uint32_t directed = 2 * link; directed < 2 * link + 2; ++directed) {
    transmitters_[directed]->SetUp(up);
    const Wiring& wiring = wiring_[directed];
    if (wiring.gate != nullptr && !up) wiring.gate->ClearPauses();
    if (wiring.from != nullptr && up) wiring.from->pauses().Repeat();
  }
  if (reroute_event_) return;
  reroute_event_ = true;
  context_->scheduler.At(context_->scheduler.Now() + topology_->routing.reroute_delay, this, kReroute);
}

void Network::SetLinkRate(uint32_t link, uint64_t rate_bps) {
  transmitters_[2 * link]->set_rate_bps(rate_bps);
  transmitters_[2 * link + 1]->set_rate_bps(rate_bps);
}

void Network::Sample(Picos interval, std::function<void(Picos)> call) {
  sample_interval_ = interval;
  sample_ = std::move(call);
  context_->scheduler.At(context_->scheduler.Now() + interval, this, kSample);
}

void Network::OnEvent(uint32_t kind, uint64_t) {
  if (kind == kReroute) {
    reroute_event_ = false;
    routes_->Update(link_up_);
    return;
  }
  sample_(context_->scheduler.Now());
  if (context_->scheduler.NextTime() == kNever) return;
  context_->scheduler.At(context_->scheduler.Now() + sample_interval_, this, kSample);
}

LinkTruth Network::link(uint32_t directed_link) const {
  LinkTruth truth = transmitters_[directed_link]->truth();
  if (wiring_[directed_link].gate != nullptr) wiring_[directed_link].gate->AddRunning(&truth);
  return truth;
}

CreditTruth Network::credits(uint32_t directed_link, uint32_t lane) const {
  const Wiring& wiring = wiring_[directed_link];
  CreditTruth truth;
  if (wiring.gate == nullptr || !wiring.gate->has_credits()) return truth;
  wiring.gate->AddCredits(lane, &truth);
  truth.on_wire = transmitters_[directed_link]->BlocksOnWire(lane);
  truth.stored = wiring.sink->StoredBlocks(lane);
  return truth;
}

QueueTruth Network::queue(uint32_t switch_index, uint32_t port, uint32_t lane) const {
  QueueTruth truth;
  truth.switch_index = switch_index;
  truth.port = port;
  truth.lane = lane;
  const SwitchPort* found = switches_[switch_index]->port(port);
  if (found == nullptr) return truth;
  const LaneQueue& queue = found->queue(lane);
  const Picos now = context_->scheduler.Now();
  truth.directed_link = found->transmitter()->id();
  truth.bytes = queue.bytes;
  truth.peak_bytes = queue.peak_bytes;
  const double integral =
      queue.byte_picos + static_cast<double>(queue.bytes) * static_cast<double>(now - queue.changed_at);
  truth.mean_bytes = now == 0 ? 0 : integral / static_cast<double>(now);
  truth.packets = queue.joined;
  truth.drops = queue.drops;
  truth.ecn_marks = queue.ecn_marks;
  truth.trims = queue.trims;
  return truth;
}

IngressTruth Network::ingress(uint32_t switch_index, uint32_t port) const {
  const SwitchPort* found = switches_[switch_index]->port(port);
  if (found == nullptr) return {};
  return {found->pauses().pauses_sent(), found->ingress().peak_bytes};
}

void Network::ForEachQueue(const std::function<void(const QueueTruth&)>& call) const {
  for (uint32_t node = 0; node < switches_.size(); ++node) {
    for (uint32_t port = 0; port < switches_[node]->port_count(); ++port) {
      const SwitchPort* found = switches_[node]->port(port);
      for (uint32_t lane = 0; found != nullptr && lane < kLanes; ++lane) {
        if (found->queue(lane).joined + found->queue(lane).drops != 0) call(queue(node, port, lane));
      }
    }
  }
}

void Network::TrackDestinations() {
  if (!bound_.empty()) return;
  bound_.resize(EndpointIndex(*topology_).count());
  // What is there already is counted too, so that nothing leaves that never came.
  for (const auto& node : switches_) {
    for (uint32_t i = 0; i < node->port_count(); ++i) {
      for (uint32_t lane = 0; node->port(i) != nullptr && lane < kLanes; ++lane) {
        for (const Packet* p = node->port(i)->queue(lane).packets.front(); p != nullptr; p = p->next) {
          JoinedSwitch(*p);
        }
      }
    }
  }
}

}  // namespace sluice::soft
