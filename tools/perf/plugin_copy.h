// Copies of a plugin, so that several simulated processes in one address space have its globals each for
// themselves. Link namespaces would do that too, but there are only sixteen.
//
//   Result<std::string> file = FindPlugin("sluice");          // where the loader finds it
//   Result<PluginCopy> copy = PluginCopy::Make(*file, "rank 3");
//   NetPlugin::Load(copy->path(), 0);
//
// A copy is a file in memory with what the loader maps of the original, that is without debug information.
// Libraries that the plugin needs are not copied. Thread rule: as a value type.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace sluice::perf {

// The file of a plugin given by path or by a name as in NCCL_NET_PLUGIN.
Result<std::string> FindPlugin(const std::string& plugin);

class PluginCopy {
 public:
  static Result<PluginCopy> Make(const std::string& file, const std::string& label);
  PluginCopy() = default;  // of nothing
  PluginCopy(PluginCopy&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PluginCopy& operator=(PluginCopy&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~PluginCopy();

  // Good while this object lives; the loader knows a library by this name, so it must stay unique as long as
  // the copy is loaded.
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  explicit PluginCopy(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace sluice::perf
