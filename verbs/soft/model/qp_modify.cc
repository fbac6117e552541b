// State transitions of a queue pair and the attributes that each demands and allows, as the kernel's table
// for RC.

#include <cerrno>
#include <cstring>

#include "verbs/soft/model/nic_impl.h"
#include "verbs/soft/model/qp.h"
#include "verbs/soft/model/routing.h"

namespace sluice::soft {
namespace {

struct Transition {
  ibv_qp_state from;
  ibv_qp_state to;
  int required;
  int optional;
};

constexpr int kAlways = IBV_QP_STATE | IBV_QP_CUR_STATE;

constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
         IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS |
         IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
};

bool MaskIsLegal(ibv_qp_state from, ibv_qp_state to, int mask) {
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return (mask & ~kAlways) == 0;
  for (const Transition& t : kTransitions) {
    if (t.from != from || t.to != to) continue;
    return (mask & t.required) == t.required && (mask & ~(t.required | t.optional | kAlways)) == 0;
  }
  return false;
}

constexpr unsigned kAccessFlags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                  IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_RELAXED_ORDERING;

// Bytes on the wire of a packet with nothing but the base transport header. Ethernet: 14 + network header +
// UDP 8 (v2)
// + BTH 12 + ICRC 4 + FCS 4 + preamble and gap 20; InfiniBand: LRH 8 + BTH 12 + ICRC 4 + VCRC 2, with GRH 40
// more.
uint32_t HeaderBytes(LinkLayer link_layer, GidType type, const ibv_ah_attr& av) {
  if (link_layer == LinkLayer::kInfiniBand) return av.is_global != 0 ? 66 : 26;
  if (type == GidType::kRoceV1) return 94;
  constexpr uint8_t kMappedIpv4[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return std::memcmp(av.grh.dgid.raw, kMappedIpv4, sizeof kMappedIpv4) == 0 ? 82 : 102;
}

}  // namespace

int Qp::CheckAttributes(const ibv_qp_attr& change, int mask) const {
  const Port* target = port;
  if ((mask & IBV_QP_PORT) != 0) {
    target = nic.port(change.port_num);
    if (target == nullptr) return EINVAL;
  }
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && change.pkey_index != 0) return EINVAL;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0 && (change.qp_access_flags & ~kAccessFlags) != 0) return EINVAL;
  if ((mask & IBV_QP_PATH_MTU) != 0 && (change.path_mtu < IBV_MTU_256 || change.path_mtu > IBV_MTU_4096 ||
                                        (128U << change.path_mtu) > target->spec().mtu_bytes)) {
    return EINVAL;
  }
  if ((mask & IBV_QP_TIMEOUT) != 0 && change.timeout > 31) return EINVAL;
  if ((mask & IBV_QP_RETRY_CNT) != 0 && change.retry_cnt > 7) return EINVAL;
  if ((mask & IBV_QP_RNR_RETRY) != 0 && change.rnr_retry > 7) return EINVAL;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && change.min_rnr_timer > 31) return EINVAL;
  if ((mask & IBV_QP_DEST_QPN) != 0 && change.dest_qp_num > 0xFFFFFF) return EINVAL;
  const uint32_t max_rd_atomic = nic.limits().max_rd_atomic;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && change.max_rd_atomic > max_rd_atomic) return EINVAL;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && change.max_dest_rd_atomic > max_rd_atomic) return EINVAL;
  // There is no path migration: the state may only stay as it is.
  if ((mask & IBV_QP_ALT_PATH) != 0) return EINVAL;
  if ((mask & IBV_QP_PATH_MIG_STATE) != 0 && change.path_mig_state != IBV_MIG_MIGRATED) return EINVAL;
  if ((mask & IBV_QP_AV) != 0) {
    const ibv_ah_attr& av = change.ah_attr;
    if (av.sl > 15) return EINVAL;
    if (target->spec().link_layer == LinkLayer::kEthernet && av.is_global == 0) return EINVAL;
    if (av.is_global != 0 &&
        (av.grh.sgid_index >= kGidTableSize || !target->gids()[av.grh.sgid_index].valid)) {
      return EINVAL;
    }
    // A LID of the unicast range: 0 and multicast lead to no port.
    if (av.is_global == 0 && (av.dlid == 0 || av.dlid >= 0xC000)) return EINVAL;
  }
  return 0;
}

