// Lines of the log. They go to the logger that NCCL gives at init, which filters by NCCL_DEBUG.
//
//   SLUICE_WARN("device %s: %s", name, status.message().c_str());
//   SLUICE_INFO(kLogNet, "path to %s: %d queue pairs", peer, count);
//
// Before a logger exists warnings go to standard error and the rest nowhere; an INFO or TRACE then costs one
// relaxed load, and its arguments are not evaluated. Every line starts with `NET/Sluice : `.
//
// Threads: any.
#pragma once

#include "plugin/net.h"

namespace sluice {

// Subsystems, as NCCL numbers them (NCCL_DEBUG_SUBSYS).
inline constexpr unsigned long kLogInit = 0x1;
inline constexpr unsigned long kLogNet = 0x10;
inline constexpr unsigned long kLogEnv = 0x80;
inline constexpr unsigned long kLogAll = ~0UL;

enum class LogSeverity : int { kWarn = 2, kInfo = 3, kTrace = 5 };  // as NCCL numbers its levels

// Null keeps the logger that is set. The last communicator's logger serves the whole process: in NCCL it is
// one function.
void SetLogger(DebugLogger logger);

// The logger of the process, null before the first SetLogger.
DebugLogger CurrentLogger();

void LogLine(LogSeverity severity, unsigned long subsystem, const char* file, int line, const char* format,
             ...) __attribute__((format(printf, 5, 6), cold));

}  // namespace sluice

#define SLUICE_WARN(...) \
  ::sluice::LogLine(::sluice::LogSeverity::kWarn, ::sluice::kLogAll, __FILE_NAME__, __LINE__, __VA_ARGS__)

#define SLUICE_LOG_IF_SET_(severity, subsystem, ...)                                \
  do {                                                                              \
    if (::sluice::CurrentLogger() != nullptr) [[unlikely]] {                        \
      ::sluice::LogLine(severity, subsystem, __FILE_NAME__, __LINE__, __VA_ARGS__); \
    }                                                                               \
  } while (0)

#define SLUICE_INFO(subsystem, ...) SLUICE_LOG_IF_SET_(::sluice::LogSeverity::kInfo, subsystem, __VA_ARGS__)
#define SLUICE_TRACE(subsystem, ...) SLUICE_LOG_IF_SET_(::sluice::LogSeverity::kTrace, subsystem, __VA_ARGS__)
