// What the tests of the network share: hosts without verbs, whose clients send packets of one size as fast as
// they may, in virtual time.
//
//   NetRig rig(NetRig::Make("hosts=2,rate=400G"));
//   Stream& stream = rig.Add({.from = 0, .to = 1, .packets = 1000});
//   rig.Run();
//   rig.host(1).received[stream.number]
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verbs/soft/model/dcqcn.h"
#include "verbs/soft/model/network.h"
#include "verbs/soft/model/port.h"
#include "verbs/soft/model/routing.h"
#include "verbs/soft/model/topology_check.h"

namespace sluice::soft {

struct StreamOptions {
  uint32_t from = 0;
  uint32_t to = 1;
  uint64_t packets = UINT64_MAX;
  uint32_t payload_bytes = 4096;
  uint32_t header_bytes = 82;
  uint8_t lane = 0;
  bool one_packet_messages = false;
  uint32_t flow = 0;  // 0: a hash of the stream's number
};

struct Stream final : public PortClient {
  Packet* NextPacket() override {
    if (left == 0) return nullptr;
    --left;
    Packet* packet = context->packets.New();
    packet->source = options.from;
    packet->destination = options.to;
    packet->destination_qp = number;
    packet->psn = static_cast<uint32_t>(sent++);
    packet->flow = flow;
    packet->lane = options.lane;
    packet->ecn = kEcnCapable;
    packet->payload_bytes = options.payload_bytes;
    packet->wire_bytes = options.payload_bytes + options.header_bytes;
    if (options.one_packet_messages) packet->flags = kFirstPacket | kLastPacket;
    return packet;
  }
  Packet* TakeAck() override { return nullptr; }

  NetworkContext* context = nullptr;
  StreamOptions options;
  uint32_t number = 0;
  uint32_t flow = 0;
  uint64_t left = 0;
  uint64_t sent = 0;
  RingHook hook;
  std::unique_ptr<DcqcnRate> rate;
  CnpNotifier notifier;
};

struct Arrivals {
  uint64_t packets = 0;
  uint64_t bytes = 0;  // on the wire
  uint64_t payload_bytes = 0;
  uint64_t trimmed = 0;
  uint64_t marked = 0;
  Picos first = 0;
  Picos last = 0;
};

class NetRig;

struct NetHost final : public PortOwner {
  NetHost(NetRig* owner, NetworkContext* network, uint32_t endpoint, const PortSpec& spec,
          const NicSettings& settings)
      : rig(owner),
        context(network),
        interface(settings),
        port(network, this, 1, endpoint, spec, &interface) {}
  void Deliver(Port*, const Packet& packet) override;

  NetRig* rig;
  NetworkContext* context;
  HostInterface interface;
  Port port;
  std::vector<Arrivals> received;  // by stream
};

class NetRig {
 public:
  static Topology Make(const std::string& text) {
    Result<Topology> topology = Topology::FromText(text);
    EXPECT_TRUE(topology.ok()) << topology.status().message();
    return *topology;
  }
  static Topology Make(const std::string& text, const SwitchSettings& settings) {
    Topology topology = Make(text);
    topology.switch_settings = settings;
    return topology;
  }

  explicit NetRig(Topology topology) : topology_(std::move(topology)), network_(&context_) {
    const Status status = CheckTopology(topology_);
    EXPECT_TRUE(status.ok()) << status.message();
    for (uint32_t i = 0; i < topology_.hosts.size(); ++i) {
      hosts_.push_back(std::make_unique<NetHost>(this, &context_, i, topology_.hosts[i].nics[0].ports[0],
                                                 topology_.nic_settings));
      attachments_.push_back({hosts_[i]->port.wire(), &hosts_[i]->port});
    }
    network_.Build(topology_, &attachments_);
    for (uint32_t i = 0; i < hosts_.size(); ++i) {
      hosts_[i]->port.Connect(attachments_[i].uplink, attachments_[i].link);
    }
  }

