// Input data and expected results. Values are small integers stored as floats, so that every sum is exact
// whatever its order; a value depends on rank, position and round, so that stale or misplaced data shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tools/perf/schedule.h"

namespace sluice::perf {

float InputValue(int rank, size_t index, uint32_t round);
void FillInput(const Shape& shape, uint32_t round, float* input);
// Makes every element wrong.
void Poison(const Shape& shape, float* output);
// Elements of this rank's output that are not what the operation must deliver. Only the root has an output of
// a reduce.
size_t CountWrong(const Shape& shape, uint32_t round, const float* output);
// The same for the outputs of all ranks, by rank; `shape` is that of any. Adds to `wrong`. What all ranks
// must have in common is computed once.
void CountWrongEverywhere(Shape shape, uint32_t round, std::span<const float* const> outputs,
                          std::span<uint64_t> wrong);

}  // namespace sluice::perf
