#include "tools/perf/rank.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "tools/perf/abort.h"
#include "tools/perf/benchmark_parts.h"
#include "tools/perf/bootstrap.h"
#include "tools/perf/claim_check.h"
#include "tools/perf/communicator.h"
#include "tools/perf/fabric_clock.h"
#include "tools/perf/lanes_report.h"
#include "tools/perf/library_messages.h"
#include "tools/perf/mixed.h"
#include "tools/perf/net_plugin.h"
#include "tools/perf/plugin_halves.h"
#include "tools/perf/report.h"
#include "tools/perf/verify.h"
#include "tools/perf/watchdog.h"

namespace sluice::perf {
namespace {

constexpr double kArrivalLimitS = 120;  // for all ranks to be started

uint64_t RandomId() {
  uint64_t id = 0;
  while (getrandom(&id, sizeof id, 0) != sizeof id) {
  }
  return id;
}

template <typename T>
std::string Bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
Result<std::vector<T>> GatherValues(Bootstrap* bootstrap, const T& mine) {
  Result<std::vector<std::string>> all = bootstrap->AllGather(Bytes(mine));
  if (!all.ok()) return all.status();
  std::vector<T> values(all->size());
  for (size_t r = 0; r < all->size(); ++r) {
    if ((*all)[r].size() != sizeof(T))
      return InternalError("rank " + std::to_string(r) + " is of another version");
    std::memcpy(&values[r], (*all)[r].data(), sizeof(T));
  }
  return values;
}

// The benchmark proper, once the rank is in its job.
class Benchmark {
 public:
  Benchmark(const Options& options, const Place& place, NetPlugin* plugin, const PluginHalves* halves,
            Bootstrap* bootstrap, JobState* job, LibraryMessages* messages)
      : options_(options),
        place_(place),
        plugin_(plugin),
        halves_(halves),
        bootstrap_(bootstrap),
        job_(job),
        messages_(messages),
        table_(stdout) {}

  Status Run() {
    base_ = BaseShape(options_, place_.rank);
    SLUICE_RETURN_IF_ERROR(OpenCommunicators());
    PrintHeader();
    if (place_.rank == 0) {
      fabric_clock_.emplace();
      begin_ = fabric_clock_->Read();
    }
    if (options_.mixed) {
      SLUICE_RETURN_IF_ERROR(RunMixed());
    } else {
      for (size_t bytes = options_.min_bytes; bytes <= options_.max_bytes;) {
        SLUICE_RETURN_IF_ERROR(RunSize(bytes));
        bytes = NextSize(options_, bytes);
      }
      if (place_.rank == 0 && !options_.json) table_.Footer();
    }
    if (options_.show_lanes) SLUICE_RETURN_IF_ERROR(ShowLanes());
    if (place_.rank == 0) PrintDilation();
    job_->SetActivity("closing the connections");
    SLUICE_RETURN_IF_ERROR(bootstrap_->Barrier());
    for (Member& member : members_) {
      if (halves_->tuner != nullptr) SLUICE_RETURN_IF_ERROR(halves_->tuner->Finalize(member.tuner_context));
      SLUICE_RETURN_IF_ERROR(member.communicator->Close());
    }
    return Status::Ok();
  }

  size_t wrong() const { return wrong_; }

