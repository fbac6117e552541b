// Description, packets, events and faults of a NIC. Its objects are in nic_objects.cc and nic_queues.cc.
#include "verbs/soft/model/nic_impl.h"

#include <endian.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace sluice::soft {
namespace {

constexpr uint16_t kDefaultPkey = 0xFFFF;
constexpr uint32_t kQpNumbersPerNic = 0x1000;
constexpr uint32_t kFirstQpNumber = 0x40;

ibv_mtu MtuCode(uint32_t bytes) {
  return static_cast<ibv_mtu>(std::bit_width(bytes) - 8);
}

}  // namespace

NicImpl::NicImpl(FabricCore* core, uint32_t host, uint32_t index, uint32_t ordinal, uint32_t first_endpoint,
                 const NicSpec& spec, const NicSettings& settings)
    : core_(*core), limits_(spec.limits), host_interface_(settings), mrs_(1) {
  info_.host = host;
  info_.index = index;
  info_.name = spec.name;
  info_.node_guid = info_.system_image_guid = PortGuid(first_endpoint);
  info_.vendor_id = kVendorId;
  info_.device_id = kDeviceId;
  if (spec.pci) info_.pci_address = PciAddress(index);
  if (spec.ports[0].link_layer == LinkLayer::kEthernet) info_.netdev = "eth_" + spec.name;
  for (uint32_t i = 0; i < spec.ports.size(); ++i) {
    const uint32_t endpoint = first_endpoint + i;
    ports_.push_back(
        std::make_unique<Port>(&core_.network, this, i + 1, endpoint, spec.ports[i], &host_interface_));
    for (const GidEntry& entry : ports_.back()->gids()) {
      if (entry.valid) core_.addresses.AddGid(entry.gid, endpoint);
    }
    if (spec.ports[i].link_layer == LinkLayer::kInfiniBand)
      core_.addresses.AddLid(PortLid(endpoint), endpoint);
    core_.nic_of_endpoint.push_back(this);
  }
  next_qp_ = (ordinal * kQpNumbersPerNic + kFirstQpNumber) & 0xFFFFFF;
}

NicImpl::~NicImpl() = default;

uint32_t NicImpl::NextQpNumber() {
  for (;;) {
    const uint32_t number = next_qp_;
    next_qp_ = (next_qp_ + 1) & 0xFFFFFF;
    // 0 and 1 are the management queue pairs, 0xFFFFFF is multicast.
    if (number > 1 && number != 0xFFFFFF && !qps_.contains(number)) return number;
  }
}

void NicImpl::QueryDevice(ibv_device_attr* attr) const {
  *attr = ibv_device_attr{};
  std::strncpy(attr->fw_ver, SLUICE_VERSION, sizeof attr->fw_ver - 1);
  attr->node_guid = htobe64(info_.node_guid);
  attr->sys_image_guid = htobe64(info_.system_image_guid);
  attr->max_mr_size = limits_.max_mr_size;
  attr->page_size_cap = 0xFFFFF000;
  attr->vendor_id = info_.vendor_id;
  attr->vendor_part_id = info_.device_id;
  attr->max_qp = static_cast<int>(limits_.max_qp);
  attr->max_qp_wr = static_cast<int>(limits_.max_qp_wr);
  attr->device_cap_flags = IBV_DEVICE_BAD_PKEY_CNTR | IBV_DEVICE_CHANGE_PHY_PORT |
                           IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT |
                           IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE;
  attr->max_sge = attr->max_sge_rd = static_cast<int>(limits_.max_sge);
  attr->max_cq = static_cast<int>(limits_.max_cq);
  attr->max_cqe = static_cast<int>(limits_.max_cqe);
  attr->max_mr = static_cast<int>(limits_.max_mr);
  attr->max_pd = static_cast<int>(limits_.max_pd);
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = static_cast<int>(limits_.max_rd_atomic);
  attr->max_res_rd_atom =
      static_cast<int>(std::min<uint64_t>(uint64_t{limits_.max_rd_atomic} * limits_.max_qp, INT32_MAX));
  attr->atomic_cap = IBV_ATOMIC_HCA;
  attr->max_srq = static_cast<int>(limits_.max_srq);
  attr->max_srq_wr = static_cast<int>(limits_.max_srq_wr);
  attr->max_srq_sge = static_cast<int>(limits_.max_srq_sge);
  attr->max_pkeys = 1;
  attr->local_ca_ack_delay = 15;
  attr->phys_port_cnt = static_cast<uint8_t>(ports_.size());
}

