// One communicator of one rank: a NET context, its connections, and the threads that NCCL would run for it.
//
//   Result<std::unique_ptr<Communicator>> comm = Communicator::Create(config, plugin, bootstrap, job);
//   SLUICE_RETURN_IF_ERROR((*comm)->Launch(shape, input, output));
//   SLUICE_RETURN_IF_ERROR((*comm)->Wait());
//
// Create is collective: every rank of the job calls it, in the same order. Threads: one user thread calls all
// of this; the plugin sees it as init thread, and the service, progress and GPU threads besides.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/perf/abort.h"
#include "tools/perf/bootstrap.h"
#include "tools/perf/gpu_thread.h"
#include "tools/perf/net_plugin.h"
#include "tools/perf/progress_thread.h"
#include "tools/perf/service_thread.h"

namespace sluice::perf {

struct CommunicatorConfig {
  Shape shape;                  // operation, algorithm, ranks and channels: what to connect
  void* net_context = nullptr;  // from the plugin's init; finalized by the communicator
  int traffic_class = -1;
  int first_device = 0;  // channel c uses device first_device + c modulo device_count
  int device_count = 1;
  int max_recvs = 1;   // receives to group; 1: none
  bool flush = false;  // iflush after every receive
};

class Communicator {
 public:
  static Result<std::unique_ptr<Communicator>> Create(const CommunicatorConfig& config, NetPlugin* plugin,
                                                      Bootstrap* bootstrap, JobState* job);
  ~Communicator();  // Close

  // Registers the user's buffers on every connection, as ncclCommRegister does.
  Status Register(std::byte* data, size_t bytes);
  // Asynchronous; operations execute in order.
  Status Launch(const Shape& shape, std::byte* input, std::byte* output);
  Status Wait();
  uint64_t launched() const { return launched_; }
  // Nanoseconds of each operation launched after the first `since`.
  std::vector<double> DurationsSince(uint64_t since) { return gpu_->DurationsSince(since); }
  // NCCL's teardown order, also with requests outstanding when the job is aborted.
  Status Close();

 private:
  Communicator(const CommunicatorConfig& config, NetPlugin* plugin, JobState* job);
  Status Open(Bootstrap* bootstrap);
  void MakeConnections();
  Status ListenAll(std::string* handles);
  Status TakeHandles(const std::vector<std::string>& all);
  Status ConnectAll();
  Status AnnounceConnecting();
  Status RegisterBuffers(Connection& connection, bool send);
  Status CloseAll();
  std::shared_ptr<const Plan> MakePlan(const Shape& shape) const;

  CommunicatorConfig config_;
  NetPlugin* plugin_;
  JobState* job_;
  bool closed_ = false;
  Connections send_;
  Connections receive_;
  PageBuffer shared_send_;
  PageBuffer shared_receive_;
  std::atomic<uint64_t> service_attributes_{0};  // setNetAttr calls of the service thread
  std::unique_ptr<ServiceThread> service_;
  std::unique_ptr<GpuThread> gpu_;
  std::unique_ptr<ProgressThread> progress_;
  uint64_t launched_ = 0;
  std::shared_ptr<const Plan> plan_;  // of the last shape
};

}  // namespace sluice::perf