 private:
  struct Member {
    PageBuffer input;
    PageBuffer output;
    void* tuner_context = nullptr;
    std::unique_ptr<Communicator> communicator;  // last: it stops using the buffers before they go
  };
  Status OpenCommunicators() {
    Result<std::vector<uint64_t>> ids = GatherValues(bootstrap_, RandomId());
    if (!ids.ok()) return ids.status();
    CommunicatorConfig config;
    for (int i = 0; i < options_.communicators; ++i) {
      job_->SetActivity("initialising communicator " + std::to_string(i));
      void* context = nullptr;
      if (Status status =
              plugin_->Init(&context, (*ids)[0] + static_cast<uint64_t>(i), options_.traffic_class);
          !status.ok()) {
        const std::string cause = messages_->Take();
        return cause.empty() ? status : SystemError(status.message() + ": " + cause);
      }
      if (i == 0) {
        if (Status status = ChooseDevicesTogether(&config); !status.ok()) {
          (void)plugin_->Finalize(context);
          return status;
        }
      }
      config.net_context = context;
      sluice::Communicator known;
      known.hash = (*ids)[0] + static_cast<uint64_t>(i);
      known.name = "perf";
      known.rank = place_.rank;
      known.ranks = known.nodes = place_.world;
      if (halves_->profiler != nullptr) {
        config.profiler = halves_->profiler.get();
        SLUICE_RETURN_IF_ERROR(halves_->profiler->Init(known, &config.profiler_context));
        if (config.profiler_context == nullptr) config.profiler = nullptr;
      }
      if (options_.mixed) {
        known.traffic_class = plugin_->api() >= 11 ? options_.traffic_class : -1;
        claims_ = std::make_unique<ClaimCheck>(plugin_->api(), config.profiler != nullptr, known);
        config.claims = claims_.get();
        config.more = MixedShapes(options_, place_.rank);
      }
      Result<std::unique_ptr<Communicator>> made = Communicator::Create(config, plugin_, bootstrap_, job_);
      if (!made.ok()) return made.status();
      Member member;
      member.communicator = std::move(*made);
      if (halves_->tuner != nullptr)
        SLUICE_RETURN_IF_ERROR(halves_->tuner->Init(known, &member.tuner_context));
      if (claims_ != nullptr) SLUICE_RETURN_IF_ERROR(claims_->Attach());
      const Shape largest = ShapeFor(options_, base_, options_.max_bytes);
      member.input = PageBuffer(InputElements(largest) * kElementBytes);
      member.output = PageBuffer(OutputElements(largest) * kElementBytes);
      if (options_.registered) {
        SLUICE_RETURN_IF_ERROR(member.communicator->Register(member.input.data(), member.input.size()));
        SLUICE_RETURN_IF_ERROR(member.communicator->Register(member.output.data(), member.output.size()));
      }
      members_.push_back(std::move(member));
    }
    return Status::Ok();
  }

  Status ChooseDevicesTogether(CommunicatorConfig* config) {
    Result<DeviceChoice> choice = ChooseDevices(options_, plugin_, [this] { return messages_->Take(); });
    if (!choice.ok()) return choice.status();
    devices_ = *choice;
    Result<std::vector<int>> all = GatherValues(bootstrap_, devices_.max_recvs);
    if (!all.ok()) return all.status();
    config->first_device = devices_.first;
    config->device_count = devices_.count;
    config->flush = devices_.properties.force_flush;
    config->max_recvs =
        IsPointToPoint(options_.op) || options_.mixed ? *std::min_element(all->begin(), all->end()) : 1;
    config->shape = base_;
    config->traffic_class = options_.traffic_class;
    max_recvs_ = config->max_recvs;
    return Status::Ok();
  }

  Status RunAll(const Shape& shape, int times) {
    for (int i = 0; i < times; ++i) {
      for (Member& m : members_) {
        SLUICE_RETURN_IF_ERROR(AskTuner(m, shape));
        SLUICE_RETURN_IF_ERROR(m.communicator->Launch(shape, m.input.data(), m.output.data()));
      }
    }
    for (Member& m : members_) SLUICE_RETURN_IF_ERROR(m.communicator->Wait());
    return Status::Ok();
  }

  // As NCCL does before a collective, not before point-to-point calls.
  Status AskTuner(const Member& member, const Shape& shape) {
    if (halves_->tuner == nullptr || IsPointToPoint(shape.op)) return Status::Ok();
    constexpr int kNumbers[] = {nccl::kFuncAllReduce, nccl::kFuncAllGather, nccl::kFuncReduceScatter,
                                nccl::kFuncBroadcast, nccl::kFuncReduce};
    return halves_->tuner->GetCollInfo(member.tuner_context, kNumbers[static_cast<size_t>(shape.op)],
                                       shape.block_elements * kElementBytes);
  }

