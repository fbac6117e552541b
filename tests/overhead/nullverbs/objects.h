// What the fake verbs library is made of: each verbs object with the state that the data path needs.
//
// There is no wire and no NIC thread: ibv_post_send carries out the whole transfer before it returns, so that
// a caller's own instructions are all that is left to measure. Queue depths, send queue retirement by polled
// completions, key and access checks, RC ordering and receiver-not-ready waits are kept, because a plugin
// that relies on breaking them would measure too cheap.
//
// Any thread may call into any object, as verbs allows; each queue has a spin lock of its own.
#pragma once

#include <infiniband/verbs.h>
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/overhead/nullverbs/stats.h"

namespace nullverbs {

constexpr int kMaxSge = 8;
constexpr int kMaxInline = 1024;
constexpr int kMaxWr = 16384;
constexpr int kMaxCqe = 1 << 20;
constexpr int kGidTableLen = 4;
constexpr int kMaxDevices = 2;
constexpr uint32_t kTableSize = 1 << 16;
constexpr uint32_t kFirstNumber = 64;  // smaller queue pair numbers and key indices are never given out

// Environment, read once:
//   NULLVERBS_DEVICES=0..2 (2)       NULLVERBS_LINK=ib|roce (ib)
//   NULLVERBS_NOCOPY=1               skip copies longer than NULLVERBS_COPY_MAX (4096)
//   NULLVERBS_CQE_DELAY=k (0)        a non-empty completion queue answers k polls with 0 first
//   NULLVERBS_POLL_MAX=n             at most n completions per poll
//   NULLVERBS_SYSFS=dir (/sys)       root of the tree that ibv_device.ibdev_path points into
struct Config {
  Config();

  int devices = kMaxDevices;
  bool roce = false;
  uint32_t copy_max = UINT32_MAX;
  int poll_max = INT32_MAX;
  std::string sysfs = "/sys";
};
const Config& config();

extern std::atomic<int> cqe_delay;
extern NullverbsStats stats;

// Not an atomic addition: counting must not cost locked instructions.
inline void Count(uint64_t& counter, uint64_t n = 1) {
  __atomic_store_n(&counter, __atomic_load_n(&counter, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}

class Spin {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) {
      while (held_.load(std::memory_order_relaxed)) __builtin_ia32_pause();
    }
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};
using SpinGuard = std::lock_guard<Spin>;

// A first-in first-out queue of fixed capacity.
template <typename T>
class Ring {
 public:
  explicit Ring(size_t capacity) : slots_(capacity ? capacity : 1) {}
  bool empty() const { return head_ == tail_; }
  bool full() const { return tail_ - head_ == slots_.size(); }
  size_t capacity() const { return slots_.size(); }
  T& Claim() { return Advance(tail_, back_); }
  T& Take() { return Advance(head_, front_); }
  void Clear() {
    head_ = tail_;
    front_ = back_;
  }
  template <typename F>
  void ForEach(F f) {
    size_t at = front_;
    for (size_t i = head_; i != tail_; ++i, at = Next(at)) f(slots_[at]);
  }

 private:
  size_t Next(size_t at) const { return at + 1 == slots_.size() ? 0 : at + 1; }
  T& Advance(size_t& count, size_t& at) {
    T& slot = slots_[at];
    ++count;
    at = Next(at);
    return slot;
  }
  std::vector<T> slots_;
  size_t head_ = 0, tail_ = 0, front_ = 0, back_ = 0;
};

// Objects reachable by a number that travels between the two ends (queue pair number, key index).
template <typename T>
class Table {
 public:
  // 0 when every number is in use.
  uint32_t Insert(T* object) {
    for (uint32_t tries = 0; tries < kTableSize; ++tries) {
      const uint32_t at = kFirstNumber + cursor_.fetch_add(1) % (kTableSize - kFirstNumber);
      T* none = nullptr;
      if (entries_[at].compare_exchange_strong(none, object)) return at;
    }
    return 0;
  }
  void Erase(uint32_t at) { entries_[at] = nullptr; }
  T* Find(uint32_t at) const {
    return at < kTableSize ? entries_[at].load(std::memory_order_acquire) : nullptr;
  }

 private:
  std::atomic<uint32_t> cursor_{0};
  std::atomic<T*> entries_[kTableSize] = {};
};

struct Device : ibv_device {
  int index;
  uint64_t guid;
};

struct Context : verbs_context {
  Device* dev;
};
inline Context* ContextOf(ibv_context* c) {
  return static_cast<Context*>(verbs_get_ctx(c));
}

struct Mr : ibv_mr {
  uint64_t iova;
  int access;
  void* mapping = nullptr;  // DMA-BUF only
};
extern Table<Mr> mr_table;

struct Qp;

struct Cqe {
  ibv_wc wc;
  Qp* qp;
  uint64_t retires;  // send queue position freed when this is polled; 0 for a receive
};

struct Cq : ibv_cq {
  explicit Cq(size_t n) : ring(n) {}
  Spin lock;
  Ring<Cqe> ring;
  int polls_waited = 0;
};
inline Cq* CqOf(ibv_cq* c) {
  return static_cast<Cq*>(c);
}

struct RecvWqe {
  uint64_t wr_id;
  int num_sge;
  ibv_sge sge[kMaxSge];
};

struct RecvQueue {
  explicit RecvQueue(size_t n) : ring(n) {}
  Spin lock;
  Ring<RecvWqe> ring;
  std::vector<Qp*> waiting;  // senders stopped by an empty queue
};

struct Srq : ibv_srq {
  explicit Srq(size_t n) : rq(n) {}
  RecvQueue rq;
};
inline Srq* SrqOf(ibv_srq* s) {
  return static_cast<Srq*>(s);
}

// A send work request held back until its peer posts a receive.
struct Pending {
  ibv_send_wr wr;
  uint64_t position;
  std::vector<ibv_sge> sge;
  std::vector<char> data;
};

struct Qp : ibv_qp {
  explicit Qp(const ibv_qp_init_attr& a)
      : init(a), own_rq(a.srq ? 0 : a.cap.max_recv_wr), rq(a.srq ? &SrqOf(a.srq)->rq : &own_rq) {}
  ibv_qp_init_attr init;
  ibv_qp_attr attr{};
  RecvQueue own_rq;
  RecvQueue* rq;
  Spin sq_lock;
  uint64_t sq_posted = 0;
  std::atomic<uint64_t> sq_retired{0};
  std::deque<Pending> held;
};
extern Table<Qp> qp_table;
inline Qp* QpOf(ibv_qp* q) {
  return static_cast<Qp*>(q);
}

// Installs poll, post and the other data path functions.
void SetDataPath(ibv_context_ops& ops);

// Moves to the error state and flushes the receives that the queue pair owns. The caller holds qp->sq_lock.
void EnterError(Qp* qp);

}  // namespace nullverbs
