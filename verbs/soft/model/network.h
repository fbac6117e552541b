// Links, switches and routes: carries a packet from a NIC port to the one that its destination names.
//
//   Network network(&context);
//   network.Build(topology, &attachments);   // the topology has passed CheckTopology and
//   CheckNetworkSettings
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "verbs/soft/model/network_truth.h"
#include "verbs/soft/model/routing.h"
#include "verbs/soft/model/switch.h"
#include "verbs/soft/model/topology.h"
#include "verbs/soft/model/transmitter.h"

namespace sluice::soft {

// A port of a NIC as the network sees it.
struct Attachment {
  PacketSource* source = nullptr;
  PacketSink* sink = nullptr;
  Transmitter* uplink = nullptr;  // set by Network: the NIC kicks it
  uint32_t link = UINT32_MAX;     // index in Topology::links, set by Network
};

class Network final : public NetworkTruth, public EventTarget {
 public:
  explicit Network(NetworkContext* context) : context_(context) {}

  // `attachments` in endpoint order. Both must outlive this object.
  void Build(const Topology& topology, std::vector<Attachment>* attachments);
  // Both directions. What is on the wire is lost; routes follow after RoutingSettings::reroute_delay.
  void SetLinkUp(uint32_t link, bool up);
  // From now on, both directions.
  void SetLinkRate(uint32_t link, uint64_t rate_bps);
  // What is in the switch is lost, as when it reboots. Its links are the caller's.
  void ResetSwitch(uint32_t switch_index) { switches_[switch_index]->Reset(); }
  // The path of one flow, from now on.
  void AddStaticRoute(const StaticRoute& route) { routes_->AddStatic(route); }
  // Called every `interval` of model time while other events are left, for series of queue lengths.
  void Sample(Picos interval, std::function<void(Picos now)> call);

  // NetworkTruth.
  uint32_t directed_links() const override { return static_cast<uint32_t>(transmitters_.size()); }
  LinkTruth link(uint32_t directed_link) const override;
  CreditTruth credits(uint32_t directed_link, uint32_t lane) const override;
  uint32_t switches() const override { return static_cast<uint32_t>(switches_.size()); }
  uint32_t ports(uint32_t switch_index) const override { return switches_[switch_index]->port_count(); }
  QueueTruth queue(uint32_t switch_index, uint32_t port, uint32_t lane) const override;
  IngressTruth ingress(uint32_t switch_index, uint32_t port) const override;
  void ForEachQueue(const std::function<void(const QueueTruth&)>& call) const override;
  void TrackDestinations() override;
  uint64_t BytesBoundFor(uint32_t endpoint) const override {
    return endpoint < bound_.size() ? bound_[endpoint].bytes : 0;
  }
  uint64_t PeakBytesBoundFor(uint32_t endpoint) const override {
    return endpoint < bound_.size() ? bound_[endpoint].peak_bytes : 0;
  }

  // For switches.
  // Output port of the switch for the packet; RouteTable::kNone: no way.
  uint32_t Route(const Switch& node, const Packet& packet) const;
  void JoinedSwitch(const Packet& packet) {
    if (bound_.empty()) return;
    Bound& bound = bound_[packet.destination];
    bound.bytes += packet.wire_bytes;
    if (bound.bytes > bound.peak_bytes) bound.peak_bytes = bound.bytes;
  }
  void LeftSwitch(const Packet& packet) {
    if (!bound_.empty()) bound_[packet.destination].bytes -= packet.wire_bytes;
  }

  void OnEvent(uint32_t kind, uint64_t argument) override;

 private:
  enum : uint32_t { kReroute, kSample };
  struct Bound {
    uint64_t bytes = 0;
    uint64_t peak_bytes = 0;
  };
  // The two ends of one direction of a link.
  struct Wiring {
    SendGate* gate = nullptr;
    SwitchPort* from = nullptr;  // nullptr: a NIC
    SwitchPort* to = nullptr;
    const PacketSink* sink = nullptr;
  };

  void ConnectEnds(uint32_t directed_link, const LinkSpec& link, Attachment* attachment);
  uint32_t ShortestQueue(const Switch& node, std::span<const uint32_t> candidates, uint32_t flow) const;

  NetworkContext* context_;
  const Topology* topology_ = nullptr;
  std::vector<std::unique_ptr<Switch>> switches_;
  std::vector<std::unique_ptr<Transmitter>> transmitters_;  // two per link: a to b, b to a
  std::vector<Wiring> wiring_;                              // as transmitters_
  std::unique_ptr<RouteTable> routes_;
  std::vector<bool> link_up_;
  std::vector<Bound> bound_;  // by endpoint; empty: not tracked
  bool adaptive_ = false;
  bool reroute_event_ = false;
  Picos sample_interval_ = 0;
  std::function<void(Picos)> sample_;
};

}  // namespace sluice::soft