  // Rounds of every operation in one communicator, all of a round in flight at once; then what the plugin said.
  Status RunMixed() {
    const std::vector<Shape> shapes = MixedShapes(options_, place_.rank);
    struct Buffers {
      PageBuffer input;
      PageBuffer output;
    };
    std::vector<Buffers> buffers;
    for (const Shape& shape : shapes) {
      buffers.push_back({PageBuffer(std::max<size_t>(1, InputElements(shape)) * kElementBytes),
                         PageBuffer(std::max<size_t>(1, OutputElements(shape)) * kElementBytes)});
    }
    Member& member = members_[0];
    MixedOutcome mine;
    for (int round = 0; round < options_.iterations; ++round) {
      job_->SetActivity("running round " + std::to_string(round) + " of mixed operations");
      const uint32_t first_round = round_ + 1;
      for (size_t i = 0; i < shapes.size(); ++i) {
        FillInput(shapes[i], ++round_, reinterpret_cast<float*>(buffers[i].input.data()));
        Poison(shapes[i], reinterpret_cast<float*>(buffers[i].output.data()));
      }
      SLUICE_RETURN_IF_ERROR(bootstrap_->Barrier());
      for (size_t i = 0; i < shapes.size(); ++i) {
        SLUICE_RETURN_IF_ERROR(AskTuner(member, shapes[i]));
        SLUICE_RETURN_IF_ERROR(
            member.communicator->Launch(shapes[i], buffers[i].input.data(), buffers[i].output.data()));
      }
      SLUICE_RETURN_IF_ERROR(member.communicator->Wait());
      for (size_t i = 0; i < shapes.size(); ++i) {
        mine.wrong_values += CountWrong(shapes[i], first_round + static_cast<uint32_t>(i),
                                        reinterpret_cast<const float*>(buffers[i].output.data()));
      }
    }
    SLUICE_RETURN_IF_ERROR(
        bootstrap_->Barrier());  // the last receives are reported after the GPU has seen them
    SLUICE_RETURN_IF_ERROR(member.communicator->Drain());
    mine.claims = claims_->Totals();
    Result<std::vector<MixedOutcome>> all = GatherValues(bootstrap_, mine);
    if (!all.ok()) return all.status();
    MixedOutcome sum;
    for (const MixedOutcome& outcome : *all) sum.Add(outcome);
    wrong_ += sum.wrong_values;
    if (place_.rank == 0) {
      const std::string text = DescribeMixed(sum, *halves_, plugin_->api(), options_.json);
      printf("%s\n", text.c_str());
      fflush(stdout);
    }
    return Status::Ok();
  }

  // What every rank's plugin counts, added up.
  Status ShowLanes() {
    Result<std::string> mine = SerializeLanes(getpid());
    if (!mine.ok()) return mine.status();
    Result<std::vector<std::string>> all = bootstrap_->AllGather(*mine);
    if (!all.ok()) return all.status();
    if (place_.rank == 0) {
      printf("%s", DescribeLanes(*all, options_.json).c_str());
      fflush(stdout);
    }
    return Status::Ok();
  }

  Status RunSize(size_t bytes) {
    const Shape shape = ShapeFor(options_, base_, bytes);
    const size_t row_bytes = std::max(InputElements(shape), OutputElements(shape)) * kElementBytes;
    job_->SetActivity("running " + std::string(Name(shape.op)) + " of " + std::to_string(row_bytes) +
                      " bytes");
    for (Member& m : members_) FillInput(shape, ++round_, reinterpret_cast<float*>(m.input.data()));
    SLUICE_RETURN_IF_ERROR(bootstrap_->Barrier());
    SLUICE_RETURN_IF_ERROR(RunAll(shape, options_.warmup));
    // Asking takes a while: all ranks start after it.
    const std::optional<FabricTime> fabric_start = FabricNow();
    SLUICE_RETURN_IF_ERROR(bootstrap_->Barrier());

    std::vector<uint64_t> before;
    for (Member& m : members_) before.push_back(m.communicator->launched());
    const int64_t start_ns = WallClock::Get().NowNs();
    SLUICE_RETURN_IF_ERROR(RunAll(shape, options_.iterations));
    const double dilation_of_row = Dilation(fabric_start, FabricNow());
    Outcome mine{};
    mine.time_us = static_cast<double>(WallClock::Get().NowNs() - start_ns) * 1e-3 / options_.iterations;
    std::vector<double> durations;
    for (size_t i = 0; i < members_.size(); ++i) {
      const std::vector<double> some = members_[i].communicator->DurationsSince(before[i]);
      durations.insert(durations.end(), some.begin(), some.end());
    }
    mine.p50_us = Percentile(durations, 0.50) * 1e-3;
    mine.p99_us = Percentile(durations, 0.99) * 1e-3;
    for (int check = 0; check < options_.checks; ++check) SLUICE_RETURN_IF_ERROR(Check(shape, &mine.wrong));

    Result<std::vector<Outcome>> all = GatherValues(bootstrap_, mine);
    if (!all.ok()) return all.status();
    Row row = MakeRow(options_, shape, *all);
    // In model time, as a network that keeps up would have taken.
    row.dilation = dilation_of_row;
    for (double* time_us : {&row.time_us, &row.p50_us, &row.p99_us}) *time_us /= row.dilation;
    wrong_ += row.wrong;
    if (place_.rank != 0) return Status::Ok();
    if (options_.json) {
      printf("%s\n", JsonLine(row).c_str());
      fflush(stdout);
    } else {
      table_.Print(row);
    }
    return Status::Ok();
  }

