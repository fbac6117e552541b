// Rendezvous of the ranks of one job over TCP, and the link on which a failure travels.
//
//   Result<std::unique_ptr<Bootstrap>> boot = Bootstrap::Join(options, &job);
//   Result<std::vector<std::string>> all = (*boot)->AllGather(mine);   // all[r] is what rank r gave
//   (*boot)->Leave();
//
// Rank 0 runs a coordinator thread at MASTER_ADDR:MASTER_PORT to which every rank (0 too) keeps one link. A
// link that ends without goodbye ends the job: every rank's JobState is aborted with the name of the rank
// that vanished. Where a rank lacks descriptors, Join fails at once. Links that do not present the job's
// token within a few seconds are dropped. Short reads, slow peers and late ranks are fine.
//
// Threads: AllGather, Barrier and Leave from one thread; Fail from any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status.h"
#include "tools/perf/abort.h"
#include "tools/perf/socket.h"

namespace sluice::perf {

class Coordinator;

struct BootstrapOptions {
  int rank = 0;
  int world = 1;
  std::string host;
  int port = 0;
  std::string token;   // equal on all ranks of a job, and only there
  int listen_fd = -1;  // rank 0: a listening socket that it inherited; else it listens on `port`
  std::chrono::milliseconds timeout{60000};  // for everybody to arrive
};

class Bootstrap {
 public:
  static Result<std::unique_ptr<Bootstrap>> Join(const BootstrapOptions& options, JobState* job);
  ~Bootstrap();

  Result<std::vector<std::string>> AllGather(std::string_view mine);
  Status Barrier();
  // Tells the other ranks that this one cannot go on. Never blocks for long.
  void Fail(std::string_view cause);
  // Says goodbye; rank 0 waits (bounded) until everybody has.
  void Leave();

 private:
  Bootstrap(const BootstrapOptions& options, JobState* job);
  void ReadLoop();
  void Send(FrameType type, std::string_view payload);
  void Wake();

  BootstrapOptions options_;
  JobState* job_;
  std::unique_ptr<Coordinator> coordinator_;
  FileDescriptor wake_;  // eventfd: output is queued, or leave
  std::mutex mutex_;
  std::condition_variable changed_;
  FrameChannel channel_;              // guarded by mutex_
  std::vector<std::string> results_;  // guarded by mutex_: results that nobody took yet, at most one
  bool leaving_ = false;              // guarded by mutex_
  std::thread reader_;
};

}  // namespace sluice::perf
