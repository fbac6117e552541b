// The profiler half: from NCCL's events to what the next isend and irecv of a thread belong to.
#include "plugin/profiler.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <mutex>

#include "plugin/classify/communicator.h"
#include "plugin/classify/events.h"
#include "plugin/classify/profiler_state.h"
#include "plugin/classify/statistics.h"
#include "plugin/classify/thread_state.h"
#include "plugin/log.h"
#include "plugin/params.h"

namespace sluice {
namespace {

// getpid without the system call.
std::atomic<pid_t> this_process{0};

constexpr uint64_t kQueryMagic = 0x51756572794f7021;

// Bits of NCCL's mask.
constexpr uint32_t kProxyOpBit = 1 << 3;
constexpr uint32_t kProxyStepBit = 1 << 4;
constexpr uint32_t kNetPluginBit = 1 << 7;

struct ContextState final : ProfilerContext {
  uint32_t index = 0;  // from 1
  int version = 0;
  CommunicatorState* communicator = nullptr;
  std::atomic<bool> named{false};  // versions 1 to 3: the first task has told the communicator
  std::atomic<bool> finalized{false};
};

struct Contexts {
  std::mutex mutex;
  std::deque<ContextState> all;  // never shrinks
};

Contexts& AllContexts() {
  static auto* const contexts = new Contexts;
  return *contexts;
}

std::atomic<int> active_contexts{0};
std::atomic<int> active_version{0};

void Count(std::atomic<uint64_t>& counter) {
  counter.fetch_add(1, std::memory_order_relaxed);
}

ProcessRow& Counters() {
  return Statistics::Get().process();
}

}  // namespace

bool ProfilerAnswers() noexcept {
  const int version = active_version.load(std::memory_order_relaxed);
  return active_contexts.load(std::memory_order_relaxed) != 0 && (version == 3 || version == 4);
}

bool MayAskProfiler(void* phandle) noexcept {
  if (phandle == nullptr || !ProfilerAnswers()) return false;
  const int version = active_version.load(std::memory_order_relaxed);
  // 2.26 passes its own structure. 2.27 passes {event, structure} and follows the second without a look at it.
  return version == 3 || (version == 4 && static_cast<void* const*>(phandle)[1] != nullptr);
}

const OpenProxyOp* ResolveQuery(const ProfilerQuery& query) noexcept {
  return query.operation == ProfilerEvent::kNone ? nullptr : EventTables::Get().FindOp(query.operation);
}

ProfilerQuery MakeQuery() noexcept {
  return {kQueryMagic, ProfilerEvent::kNone};
}

uint32_t ProfilerMask(int version) {
  // 1 to 3 report the wait before isend on the operation, later ones on the step; a step also precedes irecv.
  uint32_t mask = kProxyStepBit;
  if (version <= 3) mask |= kProxyOpBit;
  // The network plugin's own event costs nothing unless it is asked for: NET v10 (NCCL 2.26 and 2.27), when the
  // steps said nothing. From 2.28 on setNetAttr speaks.
  if (version == 3 || version == 4) mask |= kNetPluginBit;
  return mask;
}

Result<ProfilerContext*> ProfilerContext::Create(int version, const Communicator& communicator,
                                                 DebugLogger logger) {
  SetLogger(logger);
  const Result<Params>& params = GetParams();
  if (!params.ok()) return params.status();
  if (!params->profiler) return Result<ProfilerContext*>(nullptr);
  if (this_process.exchange(getpid(), std::memory_order_relaxed) == 0) {
    pthread_atfork(nullptr, nullptr, [] { this_process.store(getpid(), std::memory_order_relaxed); });
  }
  Statistics::Get().Start();
  Contexts& contexts = AllContexts();
  std::lock_guard lock(contexts.mutex);
  EventTables::Start();
  ContextState& state = contexts.all.emplace_back();
  state.index = static_cast<uint32_t>(contexts.all.size());
  state.version = version;
  state.communicator = &CommunicatorState::Join(PluginHalf::kProfiler, communicator);
  state.named.store(version > 3, std::memory_order_relaxed);
  active_version.store(version, std::memory_order_relaxed);
  active_contexts.fetch_add(1, std::memory_order_relaxed);
  Count(Counters().profiler_contexts);
  return static_cast<ProfilerContext*>(&state);
}

ProfilerEvent ProfilerContext::StartTask(const ProfilerTask& task) noexcept {
  auto& state = *static_cast<ContextState*>(this);
  if (state.finalized.load(std::memory_order_relaxed)) return ProfilerEvent::kNone;
  if (!state.named.load(std::memory_order_relaxed)) [[unlikely]] {
    try {
      Communicator known;
      known.hash = task.communicator_hash;
      if (task.communicator_name != nullptr) known.name = task.communicator_name;
      known.rank = task.rank;
      state.communicator->Learn(known);
      state.named.store(true, std::memory_order_relaxed);
    } catch (...) {  // no memory for a name: the rules on names do not match
    }
  }
  Count(Counters().tasks);
  Task added{.operation = task.operation, .owner = state.index, .communicator = state.communicator};
  if (IsPointToPoint(task.operation.function)) {
    // NCCL 2.28 came with calls that it makes of Send and Recv, and with the event that names them. Of a replayed
    // graph that event is long forgotten.
    const std::optional<Task> call = EventTables::Get().FindTask(task.call);
    if (call.has_value() && call->operation.function != Function::kUnknown) {
      added.operation.function = call->operation.function;
    } else {
      added.is_call = state.version <= 4;
    }
  }
  return EventTables::Get().AddTask(added);
}

ProfilerEvent ProfilerContext::StartCall(Function function) noexcept {
  auto& state = *static_cast<ContextState*>(this);
  if (state.finalized.load(std::memory_order_relaxed)) return ProfilerEvent::kNone;
  return EventTables::Get().AddTask({.operation = {.function = function}, .owner = state.index});
}

Status ProfilerContext::Finalize() {
  auto& state = *static_cast<ContextState*>(this);
  if (state.finalized.exchange(true)) return InvalidUsage("profiler: finalize was called before");
  active_contexts.fetch_sub(1, std::memory_order_relaxed);
  EventTables::Get().CloseAllOf(state.index);
  state.communicator->Leave(PluginHalf::kProfiler);
  return Status::Ok();
}

ProfilerEvent StartProxyOp(const ProfilerProxyOp& started) noexcept {
  ProcessRow& counters = Counters();
  ProfilerEvent event;
  OpenProxyOp* const op = EventTables::Get().OpenOp(&event);
  Count(counters.proxy_ops);
  if (op == nullptr) {
    Count(counters.proxy_ops_dropped);
    return event;
  }
  op->is_send = started.is_send;
  op->known = false;
  op->owner = 0;
  op->operation = {};
  op->cached_for = ~0u;
  op->communicator = nullptr;
  if (started.pid != this_process.load(std::memory_order_relaxed)) {
    Count(counters.foreign_proxy_ops);
    return event;
  }
  const std::optional<Task> task = EventTables::Get().FindTask(started.parent);
  if (!task.has_value()) {
    Count(counters.unknown_parents);
    return event;
  }
  op->known = true;
  op->owner = task->owner;
  op->operation = task->operation;
  op->is_call = task->is_call;
  op->communicator = task->communicator;
  return event;
}

ProfilerEvent StartStep(ProfilerEvent proxy_op) noexcept {
  const OpenProxyOp* const op = EventTables::Get().FindOp(proxy_op);
  if (op == nullptr) return ProfilerEvent::kNone;
  // The step of a receive starts just before its irecv, that of a send long before its isend.
  if (!op->is_send) this_thread.next_receive = op;
  return EventTables::StepOf(proxy_op);
}

void BeforeSend(ProfilerEvent event) noexcept {
  this_thread.next_send = EventTables::Get().FindOp(event);
}

void AnswerQuery(ProfilerEvent step, ProfilerQuery* query) noexcept {
  if (query != nullptr && query->magic == kQueryMagic) query->operation = step;
}

void StopEvent(ProfilerEvent event) noexcept {
  if (event == ProfilerEvent::kNone || EventTables::IsStep(event)) return;
  if (OpenProxyOp* const op = EventTables::Get().FindOp(event)) EventTables::Get().CloseOp(*op);
}

}  // namespace sluice
