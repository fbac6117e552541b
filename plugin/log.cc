#include "plugin/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace sluice {
namespace {

std::atomic<DebugLogger> g_logger{nullptr};

}  // namespace

void SetLogger(DebugLogger logger) {
  if (logger != nullptr) g_logger.store(logger, std::memory_order_relaxed);
}

DebugLogger CurrentLogger() {
  return g_logger.load(std::memory_order_relaxed);
}

void LogLine(LogSeverity severity, unsigned long subsystem, const char* file, int line, const char* format,
             ...) {
  const DebugLogger logger = CurrentLogger();
  if (logger == nullptr && severity != LogSeverity::kWarn) return;
  // NCCL cuts a line at 1024 characters too.
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  // What users and peers write may be quoted here: it must not look like a line of its own.
  for (char* c = text; *c != '\0'; ++c) {
    if (static_cast<unsigned char>(*c) < ' ' || *c == '\x7f') *c = '?';
  }
  if (logger != nullptr) {
    logger(static_cast<int>(severity), subsystem, file, line, "NET/Sluice : %s", text);
  } else {
    std::fprintf(stderr, "NET/Sluice : %s\n", text);
  }
}

}  // namespace sluice
