// The verbs objects of this library. Each begins with the public structure that programs see, so a pointer to
// one is a pointer to the other.
//
// Thread rule: as verbs demands: every function may be called from any thread; an object is not used while it
// is being destroyed.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "verbs/soft/lib/event_queue.h"
#include "verbs/soft/lib/session.h"

namespace sluice::soft {

struct Device {
  ibv_device device{};
  std::shared_ptr<Session> session;
  DeviceDescription description{};
  uint32_t nic = 0;
  std::atomic<int> references{1};
};
inline Device* Own(ibv_device* device) {
  return reinterpret_cast<Device*>(device);
}

struct Context {
  verbs_context verbs{};
  Device* device = nullptr;
  std::shared_ptr<Session> session;
  uint32_t nic = 0;
  EventQueue<ibv_async_event> events;
  std::mutex objects_mutex;
  // What the program left behind when it closes the device; freed then, as a kernel does.
  std::unordered_set<Qp*> queue_pairs;
  std::unordered_set<Srq*> shared_receive_queues;
  std::unordered_set<Cq*> completion_queues;
  std::unordered_set<struct Mr*> regions;
  std::unordered_set<struct Pd*> domains;
};
inline Context* Own(ibv_context* context) {
  return reinterpret_cast<Context*>(reinterpret_cast<char*>(context) - offsetof(verbs_context, context));
}
static_assert(offsetof(verbs_context, context) + sizeof(ibv_context) == sizeof(verbs_context));

struct Pd {
  ibv_pd pd{};
};
inline Pd* Own(ibv_pd* pd) {
  return reinterpret_cast<Pd*>(pd);
}

struct Mr {
  ibv_mr mr{};
};
inline Mr* Own(ibv_mr* mr) {
  return reinterpret_cast<Mr*>(mr);
}

struct Channel {
  ibv_comp_channel channel{};
  EventQueue<Cq*> events;
};
inline Channel* Own(ibv_comp_channel* channel) {
  return reinterpret_cast<Channel*>(channel);
}

// One entry of a completion queue, in memory of this process.
struct Cqe {
  uint64_t wr_id;
  int64_t timestamp_ps;
  // The queues whose places become free when the program takes the entry; null when they are destroyed.
  Qp* qp;
  Srq* srq;
  uint32_t index;
  QueueKind kind;
  ibv_wc_status status;
  ibv_wc_opcode opcode;
  uint32_t vendor_err;
  uint32_t qp_num;
  uint32_t byte_len;
  uint32_t imm_data;
  uint32_t src_qp;
  uint32_t wc_flags;
  uint16_t slid;
  uint8_t sl;
  bool full;  // false: only the fields that an error defines
};

struct Cq {
  ibv_cq_ex cq{};
  Context* context = nullptr;
  uint32_t id = 0;      // the model's
  uint32_t handle = 0;  // in the session's table; also the slot of its counter
  bool single_threaded = false;

  std::vector<Cqe> entries;  // size is a power of two
  // The producer is whoever executes commands; consumers hold the mutex.
  alignas(64) std::atomic<uint64_t> tail{0};
  alignas(64) std::atomic<uint64_t> head{0};
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  uint64_t taken = 0;                           // with the entries that a destroyed queue pair took along
  std::atomic<uint64_t>* taken_seen = nullptr;  // the same for the fabric
  std::atomic<uint64_t> taken_here{0};          // where a fabric in this address space looks

