#include "tools/perf/virtual_workload.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <set>
#include <sstream>
#include <utility>

#include "tools/perf/verify.h"
#include "tools/perf/virtual_job.h"
#include "tools/perf/virtual_program.h"
#include "tools/workload/workload.h"

namespace sluice::perf {
namespace {

using soft::Picos;
using workload::CallTimes;
using workload::Workload;

Picos ToPicos(double us) {
  return std::llround(us * static_cast<double>(soft::kPicosPerUs));
}

// User memory that every rank may use at the same time, because nobody looks at what is in it: a large range
// over few pages.
class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  Status Make(size_t bytes) {
    constexpr size_t kPagesBytes = 2 << 20;
    bytes_ = (bytes + kPagesBytes - 1) / kPagesBytes * kPagesBytes;
    const int file = memfd_create("sluice-workload", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, kPagesBytes) != 0) return SystemError("cannot make shared memory", errno);
    void* range = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(range);
    for (size_t at = 0; at < bytes_; at += kPagesBytes) {
      if (mmap(data_ + at, kPagesBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
          MAP_FAILED)
        throw std::bad_alloc();
    }
    close(file);
    return Status::Ok();
  }
  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

class WorkloadRun final : public VirtualProgram {
 public:
  WorkloadRun(const Options& options, const Workload& workload, soft::VirtualFabric* fabric, JobState* state)
      : workload_(workload), fabric_(fabric), state_(state), job_(options, fabric, state) {}

  Status Run() override {
    for (const workload::Job& job : workload_.jobs) SLUICE_RETURN_IF_ERROR(Open(job));
    SLUICE_RETURN_IF_ERROR(MakeBuffers());
    if (!workload_.tracked.empty()) fabric_->TrackDestinations();
    Schedule();
    state_->SetActivity("running the jobs");
    SLUICE_RETURN_IF_ERROR(job_.machine().Run());
    const workload::Results results = Collect();
    printf("%s\n", results.ToJson().c_str());
    // What was stopped is still under way, and its connections cannot be closed.
    return stopped_ ? Status::Ok() : job_.Close();
  }

  uint64_t wrong() const override { return wrong_; }
  VirtualDescriptors descriptors() const override {
    VirtualDescriptors all;
    std::set<std::pair<uint32_t, int>> processes;
    for (const workload::Job& job : workload_.jobs) {
      std::map<uint32_t, int> ranks_on;
      for (const uint32_t host : job.hosts) processes.emplace(host, ranks_on[host]++);
      std::vector<Shape> shapes;
      if (MakeShapes(job, &shapes).ok()) all.paths += PathsOf(shapes[0]);
    }
    all.processes = processes.size();
    return all;
  }
  std::vector<std::string> stuck() const override { return job_.machine().stuck(); }

 private:
  struct Rank {
    uint32_t iteration = 0;  // begun
    size_t ended = 0;        // calls, in all
    PageBuffer input;        // with Workload::check
    PageBuffer output;
  };
  struct Progress {
    const workload::Job* job = nullptr;
    size_t communicator = 0;
    std::vector<Shape> shapes;  // by call
    std::vector<Rank> ranks;
    std::vector<CallTimes> times;     // of all calls begun by a rank, in order
    std::vector<size_t> ranks_ended;  // of each
    std::vector<workload::ConnectionResult> connections;
    size_t ranks_done = 0;
  };

  Status Open(const workload::Job& job) {
    Progress progress;
    progress.job = &job;
    CommunicatorSpec spec;
    spec.traffic_class = job.traffic_class;
    spec.name = job.name;
    SLUICE_RETURN_IF_ERROR(MakeShapes(job, &progress.shapes));
    spec.shape = progress.shapes[0];
    std::map<uint32_t, int> ranks_on;  // by host
    for (const uint32_t host : job.hosts) {
      Result<size_t> process = ProcessOn(host, ranks_on[host]++);
      if (!process.ok()) return process.status();
      spec.processes.push_back(*process);
    }
    Result<size_t> communicator = job_.OpenCommunicator(spec);
    if (!communicator.ok()) return communicator.status();
    progress.communicator = *communicator;
    progress.ranks.resize(job.hosts.size());
    for (size_t r = 0; r < job.hosts.size(); ++r) {
      const size_t actor = job_.actor(*communicator, static_cast<int>(r));
      if (of_actor_.size() <= actor) of_actor_.resize(actor + 1);
      of_actor_[actor] = {jobs_.size(), static_cast<int>(r)};
    }
    jobs_.push_back(std::move(progress));
    return Status::Ok();
  }

