#include "tools/perf/fabric_clock.h"

#include <cinttypes>
#include <cstdio>
#include <string>

#include "tools/perf/clock.h"
#include "tools/perf/fabric_control.h"

namespace sluice::perf {
namespace {

// Model time of the fabric process that this program's library uses; nullopt without one.
std::optional<int64_t> ModelTimeNs() {
  const std::optional<std::string> answer = AskFabric("time");
  if (!answer.has_value()) return std::nullopt;
  int64_t model_ns = 0;
  if (sscanf(answer->c_str(), "model_ns=%" SCNd64, &model_ns) != 1) return std::nullopt;
  return model_ns;
}

}  // namespace

FabricClock::FabricClock() : model_start_ns_(ModelTimeNs()), wall_start_ns_(WallClock::Get().NowNs()) {}

double FabricClock::Dilation() const {
  const std::optional<int64_t> model_ns = ModelTimeNs();
  if (!model_start_ns_.has_value() || !model_ns.has_value() || *model_ns <= *model_start_ns_) return 1;
  const int64_t wall_ns = WallClock::Get().NowNs() - wall_start_ns_;
  return static_cast<double>(wall_ns) / static_cast<double>(*model_ns - *model_start_ns_);
}

}  // namespace sluice::perf
