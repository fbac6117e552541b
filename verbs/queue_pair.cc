#include "verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>

#include "verbs/errors.h"
#include "verbs/gid.h"
#include "verbs/link.h"

namespace sluice {
namespace {

constexpr uint32_t kFewestEntries = 16;
constexpr uint32_t kLeastInline = 16;  // a message record
constexpr uint32_t kMask24 = 0xffffff;
constexpr uint32_t kMask20 = 0xfffff;

// Errors with which drivers refuse sizes. ENOMEM is also their answer to a queue that is larger than they can
// lay out.
bool IsAboutSizes(int error) {
  return error == EINVAL || error == ENOMEM || error == ENOSPC || error == EOVERFLOW;
}

// Where the network, not this host, is the cause.
bool IsAboutNetwork(int error) {
  return error == ENETUNREACH || error == EHOSTUNREACH || error == ETIMEDOUT;
}

void ApplyDeviceLimits(const ibv_device_attr& limits, QueuePairOptions* options) {
  const auto lower = [](uint32_t* wish, int limit) {
    if (limit > 0) *wish = std::min(*wish, static_cast<uint32_t>(limit));
  };
  lower(&options->max_send_wr, limits.max_qp_wr);
  lower(&options->max_recv_wr, limits.max_qp_wr);
  lower(&options->max_send_sge, limits.max_sge);
  lower(&options->max_recv_sge, limits.max_sge);
}

}  // namespace

std::optional<QueuePairOptions> LowerOptions(const QueuePairOptions& refused, int error) {
  if (!IsAboutSizes(error)) return std::nullopt;
  QueuePairOptions next = refused;
  if (next.max_inline > 0) {
    next.max_inline = next.max_inline > kLeastInline ? std::max(next.max_inline / 2, kLeastInline) : 0;
    return next;
  }
  if (std::max(next.max_send_wr, next.max_recv_wr) <= kFewestEntries) return std::nullopt;
  const auto halve = [](uint32_t entries) {
    return entries > kFewestEntries ? std::max(entries / 2, kFewestEntries) : entries;
  };
  next.max_send_wr = halve(next.max_send_wr);
  next.max_recv_wr = halve(next.max_recv_wr);
  return next;
}

std::string FormatRemote(const RtrParams& params) {
  std::string text;
  if (params.dlid != 0) text.append("LID ").append(std::to_string(params.dlid));
  if (params.is_global || params.dlid == 0) {
    if (!text.empty()) text.append(", ");
    text.append("GID ").append(FormatGid(params.dgid));
  }
  return text;
}

Result<QueuePair> QueuePair::Create(const ProtectionDomain& pd, const QueuePairOptions& options) {
  ibv_context* context = pd.get()->context;
  const std::string device = context->device->name;
  if (options.send_cq == nullptr || options.recv_cq == nullptr) {
    return InvalidArgument("queue pair on " + device + " without completion queues");
  }
  ibv_device_attr limits{};
  if (const int result = ibv_query_device(context, &limits); result != 0) {
    return VerbError("ibv_query_device on " + device, ErrnoOf(result));
  }
  QueuePairOptions attempt = options;
  if (attempt.srq != nullptr) attempt.max_recv_wr = 0;
  ApplyDeviceLimits(limits, &attempt);

  int first_error = 0;
  for (;;) {
    ibv_qp_init_attr init{};
    init.qp_context = options.qp_context;
    init.send_cq = options.send_cq;
    init.recv_cq = options.recv_cq;
    init.srq = options.srq;
    init.qp_type = IBV_QPT_RC;
    init.sq_sig_all = options.signal_all ? 1 : 0;
    init.cap.max_send_wr = attempt.max_send_wr;
    init.cap.max_send_sge = attempt.max_send_sge;
    init.cap.max_inline_data = attempt.max_inline;
    if (options.srq == nullptr) {
      init.cap.max_recv_wr = attempt.max_recv_wr;
      init.cap.max_recv_sge = attempt.max_recv_wr > 0 ? attempt.max_recv_sge : 0;
    }
    errno = 0;
    if (ibv_qp* qp = ibv_create_qp(pd.get(), &init)) return QueuePair(qp, init.cap);
    const int error = ErrnoOf(-1);
    if (first_error == 0) first_error = error;
    const std::optional<QueuePairOptions> lower = LowerOptions(attempt, error);
    if (!lower) {
      return VerbError("ibv_create_qp on " + device + " with " + std::to_string(options.max_send_wr) +
                           " send entries (the device has " + std::to_string(limits.max_qp) +
                           " queue pairs of " + std::to_string(limits.max_qp_wr) + " entries)",
                       first_error);
    }
    attempt = *lower;
  }
}

QueuePair& QueuePair::operator=(QueuePair&& other) noexcept {
  std::swap(qp_, other.qp_);
  std::swap(caps_, other.caps_);
  std::swap(port_, other.port_);
  std::swap(remote_, other.remote_);
  return *this;
}

std::string QueuePair::Describe(std::string_view transition) const {
  std::string text(transition);
  if (qp_ == nullptr) return text.append(" on no queue pair");
  text.append(" on ").append(qp_->context->device->name);
  if (port_ != 0) text.append(":").append(std::to_string(port_));
  text.append(", queue pair ").append(std::to_string(qp_->qp_num));
  if (!remote_.empty()) text.append(" towards ").append(remote_);
  return text;
}

Status QueuePair::ToInit(const InitParams& params) {
  if (qp_ == nullptr) return InvalidUsage("ToInit on an empty queue pair");
  port_ = params.port;
  remote_.clear();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = params.port;
  attr.pkey_index = params.pkey_index;
  attr.qp_access_flags = static_cast<unsigned>(params.access);
  const int result =
      ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
  if (result == 0) return Status::Ok();
  return VerbError(
      Describe("ibv_modify_qp to INIT") + " (P_Key index " + std::to_string(params.pkey_index) + ")",
      ErrnoOf(result));
}

Status QueuePair::ToRtr(const RtrParams& params) {
  if (qp_ == nullptr) return InvalidUsage("ToRtr on an empty queue pair");
  remote_ = "queue pair " + std::to_string(params.dest_qpn) + " at " + FormatRemote(params);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = params.mtu;
  attr.dest_qp_num = params.dest_qpn;
  attr.rq_psn = params.psn & kMask24;
  attr.max_dest_rd_atomic = params.max_dest_rd_atomic;
  attr.min_rnr_timer = params.min_rnr_timer;
  ibv_ah_attr& address = attr.ah_attr;
  address.port_num = port_;
  address.sl = params.sl;
  address.dlid = params.dlid;
  address.src_path_bits = params.path_bits;
  if (params.is_global) {
    address.is_global = 1;
    address.grh.dgid = params.dgid;
    address.grh.sgid_index = params.sgid_index;
    address.grh.flow_label = params.flow_label & kMask20;
    address.grh.hop_limit = params.hop_limit;
    address.grh.traffic_class = params.traffic_class;
  }
  const int result = ibv_modify_qp(qp_, &attr,
                                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (result == 0) return Status::Ok();
  const int error = ErrnoOf(result);
  std::string what = Describe("ibv_modify_qp to RTR");
  what.append(" (MTU ").append(std::to_string(MtuBytes(params.mtu)));
  what.append(", service level ").append(std::to_string(params.sl));
  if (params.is_global) {
    what.append(", traffic class ").append(std::to_string(params.traffic_class));
    what.append(", own GID index ").append(std::to_string(params.sgid_index));
  }
  Status status = VerbError(what.append(")"), error);
  return IsAboutNetwork(error) ? RemoteError(status.message()) : status;
}

Status QueuePair::ToRts(const RtsParams& params) {
  if (qp_ == nullptr) return InvalidUsage("ToRts on an empty queue pair");
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = params.psn & kMask24;
  attr.timeout = params.timeout;
  attr.retry_cnt = params.retry_cnt;
  attr.rnr_retry = params.rnr_retry;
  attr.max_rd_atomic = params.max_rd_atomic;
  const int result = ibv_modify_qp(qp_, &attr,
                                   IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  if (result == 0) return Status::Ok();
  return VerbError(Describe("ibv_modify_qp to RTS") + " (timeout " + std::to_string(params.timeout) +
                       ", retries " + std::to_string(params.retry_cnt) + ")",
                   ErrnoOf(result));
}

Status QueuePair::ToError() {
  if (qp_ == nullptr) return InvalidUsage("ToError on an empty queue pair");
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  const int result = ibv_modify_qp(qp_, &attr, IBV_QP_STATE);
  return result == 0 ? Status::Ok() : VerbError(Describe("ibv_modify_qp to ERR"), ErrnoOf(result));
}

Status QueuePair::ToReset() {
  if (qp_ == nullptr) return InvalidUsage("ToReset on an empty queue pair");
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  const int result = ibv_modify_qp(qp_, &attr, IBV_QP_STATE);
  if (result != 0) return VerbError(Describe("ibv_modify_qp to RESET"), ErrnoOf(result));
  remote_.clear();
  return Status::Ok();
}

Result<ibv_qp_attr> QueuePair::Query(int mask) const {
  if (qp_ == nullptr) return InvalidUsage("Query on an empty queue pair");
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  const int result = ibv_query_qp(qp_, &attr, mask, &init);
  if (result != 0) return VerbError(Describe("ibv_query_qp"), ErrnoOf(result));
  return attr;
}

Result<ibv_qp_state> QueuePair::QueryState() const {
  Result<ibv_qp_attr> attr = Query(IBV_QP_STATE);
  if (!attr.ok()) return attr.status();
  return attr->qp_state;
}

Result<ibv_ece> QueuePair::QueryEce() const {
  if (qp_ == nullptr) return InvalidUsage("QueryEce on an empty queue pair");
  ibv_ece ece{};
  const int result = ibv_query_ece(qp_, &ece);
  if (result == 0) return ece;
  const int error = ErrnoOf(result);
  if (error == EOPNOTSUPP || error == ENOSYS) return ibv_ece{};
  return VerbError(Describe("ibv_query_ece"), error);
}

Status QueuePair::SetEce(const ibv_ece& ece) {
  if (qp_ == nullptr) return InvalidUsage("SetEce on an empty queue pair");
  if (ece.vendor_id == 0) return Status::Ok();
  ibv_ece copy = ece;
  const int result = ibv_set_ece(qp_, &copy);
  if (result == 0) return Status::Ok();
  const int error = ErrnoOf(result);
  if (error == EOPNOTSUPP || error == ENOSYS) return Status::Ok();
  return VerbError(Describe("ibv_set_ece"), error);
}

Status QueuePair::Close() {
  if (qp_ == nullptr) return Status::Ok();
  const std::string what = Describe("ibv_destroy_qp");
  if (const int result = ibv_destroy_qp(qp_); result != 0) return VerbError(what, ErrnoOf(result));
  qp_ = nullptr;
  return Status::Ok();
}

std::string_view QueuePairStateName(ibv_qp_state state) {
  switch (state) {
    case IBV_QPS_RESET:
      return "RESET";
    case IBV_QPS_INIT:
      return "INIT";
    case IBV_QPS_RTR:
      return "RTR";
    case IBV_QPS_RTS:
      return "RTS";
    case IBV_QPS_SQD:
      return "SQD";
    case IBV_QPS_SQE:
      return "SQE";
    case IBV_QPS_ERR:
      return "ERR";
    case IBV_QPS_UNKNOWN:
      break;
  }
  return "unknown";
}

}  // namespace sluice
