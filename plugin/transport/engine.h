// An engine: what one data thread owns on one NET device. Per port a completion queue and a shared receive
// queue, the table of receiving connections, and the work that waits for room.
//
// Lifetime: engines and connections are never freed, so that a late call of NCCL meets a closed object, not
// freed memory. Threads: `lock` guards everything that the data path touches (DataGuard on the data path,
// ControlGuard elsewhere); members under "event thread" belong to the event thread alone.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugin/classify/classifier.h"
#include "plugin/lanes.h"
#include "plugin/net.h"
#include "plugin/params.h"
#include "plugin/transport/activity_file.h"
#include "plugin/transport/biased_lock.h"
#include "plugin/transport/connection.h"
#include "plugin/transport/event_loop.h"
#include "plugin/transport/frames.h"
#include "plugin/transport/memory_handle.h"
#include "plugin/transport/table_pool.h"
#include "tuner/port_share.h"
#include "verbs/device.h"
#include "verbs/gid.h"
#include "verbs/queue_pair.h"

namespace sluice {

struct InLink;
struct ListenState;
struct OutLink;
struct InPath;
struct OutPath;
struct Path;

// Work request ids: address of the owner (64-byte aligned) | kind | number of work requests that this
// completion retires (data) or, in the top 16 bits, an index (queue of the path, or retired requests of a
// control queue).
enum class WorkKind : uint64_t { kData = 0, kControl = 1, kFlush = 2, kPiece = 3 };
struct WorkId {
  static constexpr uint64_t kKindMask = 3;
  static uint64_t Pack(WorkKind kind, const void* owner, uint64_t count, uint64_t index) {
    return reinterpret_cast<uint64_t>(owner) | static_cast<uint64_t>(kind) | count << 2 | index << 48;
  }
  static WorkKind Kind(uint64_t id) { return static_cast<WorkKind>(id & kKindMask); }
  static uint32_t Count(uint64_t id) { return static_cast<uint32_t>(id >> 2 & 15); }
  static uint32_t Index(uint64_t id) { return static_cast<uint32_t>(id >> 48); }
  template <typename T>
  static T* Owner(uint64_t id) {
    return reinterpret_cast<T*>(id & 0x0000ffffffffffc0);
  }
};

struct EnginePort {
  Port port;
  std::shared_ptr<DeviceContext> device;
  GidEntry gid;
  ibv_port_attr attributes{};
  bool adaptive_routing = false;
  uint32_t max_inline = 0;

  CompletionQueue cq;
  SharedReceiveQueue srq;
  // Work requests that may still be posted: a completion queue that overruns takes all paths down.
  uint32_t cq_credits = 0;
  // Half of them, and what a chunk needs: below, nothing is posted without a signal.
  uint32_t cq_credits_low = 0;
  uint32_t srq_posted = 0;    // receive entries that an immediate may consume
  uint32_t srq_reserved = 0;  // of those, promised to senders by CTS entries: never above srq_posted
  uint32_t srq_consumed = 0;  // to repost, once receive_batch of them came together
  uint32_t receive_batch = 1;

  // Loop-back for Iflush; made when GPU memory may be in use.
  QueuePair flush_qp;
  std::unique_ptr<MemoryHandle> flush_memory;
  alignas(64) std::array<uint64_t, 8> flush_target{};
  uint32_t flush_free_wrs = 0;
};

// The 48-bit space above holds user addresses of x86-64 and aarch64 processes.
class Engine {
 public:
  static constexpr uint32_t kReceiveBatch = 32;
  static constexpr uint32_t kPollBatch = 16;
  static constexpr uint32_t kConnectionIndices = 65536;

  // Opens queues on every member port of `device`. Service thread; may take milliseconds.
  static Result<Engine*> Create(int device, const Params& params, const CommConfig& config);

  // Data path, under DataGuard or ControlGuard. Nothing here throws: no cleanup code on the fast path.
  [[gnu::always_inline]] void Poll() noexcept {
    for (uint32_t i = 0; i < port_count; ++i) {
      const int count = ibv_poll_cq(poll_cqs_[i], kPollBatch, completions_.data());
      if (count != 0) OnCompletions(i, count);
    }
    if (waiting_) [[unlikely]]
      Progress();
  }
  // The first half of Poll for engines of one port: false when there was nothing, and nothing waits.
  [[gnu::always_inline]] bool PollQuickly(int* count) noexcept {
    if (quick_cq_ == nullptr) [[unlikely]] {
      *count = 0;
      return true;
    }
    *count = ibv_poll_cq(quick_cq_, kPollBatch, completions_.data());
    return *count != 0 || waiting_;
  }
  // The second half, with what the first one returned.
  [[gnu::noinline]] void FinishPoll(int count) noexcept;
  void Progress() noexcept;
  void Enqueue(SendRequest* request) noexcept;
  void Enqueue(RecvGroup* group) noexcept;
  void Remove(SendRequest* request) noexcept;
  void Remove(RecvGroup* group) noexcept;
  bool has_waiting() const { return waiting_; }
  bool has_waiting_sends(uint32_t service_class) const { return sends_[service_class].head != nullptr; }
  // Entries of the smallest shared receive queue: what one group may need at most.
  uint32_t ReceiveEntries() const;

