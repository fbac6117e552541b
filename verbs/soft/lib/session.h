// The connection of this process with its fabric process: shared rings, the payload pool and the service
// thread that executes the fabric's commands (copies, completions, events, answers) in their order.
//
//   Result<std::shared_ptr<Session>> session = Session::Get();
//   CallArguments a;  a.id = pd;
//   int error = (*session)->Invoke(Call::kDeallocPd, nic, &a);
//
// One session serves a process; it ends when nothing refers to it any more. When the fabric process dies
// every call returns EIO, queue pairs flush and every context gets IBV_EVENT_DEVICE_FATAL.
//
// Thread rule: any thread. A child made by fork has no session and gets its own.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "verbs/soft/ipc/protocol.h"
#include "verbs/soft/ipc/socket.h"

namespace sluice::soft {

struct Context;
struct Cq;
struct Qp;
struct Srq;

// Objects by small number, so that a completion finds its queue without a lock. Chunks never move.
template <typename T>
class HandleTable {
 public:
  HandleTable() = default;
  ~HandleTable() {
    for (const auto& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
  }
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // 0 when full.
  uint32_t Add(T* object);
  void Remove(uint32_t handle);
  T* Get(uint32_t handle) const {
    const std::atomic<T*>* chunk = chunks_[(handle >> kChunkBits) % kChunks].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : chunk[handle & kChunkMask].load(std::memory_order_acquire);
  }
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (uint32_t handle = 1; handle < next_.load(std::memory_order_acquire); ++handle) {
      if (T* object = Get(handle)) visit(object);
    }
  }

 private:
  static constexpr uint32_t kChunkBits = 10, kChunkMask = (1u << kChunkBits) - 1, kChunks = 1024;
  std::atomic<std::atomic<T*>*> chunks_[kChunks] = {};
  std::atomic<uint32_t> next_{1};
  std::vector<uint32_t> free_;
  std::mutex mutex_;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  // The session of this process; connects, and starts the fabric process if there is none.
  static Result<std::shared_ptr<Session>> Get();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const WelcomeMessage& welcome() const { return welcome_; }
  bool dead() const { return dead_.load(std::memory_order_acquire); }

  // Sends the call, waits for the answer and returns its errno value; `arguments` is in and out.
  int Invoke(Call call, uint32_t nic, CallArguments* arguments);

  // Posting: lock, Reserve as often as needed, Publish, unlock. Reserve waits for space; nullptr when the
  // fabric process is dead.
  void LockRequests() { pthread_mutex_lock(&request_mutex_); }
  void UnlockRequests() { pthread_mutex_unlock(&request_mutex_); }
  RecordHeader* ReserveRequest(uint16_t type, size_t bytes);
  void PublishRequests();

  // Called by a thread that polls an empty completion queue: executes waiting commands if no other thread
  // does.
  void Progress() {
    header_->last_poll_cycles.store(CycleCount(), std::memory_order_relaxed);
    const RingHeader& ring = header_->commands;
    if (ring.tail.load(std::memory_order_relaxed) == ring.head.load(std::memory_order_relaxed)) return;
    ProgressSlow();
  }
  // Serialises those who add entries to completion queues.
  void LockCommands() { pthread_mutex_lock(&command_mutex_); }
  void UnlockCommands() { pthread_mutex_unlock(&command_mutex_); }

  std::atomic<uint64_t>& completions_taken(uint32_t slot) { return header_->completions_taken[slot]; }

  HandleTable<Qp>& queue_pairs() { return queue_pairs_; }
  HandleTable<Srq>& shared_receive_queues() { return shared_receive_queues_; }
  HandleTable<Cq>& completion_queues() { return completion_queues_; }
  void AddContext(Context* context);
  void RemoveContext(Context* context);
  // Visits the contexts of one device, or all with nic == -1, under the lock that keeps them alive.
  template <typename Visit>
  void ForEachContext(int nic, Visit visit);

 private:
  struct PendingCall;

  Session() = default;
  Status Connect();
  Status ShareMemory();
  Status Introduce(int socket);
  Status StartServiceThread();
  static void* ServiceMain(void* self);
  void Serve();
  void ProgressSlow();
  // Executes up to `limit` commands; the command mutex is held. Returns how many.
  int ExecuteCommands(int limit);
  void Execute(RecordHeader* record, bool* wake_fabric);
  // Wakes the fabric process if it sleeps, after what it waits for is done.
  void TellFabric();
  void DeliverCompletion(const CompletionCommand& command);
  void DeliverEvent(const EventCommand& command);
  void FabricDied();
  void Wake(int eventfd) const;

  UniqueFd socket_, memory_, wake_library_, wake_fabric_;
  SessionHeader* header_ = nullptr;
  std::byte* pool_ = nullptr;
  WelcomeMessage welcome_{};
  pid_t owner_ = 0;

  pthread_mutex_t request_mutex_ = PTHREAD_MUTEX_INITIALIZER;
  RingProducer requests_;
  // Tells race detectors what the fabric process guarantees: what was written before a post is seen by the
  // commands that follow from it.
  std::atomic<uint64_t> posted_{0};

  pthread_mutex_t command_mutex_ = PTHREAD_MUTEX_INITIALIZER;
  RingConsumer commands_;

  std::mutex calls_mutex_;
  std::unordered_set<PendingCall*> calls_;

  pthread_t service_{};
  bool service_runs_ = false;
  std::atomic<bool> closing_{false};
  std::atomic<bool> dead_{false};

  HandleTable<Qp> queue_pairs_;
  HandleTable<Srq> shared_receive_queues_;
  HandleTable<Cq> completion_queues_;
  std::mutex contexts_mutex_;
  std::vector<Context*> contexts_;
};

template <typename T>
uint32_t HandleTable<T>::Add(T* object) {
  std::lock_guard lock(mutex_);
  uint32_t handle = 0;
  if (!free_.empty()) {
    handle = free_.back();
    free_.pop_back();
  } else {
    handle = next_.load(std::memory_order_relaxed);
    if (handle >> kChunkBits >= kChunks) return 0;
    auto& chunk = chunks_[handle >> kChunkBits];
    if (chunk.load(std::memory_order_relaxed) == nullptr) {
      chunk.store(new std::atomic<T*>[kChunkMask + 1](), std::memory_order_release);
    }
    next_.store(handle + 1, std::memory_order_release);
  }
  chunks_[handle >> kChunkBits].load(std::memory_order_relaxed)[handle & kChunkMask].store(
      object, std::memory_order_release);
  return handle;
}

template <typename T>
void HandleTable<T>::Remove(uint32_t handle) {
  std::lock_guard lock(mutex_);
  chunks_[handle >> kChunkBits].load(std::memory_order_relaxed)[handle & kChunkMask].store(
      nullptr, std::memory_order_release);
  free_.push_back(handle);
}

}  // namespace sluice::soft
