// Starts the fabric process that lies beside this library. Several programs may do so at once: one process
// becomes the fabric, the others see that and end.
//
// Thread rule: any thread.
#pragma once

#include <string>

#include "base/status.h"

namespace sluice::soft {

// Ok when a fabric process answers, or did a moment ago, at the address of `instance`.
Status StartFabric(const std::string& instance);

}  // namespace sluice::soft
