// The keys of a topology: their grammar and ranges, the same in a TOML file and in the one-line form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/topology.h"

namespace sluice::soft {

// What one host is made of.
struct HostSettings {
  uint32_t nics = 1;
  uint32_t ports = 1;
  PortSpec port;
  std::string device = "soft";
  bool pci = true;
};

struct FabricSettings {
  uint32_t hosts = 256;
  bool on_demand = true;  // until hosts is given
  HostSettings host;
  ResourceLimits limits;
};

// Each sets one key from its text. `where` starts the error message: `file.toml:7` or `topology "..."`.
// kUnknown in `known` is not an error of these functions: the caller knows which keys its place allows.
Status SetHostKey(HostSettings* settings, std::string_view key, const std::string& value,
                  const std::string& where, bool* known);
Status SetFabricKey(FabricSettings* settings, std::string_view key, const std::string& value,
                    const std::string& where, bool* known);
Status SetLimitKey(ResourceLimits* limits, std::string_view key, const std::string& value,
                   const std::string& where, bool* known);
// "hosts, on_demand, nics, ..." for messages.
std::string FabricKeys();
std::string HostKeys();
std::string LimitKeys();

// Hosts named host0, host1, ... on one switch.
struct NamedHost {
  std::string name;
  HostSettings settings;
};
Topology BuildSingleSwitch(const std::vector<NamedHost>& hosts, const ResourceLimits& limits, bool on_demand);

}  // namespace sluice::soft
