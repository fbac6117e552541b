#include "verbs/soft/calls/start_fabric.h"

#include <utility>

#include "verbs/soft/flows/background_player.h"

namespace sluice::soft {

Result<Topology> TopologyOf(const TopologySource& source) {
  Result<Topology> topology =
      source.is_file ? Topology::FromToml(source.content, source.name) : Topology::Parse(source.content);
  if (topology.ok()) SLUICE_RETURN_IF_ERROR(topology->Add(source.faults, source.background));
  return topology;
}

Result<std::unique_ptr<Fabric>> StartFabric(const TopologySource& source, const uint64_t* seed,
                                            PayloadPool* pool) {
  Result<Topology> topology = TopologyOf(source);
  if (!topology.ok()) return topology.status();
  if (seed != nullptr) topology->seed = topology->routing.seed = *seed;
  return Fabric::Create(std::move(*topology), pool, MakeBackgroundPlayer);
}

}  // namespace sluice::soft
