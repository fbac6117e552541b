// ProcessMemory and PayloadPool for programs that live in the same address space as the model: tests and
// virtual time. Copies at once; keeps completions and events for the owner to take.
//
// Thread rule: the thread that drives the Fabric.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "verbs/soft/model/fabric.h"
#include "verbs/soft/model/memory.h"

namespace sluice::soft {

// Payload buffers from the heap, kept for reuse by size. With a limit, AcquireUrgent refuses above that many
// bytes and Acquire above three quarters of it.
class HeapPayloadPool : public PayloadPool {
 public:
  explicit HeapPayloadPool(uint64_t limit_bytes = UINT64_MAX) : limit_bytes_(limit_bytes) {}
  ~HeapPayloadPool() override;
  HeapPayloadPool(const HeapPayloadPool&) = delete;
  HeapPayloadPool& operator=(const HeapPayloadPool&) = delete;

  Payload* Acquire(uint32_t bytes) override { return AcquireBelow(bytes, limit_bytes_ - limit_bytes_ / 4); }
  Payload* AcquireUrgent(uint32_t bytes) override { return AcquireBelow(bytes, limit_bytes_); }
  void Release(Payload* payload) override;

  uint64_t bytes_in_use() const { return in_use_bytes_; }
  uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  Payload* AcquireBelow(uint32_t bytes, uint64_t limit_bytes);

  static constexpr int kSizeClasses = 11;  // 64 B, 128 B, ... 64 KiB
  std::vector<Payload*> free_[kSizeClasses];
  uint64_t limit_bytes_;
  uint64_t in_use_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
};

// Addresses are pointers of this process.
class DirectMemory : public ProcessMemory {
 public:
  explicit DirectMemory(Fabric* fabric) : fabric_(fabric) {}

  void Gather(DmaId id, std::span<const MemoryRange> ranges, const PayloadRef& into) override;
  void Scatter(uint64_t address, const PayloadRef& from, uint32_t offset, uint32_t length) override;
  void Atomic(DmaId id, AtomicOp op, uint64_t address, uint64_t compare_or_add, uint64_t swap) override;
  void PushCompletion(CqId cq, const Completion& completion) override;
  void PushAsyncEvent(const AsyncEvent& event) override;
  uint64_t CompletionsTaken(CqId cq) override;

  // The program's side.
  bool Poll(CqId cq, Completion* completion);
  // The oldest completion, which stays; there must be one.
  const Completion& Peek(CqId cq) { return queues_[cq].entries.front(); }
  bool NextEvent(AsyncEvent* event);
  // Called after each completion pushed, e.g. to wake a simulated rank. May be empty.
  void OnCompletion(std::function<void(CqId)> call) { on_completion_ = std::move(call); }

 private:
  struct Queue {
    std::deque<Completion> entries;
    uint64_t taken = 0;
  };
  Fabric* fabric_;
  std::map<CqId, Queue> queues_;
  std::deque<AsyncEvent> events_;
  std::function<void(CqId)> on_completion_;
};

}  // namespace sluice::soft