  enum Armed : int { kNo, kSolicited, kAny };
  std::atomic<int> armed{kNo};
  std::atomic<uint32_t> channel_events_taken{0};
  std::atomic<uint32_t> async_events_taken{0};
  Cqe current{};  // between start_poll and end_poll
};
inline Cq* Own(ibv_cq* cq) {
  return reinterpret_cast<Cq*>(cq);
}
inline Cq* Own(ibv_cq_ex* cq) {
  return reinterpret_cast<Cq*>(cq);
}

// Places for work requests; index counts up, the place is index modulo the size.
struct WorkQueue {
  std::vector<uint64_t> wr_ids;  // size is a power of two
  uint32_t limit = 0;
  uint32_t max_sge = 0;
  uint32_t head = 0;                   // next index to post; under the queue's mutex
  std::atomic<uint32_t> tail{0};       // entries below are free: their completions were taken
  std::atomic<uint32_t> completed{0};  // entries below have a completion or will never have one
  uint64_t& place(uint32_t index) { return wr_ids[index & (wr_ids.size() - 1)]; }
  void Resize(uint32_t entries);
};

struct Srq {
  ibv_srq srq{};
  Context* context = nullptr;
  uint32_t id = 0;
  uint32_t handle = 0;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  // Entries are taken in order but complete in any, so free places are kept in a list.
  std::vector<uint64_t> wr_ids;
  std::vector<uint32_t> free_places;
  uint32_t max_sge = 0;
  std::atomic<uint32_t> async_events_taken{0};
};
inline Srq* Own(ibv_srq* srq) {
  return reinterpret_cast<Srq*>(srq);
}

// One work request of an extended post between wr_start and wr_complete.
struct StagedSend {
  ibv_send_wr wr;
  uint32_t first_sge, sge_count;
  uint32_t first_byte, byte_count;
};

struct Qp {
  ibv_qp_ex qp{};
  Context* context = nullptr;
  uint32_t handle = 0;
  bool extended = false;
  bool sq_sig_all = false;
  uint64_t send_ops = 0;
  ibv_qp_cap cap{};
  pthread_mutex_t send_mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_t recv_mutex = PTHREAD_MUTEX_INITIALIZER;
  WorkQueue send, recv;
  ibv_ece ece{};
  std::atomic<uint32_t> async_events_taken{0};

  // Extended posting; the send mutex is held from wr_start to wr_complete or wr_abort.
  std::vector<StagedSend> staged;
  std::vector<ibv_sge> staged_sges;
  std::vector<uint8_t> staged_bytes;
  int staging_error = 0;
};
inline Qp* Own(ibv_qp* qp) {
  return reinterpret_cast<Qp*>(qp);
}
inline Qp* Own(ibv_qp_ex* qp) {
  return reinterpret_cast<Qp*>(qp);
}

struct Ah {
  ibv_ah ah{};
};

// Adds an entry; the command mutex is held. `solicited` or an error wakes a channel armed for either.
void PushCompletion(Cq* cq, const Cqe& entry, bool solicited);
// Drops the entries of a queue pair that is gone.
void ForgetQueuePair(Cq* cq, const Qp* qp);
// Lets the program take the entries of a shared receive queue that is gone.
void ForgetSharedQueue(Cq* cq, const Srq* srq);
// Every posted and not completed request gets a flush error; later posts likewise. The fabric process is
// dead.
void FlushQueuePair(Qp* qp);

// Fills in the functions that programs call through the context and the objects.
void InstallDeviceOps(Context* context);
void InstallCompletionOps(Context* context);
void InstallPostOps(Context* context);
void InstallQueuePairOps(Context* context);
void InstallExtendedPost(Qp* qp);

int DestroyQp(Qp* qp);
int DestroySrq(Srq* srq);
int DestroyCq(Cq* cq);
int DeregMr(Mr* mr);
int DeallocPd(Pd* pd);

template <typename Visit>
void Session::ForEachContext(int nic, Visit visit) {
  std::lock_guard lock(contexts_mutex_);
  for (Context* context : contexts_) {
    if (nic < 0 || context->nic == static_cast<uint32_t>(nic)) visit(context);
  }
}

inline uint32_t RoundUpToPowerOfTwo(uint32_t value) {
  uint32_t power = 1;
  while (power < value) power <<= 1;
  return power;
}

// The way verbs functions report: errno set and a null pointer.
template <typename T = std::nullptr_t>
inline T Fail(int error) {
  errno = error;
  return nullptr;
}

}  // namespace sluice::soft
