// The session in real time: the connection of this process with its fabric process, which is shared rings,
// the payload pool and the service thread that executes the fabric's commands (copies, completions, events,
// answers) in their order. One serves a process; it ends when nothing refers to it any more.
//
// Thread rule: any thread. A child made by fork has no session and gets its own.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "base/status.h"
#include "verbs/soft/ipc/socket.h"
#include "verbs/soft/lib/session.h"

namespace sluice::soft {

class RingSession final : public Session {
 public:
  // Connects, and starts the fabric process if there is none.
  static Result<std::shared_ptr<Session>> Open();
  ~RingSession() override;

  int Invoke(Call call, uint32_t nic, CallArguments* arguments) override;
  void LockRequests() override { pthread_mutex_lock(&request_mutex_); }
  void UnlockRequests() override { pthread_mutex_unlock(&request_mutex_); }
  RecordHeader* ReserveRequest(uint16_t type, size_t bytes) override;
  void PublishRequests() override;
  // Executes waiting commands if no other thread does.
  void Progress() override {
    header_->last_poll_cycles.store(CycleCount(), std::memory_order_relaxed);
    const RingHeader& ring = header_->commands;
    if (ring.tail.load(std::memory_order_relaxed) == ring.head.load(std::memory_order_relaxed)) return;
    ProgressSlow();
  }
  void PolledInVain() override;
  void TookCompletions(uint32_t) override {}
  std::atomic<uint64_t>* TakenCounter(Cq* cq) override;
  bool pins_memory() const override { return true; }
  void LockCommands() override { pthread_mutex_lock(&command_mutex_); }
  void UnlockCommands() override { pthread_mutex_unlock(&command_mutex_); }

 private:
  struct PendingCall;

  RingSession() = default;
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
  void FabricDied();
  void Wake(int eventfd) const;

  UniqueFd socket_, memory_, wake_library_, wake_fabric_;
  SessionHeader* header_ = nullptr;
  std::byte* pool_ = nullptr;
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
  std::atomic<bool> service_left_{false};  // by the thread itself or by the destructor, whichever is first
  std::atomic<bool> closing_{false};
};

}  // namespace sluice::soft
