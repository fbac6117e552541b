// One NCCL PROFILER plugin of any version from 1 to 6, loaded as NCCL loads it, behind one set of calls.
//
//   Result<std::unique_ptr<ProfilerPlugin>> profiler = ProfilerPlugin::Load(path, 4);
//   void* context;
//   SLUICE_RETURN_IF_ERROR((*profiler)->Init(communicator, &context));
//   void* task = (*profiler)->StartTask(context, info);       // user's thread
//   void* op = (*profiler)->StartProxyOp(context, task, ...); // progress thread, and so is the rest
//   (*profiler)->BeforeSend(op, step, bytes);
//
// Events come when NCCL of that version sends them, as far as the plugin's mask asks for them: what a mask implies
// included. Threads: NCCL's rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "plugin/abi/nccl_profiler.h"
#include "tools/perf/schedule.h"
#include "tuner/operation.h"

namespace sluice::perf {

inline constexpr int kNewestProfiler = 6;

// The profiler version of the NCCL release that has this NET version; 0: it has none.
int ProfilerOfNet(int net_version);

struct ProfilerTaskInfo {
  Shape shape;  // operation, algorithm and protocol
  bool point_to_point = false;
  bool send = false;  // of point-to-point tasks
  int peer = -1;
  size_t count = 0;  // elements of float
  uint64_t sequence = 0;
};

class ProfilerPlugin {
 public:
  static Result<std::unique_ptr<ProfilerPlugin>> Load(const std::string& path, int version);
  virtual ~ProfilerPlugin() = default;  // closes the library

  virtual int version() const = 0;
  // *context null and no error: the plugin wants no events.
  virtual Status Init(const sluice::Communicator& communicator, void** context) = 0;
  virtual Status Finalize(void* context) = 0;

  // The user's call behind a point-to-point task (version 5 and later); null where it does not exist.
  virtual void* StartCall(void* context, const ProfilerTaskInfo& info) = 0;
  virtual void* StartTask(void* context, const ProfilerTaskInfo& info, void* call) = 0;
  virtual void* StartProxyOp(void* context, void* task, int pid, int channel, int peer, int messages,
                             bool send) = 0;
  // Into *step, which keeps what it holds where NCCL keeps it.
  virtual void StartStep(void* context, void* op, int number, void** step) = 0;
  virtual void BeforeSend(void* op, void* step, int number) = 0;
  virtual void AfterSend(void* op, void* step, int number) = 0;
  virtual void ReceivePosted(void* op, void* step, int number) = 0;
  virtual void Received(void* op, void* step, int number) = 0;
  virtual void Stop(void* event) = 0;

  // What NCCL's callback does for the network plugin.
  virtual void NetEvent(void* step, int64_t id, void* data) = 0;
};

}  // namespace sluice::perf
