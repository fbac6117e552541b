// The processors and GPUs of all simulated hosts, stepped on the clock of a virtual fabric. One OS thread
// runs everything, so the result depends on the input alone.
//
//   VirtualMachine machine(fabric, &job);
//   machine.Add(process, rank, &core, processor);
//   machine.Launch(index, shape, input, output);    // any number, on any of them
//   Status status = machine.Run();                  // until all of them are through
//
// With CallAt and on_finished the caller acts while the machine runs: it launches what comes next, at once or
// after some time of computing, and says when to stop.
//
// A communicator of a rank is one proxy thread and one GPU. The proxy makes passes; a pass happens at one
// instant, what its calls cost in processor time delays what they post and the next pass. After a pass in
// vain the proxy sleeps until an event touches its process, and a poll gap longer. It also looks now and then
// without a reason, as a plugin may wait for time to pass. A GPU acts at once when its proxy has made a pass
// or, where it polls flags in memory, when bytes arrive; it takes no time for reductions and copies.
//
// Threads: one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tools/perf/abort.h"
#include "tools/perf/clock.h"
#include "tools/perf/communicator_core.h"
#include "tools/perf/host_processor.h"
#include "verbs/soft/virtual/virtual_fabric.h"

namespace sluice::perf {

class VirtualClock final : public Clock {
 public:
  explicit VirtualClock(soft::VirtualFabric* fabric) : fabric_(fabric) {}
  int64_t NowNs() const override { return fabric_->Now() / soft::kPicosPerNs; }

 private:
  soft::VirtualFabric* fabric_;
};

class VirtualMachine {
 public:
  VirtualMachine(soft::VirtualFabric* fabric, JobState* job) : fabric_(fabric), job_(job) {}

  // Returns the index of the new communicator. `core` must live as long.
  size_t Add(uint32_t process, int rank, CommunicatorCore* core, const HostProcessor& processor);
  void Launch(size_t index, const Shape& shape, std::byte* input, std::byte* output,
              SyntheticPayload* payload = nullptr);
  // Calls at equal times come in the order in which they were asked for, and before what processors do then.
  void CallAt(Picos at, std::function<void()> call) {
    calls_.emplace(std::max(at, fabric_->Now()), std::move(call));
  }
  // Told at the end of every operation of a communicator, within Run.
  void set_on_finished(std::function<void(size_t index)> call) { on_finished_ = std::move(call); }
  // Ends Run, whatever is open.
  void Stop() { stopped_ = true; }
  // Until nothing is open and no call is to come, or Stop. Fails when a plugin does, when the job is aborted,
  // and when nothing can move any more; the job is then
  // aborted, with the rank where it began.
  Status Run();
  // What is open, where Run has found that nothing can move: one line each.
  const std::vector<std::string>& stuck() const { return stuck_; }

 private:
  struct Actor {
    uint32_t process;
    int rank;
    CommunicatorCore* core;
    HostProcessor processor;
    bool open = false;    // has operations
    bool asleep = false;  // the next pass is one without a reason
    Picos wake = soft::kNever;
    Picos busy_until = 0;
    Picos vain_interval = 0;
  };

  void Wake(size_t index, Picos at);
  void Touched(const soft::Touch& touch);
  Status Pass(size_t index);
  bool StepGpu(size_t index);
  Status CheckStuck();

  soft::VirtualFabric* fabric_;
  JobState* job_;
  std::vector<Actor> actors_;
  std::vector<std::vector<size_t>> of_process_;
  std::set<std::pair<Picos, size_t>> wakes_;
  std::multimap<Picos, std::function<void()>> calls_;
  std::function<void(size_t)> on_finished_;
  bool stopped_ = false;
  size_t open_ = 0;
  Picos last_move_ = 0;
  Picos next_refresh_ = 0;
  std::vector<std::string> stuck_;
};

}  // namespace sluice::perf
