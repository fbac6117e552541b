// How fast the software fabric's clock runs in real time. Where the fabric process cannot keep up with the
// wall clock, model time runs slower; what a benchmark measures is then not what the modelled network would
// show.
//
//   FabricClock clock;                       // before
//   double dilation = clock.Dilation();      // behind: wall time for each second of model time; 1 when
//   unknown
//
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>

namespace sluice::perf {

class FabricClock {
 public:
  FabricClock();
  double Dilation() const;

 private:
  std::optional<int64_t> model_start_ns_;
  int64_t wall_start_ns_ = 0;
};

}  // namespace sluice::perf
