// What lies between a NIC's ports and host memory: PCIe and the work-request engine. Shared by the ports of a
// NIC.
//
// Thread rule: single threaded.
#pragma once

#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/network_settings.h"

namespace sluice::soft {

class HostInterface {
 public:
  explicit HostInterface(const NicSettings& settings) : settings_(settings) {}
  const NicSettings& settings() const { return settings_; }

 private:
  NicSettings settings_;
};

}  // namespace sluice::soft