void Qp::Apply(const ibv_qp_attr& change, int mask) {
  if ((mask & IBV_QP_PORT) != 0) {
    attr.port_num = change.port_num;
    port = nic.port(change.port_num);
  }
  if ((mask & IBV_QP_PKEY_INDEX) != 0) attr.pkey_index = change.pkey_index;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) attr.qp_access_flags = change.qp_access_flags;
  if ((mask & IBV_QP_PATH_MTU) != 0) {
    attr.path_mtu = change.path_mtu;
    mtu = 128U << change.path_mtu;
  }
  if ((mask & IBV_QP_TIMEOUT) != 0) attr.timeout = change.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) attr.retry_cnt = change.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) attr.rnr_retry = change.rnr_retry;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) attr.min_rnr_timer = change.min_rnr_timer;
  if ((mask & IBV_QP_DEST_QPN) != 0) attr.dest_qp_num = change.dest_qp_num;
  if ((mask & IBV_QP_RQ_PSN) != 0) attr.rq_psn = change.rq_psn & 0xFFFFFF;
  if ((mask & IBV_QP_SQ_PSN) != 0) attr.sq_psn = change.sq_psn & 0xFFFFFF;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) attr.max_rd_atomic = change.max_rd_atomic;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) attr.max_dest_rd_atomic = change.max_dest_rd_atomic;
  if ((mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0) attr.en_sqd_async_notify = change.en_sqd_async_notify;
  if ((mask & IBV_QP_AV) == 0) return;
  attr.ah_attr = change.ah_attr;
  const ibv_ah_attr& av = attr.ah_attr;
  const LinkLayer link_layer = port->spec().link_layer;
  const GidType type = av.is_global != 0 ? port->gids()[av.grh.sgid_index].type : GidType::kInfiniBand;
  header_bytes = HeaderBytes(link_layer, type, av);
  // InfiniBand inside one subnet goes by LID, and by GID only when no LID is given. An address that nobody
  // has is accepted, as by a real device, and packets to it vanish.
  remote_endpoint = link_layer == LinkLayer::kInfiniBand && av.dlid != 0
                        ? core.addresses.FindLid(av.dlid)
                        : core.addresses.FindGid(av.grh.dgid);
  if (data_hook_.linked()) data_hook_.Unlink();
  if (ack_hook_.linked()) ack_hook_.Unlink();
  egress = remote_endpoint == port->endpoint() ? port->loop() : port->wire();
  lane = data_hook_.lane = ack_hook_.lane =
      port->LaneOf(av.sl, av.is_global != 0 ? av.grh.traffic_class : uint8_t{0});
  const FlowHashKind hash = core.flow_hash;
  if (link_layer == LinkLayer::kInfiniBand) {
    // A forwarding table knows the destination only.
    flow = HashOf({0, remote_endpoint, 0, 0, 0}, hash);
    return;
  }
  flow = HashOf(
      {PortIpv4(port->endpoint()), PortIpv4(remote_endpoint), UdpSourcePort(number, attr.dest_qp_num)}, hash);
  const NicSettings& settings = port->host()->settings();
  if (settings.rate_control == RateControl::kDcqcn) {
    rate_ = std::make_unique<DcqcnRate>(&settings.dcqcn, port->spec().rate_bps);
    data_hook_.rate = rate_.get();
  }
}

int Qp::Modify(const ibv_qp_attr& change, int mask) {
  if ((mask & IBV_QP_CUR_STATE) != 0 && change.cur_qp_state != state) return EINVAL;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? change.qp_state : state;
  if (!MaskIsLegal(state, to, mask)) return EINVAL;
  if (const int error = CheckAttributes(change, mask)) return error;
  const ibv_qp_state from = state;
  if (to == IBV_QPS_RESET) {
    state = to;
    Disconnect();
    requester.Clear();
    responder.Clear();
    const ibv_qp_cap cap = attr.cap;
    attr = ibv_qp_attr{};
    attr.cap = cap;
    return 0;
  }
  if (to == IBV_QPS_ERR) {
    if (from == IBV_QPS_RESET) {
      state = attr.qp_state = IBV_QPS_ERR;
    } else {
      EnterError();
    }
    return 0;
  }
  Apply(change, mask);
  state = attr.qp_state = to;
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) responder.Start(attr.rq_psn);
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) requester.Start(attr.sq_psn);
  if (from == IBV_QPS_RTS && to == IBV_QPS_SQD) requester.BeginDrain();
  if (from == IBV_QPS_SQD && to == IBV_QPS_RTS) requester.Resume();
  return 0;
}

void Qp::Query(ibv_qp_attr* out) const {
  *out = attr;
  out->qp_state = out->cur_qp_state = state;
  out->path_mig_state = IBV_MIG_MIGRATED;
  if (requests()) out->sq_psn = requester.next_psn();
  if (responds()) out->rq_psn = responder.expected_psn();
  out->sq_draining = requester.draining() ? 1 : 0;
}

}  // namespace sluice::soft
