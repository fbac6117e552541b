// What a GPU does: executes operations in order, as kernels on a stream, on memory of the host. It never
// blocks; a thread (gpu_thread.h) or the virtual clock (virtual_job.h) steps it.
//
//   GpuEngine gpu(&clock);
//   gpu.Launch(operation);
//   while (gpu.Step() == GpuEngine::Outcome::kMoved) ...
//
// It produces slices into the slots of sending connections, reduces and copies what receiving connections
// deliver, and gives credit back. LL and LL128 data is consumed line by line as its flags become right,
// whatever the network says about completion. Strands of an operation advance side by side.
//
// Threads: one, which every change of what it waits for tells by the doorbell, but for LL and LL128 data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tools/perf/clock.h"
#include "tools/perf/operation.h"

namespace sluice::perf {

class GpuEngine {
 public:
  enum class Outcome : uint8_t {
    kMoved,    // step again
    kBlocked,  // the operation waits
    kEmpty,    // no operation
  };

  explicit GpuEngine(const Clock* clock) : clock_(clock) {}
  GpuEngine(const GpuEngine&) = delete;
  GpuEngine& operator=(const GpuEngine&) = delete;

  void Launch(Operation operation) { queue_.push_back(std::move(operation)); }
  Outcome Step();
  // The last operation that ended.
  uint64_t finished() const { return finished_; }
  // Nanoseconds of running time of every operation, oldest first.
  const std::vector<double>& durations() const { return durations_; }
  int64_t last_end_ns() const { return last_end_ns_; }
  // When the operation that ended last began: its launch, or the end of the one before.
  int64_t last_begin_ns() const { return last_begin_ns_; }
  // The operation under way polls memory that the network writes.
  bool polls_memory() const;
  // What the operation under way waits for; empty: there is none.
  std::string DescribeOpen() const;

 private:
  struct Lane {
    Connection* connection;
    int64_t step;
    size_t lines = 0;                  // LL, LL128: lines of the current message already unpacked
    std::vector<std::byte> staging{};  // LL, LL128: their data
  };
  // Of a slice.
  struct Operands {
    std::array<const std::byte*, 8> sources;
    std::array<std::byte*, 8> targets;
    size_t source_count = 0;
    size_t target_count = 0;
    void AddSource(const std::byte* p) { sources[source_count++] = p; }
    void AddTarget(std::byte* p) { targets[target_count++] = p; }
  };
  struct StrandRun {
    const Strand* strand;
    std::vector<Lane> receive{};
    std::vector<Lane> send{};
    size_t next = 0;
    std::vector<std::byte> packed{};  // LL, LL128: a result that has no other place
  };

  void Begin();
  // Starts the strands of the lowest unfinished batch of their channel.
  void StartReady();
  // True when a strand moved or ended.
  bool AdvanceAll();
  void End();
  StrandRun Start(const Operation& op, size_t index);
  void Finish(StrandRun& run);
  // Executes the next slice if all it needs is there.
  bool Advance(const Operation& op, StrandRun& run);
  bool AdvanceSimple(const Operation& op, StrandRun& run, const Slice& slice);
  bool AdvanceLines(const Operation& op, StrandRun& run, const Slice& slice);
  // What the slice reads and writes of the user's buffers.
  void AddLocal(const Operation& op, const Slice& slice, Operands* operands);
  void CheckLocal(const Operation& op, const Slice& slice);
  void Post(const Operation& op, StrandRun& run, const Slice& slice);
  // The user may write to the buffers once the operation is over.
  bool RegisteredSendsDone(const Operation& op) const;

  const Clock* clock_;
  std::deque<Operation> queue_;  // the first one is under way once begun_
  bool begun_ = false;
  std::vector<size_t> waiting_;  // strands
  std::vector<StrandRun> running_;
  std::vector<std::byte> made_input_, made_output_;  // of a slice whose payload is synthetic
  uint64_t finished_ = 0;
  std::vector<double> durations_;
  int64_t last_begin_ns_ = 0;
  int64_t last_end_ns_ = 0;
};

}  // namespace sluice::perf