  Stream& Add(const StreamOptions& options) {
    streams_.push_back(std::make_unique<Stream>());
    Stream& stream = *streams_.back();
    stream.context = &context_;
    stream.options = options;
    stream.number = static_cast<uint32_t>(streams_.size() - 1);
    stream.flow =
        options.flow != 0 ? options.flow : HashOf({options.from, options.to, 1000}, FlowHashKind::kCrc32);
    stream.left = options.packets;
    stream.hook.client = &stream;
    stream.hook.lane = options.lane;
    if (topology_.nic_settings.rate_control == RateControl::kDcqcn) {
      stream.rate = std::make_unique<DcqcnRate>(&topology_.nic_settings.dcqcn,
                                                topology_.hosts[0].nics[0].ports[0].rate_bps);
      stream.hook.rate = stream.rate.get();
    }
    for (auto& host : hosts_) host->received.resize(streams_.size());
    Egress* egress = hosts_[options.from]->port.wire();
    egress->AddData(&stream.hook);
    egress->Kick();
    return stream;
  }

  // Until nothing happens any more, or `until`.
  void Run(Picos until = kNever) {
    while (context_.scheduler.NextTime() <= until && context_.scheduler.NextTime() != kNever) {
      context_.scheduler.Run(context_.scheduler.NextTime(), UINT64_MAX);
    }
    if (until != kNever) context_.scheduler.Run(until, UINT64_MAX);
  }

  Picos Now() const { return context_.scheduler.Now(); }
  NetworkContext& context() { return context_; }
  Network& network() { return network_; }
  size_t hosts() const { return hosts_.size(); }
  NetHost& host(uint32_t index) { return *hosts_[index]; }
  Stream& stream(uint32_t number) { return *streams_[number]; }
  const Arrivals& Received(const Stream& stream) {
    return hosts_[stream.options.to]->received[stream.number];
  }
  const FabricStatistics& statistics() const { return context_.statistics; }
  uint64_t PausesSent() const {
    uint64_t pauses = 0;
    for (uint32_t node = 0; node < network_.switches(); ++node) {
      for (uint32_t port = 0; port < network_.ports(node); ++port) {
        pauses += network_.ingress(node, port).pauses_sent;
      }
    }
    return pauses;
  }

 private:
  Topology topology_;
  NetworkContext context_;
  std::vector<std::unique_ptr<NetHost>> hosts_;
  std::vector<Attachment> attachments_;
  Network network_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

inline void NetHost::Deliver(Port*, const Packet& packet) {
  const Picos now = context->scheduler.Now();
  Stream& stream = rig->stream(packet.destination_qp);
  if (packet.kind == PacketKind::kCnp) {
    stream.rate->OnCnp(now);
    return;
  }
  Arrivals& arrivals = received[packet.destination_qp];
  if (arrivals.packets++ == 0) arrivals.first = now;
  arrivals.last = now;
  arrivals.bytes += packet.wire_bytes;
  arrivals.payload_bytes += packet.payload_bytes;
  if (packet.trimmed) ++arrivals.trimmed;
  if (packet.ecn != kEcnCongestion) return;
  ++arrivals.marked;
  if (stream.rate == nullptr || !stream.notifier.Due(now, interface.settings().dcqcn.cnp_interval)) return;
  Packet* cnp = context->packets.New();
  cnp->kind = PacketKind::kCnp;
  cnp->source = packet.destination;
  cnp->destination = packet.source;
  cnp->destination_qp = packet.destination_qp;
  cnp->lane = interface.settings().cnp_priority;
  cnp->wire_bytes = 82 + kCnpExtensionBytes;
  port.wire()->SendNow(cnp);
}

inline double Seconds(Picos time) {
  return static_cast<double>(time) / kPicosPerSecond;
}
inline double Ratio(uint64_t a, uint64_t b) {
  return static_cast<double>(a) / static_cast<double>(b);
}

}  // namespace sluice::soft
