#include "tools/perf/reduce.h"

#include <cstring>

namespace sluice::perf {

void Combine(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, size_t bytes) {
  if (targets.empty() || sources.empty() || bytes == 0) return;
  std::byte* first = targets[0];
  if (sources.size() == 1) {
    if (first != sources[0]) std::memcpy(first, sources[0], bytes);
  } else {
    const size_t n = bytes / sizeof(float);
    auto* out = reinterpret_cast<float*>(first);
    const auto* a = reinterpret_cast<const float*>(sources[0]);
    for (size_t k = 1; k < sources.size(); ++k) {
      const auto* b = reinterpret_cast<const float*>(sources[k]);
      for (size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
      a = out;
    }
  }
  for (std::byte* target : targets.subspan(1)) {
    if (target != first) std::memcpy(target, first, bytes);
  }
}

}  // namespace sluice::perf
