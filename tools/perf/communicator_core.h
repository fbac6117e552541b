// One communicator of one rank without threads: connections, the steps that set them up and end them, and the
// two engines that move data. Who calls the steps, and when, is not known here: communicator.h calls them
// from threads like NCCL's, virtual_job.h from one thread and a clock of its own.
//
// Set-up: ListenAll, TakeHandles with what every rank's ListenAll gave, TryConnect and TryAccept until
// nothing is pending, ShareConnections. Threads: set-up, Register and CloseAll from one thread; MakeOperation
// from one; the engines as they say.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/perf/clock.h"
#include "tools/perf/gpu_engine.h"
#include "tools/perf/net_plugin.h"
#include "tools/perf/progress_engine.h"

namespace sluice::perf {

struct CommunicatorConfig {
  Shape shape;                  // operation, algorithm, ranks and channels: what to connect
  std::vector<Shape> more{};    // further ones, of the same ranks and channels
  void* net_context = nullptr;  // from the plugin's init; finalized by the communicator
  int traffic_class = -1;
  int first_device = 0;  // channel c uses device first_device + c modulo device_count
  int device_count = 1;
  int max_recvs = 1;                   // receives to group; 1: none
  bool flush = false;                  // iflush after every receive
  ProfilerPlugin* profiler = nullptr;  // with its context, initialised
  void* profiler_context = nullptr;
  ClaimCheck* claims = nullptr;
};

class CommunicatorCore {
 public:
  CommunicatorCore(const CommunicatorConfig& config, NetPlugin* plugin, const Clock* clock);
  CommunicatorCore(const CommunicatorCore&) = delete;
  CommunicatorCore& operator=(const CommunicatorCore&) = delete;

  const CommunicatorConfig& config() const { return config_; }
  const Connections& send() const { return send_; }
  const Connections& receive() const { return receive_; }
  // Memory that the network writes or reads and only the GPU looks into.
  std::vector<const PageBuffer*> buffers() const;

  // What this rank publishes for those that will connect to it.
  Status ListenAll(std::string* handles);
  Status TakeHandles(const std::vector<std::string>& all);
  static bool IsPending(const Connection& c) { return c.owns_comm && c.comm == nullptr; }
  // One attempt for a pending connection; it may stay pending.
  Status TryConnect(Connection& c);
  Status TryAccept(Connection& c);
  // Gives connections that share one their part. Behind the last TryConnect and TryAccept.
  Status ShareConnections();

  // Registers the user's buffers on every connection, as ncclCommRegister does.
  Status Register(std::byte* data, size_t bytes);
  // The next operation, to be given to both engines. EndTasks once they have it, as NCCL does.
  void EndTasks(const Operation& operation);
  Operation MakeOperation(const Shape& shape, std::byte* input, std::byte* output);
  uint64_t launched() const { return launched_; }
  // Deregisters and closes everything; goes on after failures and returns the first.
  Status CloseAll();

  ProgressEngine& progress() { return *progress_; }
  GpuEngine& gpu() { return gpu_; }
  const std::shared_ptr<Doorbell>& doorbell() const { return doorbell_; }

 private:
  void MakeConnections();
  Status AnnounceConnecting(bool p2p);
  Status RegisterBuffers(Connection& connection, bool send);
  std::shared_ptr<const Plan> MakePlan(const Shape& shape) const;
  std::shared_ptr<const Plan> PlanFor(const Shape& shape);
  std::shared_ptr<const TaskEvents> StartTasks(const Plan& plan);

  const CommunicatorConfig config_;
  NetPlugin* plugin_;
  const Clock* clock_;
  Connections send_;
  Connections receive_;
  PageBuffer shared_send_;
  PageBuffer shared_receive_;
  std::atomic<uint64_t> service_attributes_{
      0};  // setNetAttr calls that did not come from the progress engine
  std::shared_ptr<Doorbell> doorbell_ = std::make_shared<Doorbell>();
  GpuEngine gpu_;
  std::unique_ptr<ProgressEngine> progress_;
  uint64_t launched_ = 0;
  std::vector<std::shared_ptr<const Plan>> plans_;  // of the last shapes, oldest first
};

}  // namespace sluice::perf
