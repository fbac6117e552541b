#include "tools/policy/chosen_policy.h"

#include <cstdlib>

namespace sluice {

Result<std::shared_ptr<const Policy>> ChosenPolicy(const std::string& file) {
  if (!file.empty()) return Policy::ReadFile(file);
  const char* const variable = std::getenv("SLUICE_POLICY");
  return Policy::Load(variable == nullptr ? "" : variable);
}

}  // namespace sluice