  // One iteration on fresh data, compared element by element.
  Status Check(const Shape& shape, uint64_t* wrong) {
    const uint32_t first_round = round_ + 1;
    for (Member& m : members_) {
      FillInput(shape, ++round_, reinterpret_cast<float*>(m.input.data()));
      Poison(shape, reinterpret_cast<float*>(m.output.data()));
    }
    SLUICE_RETURN_IF_ERROR(bootstrap_->Barrier());
    SLUICE_RETURN_IF_ERROR(RunAll(shape, 1));
    for (size_t i = 0; i < members_.size(); ++i) {
      *wrong += CountWrong(shape, first_round + static_cast<uint32_t>(i),
                           reinterpret_cast<const float*>(members_[i].output.data()));
    }
    return Status::Ok();
  }

  // Of the fabric, at rank 0; nullopt: another rank, or no software fabric.
  std::optional<FabricTime> FabricNow() const {
    return fabric_clock_.has_value() ? fabric_clock_->Read() : std::nullopt;
  }

  // Where the fabric cannot keep up, hosts seem faster than they are beside its network: say so.
  void PrintDilation() {
    if (!begin_.has_value()) return;
    FILE* out = options_.json ? stderr : stdout;
    fprintf(out, "# Software fabric      : times are model time; dilation %.2f (wall time / model time)\n",
            Dilation(begin_, FabricNow()));
    fflush(out);
  }

  void PrintHeader() {
    if (place_.rank != 0) return;
    const char* fabric = getenv("SLUICE_FABRIC");
    const std::string what = DescribeRun(options_, base_, *plugin_, devices_, max_recvs_,
                                         fabric != nullptr ? "software fabric " + std::string(fabric) : "");
    if (options_.json) {
      fprintf(stderr, "# %s\n", what.c_str());
    } else {
      table_.Header(what);
    }
  }

