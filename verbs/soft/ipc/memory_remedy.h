// What helps when memory that programs share cannot be made or mapped.
#pragma once

#include <cerrno>

namespace sluice::soft {

// `error` is that of memfd_create, ftruncate, posix_fallocate or mmap.
inline const char* MemoryRemedy(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files (ulimit -n) or close some";
    case EFBIG:
      return "raise the limit of file sizes (ulimit -f)";
    case ENOSPC:
      return "free memory, or raise the memory limit of the container";
    default:
      return "raise the limit of virtual memory (ulimit -v), free memory, or raise the memory limit of the "
             "container";
  }
}

}  // namespace sluice::soft
