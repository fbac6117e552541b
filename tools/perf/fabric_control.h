// Questions to the process of the software fabric that this program's library uses (SLUICE_FABRIC).
//
//   const FabricControl control;
//   std::optional<std::string> answer = control.Ask("time");
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "verbs/soft/ipc/socket.h"

namespace sluice::perf {

class FabricControl {
 public:
  FabricControl();  // connects, where there is a fabric
  // The answer to a line as `sluice-fabric ctl` takes it; nullopt without a fabric.
  std::optional<std::string> Ask(const std::string& command) const;

 private:
  soft::UniqueFd socket_;
};

// Wire bytes that all ports have sent, by service level (RoCE: traffic class >> 5) and by traffic class.
struct FabricBytes {
  std::map<int, uint64_t> by_sl;
  std::map<int, uint64_t> by_traffic_class;
};
std::optional<FabricBytes> AskFabricBytes();

}  // namespace sluice::perf
