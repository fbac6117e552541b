// The part of the launcher that chooses the fabric and reads a rank's place.
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tools/perf/launcher.h"

namespace sluice::perf {
namespace {

bool HostHasDevices() {
  DIR* dir = opendir("/sys/class/infiniband");
  if (dir == nullptr) return false;
  bool found = false;
  while (const dirent* entry = readdir(dir)) found = found || entry->d_name[0] != '.';
  closedir(dir);
  return found;
}

Result<std::vector<std::string>> PlaceRanks(const soft::Topology& topology, int ranks, int per_host) {
  Result<std::vector<uint32_t>> places =
      PlaceOnHosts(ranks, static_cast<uint32_t>(topology.hosts.size()), per_host);
  if (!places.ok()) return places.status();
  std::vector<std::string> names;
  for (const uint32_t host : *places) names.push_back(topology.hosts[host].name);
  return names;
}

Result<int> Number(const char* name, long low, long high) {
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0') return InvalidArgument(std::string(name) + " is not set");
  char* end = nullptr;
  errno = 0;
  const long value = strtol(text, &end, 10);
  if (*end != '\0' || errno != 0 || value < low || value > high) {
    return InvalidArgument(std::string(name) + "=" + text + ": must be a number from " + std::to_string(low) +
                           " to " + std::to_string(high));
  }
  return static_cast<int>(value);
}

}  // namespace

Result<soft::Topology> TakeTopology(const Options& options) {
  const auto value = [](const char* name) {
    return std::string(getenv(name) == nullptr ? "" : getenv(name));
  };
  const bool from_variable = options.topology.empty() && options.fabric != FabricKind::kVirtual;
  const std::string described = from_variable ? value("SLUICE_FABRIC_TOPOLOGY") : options.topology;
  Result<soft::Topology> topology = soft::Topology::Parse(described);
  if (!topology.ok()) {
    return InvalidArgument((from_variable ? "SLUICE_FABRIC_TOPOLOGY: " : "--topology: ") +
                           topology.status().message());
  }
  const std::pair<const char*, const std::vector<std::string>*> additions[] = {
      {"SLUICE_FABRIC_FAULTS", &options.faults}, {"SLUICE_FABRIC_BACKGROUND", &options.background}};
  for (const auto& [variable, lines] : additions) {
    std::string text;
    for (const std::string& line : *lines) text += (text.empty() ? "" : ";") + line;
    if (!text.empty()) setenv(variable, text.c_str(), 1);
  }
  SLUICE_RETURN_IF_ERROR(topology->Add(value("SLUICE_FABRIC_FAULTS"), value("SLUICE_FABRIC_BACKGROUND")));
  return topology;
}

Result<std::vector<uint32_t>> PlaceOnHosts(int ranks, uint32_t hosts, int per_host) {
  const auto n = static_cast<uint32_t>(ranks);
  std::vector<uint32_t> places;
  if (per_host != 0) {
    const auto k = static_cast<uint32_t>(per_host);
    if ((n + k - 1) / k > hosts) {
      return InvalidArgument("--ranks-per-host " + std::to_string(per_host) + ": " + std::to_string(ranks) +
                             " ranks need " + std::to_string((n + k - 1) / k) +
                             " hosts, but the topology has " + std::to_string(hosts));
    }
    for (uint32_t rank = 0; rank < n; ++rank) places.push_back(rank / k);
    return places;
  }
  for (uint64_t rank = 0; rank < n; ++rank) {
    places.push_back(static_cast<uint32_t>(n <= hosts ? rank : rank * hosts / n));
  }
  return places;
}

std::string ProgramPath() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "";
}

std::string ProgramDirectory() {
  const std::string path = ProgramPath();
  return path.substr(0, path.rfind('/'));
}

bool LaunchedAsRank() {
  return getenv("SLUICE_PERF_SECRET") != nullptr;
}

Result<Place> PlaceFromEnvironment() {
  Place place;
  Result<int> world = Number("WORLD_SIZE", 1, 4096);
  if (!world.ok()) return world.status();
  Result<int> rank = Number("RANK", 0, *world - 1);
  if (!rank.ok()) return rank.status();
  Result<int> port = Number("MASTER_PORT", 1, 65535);
  if (!port.ok()) return port.status();
  const char* host = getenv("MASTER_ADDR");
  if (host == nullptr || *host == '\0')
    return InvalidArgument("MASTER_ADDR is not set; it names the host of rank 0");
  place.rank = *rank;
  place.world = *world;
  place.port = *port;
  place.host = host;
  if (!LaunchedAsRank()) return place;
  place.secret = getenv("SLUICE_PERF_SECRET");
  if (const char* fd = getenv("SLUICE_PERF_REPORT_FD")) place.report_fd = atoi(fd);
  if (const char* fd = getenv("SLUICE_PERF_LISTEN_FD"); fd != nullptr && place.rank == 0)
    place.listen_fd = atoi(fd);
  return place;
}

Result<FabricSetup> PrepareFabric(const Options& options, const std::string& instance) {
  const bool describes_fabric =
      !(options.topology.empty() && options.faults.empty() && options.background.empty());
  FabricKind kind = options.fabric;
  if (kind == FabricKind::kAuto) {
    kind = !describes_fabric && HostHasDevices() ? FabricKind::kVerbs : FabricKind::kSoft;
  }
  FabricSetup setup;
  if (kind == FabricKind::kVerbs) return setup;
  Result<soft::Topology> topology = soft::Topology::Default();
  if (describes_fabric) topology = TakeTopology(options);
  if (!topology.ok()) return topology.status();
  if (!options.topology.empty()) {
    char absolute[PATH_MAX];
    const bool is_file = realpath(options.topology.c_str(), absolute) != nullptr;
    setenv("SLUICE_FABRIC_TOPOLOGY", is_file ? absolute : options.topology.c_str(), 1);
    if (!topology->on_demand) {
      Result<std::vector<std::string>> hosts = PlaceRanks(*topology, options.ranks, options.ranks_per_host);
      if (!hosts.ok()) return hosts.status();
      setup.rank_hosts = std::move(*hosts);
    }
  }
  const std::string directory = ProgramDirectory() + "/../lib/soft";
  const std::string library = directory + "/libibverbs.so.1";
  if (access(library.c_str(), R_OK) != 0) {
    if (options.fabric == FabricKind::kAuto && options.topology.empty())
      return setup;  // perhaps no verbs needed
    return SystemError("the software fabric's " + library, errno, "build it, or use --fabric verbs");
  }
  setenv("SLUICE_FABRIC", instance.c_str(), 0);
  const char* old = getenv("LD_LIBRARY_PATH");
  std::string path = directory;
  if (old != nullptr && *old != '\0') {
    if (strncmp(old, directory.c_str(), directory.size()) == 0) return setup;
    path += std::string(":") + old;
  }
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  setup.restart = true;
  return setup;
}

}  // namespace sluice::perf
