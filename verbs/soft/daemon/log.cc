#include "verbs/soft/daemon/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace sluice::soft {
namespace {
int log_fd = -1;
}  // namespace

bool OpenLog(const char* path) {
  if (path == nullptr || *path == '\0') return true;
  log_fd =
      strcmp(path, "-") == 0 ? STDERR_FILENO : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  return log_fd >= 0;
}

bool Logging() {
  return log_fd >= 0;
}

void Log(const char* format, ...) {
  if (log_fd < 0) return;
  char line[1024];
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  int length = static_cast<int>(strftime(line, sizeof(line), "%H:%M:%S", &local));
  length += snprintf(line + length, sizeof(line) - static_cast<size_t>(length), ".%06ld sluice-fabric[%d] ",
                     now.tv_nsec / 1000, getpid());
  va_list arguments;
  va_start(arguments, format);
  length += vsnprintf(line + length, sizeof(line) - static_cast<size_t>(length), format, arguments);
  va_end(arguments);
  length = std::min(length, static_cast<int>(sizeof(line)) - 1);
  line[length++] = '\n';
  if (write(log_fd, line, static_cast<size_t>(length)) < 0) return;
}

}  // namespace sluice::soft
