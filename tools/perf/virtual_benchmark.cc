#include "tools/perf/virtual_benchmark.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/perf/launcher.h"
#include "tools/perf/verify.h"
#include "tools/perf/virtual_job.h"
#include "tools/perf/watchdog.h"

namespace sluice::perf {
namespace {

constexpr char kTunables[] = "GLIBC_TUNABLES";
constexpr char kStaticTls[] = "glibc.rtld.optional_static_tls=";

// Every simulated process has descriptors of its own in this one.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Result<soft::VirtualFabric*> LoadFabric() {
  const std::string path = ProgramDirectory() + "/../lib/virtual/libibverbs.so.1";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return SystemError(std::string("cannot load the virtual fabric: ") + dlerror());
  auto* get = reinterpret_cast<soft::VirtualFabricGetter*>(dlsym(library, soft::kVirtualFabricSymbol));
  if (get == nullptr) return SystemError(path + " is not the virtual fabric; build it again");
  return get();
}

std::atomic<bool> ended_by_signal{false};

// What a signal interrupts may fail: the thread that removes the files says why, and ends the process.
void LeaveTheEndToTheSignal() {
  while (ended_by_signal.load()) pause();
}

// Signals that end the process remove its files first. Blocks them in this thread and all that it will start.
void EndCleanlyOnSignals(soft::VirtualFabric* fabric) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, fabric] {
    int signal = 0;
    while (sigwait(&signals, &signal) != 0) {
    }
    ended_by_signal.store(true);
    fabric->RemoveFiles();
    fprintf(stderr, "sluice perf: ended by signal %d (%s)\n", signal, strsignal(signal));
    _exit(128 + signal);
  }).detach();
}

// Registered buffers stay apart: what arrives in the output would overwrite what is still to be read from the
// input.
bool HappensInPlace(const Shape& shape) {
  return !shape.registered &&
         (shape.op == Op::kAllReduce || shape.op == Op::kBroadcast || shape.op == Op::kReduce);
}

class VirtualBenchmark {
 public:
  VirtualBenchmark(const Options& options, soft::VirtualFabric* fabric, JobState* state)
      : options_(options),
        fabric_(fabric),
        state_(state),
        table_(stdout),
        in_place_(HappensInPlace(BaseShape(options, 0))) {}

  Status Run() {
    Result<std::unique_ptr<VirtualJob>> opened = VirtualJob::Open(options_, fabric_, state_);
    if (!opened.ok()) return opened.status();
    job_ = std::move(*opened);
    SLUICE_RETURN_IF_ERROR(MakeBuffers());
    PrintHeader();
    for (size_t bytes = options_.min_bytes; bytes <= options_.max_bytes; bytes = NextSize(options_, bytes)) {
      SLUICE_RETURN_IF_ERROR(RunSize(bytes));
    }
    if (!options_.json) table_.Footer();
    PrintFabric();
    return job_->Close();
  }

  uint64_t wrong() const { return wrong_; }
  void PrintStuck() const {
    if (job_ == nullptr) return;
    constexpr size_t kMaxLines = 40;
    const std::vector<std::string>& lines = job_->machine().stuck();
    for (size_t i = 0; i < std::min(lines.size(), kMaxLines); ++i)
      fprintf(stderr, "#   %s\n", lines[i].c_str());
    if (lines.size() > kMaxLines) fprintf(stderr, "#   and %zu more\n", lines.size() - kMaxLines);
  }

 private:
  struct Buffers {
    std::unique_ptr<SyntheticPayload> payload;  // in the place of the others
    PageBuffer input;
    PageBuffer separate_output;  // empty: the operation happens in place
    std::byte* output() const { return separate_output.size() != 0 ? separate_output.data() : input.data(); }
  };

  Buffers& BuffersOf(int communicator, int rank) {
    return buffers_[static_cast<size_t>(communicator * options_.ranks + rank)];
  }

  Status MakeBuffers() {
    const Shape largest = ShapeFor(options_, job_->base(), options_.max_bytes);
    for (int m = 0; m < options_.communicators; ++m) {
      for (int r = 0; r < options_.ranks; ++r) {
        Buffers& b = buffers_.emplace_back();
        if (options_.synthetic) continue;
        b.input = PageBuffer(InputElements(largest) * kElementBytes);
        if (!in_place_) b.separate_output = PageBuffer(OutputElements(largest) * kElementBytes);
        job_->DeclareData(r, b.input);
        job_->DeclareData(r, b.separate_output);
        if (!options_.registered) continue;
        SLUICE_RETURN_IF_ERROR(job_->Register(m, r, b.input));
        if (!in_place_) SLUICE_RETURN_IF_ERROR(job_->Register(m, r, b.separate_output));
      }
    }
    return Status::Ok();
  }

  Shape OfRank(const Shape& shape, int rank) const {
    Shape mine = shape;
    mine.rank = rank;
    return mine;
  }

