#include "plugin/transport/path.h"

#include <algorithm>

#include "plugin/log.h"
#include "plugin/transport/engine.h"

namespace sluice {
namespace {

// Verbs caps a message at max_msg_sz of the port; a chunk also starts at a multiple of 128 bytes.
bool SameSubnetOf(const PortAddress& a, const PortAddress& b) {
  ibv_gid left, right;
  std::copy(a.gid.begin(), a.gid.end(), left.raw);
  std::copy(b.gid.begin(), b.gid.end(), right.raw);
  return SameSubnet(static_cast<LinkLayer>(a.link_layer), left, right);
}

}  // namespace

Status TooSmall(const std::string& device, const char* queue, const char* limit, uint32_t room,
                uint32_t needed) {
  return SystemError("device " + device + " gives a " + queue + " of " + std::to_string(room) +
                     " entries and Sluice needs " + std::to_string(needed) + " (" + limit +
                     "); choose another device with NCCL_IB_HCA");
}

namespace {

InitParams InitOf(const Engine& engine, const EnginePort& port) {
  return {.port = port.port.number, .pkey_index = static_cast<uint16_t>(engine.params.ib_pkey_index)};
}

QueuePairOptions OptionsOf(const EnginePort& port) {
  QueuePairOptions options;
  options.send_cq = port.cq.get();
  options.recv_cq = port.cq.get();
  return options;
}

}  // namespace

Status CreateControl(Engine& engine, bool outbound, PortPair& pair) {
  EnginePort& port = engine.ports[outbound ? pair.sender_port : pair.receiver_port];
  QueuePairOptions options = OptionsOf(port);
  // R writes CTS entries, S only receives them: no receive entries on either side.
  options.max_send_wr = outbound ? 1 : kControlQueueDepth;
  options.max_inline = outbound ? 0 : port.max_inline;
  Result<QueuePair> control = QueuePair::Create(port.device->pd(), options);
  if (!control.ok()) return control.status();
  pair.control = std::move(*control);
  return pair.control.ToInit(InitOf(engine, port));
}

Status CreateData(Engine& engine, bool outbound, uint32_t count, PortPair& pair) {
  EnginePort& port = engine.ports[outbound ? pair.sender_port : pair.receiver_port];
  QueuePairOptions options = OptionsOf(port);
  options.max_send_wr = outbound ? kDataQueueDepth : 1;
  options.max_inline = outbound ? static_cast<uint32_t>(sizeof(Record)) : 0;
  options.srq = outbound ? nullptr : port.srq.get();
  for (uint32_t i = 0; i < count; ++i) {
    Result<QueuePair> queue = QueuePair::Create(port.device->pd(), options);
    if (!queue.ok()) return queue.status();
    pair.data.push_back(std::move(*queue));
    if (const uint32_t room = pair.data.back().caps().max_send_wr; outbound && room < kMostChunkWrs) {
      return TooSmall(port.port.name, "send queue", "max_qp_wr", room, kMostChunkWrs);
    }
    SLUICE_RETURN_IF_ERROR(pair.data.back().ToInit(InitOf(engine, port)));
  }
  return Status::Ok();
}

ServiceLevels LevelsOf(const Path& path, const PortPair& pair, size_t index) {
  if (!pair.levels.empty()) return pair.levels[index];
  return {path.classes[index].sl, path.classes[index].sl};
}

uint32_t QueueCount(const std::vector<ClassFrame>& classes) {
  uint32_t count = 0;
  for (const ClassFrame& service_class : classes) count += service_class.queue_pairs;
  return count;
}

Status ConnectPair(Engine& engine, const Path& path, PortPair& pair, uint32_t pair_index,
                   const PairFrame& theirs, const PortAddress& peer_port, uint32_t own_base_psn,
                   uint32_t peer_base_psn) {
  const Params& params = engine.params;
  EnginePort& port = engine.ports[path.outbound ? pair.sender_port : pair.receiver_port];
  pair.mtu = PathMtu(port.attributes.active_mtu, static_cast<ibv_mtu>(peer_port.mtu));
  RtrParams rtr;
  rtr.mtu = pair.mtu;
  rtr.sgid_index = static_cast<uint8_t>(port.gid.index);
  std::copy(peer_port.gid.begin(), peer_port.gid.end(), rtr.dgid.raw);
  rtr.dlid = peer_port.lid;
  const bool ethernet = port.port.link_layer == LinkLayer::kEthernet;
  rtr.is_global = ethernet || peer_port.needs_grh != 0 ||
                  (port.attributes.flags & IBV_QPF_GRH_REQUIRED) != 0 ||
                  SubnetPrefix(port.gid.gid) != SubnetPrefix(rtr.dgid);
  RtsParams rts;
  rts.timeout = static_cast<uint8_t>(params.ib_timeout);
  rts.retry_cnt = static_cast<uint8_t>(params.ib_retry_cnt);
  const ibv_ece ece{
      .vendor_id = theirs.ece.vendor_id, .options = theirs.ece.options, .comp_mask = theirs.ece.comp_mask};
  auto connect = [&](QueuePair& queue, uint32_t dest_qpn, uint32_t queue_index, uint32_t label) -> Status {
    if (params.ib_ece_enable && ece.vendor_id != 0) SLUICE_RETURN_IF_ERROR(queue.SetEce(ece));
    rtr.dest_qpn = dest_qpn;
    rtr.psn = PsnOf(peer_base_psn, pair_index, queue_index);
    rts.psn = PsnOf(own_base_psn, pair_index, queue_index);
    // Distinct flow labels give each queue pair a UDP source port, hence an ECMP path, of its own; equal in
    // both directions.
    rtr.flow_label =
        ethernet ? (std::min(own_base_psn, peer_base_psn) + pair_index * 64 + label) & 0xfffff : 0;
    SLUICE_RETURN_IF_ERROR(queue.ToRtr(rtr));
    return queue.ToRts(rts);
  };
  const auto own_level = [&](size_t index) {
    const ServiceLevels levels = LevelsOf(path, pair, index);
    return path.outbound ? levels.forward : levels.back;
  };
  rtr.sl = own_level(0);
  rtr.traffic_class = path.classes[0].traffic_class;
  SLUICE_RETURN_IF_ERROR(connect(pair.control, theirs.control_qpn, 0, 0));
  uint32_t next = 0;
  for (size_t index = 0; index < path.classes.size(); ++index) {
    const ClassFrame& service_class = path.classes[index];
    rtr.sl = own_level(index);
    rtr.traffic_class = service_class.traffic_class;
    const uint32_t labels =
        service_class.flow_labels == 0 ? service_class.queue_pairs : service_class.flow_labels;
    const uint32_t first = next;
    for (uint32_t i = 0; i < service_class.queue_pairs; ++i, ++next) {
      SLUICE_RETURN_IF_ERROR(
          connect(pair.data[next], theirs.data_qpns[next], next + 1, first + i % labels + 1));
    }
  }
  return Status::Ok();
}

namespace {

// "control SL 0 TC 0, latency SL 1 TC 104 x1, bulk SL 0/2 TC 0 x4": 0 to the receiver, 2 back.
std::string DescribeLanes(const Path& path, const PortPair& pair) {
  std::string text;
  for (size_t i = 0; i < path.classes.size(); ++i) {
    const ClassFrame& service_class = path.classes[i];
    const ServiceLevels levels = LevelsOf(path, pair, i);
    text += (text.empty() ? "" : ", ") + service_class.name + " SL " + std::to_string(levels.forward) +
            (levels.back == levels.forward ? "" : "/" + std::to_string(levels.back)) + " TC " +
            std::to_string(service_class.traffic_class);
    if (service_class.queue_pairs != 0) text += " x" + std::to_string(service_class.queue_pairs);
  }
  return text;
}

}  // namespace

void LogPath(const Path& path, const std::vector<PortAddress>& peer_ports) {
  const Engine& engine = path.engine;
  for (const PortPair& pair : path.pairs) {
    const EnginePort& port = engine.ports[path.outbound ? pair.sender_port : pair.receiver_port];
    const PortAddress& peer = peer_ports[path.outbound ? pair.receiver_port : pair.sender_port];
    ibv_gid peer_gid;
    std::copy(peer.gid.begin(), peer.gid.end(), peer_gid.raw);
    SLUICE_INFO(
        kLogNet,
        "path %s %s: %s %s GID %s index %d LID %u, peer %s GID %s LID %u, MTU %u, lanes %s, %zu data + 1 "
        "control queue pairs, routing %s, ordering %s, GPU memory %s",
        path.outbound ? "to" : "from", path.peer.c_str(), port.port.name.c_str(),
        std::string(LinkLayerName(port.port.link_layer)).c_str(), FormatGid(port.gid.gid).c_str(),
        port.gid.index, port.attributes.lid, peer.name.c_str(), FormatGid(peer_gid).c_str(), peer.lid,
        MtuBytes(pair.mtu), DescribeLanes(path, pair).c_str(), pair.data.size(),
        port.adaptive_routing ? "adaptive" : "static",
        port.device->memory().UsesRelaxedOrdering() ? "relaxed" : "strict", engine.gpu_memory);
  }
}

Result<std::vector<std::pair<uint8_t, uint8_t>>> MatchPorts(const std::vector<PortAddress>& senders,
                                                            const std::vector<PortAddress>& receivers) {
  std::vector<std::pair<uint8_t, uint8_t>> pairs;
  const size_t count = std::max(senders.size(), receivers.size());
  const bool more_senders = senders.size() >= receivers.size();
  const std::vector<PortAddress>& many = more_senders ? senders : receivers;
  const std::vector<PortAddress>& few = more_senders ? receivers : senders;
  std::vector<size_t> uses(few.size(), 0);
  for (size_t i = 0; i < count; ++i) {
    // The least used port of the same link layer; on a tie one in the same subnet (positions may be swapped
    // on the peer).
    int best = -1;
    for (size_t j = 0; j < few.size(); ++j) {
      const size_t candidate = (i + j) % few.size();
      if (few[candidate].link_layer != many[i].link_layer) continue;
      if (best < 0) {
        best = static_cast<int>(candidate);
        continue;
      }
      const bool closer =
          SameSubnetOf(many[i], few[candidate]) && !SameSubnetOf(many[i], few[static_cast<size_t>(best)]);
      if (uses[candidate] < uses[static_cast<size_t>(best)] ||
          (uses[candidate] == uses[static_cast<size_t>(best)] && closer)) {
        best = static_cast<int>(candidate);
      }
    }
    if (best < 0) {
      return InvalidUsage("port " + many[i].name + " is " +
                          std::string(LinkLayerName(static_cast<LinkLayer>(many[i].link_layer))) +
                          " and the peer has only " +
                          std::string(LinkLayerName(static_cast<LinkLayer>(few[0].link_layer))) + " ports (" +
                          few[0].name + "); choose devices of one link layer with NCCL_IB_HCA on every host");
    }
    ++uses[static_cast<size_t>(best)];
    const auto many_index = static_cast<uint8_t>(i);
    const auto few_index = static_cast<uint8_t>(best);
    pairs.push_back(more_senders ? std::pair{many_index, few_index} : std::pair{few_index, many_index});
  }
  return pairs;
}

}  // namespace sluice
