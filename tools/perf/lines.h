// The LL and LL128 wire formats: data in lines that carry their own flag, so that a consumer needs no other
// signal.
//
//   LL     16 bytes: two words of 4 data bytes and a 4-byte flag, each stored and loaded as one 8-byte word
//   LL128  128 bytes: 120 data bytes, then an 8-byte flag; always whole groups of 16 lines
//
// The flag of step s is s + 1, so a slot that still holds an earlier step is never taken for a new one.
// Readers poll memory that the network writes: they trust a line when its flag is right, and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/perf/schedule.h"

namespace sluice::perf {

size_t LineDataBytes(Proto proto);
size_t LineWireBytes(Proto proto);
// Lines, and bytes on the wire, that carry `bytes` of data.
size_t LinesFor(Proto proto, size_t bytes);
size_t WireBytes(Proto proto, size_t bytes);

// Writes `bytes` of data as lines. The last line is padded with zeros.
void PackLines(Proto proto, uint64_t step, const std::byte* data, size_t bytes, std::byte* wire);

// Copies the data of valid lines from `first_line` on into `data` (the start of the message's data), at most
// up to `bytes`; returns the number of the first line that is not valid yet.
size_t UnpackLines(Proto proto, uint64_t step, const std::byte* wire, size_t first_line, size_t bytes,
                   std::byte* data);

// True when every line of `wire_bytes` carries the flag of `step`: the check that a sending proxy makes.
bool LinesReady(Proto proto, uint64_t step, const std::byte* wire, size_t wire_bytes);

}  // namespace sluice::perf
