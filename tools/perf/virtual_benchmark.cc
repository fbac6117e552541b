#include "tools/perf/virtual_benchmark.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/perf/host_processor.h"
#include "tools/perf/launcher.h"
#include "tools/perf/verify.h"
#include "tools/perf/virtual_job.h"
#include "tools/perf/virtual_program.h"

namespace sluice::perf {
namespace {

// Registered buffers stay apart: what arrives in the output would overwrite what is still to be read from the
// input.
bool HappensInPlace(const Shape& shape) {
  return !shape.registered &&
         (shape.op == Op::kAllReduce || shape.op == Op::kBroadcast || shape.op == Op::kReduce);
}

class VirtualBenchmark final : public VirtualProgram {
 public:
  VirtualBenchmark(const Options& options, soft::VirtualFabric* fabric, JobState* state)
      : options_(options),
        fabric_(fabric),
        state_(state),
        table_(stdout),
        base_(BaseShape(options, 0)),
        in_place_(HappensInPlace(base_)),
        job_(options, fabric, state) {}

  Status Run() override {
    SLUICE_RETURN_IF_ERROR(Open());
    SLUICE_RETURN_IF_ERROR(MakeBuffers());
    PrintHeader();
    for (size_t bytes = options_.min_bytes; bytes <= options_.max_bytes; bytes = NextSize(options_, bytes)) {
      SLUICE_RETURN_IF_ERROR(RunSize(bytes));
    }
    if (!options_.json) table_.Footer();
    PrintFabric();
    return job_.Close();
  }

  uint64_t wrong() const override { return wrong_; }
  VirtualDescriptors descriptors() const override {
    return {Index(options_.ranks), PathsOf(base_) * Index(options_.communicators)};
  }
  std::vector<std::string> stuck() const override { return job_.machine().stuck(); }

 private:
  struct Buffers {
    std::unique_ptr<SyntheticPayload> payload;  // in the place of the others
    PageBuffer input;
    PageBuffer separate_output;  // empty: the operation happens in place
    std::byte* output() const { return separate_output.size() != 0 ? separate_output.data() : input.data(); }
  };

  static size_t Index(int number) { return static_cast<size_t>(number); }
  Buffers& BuffersOf(int communicator, int rank) {
    return buffers_[static_cast<size_t>(communicator * options_.ranks + rank)];
  }

  Status Open() {
    Result<std::vector<uint32_t>> places =
        PlaceOnHosts(options_.ranks, fabric_->host_count(), options_.ranks_per_host);
    if (!places.ok()) return places.status();
    CommunicatorSpec spec{.processes = {}, .shape = base_, .traffic_class = options_.traffic_class};
    for (size_t r = 0; r < places->size(); ++r) {
      Result<size_t> process = job_.AddProcess((*places)[r], "rank " + std::to_string(r));
      if (!process.ok()) return process.status();
      spec.processes.push_back(*process);
    }
    for (int i = 0; i < options_.communicators; ++i) {
      if (Result<size_t> opened = job_.OpenCommunicator(spec); !opened.ok()) return opened.status();
    }
    return Status::Ok();
  }

  Status MakeBuffers() {
    const Shape largest = ShapeFor(options_, base_, options_.max_bytes);
    for (int m = 0; m < options_.communicators; ++m) {
      for (int r = 0; r < options_.ranks; ++r) {
        Buffers& b = buffers_.emplace_back();
        if (options_.synthetic) continue;
        b.input = PageBuffer(InputElements(largest) * kElementBytes);
        if (!in_place_) b.separate_output = PageBuffer(OutputElements(largest) * kElementBytes);
        job_.DeclareData(Index(m), r, b.input);
        job_.DeclareData(Index(m), r, b.separate_output);
        if (!options_.registered) continue;
        SLUICE_RETURN_IF_ERROR(job_.Register(Index(m), r, b.input));
        if (!in_place_) SLUICE_RETURN_IF_ERROR(job_.Register(Index(m), r, b.separate_output));
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
          job_.Launch(Index(m), r, OfRank(shape, r), b.input.data(), b.output(), b.payload.get());
        }
      }
    }
    return job_.machine().Run();
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
    const Shape shape = ShapeFor(options_, base_, bytes);
    state_->SetActivity("running " + std::string(Name(shape.op)) + " of " + std::to_string(bytes) + " bytes");
    FillAll(shape);
    SLUICE_RETURN_IF_ERROR(RunAll(shape, options_.warmup));
    std::vector<size_t> before;
    for (int m = 0; m < options_.communicators; ++m)
      before.push_back(job_.core(Index(m), 0).gpu().durations().size());
    const int64_t start_ns = fabric_->Now() / soft::kPicosPerNs;
    SLUICE_RETURN_IF_ERROR(RunAll(shape, options_.iterations));
    std::vector<Outcome> outcomes(static_cast<size_t>(options_.ranks));
    for (int r = 0; r < options_.ranks; ++r) {
      std::vector<double> durations;
      int64_t end_ns = start_ns;
      for (int m = 0; m < options_.communicators; ++m) {
        const GpuEngine& gpu = job_.core(Index(m), r).gpu();
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
    const std::string what =
        DescribeRun(options_, base_, job_.plugin(), job_.devices(), job_.max_recvs(0), "virtual fabric");
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
  const Shape base_;  // of rank 0
  const bool in_place_;
  const int64_t started_ns_ = WallClock::Get().NowNs();
  VirtualJob job_;
  std::vector<Buffers> buffers_;
  uint32_t round_ = 0;
  uint64_t wrong_ = 0;
};

}  // namespace

void RunVirtualBenchmark(const Options& options, const std::vector<std::string>& arguments) {
  RunVirtualProgram(options, {}, arguments, [&](soft::VirtualFabric* fabric, JobState* state) {
    return std::make_unique<VirtualBenchmark>(options, fabric, state);
  });
}

}  // namespace sluice::perf
