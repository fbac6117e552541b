// Sentences for what the verbs layer reports: addresses, limits of this host, remedies by errno.
//
//   return VerbError("ibv_create_cq on mlx5_0, depth 4096", errno);
//   -> "ibv_create_cq on mlx5_0, depth 4096: Cannot allocate memory (errno 12); the memory lock limit is 64
//   KiB: raise it ..."
//
// Thread rule: any thread; nothing here keeps state.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sluice {

// Receives one finished line per warning, without a newline. May be empty: the warning is dropped.
using WarningSink = std::function<void(const std::string&)>;

// Failure of a verb on this host: `what` names verb, device and sizes; the remedy for `error` follows. Code
// kSystem.
Status VerbError(std::string_view what, int error);

// The errno behind a verb's non-zero int: most return it, some return -1 or its negative.
int ErrnoOf(int result);

// The remedy for an errno of a verb; empty when there is none that helps. The text for ENOMEM names the
// memory lock limit of this process, the one for EMFILE the limit of open files, as they are at the time of
// the call.
std::string RemedyFor(int error);

// As RemedyFor(ENOMEM), for a limit in bytes (UINT64_MAX: unlimited).
std::string MemoryLockRemedy(uint64_t limit_bytes);

// Soft RLIMIT_MEMLOCK in bytes, UINT64_MAX when unlimited.
uint64_t MemoryLockLimitBytes();

// "64 KiB", "1.5 MiB", "100 B".
std::string FormatBytes(uint64_t bytes);

}  // namespace sluice
