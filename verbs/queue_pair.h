// Queues with owners: completion queue, shared receive queue, RC queue pair. Move only; get() for the data
// path.
//
//   Result<CompletionQueue> cq = CompletionQueue::Create(*device, 4096);
//   Result<QueuePair> qp = QueuePair::Create(device->pd(), {.send_cq = cq->get(), .recv_cq = cq->get(),
//   .max_send_wr = 256,
//                                            .max_inline = 128});
//   SLUICE_RETURN_IF_ERROR(qp->ToInit({.port = 1}));
//   SLUICE_RETURN_IF_ERROR(qp->ToRtr({.dest_qpn = peer.qpn, ...}));
//   SLUICE_RETURN_IF_ERROR(qp->ToRts({.psn = own_psn}));
//
// Sizes are wishes: what exceeds the device is lowered, the granted sizes are in depth() and caps(). Every
// error names verb, device, queue pair number, remote address where known, errno and remedy.
//
// Order: queue pairs go before their CQ and SRQ, those before the DeviceContext. Destroying an object waits
// for its async events to be acknowledged: never destroy one inside the callback of DrainAsyncEvents. close()
// reports what the destructor must swallow.
//
// Thread rule: creation, state changes and destruction by one thread at a time per object; posting and
// polling through get() by the thread that owns the data path.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "verbs/protection_domain.h"

namespace sluice {

class DeviceContext;

class CompletionQueue {
 public:
  // At least one entry; `depth` is lowered to the device's max_cqe. channel may be null.
  static Result<CompletionQueue> Create(const DeviceContext& device, uint32_t depth,
                                        ibv_comp_channel* channel = nullptr, void* cq_context = nullptr);
  CompletionQueue() = default;
  CompletionQueue(CompletionQueue&& other) noexcept : cq_(std::exchange(other.cq_, nullptr)) {}
  CompletionQueue& operator=(CompletionQueue&& other) noexcept {
    std::swap(cq_, other.cq_);
    return *this;
  }
  ~CompletionQueue() { (void)Close(); }

  ibv_cq* get() const { return cq_; }
  explicit operator bool() const { return cq_ != nullptr; }
  uint32_t depth() const { return cq_ == nullptr ? 0 : static_cast<uint32_t>(cq_->cqe); }
  Status Close();

 private:
  explicit CompletionQueue(ibv_cq* cq) : cq_(cq) {}
  ibv_cq* cq_ = nullptr;
};

class SharedReceiveQueue {
 public:
  // Lowered to max_srq_wr and max_srq_sge. Check DeviceContext::supports_srq first: without it the error says
  // so.
  static Result<SharedReceiveQueue> Create(const DeviceContext& device, uint32_t max_wr,
                                           uint32_t max_sge = 0);
  SharedReceiveQueue() = default;
  SharedReceiveQueue(SharedReceiveQueue&& other) noexcept
      : srq_(std::exchange(other.srq_, nullptr)), depth_(other.depth_) {}
  SharedReceiveQueue& operator=(SharedReceiveQueue&& other) noexcept {
    std::swap(srq_, other.srq_);
    std::swap(depth_, other.depth_);
    return *this;
  }
  ~SharedReceiveQueue() { (void)Close(); }

  ibv_srq* get() const { return srq_; }
  explicit operator bool() const { return srq_ != nullptr; }
  uint32_t depth() const { return depth_; }  // entries that may be posted
  Status Close();

