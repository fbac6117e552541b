#include "verbs/errors.h"

#include <sys/resource.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>

namespace sluice {
namespace {

// Soft limit of `resource`, UINT64_MAX when unlimited or unknown.
uint64_t SoftLimit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return UINT64_MAX;
  return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g %s", value, kUnits[unit]);
  return text;
}

uint64_t MemoryLockLimitBytes() {
  // Root without this capability is bound by the limit too: a container.
  constexpr uint64_t kIpcLock = uint64_t{1} << 14;
  uint64_t capabilities = 0;
  if (FILE* status = std::fopen("/proc/self/status", "re")) {
    char line[256];
    while (std::fgets(line, sizeof(line), status) != nullptr) {
      if (std::sscanf(line, "CapEff: %" SCNx64, &capabilities) == 1) break;
    }
    std::fclose(status);
  }
  return (capabilities & kIpcLock) != 0 ? UINT64_MAX : SoftLimit(RLIMIT_MEMLOCK);
}

std::string MemoryLockRemedy(uint64_t limit_bytes) {
  if (limit_bytes == UINT64_MAX) {
    return "no memory lock limit binds this process, so memory or a resource of the device is used up "
           "(ibv_devinfo -v: max_mr, max_qp, max_cq): free memory, or use fewer connections";
  }
  return "the memory lock limit (ulimit -l) of this process is " + FormatBytes(limit_bytes) +
         ": raise it with `ulimit -l unlimited`, memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity "
         "for a "
         "service, or --ulimit memlock=-1 for a container; if that changes nothing, a resource of the device "
         "is used up (ibv_devinfo -v: max_mr, max_qp, max_cq)";
}

std::string RemedyFor(int error) {
  switch (error) {
    case ENOMEM:
      return MemoryLockRemedy(MemoryLockLimitBytes());
    case EMFILE:
    case ENFILE: {
      const uint64_t limit = SoftLimit(RLIMIT_NOFILE);
      if (error == ENFILE || limit == UINT64_MAX) return "raise fs.file-max of this host";
      return "the limit of open files (ulimit -n) of this process is " + std::to_string(limit) +
             ": raise it with `ulimit -n`, or nofile in /etc/security/limits.conf";
    }
    case EPERM:
    case EACCES:
    case ENOENT:  // libibverbs reports a device file that is missing or may not be opened like this
      return "check that this user may open /dev/infiniband/uverbs*, and that a container gets these devices "
             "and IPC_LOCK";
    case ENODATA:
      return "the GID table has no entry at this index any more: read it again, or unset the GID index";
    case ENODEV:
    case EIO:
      return "the device is gone or failed: see the kernel log";
    case ENOSYS:
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
      return "device or driver do not support it: update the driver, or turn the feature off";
    case EFAULT:
      return "the address range is not mapped memory of this process, or GPU memory without a peer-memory "
             "module "
             "(nvidia_peermem)";
    case ENETUNREACH:
    case EHOSTUNREACH:
      return "no route to the peer's address: both ends need GIDs of one RoCE version and subnet (set the "
             "GID index or "
             "address range), and the network device must be up";
    case ETIMEDOUT:
      return "the peer's hardware address was not resolved: check that it answers on this network device "
             "(ping -I), and "
             "that both ends use GIDs of one subnet and VLAN";
    case EINVAL:
      return "a parameter is outside what the device accepts: compare sizes, MTU, GID index and service "
             "level with "
             "ibv_devinfo -v";
    case ENOSPC:
      return "the device has no room for another object: use fewer connections";
    default:
      return {};
  }
}

int ErrnoOf(int result) {
  if (result > 0) return result;
  if (result < -1) return -result;
  return errno != 0 ? errno : EIO;
}

Status VerbError(std::string_view what, int error) {
  return SystemError(what, error, RemedyFor(error));
}

}  // namespace sluice