  static Status MakeShapes(const workload::Job& job, std::vector<Shape>* shapes) {
    Shape base;
    base.ranks = static_cast<int>(job.hosts.size());
    base.channels = job.channels;
    base.root = job.root;
    base.registered = job.registered;
    if (!job.transfers.empty()) {
      auto transfers = std::make_shared<std::vector<Transfer>>();
      for (const std::vector<int>& t : job.transfers) transfers->push_back({t[0], t[1]});
      base.transfers = std::move(transfers);
    }
    const std::string where = "workload: job " + job.name + ": ";
    for (const workload::Call& call : job.calls) {
      Shape shape = base;
      std::optional<Proto> proto;
      SLUICE_RETURN_IF_ERROR(ParseAlgo(where + "algo", job.algo, &shape.algo));
      SLUICE_RETURN_IF_ERROR(ParseOp(where + "op", call.op, &shape.op));
      SLUICE_RETURN_IF_ERROR(ParseProto(where + "proto", call.proto, &proto));
      shape.proto = proto.value_or(Proto::kSimple);
      shapes->push_back(SizedShape(Supported(shape), !proto.has_value(), call.bytes));
    }
    return Status::Ok();
  }

  // The process of the number-th rank that a job has on a host. Jobs share it.
  Result<size_t> ProcessOn(uint32_t host, int number) {
    const auto [entry, added] = process_on_.emplace(std::pair(host, number), 0);
    if (!added) return entry->second;
    if (host >= fabric_->host_count()) {
      return InvalidArgument("workload: no host " + std::to_string(host) + "; the topology has " +
                             std::to_string(fabric_->host_count()));
    }
    const std::string label =
        "host " + std::to_string(host) + (number == 0 ? "" : ", process " + std::to_string(number));
    Result<size_t> process = job_.AddProcess(host, label);
    if (process.ok()) entry->second = *process;
    return process;
  }

  Status MakeBuffers() {
    size_t largest = 0;
    for (Progress& progress : jobs_) {
      for (size_t r = 0; r < progress.ranks.size(); ++r) {
        size_t input = 0;
        size_t output = 0;
        for (Shape shape : progress.shapes) {
          shape.rank = static_cast<int>(r);
          input = std::max(input, InputElements(shape) * kElementBytes);
          output = std::max(output, OutputElements(shape) * kElementBytes);
        }
        largest = std::max({largest, input, output});
        if (workload_.check) SLUICE_RETURN_IF_ERROR(MakeOwnBuffers(progress, r, input, output));
      }
    }
    if (workload_.check) return Status::Ok();
    SLUICE_RETURN_IF_ERROR(shared_.Make(largest));
    for (Progress& progress : jobs_) {
      for (int r = 0; r < static_cast<int>(progress.ranks.size()) && progress.job->registered; ++r) {
        SLUICE_RETURN_IF_ERROR(job_.core(progress.communicator, r).Register(shared_.data(), shared_.size()));
      }
    }
    return Status::Ok();
  }

  Status MakeOwnBuffers(Progress& progress, size_t r, size_t input, size_t output) {
    Rank& rank = progress.ranks[r];
    const int number = static_cast<int>(r);
    rank.input = PageBuffer(input);
    rank.output = PageBuffer(output);
    Shape last = progress.shapes.back();
    last.rank = number;
    if (input != 0) FillInput(last, kRound, reinterpret_cast<float*>(rank.input.data()));
    if (output != 0) Poison(last, reinterpret_cast<float*>(rank.output.data()));
    for (const PageBuffer* buffer : {&rank.input, &rank.output}) {
      job_.DeclareData(progress.communicator, number, *buffer);
      if (progress.job->registered && buffer->size() != 0)
        SLUICE_RETURN_IF_ERROR(job_.Register(progress.communicator, number, *buffer));
    }
    return Status::Ok();
  }

