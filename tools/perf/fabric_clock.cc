#include "tools/perf/fabric_clock.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string>

namespace sluice::perf {

std::optional<FabricTime> FabricClock::Read() const {
  const std::optional<std::string> answer = control_.Ask("time");
  if (!answer.has_value()) return std::nullopt;
  FabricTime time;
  if (sscanf(answer->c_str(), "model_ns=%" SCNd64 " wall_ns=%" SCNd64, &time.model_ns, &time.wall_ns) != 2) {
    return std::nullopt;
  }
  return time;
}

double Dilation(const std::optional<FabricTime>& begin, const std::optional<FabricTime>& end) {
  if (!begin.has_value() || !end.has_value() || end->model_ns <= begin->model_ns) return 1;
  // Model time never runs ahead of the wall clock.
  return std::max(1.0, static_cast<double>(end->wall_ns - begin->wall_ns) /
                           static_cast<double>(end->model_ns - begin->model_ns));
}

}  // namespace sluice::perf
