#include "tools/perf/plugin_halves.h"

#include <utility>

namespace sluice::perf {
namespace {

template <typename Plugin>
Status LoadHalf(const std::string& path, int wanted, int by_default, std::unique_ptr<Plugin>* out) {
  const int version = wanted < 0 ? by_default : wanted;
  if (version == 0) return Status::Ok();
  Result<std::unique_ptr<Plugin>> loaded = Plugin::Load(path, version);
  if (loaded.ok()) {
    *out = std::move(*loaded);
  } else if (wanted >= 0) {
    return loaded.status();
  }
  return Status::Ok();
}

}  // namespace

Result<PluginHalves> PluginHalves::Load(const std::string& path, const Options& options, int net_version) {
  PluginHalves halves;
  SLUICE_RETURN_IF_ERROR(LoadHalf(path, options.profiler, ProfilerOfNet(net_version), &halves.profiler));
  SLUICE_RETURN_IF_ERROR(LoadHalf(path, options.tuner, TunerOfNet(net_version), &halves.tuner));
  return halves;
}

}  // namespace sluice::perf
