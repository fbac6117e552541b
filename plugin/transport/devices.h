// The NET devices of this process: one per RDMA port, plus the virtual devices that NCCL asks for.
//
// Threads: any; Create locks. Indices and strings stay valid to the end of the process.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugin/net.h"
#include "plugin/params.h"
#include "verbs/device.h"
#include "verbs/gid.h"

namespace sluice {

class DeviceTable {
 public:
  // Discovers on the first call; later calls return the same table, or the same error.
  static Result<DeviceTable*> Get();

  int count() const;
  bool Has(LinkLayer link_layer) const;
  Result<NetProperties> Properties(int device) const;
  // The ports behind a device, in stripe order.
  Result<std::vector<Port>> Members(int device) const;
  Result<int> MakeVirtual(std::span<const int> members, int max_members);

 private:
  struct NetDevice {
    std::string name;
    std::string pci_path;
    std::vector<int> members;  // indices of ports_
    NetProperties properties;
  };

  DeviceTable() = default;
  Status Discover(const Params& params);
  void AddPhysical(const Params& params, int port_index);

  mutable std::mutex mutex_;
  std::vector<Port> ports_;
  std::deque<NetDevice> devices_;  // grows only; elements never move
};

// GID options as the environment sets them.
GidOptions GidOptionsFrom(const Params& params);

}  // namespace sluice