  Status RunAll(const Shape& shape, int times) {
    for (int i = 0; i < times; ++i) {
      for (int m = 0; m < options_.communicators; ++m) {
        for (int r = 0; r < options_.ranks; ++r) {
          const Buffers& b = BuffersOf(m, r);
          job_->Launch(m, r, OfRank(shape, r), b.input.data(), b.output(), b.payload.get());
        }
      }
    }
    return job_->machine().Run();
  }

  void FillAll(const Shape& shape) {
    for (int m = 0; m < options_.communicators; ++m) {
      ++round_;
      for (int r = 0; r < options_.ranks; ++r) {
        Buffers& b = BuffersOf(m, r);
        if (options_.synthetic) {
          b.payload = std::make_unique<SyntheticPayload>(OfRank(shape, r), round_);
        } else {
          FillInput(OfRank(shape, r), round_, reinterpret_cast<float*>(b.input.data()));
        }
      }
    }
  }

  Status RunSize(size_t bytes) {
    const Shape shape = ShapeFor(options_, job_->base(), bytes);
    state_->SetActivity("running " + std::string(Name(shape.op)) + " of " + std::to_string(bytes) + " bytes");
    FillAll(shape);
    SLUICE_RETURN_IF_ERROR(RunAll(shape, options_.warmup));
    std::vector<size_t> before;
    for (int m = 0; m < options_.communicators; ++m)
      before.push_back(job_->core(m, 0).gpu().durations().size());
    const int64_t start_ns = fabric_->Now() / soft::kPicosPerNs;
    SLUICE_RETURN_IF_ERROR(RunAll(shape, options_.iterations));
    std::vector<Outcome> outcomes(static_cast<size_t>(options_.ranks));
    for (int r = 0; r < options_.ranks; ++r) {
      std::vector<double> durations;
      int64_t end_ns = start_ns;
      for (int m = 0; m < options_.communicators; ++m) {
        const GpuEngine& gpu = job_->core(m, r).gpu();
        durations.insert(durations.end(),
                         gpu.durations().begin() + static_cast<ptrdiff_t>(before[static_cast<size_t>(m)]),
                         gpu.durations().end());
        end_ns = std::max(end_ns, gpu.last_end_ns());
      }
      Outcome& outcome = outcomes[static_cast<size_t>(r)];
      outcome.time_us = static_cast<double>(end_ns - start_ns) * 1e-3 / options_.iterations;
      outcome.p50_us = Percentile(durations, 0.50) * 1e-3;
      outcome.p99_us = Percentile(durations, 0.99) * 1e-3;
    }
    for (int check = 0; check < options_.checks; ++check) SLUICE_RETURN_IF_ERROR(Check(shape, &outcomes));
    const Row row = MakeRow(options_, shape, outcomes);
    wrong_ += row.wrong;
    if (options_.json) {
      printf("%s\n", JsonLine(row).c_str());
      fflush(stdout);
    } else {
      table_.Print(row);
    }
    return Status::Ok();
  }

  // One iteration on fresh data, compared element by element.
  Status Check(const Shape& shape, std::vector<Outcome>* outcomes) {
    const uint32_t first_round = round_ + 1;
    FillAll(shape);
    if (!in_place_ && !options_.synthetic) {
      for (int m = 0; m < options_.communicators; ++m) {
        for (int r = 0; r < options_.ranks; ++r) {
          Poison(OfRank(shape, r), reinterpret_cast<float*>(BuffersOf(m, r).output()));
        }
      }
    }
    SLUICE_RETURN_IF_ERROR(RunAll(shape, 1));
    for (int m = 0; m < options_.communicators; ++m) {
      if (options_.synthetic) {
        for (int r = 0; r < options_.ranks; ++r)
          (*outcomes)[static_cast<size_t>(r)].wrong += BuffersOf(m, r).payload->Wrong();
        continue;
      }
      std::vector<const float*> outputs;
      for (int r = 0; r < options_.ranks; ++r)
        outputs.push_back(reinterpret_cast<const float*>(BuffersOf(m, r).output()));
      std::vector<uint64_t> wrong(outputs.size());
      CountWrongEverywhere(shape, first_round + static_cast<uint32_t>(m), outputs, wrong);
      for (size_t r = 0; r < wrong.size(); ++r) (*outcomes)[r].wrong += wrong[r];
    }
    return Status::Ok();
  }

  void PrintHeader() {
    const std::string what = DescribeRun(options_, job_->base(), job_->plugin(), job_->devices(),
                                         job_->max_recvs(), "virtual fabric");
    if (options_.json) {
      fprintf(stderr, "# %s\n", what.c_str());
    } else {
      table_.Header(what, in_place_ ? "in-place" : "out-of-place");
    }
  }