 private:
  SharedReceiveQueue(ibv_srq* srq, uint32_t depth) : srq_(srq), depth_(depth) {}
  ibv_srq* srq_ = nullptr;
  uint32_t depth_ = 0;
};

struct QueuePairOptions {
  ibv_cq* send_cq = nullptr;
  ibv_cq* recv_cq = nullptr;
  ibv_srq* srq = nullptr;  // null: a receive queue of its own with max_recv_wr entries
  uint32_t max_send_wr = 1;
  uint32_t max_recv_wr = 0;  // ignored with srq
  uint32_t max_send_sge = 1;
  uint32_t max_recv_sge = 1;
  uint32_t max_inline = 0;
  bool signal_all = false;
  void* qp_context = nullptr;
};

struct InitParams {
  uint8_t port = 1;
  uint16_t pkey_index = 0;
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
};

struct RtrParams {
  uint32_t dest_qpn = 0;
  uint32_t psn = 0;  // the peer's first; 24 bits
  ibv_mtu mtu = IBV_MTU_1024;
  uint8_t sl = 0;             // 0 to 15
  uint8_t traffic_class = 0;  // of the GRH, is_global only
  uint8_t hop_limit = 255;
  uint32_t flow_label = 0;  // 20 bits; RoCE derives the UDP source port from it
  uint8_t sgid_index = 0;
  union ibv_gid dgid {};
  uint16_t dlid = 0;  // InfiniBand
  bool is_global =
      false;  // with GRH: always on RoCE; on InfiniBand between subnets or when the port requires it
  uint8_t path_bits = 0;
  uint8_t max_dest_rd_atomic = 1;
  uint8_t min_rnr_timer = 12;
};

struct RtsParams {
  uint32_t psn = 0;      // our first; 24 bits
  uint8_t timeout = 20;  // 4.096 us * 2^timeout; 0 waits for ever
  uint8_t retry_cnt = 7;
  uint8_t rnr_retry = 7;  // 7 retries without end
  uint8_t max_rd_atomic = 1;
};

// The options to try after a refusal: half the inline bytes down to 16, then none, then half the send (and
// own receive) entries down to 16. Empty when nothing is left to lower, or `error` is not about sizes.
std::optional<QueuePairOptions> LowerOptions(const QueuePairOptions& refused, int error);

// "GID 10.0.0.2" or "LID 7"; with is_global on InfiniBand both.
std::string FormatRemote(const RtrParams& params);

class QueuePair {
 public:
  // RC. Lowers sizes to the device's limits, and further when refused (LowerOptions).
  static Result<QueuePair> Create(const ProtectionDomain& pd, const QueuePairOptions& options);
  QueuePair() = default;
  QueuePair(QueuePair&& other) noexcept
      : qp_(std::exchange(other.qp_, nullptr)),
        caps_(other.caps_),
        port_(other.port_),
        remote_(std::move(other.remote_)) {}
  QueuePair& operator=(QueuePair&& other) noexcept;
  ~QueuePair() { (void)Close(); }

  ibv_qp* get() const { return qp_; }
  explicit operator bool() const { return qp_ != nullptr; }
  uint32_t number() const { return qp_ == nullptr ? 0 : qp_->qp_num; }
  const ibv_qp_cap& caps() const { return caps_; }       // as granted
  const std::string& remote() const { return remote_; }  // after ToRtr: "queue pair 17 at GID 10.0.0.2"

  Status ToInit(const InitParams& params);
  // On RoCE the kernel resolves the peer's hardware address here: up to a second when nobody answers. kRemote
  // for what the network answers (ENETUNREACH, ETIMEDOUT, EHOSTUNREACH), kSystem otherwise.
  Status ToRtr(const RtrParams& params);
  Status ToRts(const RtsParams& params);
  // From any state; outstanding work is flushed. Harmless when repeated.
  Status ToError();
  // Back to RESET: the number stays, everything outstanding is gone without completion.
  Status ToReset();

  Result<ibv_qp_state> QueryState() const;
  // ibv_query_qp with `mask` (IBV_QP_AV and so on), for tests and diagnosis.
  Result<ibv_qp_attr> Query(int mask) const;

  // Enhanced connection establishment. Query: in INIT; vendor_id 0 when device or library have none. Set:
  // between INIT and RTR; lacking support is success. Both tolerate EOPNOTSUPP and ENOSYS only.
  Result<ibv_ece> QueryEce() const;
  Status SetEce(const ibv_ece& ece);

  // Destroys; Ok when empty.
  Status Close();

 private:
  QueuePair(ibv_qp* qp, const ibv_qp_cap& caps) : qp_(qp), caps_(caps) {}
  std::string Describe(std::string_view transition) const;

  ibv_qp* qp_ = nullptr;
  ibv_qp_cap caps_{};
  uint8_t port_ = 0;
  std::string remote_;
};

std::string_view QueuePairStateName(ibv_qp_state state);  // "RESET", "INIT", ...

}  // namespace sluice
