// Starts the ranks of a job on this host and sees them to their end.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "tools/perf/options.h"
#include "tools/perf/rank.h"
#include "verbs/soft/model/topology.h"

namespace sluice::perf {

struct FabricSetup {
  bool restart = false;  // LD_LIBRARY_PATH was changed, which takes effect in a program that is started after
  std::vector<std::string> rank_hosts;  // --topology: the host of each rank; empty: the fabric hands them out
};

// Prepares the environment for the fabric that `options` ask for.
Result<FabricSetup> PrepareFabric(const Options& options, const std::string& instance);

// Checks --topology, --fault and --background together and hands the last two to the fabric by the environment.
Result<soft::Topology> TakeTopology(const Options& options);

// The host of each rank, by number: rank r on host r / per_host, or, with 0, one rank per host and neighbours
// sharing one where there are more ranks than hosts.
Result<std::vector<uint32_t>> PlaceOnHosts(int ranks, uint32_t hosts, int per_host);

// Runs the program again once per rank, with the same arguments, and returns the exit code: 0, 1 after a
// failure (told in one line that names rank and cause), 128 + n after signal n. No rank outlives this call,
// nor this process.
int LaunchRanks(const Options& options, const FabricSetup& fabric, const std::vector<std::string>& arguments);

// True in a process that LaunchRanks started.
bool LaunchedAsRank();
// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and what a launcher adds.
Result<Place> PlaceFromEnvironment();

std::string ProgramPath();
std::string ProgramDirectory();

}  // namespace sluice::perf
