// What the draws of flows and their experiments are for: one generator per purpose and index, see model/random.h.
#pragma once

#include <cstdint>

#include "verbs/soft/model/random.h"

namespace sluice::soft {

enum RandomPurpose : uint64_t {
  kRandomFlowHash = 0x464C4F57,
  kRandomTimer,
  kRandomSpray,
  kRandomMatrix,
  kRandomStart,
  kRandomLoss,
};

}  // namespace sluice::soft