  void PrintFabric() {
    const soft::VirtualStatistics all = fabric_->statistics();
    const double time_us = static_cast<double>(fabric_->Now()) / static_cast<double>(soft::kPicosPerUs);
    const std::string topology = options_.topology.empty() ? "default" : options_.topology;
    if (options_.json) {
      nlohmann::ordered_json json;
      json["fabric"] = "virtual";
      json["topology"] = topology;
      json["seed"] = options_.seed;
      json["host"] = options_.host_preset;
      json["virtual_time_us"] = time_us;
      json["packet_hops"] = all.packet_hops;
      json["dropped_packets"] = all.dropped_packets;
      json["corrupted_packets"] = all.corrupted_packets;
      printf("%s\n", json.dump().c_str());
    } else {
      printf("# Virtual fabric       : topology %s, seed %llu, host %s\n", topology.c_str(),
             static_cast<unsigned long long>(options_.seed), options_.host_preset.c_str());
      printf("# Virtual time         : %.3f us, %llu packet-hops, %llu packets dropped, %llu corrupted\n",
             time_us, static_cast<unsigned long long>(all.packet_hops),
             static_cast<unsigned long long>(all.dropped_packets),
             static_cast<unsigned long long>(all.corrupted_packets));
    }
    fflush(stdout);
    const double wall_s = static_cast<double>(WallClock::Get().NowNs() - started_ns_) * 1e-9;
    fprintf(stderr, "# Wall time            : %.2f s, %.2f million packet-hops per second\n", wall_s,
            static_cast<double>(all.packet_hops) * 1e-6 / wall_s);
  }

  const Options& options_;
  soft::VirtualFabric* fabric_;
  JobState* state_;
  Table table_;
  const bool in_place_;
  const int64_t started_ns_ = WallClock::Get().NowNs();
  std::unique_ptr<VirtualJob> job_;
  std::vector<Buffers> buffers_;
  uint32_t round_ = 0;
  uint64_t wrong_ = 0;
};

// Many copies of a plugin that wants thread-local memory in the block that is laid out at the start of a
// program need a larger block, which the loader makes when told so by the environment.
void StartAgainWithMoreStaticTls(const Status& failure, int ranks,
                                 const std::vector<std::string>& arguments) {
  if (failure.message().find("static TLS") == std::string::npos) return;
  const char* old = getenv(kTunables);
  std::string value = old == nullptr ? "" : old;
  if (value.find(kStaticTls) != std::string::npos) return;
  value += (value.empty() ? "" : ":") + std::string(kStaticTls) + std::to_string(4096 + 4096 * ranks);
  setenv(kTunables, value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  execv(ProgramPath().c_str(), argv.data());
}

void PrintFailure(const JobState& state) {
  const std::string rank = state.origin() >= 0 ? "rank " + std::to_string(state.origin()) + ": " : "";
  fprintf(stderr, "sluice perf: %s%s\n", rank.c_str(), state.cause().c_str());
}

}  // namespace

void RunVirtual(const Options& options, const std::vector<std::string>& arguments) {
  RaiseFileLimit();
  const Result<soft::VirtualFabric*> loaded = LoadFabric();
  if (!loaded.ok()) {
    fprintf(stderr, "sluice perf: %s\n", loaded.status().message().c_str());
    _exit(2);
  }
  soft::VirtualFabric* fabric = *loaded;
  EndCleanlyOnSignals(fabric);
  const HostPreset& preset = *FindHostPreset(options.host_preset.c_str());
  const auto end_early = [&](int code, const std::string& why) {
    LeaveTheEndToTheSignal();
    fprintf(stderr, "sluice perf: %s\n", why.c_str());
    fabric->RemoveFiles();
    fflush(stdout);
    _exit(code);
  };
  if (const char* error = fabric->Create(options.topology.c_str(), options.has_seed ? &options.seed : nullptr,
                                         preset.completion)) {
    end_early(2, std::string("--topology: ") + error);
  }
  JobState state;
  VirtualBenchmark benchmark(options, fabric, &state);
  int code = 0;
  try {
    Watchdog watchdog(&state, -1, std::chrono::duration<double>(options.timeout_s), [&] {
      PrintFailure(state);
      fabric->RemoveFiles();
    });
    if (const Status status = benchmark.Run(); !status.ok()) {
      LeaveTheEndToTheSignal();
      state.Abort(status.message(), -1);
      fabric->RemoveFiles();
      StartAgainWithMoreStaticTls(status, options.ranks, arguments);
      PrintFailure(state);
      benchmark.PrintStuck();
      code = 1;
    }
  } catch (const std::bad_alloc&) {
    end_early(1, "out of memory; use fewer ranks or a smaller -e, or raise the limit (ulimit -v)");
  }
  LeaveTheEndToTheSignal();
  if (code == 0 && benchmark.wrong() != 0) {
    fprintf(stderr, "sluice perf: %llu wrong values\n", static_cast<unsigned long long>(benchmark.wrong()));
    code = 1;
  }
  fabric->RemoveFiles();
  fflush(nullptr);
  if (ferror(stdout) != 0) {
    fprintf(stderr, "sluice perf: cannot write the results to standard output; free space where they go\n");
    if (code == 0) code = 1;
  }
  _exit(code);
}

}  // namespace sluice::perf
