// Policy for PCIe relaxed ordering of data buffers.
#pragma once

#include <cstdint>

namespace sluice {

enum class RelaxedOrdering : uint8_t { kOff = 0, kOn = 1, kAuto = 2 };  // NCCL_IB_PCI_RELAXED_ORDERING

}  // namespace sluice
