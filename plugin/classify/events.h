// Tasks and proxy operations of the profiler half, by event number.
//
// A number carries kind, slot, generation and a tag of this process, and is checked against the slot at every use:
// numbers of another process (PXN), of a slot that was used again, or made up, are unknown. Nothing is followed as a
// pointer.
//
// Tasks lie in a ring: NCCL stops a collective before its proxy operations start, so the end of a task is never
// known; one is forgotten when kTaskSlots later ones have started, far beyond what NCCL queues. Proxy operations are
// claimed at their start and given back at their stop.
//
// Threads: tasks from any, wait-free. A proxy operation belongs to the thread that started it until it stops it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "plugin/profiler.h"
#include "tuner/operation.h"

namespace sluice {

class CommunicatorState;

// What the messages of one collective on one channel and direction have in common.
struct OpenProxyOp {
  std::atomic<uint32_t> state{0};  // generation x 2 + 1 while in use
  uint32_t owner = 0;              // index of the profiler context that it belongs to
  bool is_send = false;
  bool known = false;   // its task was found
  bool is_call = true;  // see Task
  // The class of the operation as messages asked for it last; written by the data thread.
  mutable uint8_t cached_class = 0;
  mutable uint32_t cached_for = ~0u;
  Operation operation;
  const CommunicatorState* communicator = nullptr;
};

struct Task {
  Operation operation;
  // The function is the user's call. False where NCCL names only what it made of it: Send, of an all-to-all.
  bool is_call = true;
  uint32_t owner = 0;
  const CommunicatorState* communicator = nullptr;
};

class EventTables {
 public:
  static constexpr uint32_t kTaskSlots = 1 << 15;
  static constexpr uint32_t kProxyOpSlots = 1 << 14;

  static EventTables& Get() { return tables_; }
  // A tag of this process; before the first event.
  static void Start();

  ProfilerEvent AddTask(const Task& task) noexcept;
  std::optional<Task> FindTask(ProfilerEvent event) const noexcept;

  // Null when all slots are in use; `event` is then a number that finds nothing, yet not 0.
  OpenProxyOp* OpenOp(ProfilerEvent* event) noexcept;
  OpenProxyOp* FindOp(ProfilerEvent event) noexcept;
  void CloseOp(OpenProxyOp& op) noexcept;
  // Gives back what an aborted communicator left.
  void CloseAllOf(uint32_t owner) noexcept;

  // The step of a proxy operation, and back.
  static ProfilerEvent StepOf(ProfilerEvent op) noexcept;
  static bool IsStep(ProfilerEvent event) noexcept;

 private:
  struct TaskSlot {
    std::atomic<uint64_t> generation{0};  // 0 while it is written
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> packed{0};
    std::atomic<const CommunicatorState*> communicator{nullptr};
  };
  static EventTables tables_;

  std::atomic<uint64_t> next_task_{0};
  std::array<TaskSlot, kTaskSlots> tasks_{};
  std::array<OpenProxyOp, kProxyOpSlots> ops_{};
};

}  // namespace sluice
