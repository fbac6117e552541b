// Ranks as simulated processes: a copy of the plugin for each, communicators among them that are connected
// edge by edge with the clock stopped, and the machine that runs them.
//
//   VirtualJob job(options, fabric, &state);
//   Result<size_t> process = job.AddProcess(host, "rank 0");
//   Result<size_t> communicator = job.OpenCommunicator({.processes = {0, 1, 2}, .shape = base});
//   job.Launch(*communicator, rank, shape, input, output);
//   SLUICE_RETURN_IF_ERROR(job.machine().Run());
//
// A process sees the devices of its host. Numbers that the plugins get (queue pairs, keys) depend on the order
// of set-up only, which is: communicators, then ranks, then a rank's connections by peer and channel, each
// finished at both ends before the next begins. What plugins say to each other over sockets meanwhile runs in
// real time.
//
// Threads: one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/perf/abort.h"
#include "tools/perf/benchmark_parts.h"
#include "tools/perf/plugin_copy.h"
#include "tools/perf/plugin_halves.h"
#include "tools/perf/virtual_machine.h"
#include "tools/perf/virtual_plugin.h"

namespace sluice::perf {

struct CommunicatorSpec {
  std::vector<size_t> processes;  // by rank
  Shape shape;                    // what to connect; `rank` and the size mean nothing
  int traffic_class = -1;
  std::string name{};  // as the framework names it
};

class VirtualJob {
 public:
  // Of `options`: plugin, API, devices, grouping, host preset and seed. `state` is aborted where a step takes
  // longer than its owner allows; its activity says which one. A failure names the rank there.
  VirtualJob(const Options& options, soft::VirtualFabric* fabric, JobState* state)
      : options_(options), fabric_(fabric), state_(state), clock_(fabric), machine_(fabric, state) {}

  // Processes are numbered from 0. `label` names it in messages.
  Result<size_t> AddProcess(uint32_t host, const std::string& label);
  size_t processes() const { return processes_.size(); }
  Result<size_t> OpenCommunicator(const CommunicatorSpec& spec);

  const DeviceChoice& devices() const { return *processes_[0].devices; }  // of process 0
  // Receives that the ranks of a communicator group.
  int max_recvs(size_t communicator) const { return communicators_[communicator].max_recvs; }
  const NetPlugin& plugin() const { return *processes_[0].plugin; }
  VirtualMachine& machine() { return machine_; }
  const VirtualMachine& machine() const { return machine_; }
  CommunicatorCore& core(size_t communicator, int rank) {
    return *communicators_[communicator].cores[Index(rank)];
  }
  // What the machine calls a rank of a communicator.
  size_t actor(size_t communicator, int rank) const {
    return communicators_[communicator].actors[Index(rank)];
  }

  // Memory of a rank in which only its GPU looks for news.
  void DeclareData(size_t communicator, int rank, const PageBuffer& buffer);
  // Makes a user's buffer known to the connections of a communicator.
  Status Register(size_t communicator, int rank, const PageBuffer& buffer);
  // `payload`: in the place of the buffers; outlives the operation.
  void Launch(size_t communicator, int rank, const Shape& shape, std::byte* input, std::byte* output,
              SyntheticPayload* payload = nullptr);
  Status Close();

 private:
  struct Process {
    std::string label;
    uint32_t number = 0;  // of the fabric
    std::unique_ptr<PluginCopy> copy;
    std::unique_ptr<VirtualPlugin> plugin;
    PluginHalves halves;
    std::optional<DeviceChoice> devices;  // chosen when it joins its first communicator
  };
  struct Communicator {
    std::vector<size_t> processes;                         // by rank
    std::vector<std::unique_ptr<CommunicatorCore>> cores;  // by rank
    std::vector<size_t> actors;                            // in the machine
    std::vector<void*> tuner_contexts;                     // by rank; null: no tuner
    int max_recvs = 1;
  };

  static size_t Index(int number) { return static_cast<size_t>(number); }
  NetPlugin* PluginOf(const Communicator& communicator, int rank) {
    return processes_[communicator.processes[Index(rank)]].plugin.get();
  }
  struct Contexts {
    void* net = nullptr;
    void* profiler = nullptr;
  };
  Status Initialise(Communicator* communicator, size_t number, const CommunicatorSpec& spec,
                    std::vector<Contexts>* contexts);
  Status Connect(Communicator& communicator);
  Status ConnectEdge(Communicator& communicator, int sender, Connection& sending);
  Status AtRank(int rank, Status status);

  const Options& options_;
  soft::VirtualFabric* fabric_;
  JobState* state_;
  VirtualClock clock_;
  VirtualMachine machine_;
  std::string file_;  // the plugin; empty until the first process
  std::vector<Process> processes_;
  std::vector<Communicator> communicators_;
};

}  // namespace sluice::perf
