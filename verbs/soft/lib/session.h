// What stands between the verbs objects of this library and the NICs that execute their work. Two libraries
// are made of the same objects: in real time a session is a connection with the fabric process
// (ring_session.h), in virtual time it is one simulated process over a fabric in the same address space
// (verbs/soft/virtual).
//
//   Result<std::shared_ptr<Session>> session = Session::Get();
//   CallArguments a;  a.id = pd;
//   int error = (*session)->Invoke(Call::kDeallocPd, nic, &a);
//
// What the fabric answers (completions, events) reaches the objects through the Deliver functions here. When
// the fabric is gone every call returns EIO, queue pairs flush and every context gets IBV_EVENT_DEVICE_FATAL.
//
// Thread rule: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "verbs/soft/ipc/protocol.h"

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

class Session {
 public:
  // The session of the process that calls; made on first use.
  static Result<std::shared_ptr<Session>> Get();
  // What stands for /sys in the process that calls; "/sys" while it has no session.
  static const char* SysfsRoot();

  virtual ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const WelcomeMessage& welcome() const { return welcome_; }
  bool dead() const { return dead_.load(std::memory_order_acquire); }

  // Executes the call and returns its errno value; `arguments` is in and out.
  virtual int Invoke(Call call, uint32_t nic, CallArguments* arguments) = 0;

  // Posting: lock, Reserve as often as needed, Publish, unlock. Reserve may wait for space; nullptr when the
  // fabric is gone. A record is filled in before the next call of Reserve or Publish.
  virtual void LockRequests() = 0;
  virtual void UnlockRequests() = 0;
  virtual RecordHeader* ReserveRequest(uint16_t type, size_t bytes) = 0;
  virtual void PublishRequests() = 0;

  // Called by a thread that polls an empty completion queue, before its last look.
  virtual void Progress() = 0;
  // Called when the queue was empty after all.
  virtual void PolledInVain() = 0;
  // Entries that the program has just taken from a completion queue.
  virtual void TookCompletions(uint32_t count) = 0;
  // Where the number of entries taken from `cq` is kept for the fabric to see.
  virtual std::atomic<uint64_t>* TakenCounter(Cq* cq) = 0;
  // Whether registering memory brings its pages in, as pinning does. Otherwise they come on use.
  virtual bool pins_memory() const = 0;
  // Serialises those who add entries to completion queues.
  virtual void LockCommands() = 0;
  virtual void UnlockCommands() = 0;

  HandleTable<Qp>& queue_pairs() { return queue_pairs_; }
  HandleTable<Srq>& shared_receive_queues() { return shared_receive_queues_; }
  HandleTable<Cq>& completion_queues() { return completion_queues_; }
  void AddContext(Context* context);
  void RemoveContext(Context* context);
  // Visits the contexts of one device, or all with nic == -1, under the lock that keeps them alive.
  template <typename Visit>
  void ForEachContext(int nic, Visit visit);

 protected:
  Session() = default;
  // Under the lock of commands.
  void DeliverCompletion(const CompletionCommand& command);
  void DeliverEvent(const EventCommand& command);

  WelcomeMessage welcome_{};
  std::atomic<bool> dead_{false};

 private:
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