int NicImpl::QueryPort(uint32_t number, ibv_port_attr* attr) const {
  if (number == 0 || number > ports_.size()) return EINVAL;
  const Port& port = *ports_[number - 1];
  const bool infiniband = port.spec().link_layer == LinkLayer::kInfiniBand;
  *attr = ibv_port_attr{};
  attr->state = port.up() && !dead_ ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  attr->phys_state = attr->state == IBV_PORT_ACTIVE ? 5 : 3;  // LinkUp, Disabled
  attr->max_mtu = IBV_MTU_4096;
  attr->active_mtu = MtuCode(port.spec().mtu_bytes);
  attr->gid_tbl_len = static_cast<int>(kGidTableSize);
  attr->port_cap_flags = infiniband ? IBV_PORT_SYS_IMAGE_GUID_SUP : IBV_PORT_IP_BASED_GIDS | IBV_PORT_CM_SUP;
  attr->max_msg_sz = static_cast<uint32_t>(kMaxMessageBytes);
  attr->pkey_tbl_len = 1;
  attr->lid = infiniband ? PortLid(port.endpoint()) : 0;
  attr->sm_lid = infiniband ? 1 : 0;
  attr->max_vl_num = infiniband ? 4 : 1;  // code 4: VL 0 to 7
  WidthAndSpeed(port.spec().rate_bps, &attr->active_width, &attr->active_speed);
  attr->link_layer = infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int NicImpl::QueryGid(uint32_t port, uint32_t gid_index, GidEntry* entry) const {
  if (port == 0 || port > ports_.size() || gid_index >= kGidTableSize) return EINVAL;
  *entry = ports_[port - 1]->gids()[gid_index];
  return 0;
}

int NicImpl::QueryPkey(uint32_t port, uint32_t index, uint16_t* pkey) const {
  if (port == 0 || port > ports_.size() || index != 0) return EINVAL;
  *pkey = kDefaultPkey;
  return 0;
}

const PortCounters* NicImpl::counters(uint32_t port) const {
  return port == 0 || port > ports_.size() ? nullptr : &ports_[port - 1]->counters();
}

void NicImpl::Deliver(Port* port, const Packet& packet) {
  if (packet.destination_qp >= kFirstTrafficNumber && !dead_) {
    core_.traffic->Deliver(packet);
    return;
  }
  Qp* qp = dead_ ? nullptr : FindQp(packet.destination_qp);
  if (qp == nullptr || qp->port != port) {
    ++port->counters().dropped_packets;
    return;
  }
  qp->OnPacket(packet);
}

const Qp* NicImpl::FindPeer(const Qp& qp) const {
  if (qp.remote_endpoint >= core_.nic_of_endpoint.size()) return nullptr;
  const Qp* peer = core_.nic_of_endpoint[qp.remote_endpoint]->FindQp(qp.attr.dest_qp_num);
  return peer != nullptr && peer->remote_endpoint == qp.port->endpoint() &&
                 peer->attr.dest_qp_num == qp.number
             ? peer
             : nullptr;
}

ProcessId NicImpl::PeerProcess(uint32_t qp_num) {
  const Qp* qp = FindQp(qp_num);
  const Qp* peer = qp == nullptr ? nullptr : FindPeer(*qp);
  return peer == nullptr ? 0 : peer->process;
}

void NicImpl::OnDma(const DmaRecord& record, bool ok, uint64_t value) {
  Qp* qp = FindQp(record.qp_num);
  if (qp == nullptr) return;
  switch (record.kind) {
    case DmaKind::kSendGather:
      qp->requester.OnGathered(record.tag, ok);
      return;
    case DmaKind::kResponseGather:
      qp->responder.OnGathered(record.tag, ok);
      return;
    case DmaKind::kAtomic:
      qp->responder.OnAtomic(record.tag, ok, value);
  }
}

void NicImpl::OnEvent(uint32_t kind, uint64_t argument) {
  if (kind == kCqOverrun) {
    OnCqOverrun(static_cast<CqId>(argument));
    return;
  }
  Qp* qp = FindQp(static_cast<uint32_t>(argument));
  if (qp == nullptr) return;
  if (kind == kTransportTimer) {
    qp->requester.OnTransportTimer();
  } else if (kind == kDoorbell) {
    qp->Activate();
  } else {
    qp->requester.OnRnrTimer();
  }
}

void NicImpl::NotifyProcesses(ibv_event_type type, uint32_t element) {
  for (const auto& [id, process] : core_.processes) {
    if (process.host == info_.host) process.memory->PushAsyncEvent({type, info_.index, element});
  }
}

int NicImpl::SetPortUp(uint32_t number, bool up) {
  if (number == 0 || number > ports_.size()) return EINVAL;
  return core_.set_link_up(ports_[number - 1]->link(), up).ok() ? 0 : EINVAL;
}

void NicImpl::LinkChanged(uint32_t number, bool up) {
  Port& port = *ports_[number - 1];
  if (port.up() == up) return;
  port.set_up(up);
  if (!up) ++port.counters().link_downed;
  NotifyProcesses(up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, number);
}

int NicImpl::SetGid(uint32_t number, uint32_t gid_index, const GidEntry& entry) {
  if (number == 0 || number > ports_.size() || gid_index >= kGidTableSize) return EINVAL;
  Port& port = *ports_[number - 1];
  GidEntry& slot = port.gids()[gid_index];
  const GidEntry old = slot;
  slot = entry.valid ? entry : GidEntry{{}, entry.type, false};
  // The same GID may stand in the table twice, for both RoCE versions.
  const auto holds = [&](const ibv_gid& gid) {
    return std::any_of(port.gids().begin(), port.gids().end(), [&](const GidEntry& other) {
      return other.valid && std::memcmp(&other.gid, &gid, sizeof gid) == 0;
    });
  };
  if (old.valid && !holds(old.gid)) core_.addresses.RemoveGid(old.gid, port.endpoint());
  if (entry.valid) core_.addresses.AddGid(entry.gid, port.endpoint());
  NotifyProcesses(IBV_EVENT_GID_CHANGE, number);
  return 0;
}

void NicImpl::Die() {
  if (dead_) return;
  dead_ = true;
  std::vector<uint32_t> numbers;
  for (const auto& [number, qp] : qps_) numbers.push_back(number);
  std::sort(numbers.begin(), numbers.end());
  NotifyProcesses(IBV_EVENT_DEVICE_FATAL, 0);
  for (const uint32_t number : numbers) {
    if (Qp* qp = FindQp(number)) qp->EnterError();
  }
  for (const auto& port : ports_) {
    if (core_.traffic != nullptr) core_.traffic->EndpointDied(port->endpoint());
  }
}

}  // namespace sluice::soft
