#include "tools/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace sluice {

bool OutputWritten(const char* command) {
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return true;
  fprintf(stderr, "sluice %s: cannot write to standard output: %s (errno %d)\n", command, strerror(errno),
          errno);
  return false;
}

}  // namespace sluice