  void Schedule() {
    VirtualMachine& machine = job_.machine();
    const Picos begin = fabric_->Now();
    for (size_t j = 0; j < jobs_.size(); ++j) {
      const workload::Job& job = *jobs_[j].job;
      if (job.iterations != 0) jobs_left_ += 1;
      for (int r = 0; r < static_cast<int>(jobs_[j].ranks.size()); ++r) {
        const double start_us = job.rank_start_us.empty() ? 0 : job.rank_start_us[static_cast<size_t>(r)];
        machine.CallAt(begin + ToPicos(job.start_us + start_us + job.compute_us),
                       [this, j, r] { Begin(j, r); });
      }
    }
    for (const double mark : workload_.marks_us) {
      machine.CallAt(begin + ToPicos(mark), [this] { Mark(); });
    }
    if (workload_.stop_us > 0) machine.CallAt(begin + ToPicos(workload_.stop_us), [this] { Stop(); });
    machine.set_on_finished([this](size_t actor) { Ended(of_actor_[actor].first, of_actor_[actor].second); });
  }

  void Stop() {
    stopped_ = true;
    job_.machine().Stop();
  }

  // The next iteration of a rank.
  void Begin(size_t j, int r) {
    Progress& progress = jobs_[j];
    Rank& rank = progress.ranks[static_cast<size_t>(r)];
    ++rank.iteration;
    for (Shape shape : progress.shapes) {
      shape.rank = r;
      std::byte* input = workload_.check ? rank.input.data() : shared_.data();
      std::byte* output = workload_.check ? rank.output.data() : shared_.data();
      job_.Launch(progress.communicator, r, shape, input, output);
    }
  }

  void Ended(size_t j, int r) {
    Progress& progress = jobs_[j];
    const workload::Job& job = *progress.job;
    Rank& rank = progress.ranks[static_cast<size_t>(r)];
    const GpuEngine& gpu = job_.core(progress.communicator, r).gpu();
    const double begin_us = static_cast<double>(gpu.last_begin_ns()) * 1e-3;
    const double end_us = static_cast<double>(gpu.last_end_ns()) * 1e-3;
    const size_t number = rank.ended++;
    const size_t calls = progress.shapes.size();
    if (number == progress.times.size()) {
      progress.times.push_back({static_cast<uint32_t>(number % calls), begin_us, begin_us, end_us, end_us});
      progress.ranks_ended.push_back(0);
    }
    CallTimes& times = progress.times[number];
    times.first_begin_us = std::min(times.first_begin_us, begin_us);
    times.last_begin_us = std::max(times.last_begin_us, begin_us);
    times.first_end_us = std::min(times.first_end_us, end_us);
    times.last_end_us = std::max(times.last_end_us, end_us);
    ++progress.ranks_ended[number];
    if (rank.ended % calls != 0) return;
    if (job.iterations == 0 || rank.iteration < job.iterations) {
      job_.machine().CallAt(fabric_->Now() + ToPicos(job.compute_us), [this, j, r] { Begin(j, r); });
    } else if (++progress.ranks_done == progress.ranks.size() && --jobs_left_ == 0) {
      const bool endless =
          std::any_of(jobs_.begin(), jobs_.end(), [](const Progress& p) { return p.job->iterations == 0; });
      if (endless) Stop();
    }
  }

  // Notes what every connection has received so far.
  void Mark() {
    for (Progress& progress : jobs_) {
      UpdateConnections(progress);
      for (workload::ConnectionResult& c : progress.connections) c.marks.push_back(c.bytes);
    }
  }

