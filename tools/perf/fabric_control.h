// Questions to the process of the software fabric that this program's library uses. Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace sluice::perf {

// The answer to a line as `sluice-fabric ctl` takes it; nullopt without a fabric.
std::optional<std::string> AskFabric(const std::string& command);

// Wire bytes that all ports have sent, by service level (RoCE: traffic class >> 5) and by traffic class.
struct FabricBytes {
  std::map<int, uint64_t> by_sl;
  std::map<int, uint64_t> by_traffic_class;
};
std::optional<FabricBytes> AskFabricBytes();

}  // namespace sluice::perf
