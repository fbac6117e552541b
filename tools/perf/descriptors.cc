#include "tools/perf/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
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

}  // namespace sluice::perf