  void UpdateConnections(Progress& progress) {
    size_t at = 0;
    for (int r = 0; r < static_cast<int>(progress.ranks.size()); ++r) {
      for (const auto& c : job_.core(progress.communicator, r).receive()) {
        if (at == progress.connections.size())
          progress.connections.push_back({.from = c->edge.peer, .to = r, .channel = c->edge.channel});
        workload::ConnectionResult& result = progress.connections[at++];
        result.bytes = c->taken_bytes;
        result.end_us = static_cast<double>(c->taken_all_ns) * 1e-3;
      }
    }
  }

  workload::Results Collect() {
    workload::Results results;
    for (Progress& progress : jobs_) {
      UpdateConnections(progress);
      workload::JobResult& job = results.jobs.emplace_back();
      job.name = progress.job->name;
      for (size_t i = 0; i < progress.times.size(); ++i) {
        if (progress.ranks_ended[i] == progress.ranks.size()) job.calls.push_back(progress.times[i]);
      }
      job.connections = progress.connections;
      if (workload_.check) job.wrong = CountWrongOf(progress);
      wrong_ += job.wrong;
    }
    const soft::VirtualStatistics statistics = fabric_->statistics();
    const soft::TruthSummary truth = fabric_->truth();
    const auto us = [](Picos time) {
      return static_cast<double>(time) / static_cast<double>(soft::kPicosPerUs);
    };
    results.time_us = us(fabric_->Now());
    results.packet_hops = statistics.packet_hops;
    results.dropped_packets = statistics.dropped_packets;
    results.pauses = truth.pauses;
    results.switch_pauses = truth.switch_pauses;
    results.busiest_link_us = us(truth.busiest_link);
    results.switch_transmit_wait_us = us(truth.switch_transmit_wait);
    for (const uint32_t endpoint : workload_.tracked)
      results.tracked_peak_bytes.push_back(fabric_->PeakBytesBoundFor(endpoint));
    return results;
  }

  // Of the last call, on ranks that are not in the middle of one.
  static uint64_t CountWrongOf(const Progress& progress) {
    uint64_t wrong = 0;
    for (size_t r = 0; r < progress.ranks.size(); ++r) {
      const Rank& rank = progress.ranks[r];
      if (rank.ended != rank.iteration * progress.shapes.size() || rank.output.size() == 0) continue;
      Shape shape = progress.shapes.back();
      shape.rank = static_cast<int>(r);
      wrong += CountWrong(shape, kRound, reinterpret_cast<const float*>(rank.output.data()));
    }
    return wrong;
  }

  static constexpr uint32_t kRound = 1;

  const Workload& workload_;
  soft::VirtualFabric* fabric_;
  JobState* state_;
  VirtualJob job_;
  std::map<std::pair<uint32_t, int>, size_t> process_on_;
  std::vector<Progress> jobs_;
  std::vector<std::pair<size_t, int>> of_actor_;  // job and rank
  SharedMemory shared_;
  size_t jobs_left_ = 0;  // with a number of iterations, and not through
  bool stopped_ = false;
  uint64_t wrong_ = 0;
};

}  // namespace

int RunVirtualWorkload(const Options& options, const std::vector<std::string>& arguments) {
  const auto complain = [](const std::string& why) {
    fprintf(stderr, "sluice perf: %s\n", why.c_str());
    return 2;
  };
  errno = 0;
  std::ifstream file(options.workload);
  std::stringstream text;
  if (file) text << file.rdbuf();
  if (!file) {
    return complain("--workload " + options.workload + ": " + strerror(errno != 0 ? errno : EIO) +
                    "; name a readable JSON file");
  }
  const Result<Workload> workload = Workload::FromJson(text.str());
  if (!workload.ok()) return complain("--workload " + options.workload + ": " + workload.status().message());
  soft::VirtualFabricSettings settings;
  settings.overrides = workload->overrides.c_str();
  settings.background = workload->background.c_str();
  settings.faults = workload->faults.c_str();
  RunVirtualProgram(options, settings, arguments, [&](soft::VirtualFabric* fabric, JobState* state) {
    return std::make_unique<WorkloadRun>(options, *workload, fabric, state);
  });
}

}  // namespace sluice::perf
