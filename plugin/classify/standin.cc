// GetPolicy, until plugin/lanes.cc has it.
#include <cstdlib>

#include "plugin/lanes.h"

namespace sluice {

const Result<std::shared_ptr<const Policy>>& GetPolicy() {
  static const Result<std::shared_ptr<const Policy>> policy = [] {
    const char* const value = getenv("SLUICE_POLICY");
    return Policy::Load(value == nullptr ? "" : value);
  }();
  return policy;
}

}  // namespace sluice
