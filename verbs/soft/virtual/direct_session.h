// The session of one simulated process: its calls are executed at once on a fabric in this address space, its
// memory is read and written by plain copies, and what it posts reaches the NIC after the processor time that
// its process has spent since the pass began.
//
// Thread rule: any thread; the core's mutex is taken where the model is touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "verbs/soft/calls/verb_calls.h"
#include "verbs/soft/lib/session.h"
#include "verbs/soft/model/fabric.h"
#include "verbs/soft/virtual/reference_pool.h"
#include "verbs/soft/virtual/virtual_fabric.h"

namespace sluice::soft {

// What the sessions share.
struct VirtualCore {
  std::mutex mutex;    // guards the model
  ReferencePool pool;  // outlives the fabric
  std::unique_ptr<Fabric> fabric;
  Picos completion_cost = 0;
  std::atomic<Picos> spent{0};   // in the pass that runs
  std::vector<uint8_t> touched;  // by process: TouchKind
  std::vector<uint32_t> touched_order;

  void MarkTouched(uint32_t process, TouchKind kind) {
    if (touched[process] == 0) touched_order.push_back(process);
    touched[process] |= kind;
  }
};

class DirectSession final : public Session, public ProcessMemory {
 public:
  DirectSession(VirtualCore* core, uint32_t host, uint32_t number, const char* sysfs_root);
  // Detaches from the fabric, which must still exist.
  ~DirectSession() override;

  uint32_t host() const { return host_; }
  void DeclareData(const void* begin, size_t bytes);
  void ForgetData(const void* begin);

  // Session.
  int Invoke(Call call, uint32_t nic, CallArguments* arguments) override;
  void LockRequests() override { core_->mutex.lock(); }
  void UnlockRequests() override { core_->mutex.unlock(); }
  RecordHeader* ReserveRequest(uint16_t type, size_t bytes) override;
  void PublishRequests() override { Take(); }
  void Progress() override {}
  void PolledInVain() override {}
  void TookCompletions(uint32_t count) override {
    core_->spent.store(core_->spent.load(std::memory_order_relaxed) + count * core_->completion_cost,
                       std::memory_order_relaxed);
  }
  std::atomic<uint64_t>* TakenCounter(Cq* cq) override;
  bool pins_memory() const override { return false; }
  void LockCommands() override { core_->mutex.lock(); }
  void UnlockCommands() override { core_->mutex.unlock(); }

  // ProcessMemory.
  void Gather(DmaId id, std::span<const MemoryRange> ranges, const PayloadRef& into) override;
  void Scatter(uint64_t address, const PayloadRef& from, uint32_t offset, uint32_t length) override;
  void Atomic(DmaId id, AtomicOp op, uint64_t address, uint64_t compare_or_add, uint64_t swap) override;
  void PushCompletion(CqId cq, const Completion& completion) override;
  void PushAsyncEvent(const AsyncEvent& event) override;
  uint64_t CompletionsTaken(CqId cq) override;

 private:
  struct Posted {
    Picos at = 0;
    std::vector<std::max_align_t> record;
  };

  // Takes the reserved request on: executes it, or keeps it until the processor has come so far.
  void Take();
  void ExecuteDue(Picos now);
  void Execute(const RecordHeader* record);

  VirtualCore* core_;
  uint32_t host_;
  uint32_t number_;
  ProcessId process_ = 0;
  std::unique_ptr<VerbCalls> calls_;
  std::vector<std::max_align_t> reserved_;  // the request being written
  bool has_reserved_ = false;
  std::deque<Posted> posted_;
  std::vector<std::vector<std::max_align_t>> spare_records_;
  std::map<uint64_t, uint64_t> data_;  // begin to end
};

}  // namespace sluice::soft
