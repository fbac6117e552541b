// One communicator of one rank: a NET context, its connections, and the threads that NCCL would run for it.
//
//   Result<std::unique_ptr<Communicator>> comm = Communicator::Create(config, plugin, bootstrap, job);
//   SLUICE_RETURN_IF_ERROR((*comm)->Launch(shape, input, output));
//   SLUICE_RETURN_IF_ERROR((*comm)->Wait());
//
// Create is collective: every rank of the job calls it, in the same order. Threads: one user thread calls all
// of this; the plugin sees it as init thread, and the service, progress and GPU threads besides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/perf/abort.h"
#include "tools/perf/bootstrap.h"
#include "tools/perf/communicator_core.h"
#include "tools/perf/gpu_thread.h"
#include "tools/perf/progress_thread.h"
#include "tools/perf/service_thread.h"

namespace sluice::perf {

class Communicator {
 public:
  // The communicator finalizes the context of `config`.
  static Result<std::unique_ptr<Communicator>> Create(const CommunicatorConfig& config, NetPlugin* plugin,
                                                      Bootstrap* bootstrap, JobState* job);
  ~Communicator();  // Close

  // Registers the user's buffers on every connection, as ncclCommRegister does.
  Status Register(std::byte* data, size_t bytes);
  // Asynchronous; operations execute in order.
  Status Launch(const Shape& shape, std::byte* input, std::byte* output);
  Status Wait();
  // Until the plugin has reported everything that was launched; nothing may be launched afterwards.
  Status Drain();
  uint64_t launched() const { return core_.launched(); }
  // Nanoseconds of each operation launched after the first `since`.
  std::vector<double> DurationsSince(uint64_t since) { return gpu_->DurationsSince(since); }
  // NCCL's teardown order, also with requests outstanding when the job is aborted.
  Status Close();

 private:
  Communicator(const CommunicatorConfig& config, NetPlugin* plugin, JobState* job)
      : plugin_(plugin), job_(job), core_(config, plugin, &WallClock::Get()) {}
  Status Open(Bootstrap* bootstrap);
  Status ConnectAll();

  NetPlugin* plugin_;
  JobState* job_;
  bool closed_ = false;
  CommunicatorCore core_;
  std::unique_ptr<ServiceThread> service_;
  std::unique_ptr<GpuThread> gpu_;
  std::unique_ptr<ProgressThread> progress_;
};

}  // namespace sluice::perf
