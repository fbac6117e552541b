#include "tools/perf/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace sluice::perf {
namespace {

// What rank 0 holds without its links to the others: standard streams, its part of the rendezvous, a device,
// a connection, and what is open for a moment.
constexpr rlim_t kLeast = 24;
// Libraries, devices and what they open for a moment.
constexpr rlim_t kAmple = 256;
// Of one connection of a plugin: sockets, event descriptors.
constexpr rlim_t kPerConnection = 4;
// Of a simulated process without its paths.
constexpr rlim_t kPerProcess = 5;

}  // namespace

Status ReserveDescriptors(const Options& options) {
  const auto ranks = static_cast<rlim_t>(options.ranks);
  const auto connections = static_cast<rlim_t>(options.channels) * static_cast<rlim_t>(options.communicators);
  const rlim_t least = kLeast + ranks;
  const rlim_t ample =
      kAmple + ranks + kPerConnection * connections * (IsPointToPoint(options.op) ? ranks : 2);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return SystemError("cannot read the limit of open files", errno);
  if (limit.rlim_max < least) {
    return SystemError(
        absl::StrCat("the hard limit of open files is ", limit.rlim_max, ", but a job of ", options.ranks,
                     options.ranks == 1 ? " rank" : " ranks", " needs ", least,
                     " or more; raise it (ulimit -n, LimitNOFILE of a service) or use fewer --ranks"));
  }
  if (limit.rlim_cur >= ample) return Status::Ok();
  limit.rlim_cur = std::min(limit.rlim_max, ample);
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return Status::Ok();
  return SystemError("cannot raise the limit of open files", errno, "raise it (ulimit -n)");
}

Status ReserveDescriptors(const VirtualDescriptors& job) {
  // Of a process: the copy of the plugin, a listener, events. Of a path: a socket at either end.
  const rlim_t least = kLeast + kPerProcess * job.processes + 2 * job.paths;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return SystemError("cannot read the limit of open files", errno);
  if (limit.rlim_max < least) {
    return SystemError(absl::StrCat("the hard limit of open files is ", limit.rlim_max, ", but ",
                                    job.processes, " simulated processes with ", job.paths,
                                    " paths in one process need about ", least,
                                    "; raise it (ulimit -n) or use fewer ranks"));
  }
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return Status::Ok();
  return SystemError("cannot raise the limit of open files", errno, "raise it (ulimit -n)");
}

Status CheckDescriptorsLeft() {
  constexpr size_t kNeeded = 4;
  std::array<int, kNeeded> taken;
  taken.fill(-1);
  int error = 0;
  for (int& fd : taken) {
    fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) error = errno;
  }
  for (const int fd : taken) {
    if (fd >= 0) close(fd);
  }
  // Without a standard error there is nothing to try it with.
  if (error == 0 || error == EBADF) return Status::Ok();
  return SystemError("hardly any descriptor is left", error,
                     "raise the limit (ulimit -n) or use fewer ranks");
}

}  // namespace sluice::perf
