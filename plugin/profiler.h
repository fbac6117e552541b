// The typed PROFILER interface: what the version tables of plugin/abi call. No C struct of NCCL appears here.
//
//   ProfilerEvent task = context->StartTask({.operation = {...}, .sequence = 7});   // a collective is enqueued
//   ProfilerEvent op = StartProxyOp(task, ...);     // progress thread: its part on one channel
//   ProfilerEvent step = StartStep(op);             // one message; of a receive: just before irecv
//   BeforeSend(step);                               // just before isend
//   StopEvent(step); StopEvent(op);
//
// It profiles nothing: it tells the data path which operation the next isend or irecv of the calling thread
// belongs to. Events are numbers that are checked at every use: one that is stale, foreign or invented is
// unknown, never followed. A step is its operation under another name, so starting one twice (NCCL does, when an
// irecv was refused) costs and leaks nothing. Nothing here allocates, locks or makes a system call after Create.
//
// Threads: StartCall and StartTask from any (NCCL: the launching one, or a CUDA callback); the rest from the thread that moves
// the operation's data.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/status.h"
#include "plugin/net.h"
#include "tuner/operation.h"

namespace sluice {

// 0: none. NCCL holds it as a void*.
enum class ProfilerEvent : uint64_t { kNone = 0 };

// A collective or a point-to-point call.
struct ProfilerTask {
  Operation operation;
  uint64_t sequence = 0;
  // The user's call that it serves, where the version tells (StartCall).
  ProfilerEvent call = ProfilerEvent::kNone;
  // Versions 1 to 3 name the communicator with every task, later ones at init.
  uint64_t communicator_hash = 0;
  const char* communicator_name = nullptr;
  int rank = -1;
};

struct ProfilerProxyOp {
  ProfilerEvent parent;
  // Process that launched the operation. Another one's parent is unknown here (PXN: NCCL lets a neighbour send).
  pid_t pid = 0;
  bool is_send = false;
};

// What the profiler's answer to the network plugin's own event looks like: NCCL carries the pointer through.
struct ProfilerQuery {
  uint64_t magic = 0;
  ProfilerEvent operation = ProfilerEvent::kNone;
};

// One communicator that NCCL profiles with us. Never freed: a late event finds a finalized one.
class ProfilerContext {
 public:
  // `version` of the table, 1 to 6. Fields of `communicator` that the version does not tell are unknown.
  static Result<ProfilerContext*> Create(int version, const Communicator& communicator, DebugLogger logger);
  // A user's point-to-point call: NCCL names what it makes of an all-to-all only here.
  ProfilerEvent StartCall(Function function) noexcept;
  ProfilerEvent StartTask(const ProfilerTask& task) noexcept;
  Status Finalize();
};

// Event types that NCCL is asked for, as bits of its mask: the least that leads from a message to its operation.
uint32_t ProfilerMask(int version);

ProfilerEvent StartProxyOp(const ProfilerProxyOp& op) noexcept;
ProfilerEvent StartStep(ProfilerEvent proxy_op) noexcept;
// The isend that follows on this thread belongs to `event`, a step (version 4 and later) or its operation.
void BeforeSend(ProfilerEvent event) noexcept;
void AnswerQuery(ProfilerEvent step, ProfilerQuery* query) noexcept;
void StopEvent(ProfilerEvent event) noexcept;

}  // namespace sluice