  // Marks the path and its connections failed with `cause`; first cause wins. Any guard. The event thread
  // tells the peer and moves the queue pairs to ERR.
  void FailPath(Path& path, const Status& cause) noexcept;
  Path* FindPath(uint32_t qp_number);  // null: none with such a queue pair
  // Every path of this engine: the device is gone.
  void FailAll(const Status& cause) noexcept;

  BiasedLock lock;
  EngineClassifier classifier;  // under lock
  const uint64_t uid;
  const int device;
  const Params& params;
  const CommConfig config;
  const bool infiniband;
  EventLoop& loop;

  // Under lock.
  std::array<EnginePort, kMaxMergedPorts> ports;
  uint32_t port_count = 0;                             // 0 after teardown: Poll then touches nothing
  std::array<ActivityFile, kMaxMergedPorts> activity;  // by port, for `share`
  PortShare share;  // what other classes and engines of the host leave of the ports
  std::vector<std::shared_ptr<DeviceContext>> devices;
  // By connection index; kConnectionIndices entries, null until published, touched on use.
  std::unique_ptr<RecvConnection*[], void (*)(RecvConnection**)> receivers;
  TablePool tables;
  std::vector<Path*> live_paths;     // have queue pairs
  const char* gpu_memory = "";       // how it is registered, for the log
  uint64_t flushed_completions = 0;  // consequences of a failure: counted, not printed

  // Event thread.
  std::vector<std::unique_ptr<Path>> paths;  // never freed: completions and posted tasks may still name them
  std::vector<std::unique_ptr<Connection>> connections;    // likewise
  std::map<uint64_t, std::unique_ptr<OutLink>> out_links;  // by the peer's uid
  std::vector<std::unique_ptr<InLink>> in_links;
  std::map<uint32_t, ListenState*> listeners;
  std::set<uint16_t> taken_indices;  // connection indices in use or in quarantine
  uint16_t next_index = 0;
  bool finalizing = false;
  bool finished = false;  // nothing of verbs is left

  // Listeners, pending connects and open connections; at zero an engine of the global context ends (retire).
  std::atomic<uint32_t> users{0};
  std::function<void(Engine&)> retire;  // event thread; empty for engines that finalize ends

  // Takes the ports away from the data path; their number was `count`.
  std::array<EnginePort, kMaxMergedPorts> TakePorts(uint32_t* count);
  std::string Describe() const;  // "mlx5_0+mlx5_1"
  PortAddress AddressOf(uint32_t port) const;

 private:
  Engine(int device, const Params& params, const CommConfig& config, bool infiniband, EventLoop& loop);
  void OrderClasses(const std::vector<LaneSpec>& lanes);
  Status OpenPort(uint32_t index, const Port& port, const std::vector<LaneSpec>& lanes);
  // Joins the scheduler of the ports. Nothing to do when the policy has one data class only.
  Status OpenShare(const std::vector<LaneSpec>& lanes);
  // `count` entries of completions_; below 0: polling failed.
  [[gnu::noinline]] void OnCompletions(uint32_t port_index, int count) noexcept;
  [[gnu::always_inline]] inline void Settle(SendRequest& request);
  [[gnu::noinline]] void OnPiece(EnginePort& port, SendRequest& request, uint32_t queue_index);
  void OnImmediate(uint32_t port_index, const ibv_wc& wc);
  void OnError(const EnginePort& port, const ibv_wc& wc);
  void FinishSub(RecvGroup& group, RecvSub& sub);
  Status RefillReceives(EnginePort& port);
  Status OpenFlush(EnginePort& port, int control_sl);
  // The defect that must never be taken for data: fails the path that the immediate came from.
  void OnStaleImmediate(const ibv_wc& wc, const char* what);
  void ReleaseReservations(RecvConnection& connection);

  std::array<ibv_cq*, kMaxMergedPorts> poll_cqs_{};
  ibv_cq* quick_cq_ = nullptr;  // the only one; null with several ports, and after teardown
  std::array<ibv_wc, kPollBatch> completions_;

  // Work that found no room, oldest first.
  template <typename T>
  struct WaitingList {
    T* head = nullptr;
    T* tail = nullptr;
    void Append(T* item);
    void Unlink(T* item);
  };
  void UpdateWaiting();
  void ProgressSends(uint32_t service_class) noexcept;

  std::array<WaitingList<SendRequest>, kMaxServiceClasses> sends_{};
  std::array<uint8_t, kMaxServiceClasses> send_order_{};  // service classes, the most urgent first
  WaitingList<RecvGroup> groups_;
  bool waiting_ = false;
  std::array<ibv_recv_wr, kReceiveBatch> receive_chain_{};
};

}  // namespace sluice
