// The policy that a command is about.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "tuner/policy.h"

namespace sluice {

// The file, or without one what SLUICE_POLICY says, which is the built-in policy when that is unset too.
Result<std::shared_ptr<const Policy>> ChosenPolicy(const std::string& file);

}  // namespace sluice
