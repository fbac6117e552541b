// The stand-in for a GPU: executes operations in order, as kernels on a stream, on memory of the host.
//
// It produces slices into the slots of sending connections, reduces and copies what receiving connections
// deliver, and gives credit back. LL and LL128 data is consumed line by line as its flags become right,
// whatever the network says about completion. Strands of an operation advance side by side.
//
// Threads: Launch and Wait from the user's thread; the rest on a thread of its own, which sleeps while
// nothing is ready.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"
#include "tools/perf/abort.h"
#include "tools/perf/operation.h"

namespace sluice::perf {

int64_t NowNs();

class GpuThread {
 public:
  explicit GpuThread(JobState* job);
  ~GpuThread();  // Stop

  void Launch(Operation operation);
  // Waits for operation `id`; fails when the job is aborted.
  Status Wait(uint64_t id);
  // When the operations after `id` ended, oldest first, in nanoseconds of running time each.
  std::vector<double> DurationsSince(uint64_t id);
  // Ends the thread, after the operations that were launched unless the job is aborted.
  void Stop();
  Doorbell* doorbell() { return doorbell_.get(); }

 private:
  struct Lane {
    Connection* connection;
    int64_t step;
    size_t lines = 0;                  // LL, LL128: lines of the current message already unpacked
    std::vector<std::byte> staging{};  // LL, LL128: their data
  };
  struct StrandRun {
    const Strand* strand;
    std::vector<Lane> receive{};
    std::vector<Lane> send{};
    size_t next = 0;
    std::vector<std::byte> packed{};  // LL, LL128: a result that has no other place
  };

  void Loop();
  void Execute(const Operation& op);
  StrandRun Start(const Operation& op, size_t index);
  void Finish(StrandRun& run);
  // Executes the next slice if all it needs is there.
  bool Advance(const Operation& op, StrandRun& run);
  bool AdvanceSimple(const Operation& op, StrandRun& run, const Slice& slice);
  bool AdvanceLines(const Operation& op, StrandRun& run, const Slice& slice);
  void Post(const Operation& op, StrandRun& run, const Slice& slice);
  bool DrainRegisteredSends(const Operation& op);

  JobState* job_;
  std::shared_ptr<Doorbell> doorbell_;  // shared with the job, which rings it on abort
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;    // guarded by mutex_
  uint64_t finished_ = 0;          // guarded by mutex_
  std::vector<double> durations_;  // guarded by mutex_: by operation id - 1
  int64_t last_end_ns_ = 0;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice::perf
