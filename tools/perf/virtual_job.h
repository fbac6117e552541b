// The ranks of a job as simulated processes: a copy of the plugin for each, communicators that are connected
// edge by edge with the clock stopped, and the machine that runs them.
//
//   Result<std::unique_ptr<VirtualJob>> job = VirtualJob::Open(options, fabric, &state);
//   (*job)->Launch(communicator, rank, shape, input, output);
//   SLUICE_RETURN_IF_ERROR((*job)->machine().Run());
//
// A rank sees the devices of its host. Numbers that the plugins get (queue pairs, keys) depend on the order
// of set-up only, which is: communicators, then ranks, then a rank's connections by peer and channel, each
// finished at both ends before the next begins. What plugins say to each other over sockets meanwhile runs in
// real time.
//
// Threads: one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/perf/abort.h"
#include "tools/perf/benchmark_parts.h"
#include "tools/perf/plugin_copy.h"
#include "tools/perf/virtual_machine.h"
#include "tools/perf/virtual_plugin.h"

namespace sluice::perf {

class VirtualJob {
 public:
  // `state` is aborted where a step takes longer than its owner allows; its activity says which one. A
  // failure names the rank there.
  static Result<std::unique_ptr<VirtualJob>> Open(const Options& options, soft::VirtualFabric* fabric,
                                                  JobState* state);

  int ranks() const { return options_.ranks; }
  const Shape& base() const { return base_; }  // of rank 0
  const DeviceChoice& devices() const { return devices_; }
  int max_recvs() const { return max_recvs_; }
  const NetPlugin& plugin() const { return *ranks_[0].plugin; }
  VirtualMachine& machine() { return machine_; }
  CommunicatorCore& core(int communicator, int rank) {
    return *communicators_[Index(communicator)].cores[Index(rank)];
  }

  // Memory in which only the GPU of a rank looks for news.
  void DeclareData(int rank, const PageBuffer& buffer);
  // Makes a user's buffer known to the connections of a communicator.
  Status Register(int communicator, int rank, const PageBuffer& buffer);
  // `payload`: in the place of the buffers; outlives the operation.
  void Launch(int communicator, int rank, const Shape& shape, std::byte* input, std::byte* output,
              SyntheticPayload* payload = nullptr);
  Status Close();

 private:
  struct Rank {
    std::unique_ptr<PluginCopy> copy;
    std::unique_ptr<VirtualPlugin> plugin;
    uint32_t process = 0;
  };
  struct Member {
    std::vector<std::unique_ptr<CommunicatorCore>> cores;  // by rank
    std::vector<size_t> indices;                           // in the machine
  };

  VirtualJob(const Options& options, soft::VirtualFabric* fabric, JobState* state)
      : options_(options), fabric_(fabric), state_(state), clock_(fabric), machine_(fabric, state) {}
  static size_t Index(int number) { return static_cast<size_t>(number); }
  Status AddRanks();
  Status OpenCommunicator(int number);
  Status Connect(Member& member);
  Status ConnectEdge(Member& member, int sender, Connection& sending);
  Status AtRank(int rank, Status status);

  const Options& options_;
  soft::VirtualFabric* fabric_;
  JobState* state_;
  VirtualClock clock_;
  VirtualMachine machine_;
  std::vector<Rank> ranks_;
  std::vector<Member> communicators_;
  Shape base_;
  DeviceChoice devices_;
  std::vector<DeviceChoice> choices_;  // by rank
  int max_recvs_ = 1;
};

}  // namespace sluice::perf
