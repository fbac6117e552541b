// Links, switches and routes: carries a packet from a NIC port to the one that its destination names.
//
// Switches are store-and-forward with one output queue per port; every switch that lies on a shortest path is
// a candidate and the packet's flow chooses, so a flow never changes its path. Lossless: nothing but a fault
// drops.
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

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

class Switch final : public PacketSink {
 public:
  void Receive(Packet* packet) override;

 private:
  friend class Network;
  struct Port final : public PacketSource {
    Packet* NextPacket() override;
    bool MayHavePacket() const override { return !queue.empty(); }
    PacketQueue queue;
    Transmitter* transmitter = nullptr;
  };
  class Network* network_ = nullptr;
  uint32_t index_ = 0;
  std::vector<std::unique_ptr<Port>> ports_;
};

class Network {
 public:
  explicit Network(NetworkContext* context) : context_(context) {}

  // `topology` has passed CheckTopology; `attachments` in endpoint order. Both must outlive this object.
  void Build(const Topology& topology, std::vector<Attachment>* attachments);
  void SetLinkUp(uint32_t link, bool up);
  // Both directions, from the next packet on.
  void SetLinkRate(uint32_t link, uint64_t rate_bps);
  // What is in the switch is lost, as when it reboots. Its links are the caller's.
  void ResetSwitch(uint32_t switch_index);

 private:
  friend class Switch;
  struct Edge {
    uint32_t node = UINT32_MAX;  // switch the endpoint hangs on; UINT32_MAX: another endpoint
    uint32_t port = 0;
  };
  void AddRoutes();
  // Output port of `node` for the packet; UINT32_MAX: no way.
  uint32_t Route(uint32_t node, const Packet& packet) const;

  NetworkContext* context_;
  std::vector<std::unique_ptr<Switch>> switches_;
  std::vector<std::unique_ptr<Transmitter>> transmitters_;  // two per link: a to b, b to a
  std::vector<Edge> edges_;                                 // by endpoint
  struct Neighbour {
    uint32_t node;
    uint32_t port;
  };
  std::vector<std::vector<Neighbour>> neighbours_;  // by switch
  // Candidate ports, one list per distinct set; routes_[node * switches + edge switch] names a list.
  std::vector<std::vector<uint32_t>> candidates_;
  std::vector<uint32_t> routes_;
};

}  // namespace sluice::soft
