#include "plugin/classify/events.h"

#include <sys/random.h>

#include "plugin/classify/thread_state.h"

namespace sluice {
namespace {

// tag:16 | generation:26 | slot:20 | kind:2
enum class Kind : uint64_t { kTask = 1, kOp = 2, kStep = 3 };
constexpr int kSlotBits = 20;
constexpr int kGenerationBits = 26;
constexpr uint64_t kGenerationMask = (uint64_t{1} << kGenerationBits) - 1;
constexpr uint32_t kNoSlot = (1u << kSlotBits) - 1;

uint64_t process_tag = 0;  // in place

constexpr uint64_t Pack(uint64_t tag, uint64_t generation, uint32_t slot, Kind kind) {
  return tag | (generation & kGenerationMask) << (kSlotBits + 2) | uint64_t{slot} << 2 |
         static_cast<uint64_t>(kind);
}
uint64_t TagOf(uint64_t bits) {
  return bits >> (kSlotBits + kGenerationBits + 2) << (kSlotBits + kGenerationBits + 2);
}
uint64_t GenerationOf(uint64_t bits) {
  return bits >> (kSlotBits + 2) & kGenerationMask;
}
uint32_t SlotOf(uint64_t bits) {
  return static_cast<uint32_t>(bits >> 2) & kNoSlot;
}
Kind KindOf(uint64_t bits) {
  return static_cast<Kind>(bits & 3);
}

uint64_t PackTask(const Task& task) {
  return static_cast<uint64_t>(task.operation.function) |
         static_cast<uint64_t>(task.operation.algorithm) << 8 |
         static_cast<uint64_t>(task.operation.protocol) << 16 | uint64_t{task.is_call} << 24 |
         uint64_t{task.owner} << 32;
}

}  // namespace

constinit thread_local ThreadState this_thread;
constinit EventTables EventTables::tables_;

void EventTables::Start() {
  if (process_tag != 0) return;
  uint16_t tag = 0;
  while (tag == 0) {
    if (getrandom(&tag, sizeof tag, 0) != static_cast<ssize_t>(sizeof tag)) tag = 1;
  }
  process_tag = uint64_t{tag} << (kSlotBits + kGenerationBits + 2);
}

ProfilerEvent EventTables::AddTask(const Task& task) noexcept {
  const uint64_t ticket = next_task_.fetch_add(1, std::memory_order_relaxed);
  const auto slot = static_cast<uint32_t>(ticket % kTaskSlots);
  // Generation 0 marks a slot that is being written, also after the counter has wrapped.
  uint64_t generation = (ticket / kTaskSlots + 1) & kGenerationMask;
  if (generation == 0) generation = 1;
  TaskSlot& to = tasks_[slot];
  to.generation.store(0, std::memory_order_relaxed);
  // Release, each: who reads one of them by acquire sees the mark as well.
  to.bytes.store(task.operation.bytes, std::memory_order_release);
  to.packed.store(PackTask(task), std::memory_order_release);
  to.communicator.store(task.communicator, std::memory_order_release);
  to.generation.store(generation, std::memory_order_release);
  return static_cast<ProfilerEvent>(Pack(process_tag, generation, slot, Kind::kTask));
}

std::optional<Task> EventTables::FindTask(ProfilerEvent event) const noexcept {
  const auto bits = static_cast<uint64_t>(event);
  const uint32_t slot = SlotOf(bits);
  if (KindOf(bits) != Kind::kTask || TagOf(bits) != process_tag || slot >= kTaskSlots) return std::nullopt;
  const TaskSlot& from = tasks_[slot];
  if (from.generation.load(std::memory_order_acquire) != GenerationOf(bits)) return std::nullopt;
  Task task;
  task.operation.bytes = from.bytes.load(std::memory_order_acquire);
  const uint64_t packed = from.packed.load(std::memory_order_acquire);
  task.communicator = from.communicator.load(std::memory_order_acquire);
  // Written again meanwhile: what was read may be a mixture.
  if (from.generation.load(std::memory_order_relaxed) != GenerationOf(bits)) return std::nullopt;
  task.operation.function = static_cast<Function>(packed & 0xff);
  task.operation.algorithm = static_cast<Algorithm>(packed >> 8 & 0xff);
  task.operation.protocol = static_cast<Protocol>(packed >> 16 & 0xff);
  task.is_call = (packed >> 24 & 1) != 0;
  task.owner = static_cast<uint32_t>(packed >> 32);
  return task;
}

OpenProxyOp* EventTables::OpenOp(ProfilerEvent* event) noexcept {
  for (uint32_t tried = 0; tried < kProxyOpSlots; ++tried) {
    const uint32_t slot = (this_thread.proxy_op_hint + tried) % kProxyOpSlots;
    OpenProxyOp& op = ops_[slot];
    uint32_t state = op.state.load(std::memory_order_relaxed);
    if ((state & 1) != 0 || !op.state.compare_exchange_strong(state, state + 1, std::memory_order_acquire,
                                                              std::memory_order_relaxed)) {
      continue;
    }
    this_thread.proxy_op_hint = slot + 1;
    *event = static_cast<ProfilerEvent>(Pack(process_tag, state >> 1, slot, Kind::kOp));
    return &op;
  }
  *event = static_cast<ProfilerEvent>(Pack(process_tag, 0, kNoSlot, Kind::kOp));
  return nullptr;
}

OpenProxyOp* EventTables::FindOp(ProfilerEvent event) noexcept {
  const auto bits = static_cast<uint64_t>(event);
  const uint32_t slot = SlotOf(bits);
  if ((bits & 2) == 0 || TagOf(bits) != process_tag || slot >= kProxyOpSlots) return nullptr;
  OpenProxyOp& op = ops_[slot];
  const uint32_t state = op.state.load(std::memory_order_relaxed);
  return (state & 1) != 0 && (state >> 1 & kGenerationMask) == GenerationOf(bits) ? &op : nullptr;
}

void EventTables::CloseOp(OpenProxyOp& op) noexcept {
  if (this_thread.next_send == &op) this_thread.next_send = nullptr;
  if (this_thread.next_receive == &op) this_thread.next_receive = nullptr;
  this_thread.proxy_op_hint = static_cast<uint32_t>(&op - ops_.data());
  op.state.store(op.state.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void EventTables::CloseAllOf(uint32_t owner) noexcept {
  for (OpenProxyOp& op : ops_) {
    const uint32_t state = op.state.load(std::memory_order_acquire);
    if ((state & 1) != 0 && op.owner == owner) CloseOp(op);
  }
}

ProfilerEvent EventTables::StepOf(ProfilerEvent op) noexcept {
  return static_cast<ProfilerEvent>(static_cast<uint64_t>(op) | 1);
}

bool EventTables::IsStep(ProfilerEvent event) noexcept {
  return KindOf(static_cast<uint64_t>(event)) == Kind::kStep;
}

}  // namespace sluice
