// The software fabric's clock in real time, and how fast it runs. Where the fabric process cannot keep up with the
// wall clock, model time runs slower (it dilates): a benchmark's times are then divided by the dilation, so that
// they are times of the modelled network.
//
//   FabricClock clock;                                       // of SLUICE_FABRIC
//   std::optional<FabricTime> before = clock.Read();
//   ... measure ...
//   double dilation = Dilation(before, clock.Read());        // wall time for each second of model time
//
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>

#include "tools/perf/fabric_control.h"

namespace sluice::perf {

// Both clocks of the fabric process at one moment.
struct FabricTime {
  int64_t model_ns = 0;
  int64_t wall_ns = 0;
};

class FabricClock {
 public:
  // nullopt: no fabric process answers, as over real devices.
  std::optional<FabricTime> Read() const;

 private:
  FabricControl control_;
};

// 1 when one of them is unknown or no time has passed.
double Dilation(const std::optional<FabricTime>& begin, const std::optional<FabricTime>& end);

}  // namespace sluice::perf
