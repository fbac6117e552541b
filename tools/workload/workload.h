// What the ranks of one or several jobs do on one network: the description that `sluice perf --workload` runs
// over the real plugin, and what it found.
//
//   Workload workload;
//   workload.jobs.push_back({.name = "dp", .hosts = {0, 1, 2, 3}, .calls = {{.op = "all_reduce", .bytes = 256 << 20}}});
//   Result<Workload> same = Workload::FromJson(workload.ToJson());
//
// A job is one communicator. Each of its ranks computes, then its GPU runs the calls one after the other, as on
// a stream, and so on; nothing but the calls keeps ranks together. Times are of the virtual clock, in
// microseconds. Thread rule: as value types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace sluice::workload {

// One NCCL call. Names are those of `sluice perf --op` and `--proto`.
struct Call {
  std::string op = "all_reduce";
  uint64_t bytes = 0;  // as nccl-tests counts them; with transfers: of each
  std::string proto = "auto";
};

struct Job {
  std::string name;               // of the communicator
  std::vector<uint32_t> hosts{};  // of its ranks; a host that comes twice has two ranks
  std::vector<Call> calls{};      // of one iteration. All collectives, or all point-to-point
  std::string algo = "ring";
  int channels = 1;
  int root = 0;
  int traffic_class = -1;  // of the communicator, as in ncclConfig_t
  // sendrecv only: from rank to rank, all in one group. Empty: every rank to the next one.
  std::vector<std::vector<int>> transfers{};
  uint32_t iterations = 1;  // 0: until the jobs that have a number are through
  double compute_us = 0;    // of every rank, before each iteration
  double start_us = 0;
  std::vector<double> rank_start_us{};  // later than that, by rank; empty: all at once
  bool registered = false;
};

struct Workload {
  std::vector<Job> jobs{};
  double stop_us = 0;               // ends the run, whatever is under way; 0: it ends by itself
  std::vector<double> marks_us{};   // when to note what connections have received
  std::vector<uint32_t> tracked{};  // NIC ports, in topology order: peak of the bytes queued for them
  std::string overrides{};          // of the topology: "switches.KEY=value,..."
  std::string background{};         // traffic of the model beside the jobs, "storage:hosts=...;..."
  std::string faults{};             // of the network: "loss:probability=1e-4;..."
  // Results are checked element by element. Otherwise the users' buffers of all ranks are the same memory:
  // large operations then cost little of it.
  bool check = false;

  std::string ToJson() const;
  // Unknown keys, impossible values and contradictions are errors that name job and key.
  static Result<Workload> FromJson(const std::string& text);
};

// One call on all ranks. A rank begins a call when it is launched or when its call before has ended.
struct CallTimes {
  uint32_t call = 0;  // index in Job::calls
  double first_begin_us = 0;
  double last_begin_us = 0;
  double first_end_us = 0;
  double last_end_us = 0;

  // What the network and the proxies took, once all ranks were there.
  double duration_us() const { return last_end_us - last_begin_us; }
};

// What arrived at the GPU of one rank from another.
struct ConnectionResult {
  int from = 0;
  int to = 0;
  int channel = 0;
  uint64_t bytes = 0;
  double end_us = 0;              // when the last message of a call was taken
  std::vector<uint64_t> marks{};  // bytes at each of Workload::marks_us
};

struct JobResult {
  std::string name;
  std::vector<CallTimes> calls{};  // those that ended on all ranks
  std::vector<ConnectionResult> connections{};
  uint64_t wrong = 0;  // values of the last call, with Workload::check

  uint64_t bytes() const;  // of all connections
};

struct Results {
  std::vector<JobResult> jobs{};
  double time_us = 0;
  uint64_t packet_hops = 0;
  uint64_t dropped_packets = 0;
  uint64_t pauses = 0;                 // PFC frames that stopped a sender
  uint64_t switch_pauses = 0;          // of these between switches
  double busiest_link_us = 0;          // what the link that carried most needs for its bytes alone
  double switch_transmit_wait_us = 0;  // longest of a link between switches
  std::vector<uint64_t> tracked_peak_bytes{};

  const JobResult* Find(const std::string& name) const;
  std::string ToJson() const;
  static Result<Results> FromJson(const std::string& text);
};

}  // namespace sluice::workload
