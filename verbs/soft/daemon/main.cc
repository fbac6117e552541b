// sluice-fabric: the process that is the network and the NICs of the software fabric. The library starts it;
// by hand it serves for looking into a running fabric.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "verbs/soft/daemon/log.h"
#include "verbs/soft/daemon/server.h"
#include "verbs/soft/ipc/schedule.h"

namespace sluice::soft {
namespace {

constexpr char kHelp[] =
    "usage: sluice-fabric [--instance NAME] COMMAND\n"
    "  --foreground        be the fabric process until interrupted (topology: SLUICE_FABRIC_TOPOLOGY)\n"
    "  --status            clock, dilation (wall seconds per model second, last second) and counters of a running fabric\n"
    "  --control COMMAND   status | time | port HOST DEVICE PORT up|down | kill HOST DEVICE\n"
    "  --instance NAME     which fabric; default: SLUICE_FABRIC or \"default\"\n"
    "The software fabric's libibverbs.so.1 starts this program by itself.\n";

struct Options {
  std::string instance;
  std::string control;
  int ready_fd = -1;
  bool foreground = false;
};

// False: a usage error.
bool ParseOptions(int count, char** arguments, Options* options) {
  for (int i = 1; i < count; ++i) {
    std::string_view name = arguments[i];
    std::string value;
    const size_t equals = name.find('=');
    if (equals != std::string_view::npos) {
      value = name.substr(equals + 1);
      name = name.substr(0, equals);
    }
    const bool takes_value = name == "--instance" || name == "--control" || name == "--ready-fd";
    if (takes_value && equals == std::string_view::npos) {
      if (++i == count) return false;
      value = arguments[i];
    }
    if (name == "--instance") {
      options->instance = value;
    } else if (name == "--control") {
      options->control = value;
    } else if (name == "--status") {
      options->control = "status";
    } else if (name == "--ready-fd") {
      options->ready_fd = atoi(value.c_str());
    } else if (name == "--foreground") {
      options->foreground = true;
    } else {
      return false;
    }
  }
  return options->foreground || options->ready_fd >= 0 || !options->control.empty();
}

// Nothing of the program that started us stays: descriptors, terminal, limits, processors.
void Detach(int ready_fd) {
  setsid();
  if (ready_fd > 3) close_range(3, static_cast<unsigned>(ready_fd) - 1, 0);
  close_range(static_cast<unsigned>(ready_fd) + 1, ~0u, 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
  if (null > 2) close(null);
  fcntl(ready_fd, F_SETFD, FD_CLOEXEC);
  signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error like others
  for (const auto resource : {RLIMIT_NOFILE, RLIMIT_FSIZE}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) == 0) {
      limit.rlim_cur = limit.rlim_max;
      setrlimit(resource, &limit);
    }
  }
  cpu_set_t all;
  memset(&all, 0xff, sizeof(all));
  sched_setaffinity(0, sizeof(all), &all);
}

void Answer(int ready_fd, const std::string& text) {
  const std::string line = text + "\n";
  if (write(ready_fd, line.data(), line.size()) < 0) Log("nobody waits for the start: %s", strerror(errno));
  close(ready_fd);
}

Status StartServer(Server* server) {
  if (!OpenLog(getenv("SLUICE_FABRIC_LOG"))) {
    return SystemError("SLUICE_FABRIC_LOG: cannot open \"" + std::string(getenv("SLUICE_FABRIC_LOG")) + "\"",
                       errno, "name a file in a directory that you can write");
  }
  Status status = server->Start();
  Log("start: %s", status.ok() ? "ok" : status.message().c_str());
  return status;
}

int BeFabric(const Options& options, const std::string& instance) {
  // Sleeps end when asked, not up to 50 us later.
  prctl(PR_SET_TIMERSLACK, 1);
  AskForShortSlices();
  Result<TopologySource> topology = ReadTopologySource(getenv("SLUICE_FABRIC_TOPOLOGY"));
  if (options.foreground) {
    if (!topology.ok()) {
      fprintf(stderr, "sluice-fabric: %s\n", topology.status().message().c_str());
      return 1;
    }
    Server server(instance, *topology);
    const Status status = StartServer(&server);
    if (!status.ok() || server.already_running()) {
      fprintf(stderr, "sluice-fabric: %s\n", status.ok() ? "already runs" : status.message().c_str());
      return 1;
    }
    server.Run(true);
    return 0;
  }
  // The program waits for its child, which is gone at once; the fabric process belongs to nobody.
  const pid_t child = fork();
  if (child < 0) {
    Answer(options.ready_fd,
           SystemError("fabric process: cannot fork", errno,
                       "raise the limit of processes (ulimit -u, or pids.max of the container)")
               .message());
  }
  if (child != 0) _exit(child < 0 ? 1 : 0);
  Detach(options.ready_fd);
  if (!topology.ok()) {
    Answer(options.ready_fd, topology.status().message());
    return 1;
  }
  Server server(instance, *topology);
  const Status status = StartServer(&server);
  if (chdir("/") != 0) Log("cannot leave the working directory: %s", strerror(errno));
  Answer(options.ready_fd, status.ok() ? "ok" : status.message());
  if (!status.ok() || server.already_running()) return 0;
  server.Run(false);
  return 0;
}

int Main(int count, char** arguments) {
  Options options;
  if (!ParseOptions(count, arguments, &options)) {
    fputs(kHelp, stderr);
    return 2;
  }
  Result<std::string> instance =
      InstanceName(options.instance.empty() ? getenv("SLUICE_FABRIC") : options.instance.c_str());
  if (!instance.ok()) {
    fprintf(stderr, "sluice-fabric: %s\n", instance.status().message().c_str());
    return 2;
  }
  if (!options.control.empty()) return SendControl(*instance, options.control);
  return BeFabric(options, *instance);
}

}  // namespace
}  // namespace sluice::soft

int main(int count, char** arguments) {
  return sluice::soft::Main(count, arguments);
}
