// How fast the network model is: packet-hops (one data or ACK packet over one link) per second of one core.
//
//   sluice-model-bench                     # 128 and 8192 hosts
//   sluice-model-bench 1024 fat-tree incast
//   sluice-model-bench routes              # what a change of links costs at 8192 hosts
//
// The time is that of the processor, so a busy machine changes little. Each row is one run over RC flows.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "verbs/soft/flows/simulation.h"
#include "verbs/soft/model/random.h"
#include "verbs/soft/model/routing.h"
#include "verbs/soft/model/topology_check.h"

namespace sluice::soft {
namespace {

struct Case {
  std::string shape;
  uint32_t hosts;
  std::string pattern;  // permutation, incast
  std::string preset;
  uint64_t message_bytes;
};

double ProcessorSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

uint64_t PeakMegabytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) / 1024;
}

// The receiver of every host: a permutation without fixed points.
std::vector<uint32_t> Permutation(uint32_t hosts) {
  constexpr uint64_t kPurpose = 0x42454E4348;
  Random random(1, kPurpose, hosts);
  std::vector<uint32_t> order(hosts);
  for (uint32_t i = 0; i < hosts; ++i) order[i] = i;
  // Sattolo: one cycle.
  for (uint32_t i = hosts - 1; i > 0; --i) std::swap(order[i], order[random.Below(i)]);
  return order;
}

int Run(const Case& run) {
  const std::string text = run.shape + ":hosts=" + std::to_string(run.hosts) + ",rate=400G" +
                           (run.preset == "infiniband" ? ",link=infiniband,delay=150ns" : "");
  Result<Topology> topology = Topology::FromText(text);
  Result<SwitchSettings> settings = SwitchSettings::Preset(run.preset);
  if (!topology.ok() || !settings.ok()) {
    std::fprintf(stderr, "%s\n", (topology.ok() ? settings.status() : topology.status()).message().c_str());
    return 1;
  }
  topology->switch_settings = *settings;
  SimulationSettings flows;
  if (run.preset == "infiniband") flows.rc = RcSettings::InfiniBand();
  const double before = ProcessorSeconds();
  Result<std::unique_ptr<Simulation>> made = Simulation::Create(std::move(*topology), flows);
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().message().c_str());
    return 1;
  }
  Simulation& simulation = **made;
  const std::vector<uint32_t> receivers = Permutation(run.hosts);
  for (uint32_t i = 0; i < run.hosts; ++i) {
    if (run.pattern == "incast" && i == 0) continue;
    const uint32_t receiver = run.pattern == "incast" ? 0 : receivers[i];
    simulation.PostAt(0, simulation.AddFlow({.source = i, .destination = receiver}), run.message_bytes);
  }
  const double start = ProcessorSeconds();
  simulation.Run();
  const double seconds = ProcessorSeconds() - start;
  const FabricStatistics statistics = simulation.statistics();
  const auto hops = static_cast<double>(statistics.packet_hops);
  std::printf("%-11s %6u %-12s %-11s %12.0f %10.2f %8.2f %8.2f %8.2f %8llu\n", run.shape.c_str(), run.hosts,
              run.pattern.c_str(), run.preset.c_str(), hops, hops / seconds * 1e-6,
              static_cast<double>(statistics.events) / hops, start - before, seconds,
              static_cast<unsigned long long>(PeakMegabytes()));
  std::fflush(stdout);
  return 0;
}

// What routes cost: all of them, and the change of one link between switches when all are known.
int RunRoutes(const std::string& text) {
  const Result<Topology> topology = Topology::FromText(text);
  if (!topology.ok()) {
    std::fprintf(stderr, "%s\n", topology.status().message().c_str());
    return 1;
  }
  RouteTable routes(&*topology, &topology->routing);
  std::vector<bool> up(topology->links.size(), true);
  routes.Update(up);
  const auto endpoints = static_cast<uint32_t>(EndpointIndex(*topology).count());
  const double start = ProcessorSeconds();
  size_t candidates = 0;
  for (uint32_t endpoint = 0; endpoint < endpoints; ++endpoint)
    candidates += routes.Candidates(0, endpoint).size();
  const double all_s = ProcessorSeconds() - start;
  double worst_s = 0;
  constexpr uint32_t kChanges = 64;
  for (uint32_t i = 0; i < 2 * kChanges; ++i) {
    // From the last link backwards, which is one between switches; each goes down, then up again.
    const size_t link = up.size() - 1 - i / 2;
    up[link] = i % 2 != 0;
    const double before = ProcessorSeconds();
    routes.Update(up);
    for (uint32_t endpoint = 0; endpoint < endpoints; ++endpoint) {
      candidates += routes.Candidates(0, endpoint).size();
    }
    worst_s = std::max(worst_s, ProcessorSeconds() - before);
  }
  std::printf("routes of %s, %zu switches: all %.1f ms, change of one link at most %.1f ms (%zu)\n",
              text.c_str(), topology->switches.size(), all_s * 1e3, worst_s * 1e3, candidates);
  std::fflush(stdout);
  return 0;
}

int RunAllRoutes() {
  for (const char* text : {"leaf-spine:hosts=8192,rate=400G", "fat-tree:hosts=8192,rate=400G"}) {
    if (const int error = RunRoutes(text)) return error;
  }
  return 0;
}

int Main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "routes") return RunAllRoutes();
  std::vector<Case> cases;
  if (argc > 1) {
    const auto hosts = static_cast<uint32_t>(std::strtoul(argv[1], nullptr, 10));
    if (hosts < 2) {
      std::fprintf(stderr, "usage: %s [HOSTS [SHAPE [PATTERN [PRESET [BYTES]]]]], HOSTS from 2 to 8192\n",
                   argv[0]);
      return 1;
    }
    cases.push_back({argc > 2 ? argv[2] : "fat-tree", hosts, argc > 3 ? argv[3] : "permutation",
                     argc > 4 ? argv[4] : "shared64",
                     argc > 5 ? std::strtoull(argv[5], nullptr, 10) : 1 << 20});
  } else {
    cases = {{"fat-tree", 128, "permutation", "shared64", 8 << 20},
             {"fat-tree", 128, "permutation", "htsim", 8 << 20},
             {"fat-tree", 128, "incast", "htsim", 4 << 20},
             {"fat-tree", 128, "permutation", "infiniband", 8 << 20},
             {"fat-tree", 8192, "permutation", "shared64", 1 << 20}};
  }
  std::printf("%-11s %6s %-12s %-11s %12s %10s %8s %8s %8s %8s\n", "topology", "hosts", "pattern", "preset",
              "packet-hops", "M hops/s", "ev/hop", "build s", "run s", "peak MB");
  for (const Case& run : cases) {
    if (const int error = Run(run)) return error;
  }
  return argc > 1 ? 0 : RunAllRoutes();
}

}  // namespace
}  // namespace sluice::soft

int main(int argc, char** argv) {
  return sluice::soft::Main(argc, argv);
}