  const Options& options_;
  const Place& place_;
  NetPlugin* plugin_;
  const PluginHalves* halves_;
  Bootstrap* bootstrap_;
  JobState* job_;
  LibraryMessages* messages_;
  Table table_;
  Shape base_;
  DeviceChoice devices_;
  int max_recvs_ = 1;
  std::unique_ptr<ClaimCheck> claims_;
  std::vector<Member> members_;
  std::optional<FabricClock> fabric_clock_;  // rank 0
  std::optional<FabricTime> begin_;
  uint32_t round_ = 0;
  size_t wrong_ = 0;
};

void Report(const Place& place, const FailureRecord& record) {
  if (place.report_fd < 0) {
    const bool own = record.origin == place.rank || record.origin < 0;
    fprintf(stderr, "sluice perf: rank %d: %s%s\n", place.rank,
            own ? "" : ("stopped because of rank " + std::to_string(record.origin) + ": ").c_str(),
            record.text.c_str());
    return;
  }
  const std::string line = record.Encode();
  [[maybe_unused]] const ssize_t n = write(place.report_fd, line.data(), line.size());
}
void Report(const Place& place, const JobState& job) {
  Report(place, FailureRecord{place.rank, job.origin(), WallClock::Get().NowNs(), job.cause()});
}

// Threads and memory are asked for in many places, none of which can go on without.
const Place* terminating_place = nullptr;
[[noreturn]] void ReportException() {
  std::string cause;
  try {
    if (std::current_exception() == nullptr) abort();
    throw;
  } catch (const std::system_error& error) {
    cause = "cannot start a thread: " + error.code().message() +
            "; raise the limit of processes (ulimit -u, pids.max of the container) or of memory (ulimit -v)";
  } catch (const std::bad_alloc&) {
    cause =
        "out of memory; use a smaller -e, --multi-comm or --ranks, or raise the limit (ulimit -v, that of "
        "the container)";
  } catch (...) {
    abort();
  }
  Report(*terminating_place,
         FailureRecord{terminating_place->rank, terminating_place->rank, WallClock::Get().NowNs(), cause});
  _exit(1);
}

}  // namespace

std::string FailureRecord::Encode() const {
  std::string clean = text.substr(0, 2000);  // a write of less than PIPE_BUF is not mixed with others
  std::replace_if(
      clean.begin(), clean.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return std::to_string(rank) + " " + std::to_string(origin) + " " + std::to_string(time_ns) + " " + clean +
         "\n";
}

bool FailureRecord::Decode(const std::string& line, FailureRecord* out) {
  int consumed = 0;
  if (sscanf(line.c_str(), "%d %d %lld %n", &out->rank, &out->origin, &out->time_ns, &consumed) != 3)
    return false;
  out->text = line.substr(static_cast<size_t>(consumed));
  return true;
}

int RunRank(const Options& options, const Place& place) {
  terminating_place = &place;
  std::set_terminate(ReportException);
  LibraryMessages messages;
  JobState job;
  std::unique_ptr<NetPlugin> plugin;
  PluginHalves halves;
  std::unique_ptr<Bootstrap> bootstrap;
  size_t wrong = 0;
  {
    Watchdog watchdog(&job, place.rank, std::chrono::duration<double>(options.timeout_s),
                      [&] { Report(place, job); });
    auto run = [&]() -> Status {
      Result<std::unique_ptr<NetPlugin>> loaded = NetPlugin::Load(options.plugin, options.api);
      if (!loaded.ok()) return loaded.status();
      plugin = std::move(*loaded);
      Result<PluginHalves> others = PluginHalves::Load(options.plugin, options, plugin->api());
      if (!others.ok()) return others.status();
      halves = std::move(*others);
      SetCallbackProfiler(halves.profiler.get());
      BootstrapOptions where;
      where.rank = place.rank;
      where.world = place.world;
      where.host = place.host;
      where.port = place.port;
      where.token = place.secret + "/" + options.Fingerprint();
      where.listen_fd = place.listen_fd;
      where.timeout = std::chrono::milliseconds(
          static_cast<int64_t>(std::min(options.timeout_s * 0.8, kArrivalLimitS) * 1e3));
      Result<std::unique_ptr<Bootstrap>> joined = Bootstrap::Join(where, &job);
      if (!joined.ok()) return joined.status();
      bootstrap = std::move(*joined);
      job.OnAbort([&job, &place, link = bootstrap.get()] {
        if (job.origin() == place.rank) link->Fail(job.cause());
      });
      Benchmark benchmark(options, place, plugin.get(), &halves, bootstrap.get(), &job, &messages);
      Status status = benchmark.Run();
      wrong = benchmark.wrong();
      if (!status.ok())
        job.Abort(status.message(), place.rank);  // before the communicators are closed: they must not wait
      return status;
    };
    if (Status status = run(); !status.ok()) job.Abort(status.message(), place.rank);
    if (bootstrap != nullptr) bootstrap->Leave();
  }
  if (job.aborted()) {
    Report(place, job);
    return 1;
  }
  if (wrong != 0) {
    if (place.rank == 0) fprintf(stderr, "sluice perf: %zu wrong values\n", wrong);
    return 1;
  }
  if (place.rank == 0 && (fflush(stdout) != 0 || ferror(stdout) != 0)) {
    fprintf(stderr, "sluice perf: cannot write the results to standard output; is its disk full?\n");
    return 1;
  }
  return 0;
}

}  // namespace sluice::perf
