// Copies and sums of slices.
#pragma once

#include <cstddef>
#include <span>

namespace sluice::perf {

// targets[*] = the sum (as floats) of all sources, or the only source. Targets and sources may be the same
// memory, but must not overlap otherwise. Writes nothing when there is no target.
void Combine(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, size_t bytes);

}  // namespace sluice::perf
