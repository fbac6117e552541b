#include "tools/perf/perf.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tools/perf/descriptors.h"
#include "tools/perf/launcher.h"
#include "tools/perf/rank.h"
#include "tools/perf/socket.h"
#include "tools/perf/virtual_benchmark.h"
#include "tools/perf/virtual_workload.h"

namespace sluice::perf {
namespace {

constexpr int kBadUsage = 2;

int Complain(const Status& status) {
  fprintf(stderr, "sluice perf: %s\n", status.message().c_str());
  return kBadUsage;
}

// Whether the file can be a plugin at all, before ranks are started.
Status CheckPluginFile(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0) return SystemError("--plugin " + path, errno);
  constexpr char kRemedy[] = "name a NET plugin, a shared library such as libnccl-net.so";
  if (S_ISDIR(status.st_mode)) return SystemError("--plugin " + path, EISDIR, kRemedy);
  char magic[SELFMAG];
  if (pread(file.get(), magic, sizeof magic, 0) != sizeof magic || memcmp(magic, ELFMAG, SELFMAG) != 0) {
    return InvalidArgument("--plugin " + path + ": the file is no shared library; " + kRemedy);
  }
  return Status::Ok();
}

int ExecAgain(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(ProgramPath().c_str(), argv.data());
  fprintf(stderr, "sluice perf: cannot start the program again: %s\n", strerror(errno));
  return 1;
}

}  // namespace

int Run(Options options, const std::vector<std::string>& arguments) {
  if (Status status = Validate(&options); !status.ok()) return Complain(status);
  if (options.plugin.empty()) {
    options.plugin = ProgramDirectory() + "/../lib/libnccl-net-sluice.so";
    if (access(options.plugin.c_str(), R_OK) != 0) {
      return Complain(
          SystemError("the plugin " + options.plugin, errno, "build it, or name one with --plugin"));
    }
  } else if (options.plugin.find('/') != std::string::npos) {
    if (Status status = CheckPluginFile(options.plugin); !status.ok()) return Complain(status);
  }
  const bool is_virtual = options.fabric == FabricKind::kVirtual;
  const bool join = getenv("RANK") != nullptr;
  if (join && is_virtual) {
    return Complain(InvalidArgument(
        "--fabric virtual runs all ranks in this process, but RANK is set: every rank of the job would run "
        "the whole job; start it once, without RANK"));
  }
  int world = options.ranks == 0 ? 2 : options.ranks;
  Place place;
  if (join) {
    Result<Place> found = PlaceFromEnvironment();
    if (!found.ok()) return Complain(found.status());
    place = *found;
    if (options.ranks != 0 && options.ranks != place.world) {
      return Complain(InvalidArgument("--ranks " + std::to_string(options.ranks) + ": WORLD_SIZE says " +
                                      std::to_string(place.world) +
                                      "; unset RANK to start ranks on this host"));
    }
    world = place.world;
  }
  options.ranks = world;
  if (options.root < 0 || options.root >= world) {
    return Complain(InvalidArgument("--root " + std::to_string(options.root) + ": out of range; use 0 to " +
                                    std::to_string(world - 1)));
  }
  if (is_virtual) {
    if (const Result<soft::Topology> topology = TakeTopology(options); !topology.ok())
      return Complain(topology.status());
    if (!options.workload.empty()) return RunVirtualWorkload(options, arguments);
    RunVirtualBenchmark(options, arguments);
  }
  if (LaunchedAsRank()) return RunRank(options, place);
  if (Status status = ReserveDescriptors(options); !status.ok()) {
    Complain(status);
    return EXIT_FAILURE;
  }
  const std::string instance =
      "perf-" + (join ? "job-" + std::to_string(place.port) : std::to_string(getpid()));
  Result<FabricSetup> fabric = PrepareFabric(options, instance);
  if (!fabric.ok()) return Complain(fabric.status());
  if (!join) return LaunchRanks(options, *fabric, arguments);
  // The loader has read LD_LIBRARY_PATH before this program began.
  if (fabric->restart) return ExecAgain(arguments);
  return RunRank(options, place);
}

}  // namespace sluice::perf
