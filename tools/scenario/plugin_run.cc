#include "tools/scenario/plugin_run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tools/scenario/flow_network.h"

namespace sluice::scenario {
namespace {

// The descriptor under which the process finds its workload: the loader and the plugin use low ones.
constexpr int kWorkloadDescriptor = 100;

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void Reset(int fd) {
    Close();
    fd_ = fd;
  }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

struct Pipe {
  Descriptor read;
  Descriptor write;
  bool Open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read.Reset(ends[0]);
    write.Reset(ends[1]);
    return true;
  }
};

bool WriteFile(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) at += static_cast<size_t>(n);
  }
  return true;
}

void Append(const std::string& more, char separator, std::string* text) {
  if (!text->empty() && !more.empty()) *text += separator;
  *text += more;
}

// Until both are at their end.
void ReadBoth(int out_fd, int err_fd, std::string* out, std::string* err) {
  std::array<pollfd, 2> polls = {{{out_fd, POLLIN, 0}, {err_fd, POLLIN, 0}}};
  std::array<std::string*, 2> texts = {out, err};
  while (polls[0].fd >= 0 || polls[1].fd >= 0) {
    if (poll(polls.data(), polls.size(), -1) < 0) continue;
    for (size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].fd < 0 || polls[i].revents == 0) continue;
      char buffer[65536];
      const ssize_t n = read(polls[i].fd, buffer, sizeof buffer);
      if (n > 0) texts[i]->append(buffer, static_cast<size_t>(n));
      if (n == 0) polls[i].fd = -1;
    }
  }
}

// What the process said when it failed: its line, without the name of the command.
std::string Complaint(const std::string& err) {
  const std::string start = "sluice perf: ";
  const size_t at = err.rfind(start);
  if (at == std::string::npos) return err.substr(0, err.find('\n'));
  const size_t from = at + start.size();
  return err.substr(from, err.find('\n', from) - from);
}

std::vector<std::string> Arguments(const RunConfig& config, const PluginNetwork& network) {
  std::vector<std::string> arguments = {"sluice",     "perf",
                                        "--fabric",   "virtual",
                                        "--workload", "/proc/self/fd/" + std::to_string(kWorkloadDescriptor),
                                        "--topology", network.text,
                                        "--seed",     std::to_string(config.seed),
                                        "--host",     config.host,
                                        "--timeout",  "86400"};
  if (!config.plugin.empty()) arguments.insert(arguments.end(), {"--plugin", config.plugin});
  return arguments;
}

[[noreturn]] void Become(const std::vector<std::string>& arguments, const PluginArm& arm, int workload,
                         int out, int err, pid_t parent) {
  // It removes its files when it is asked to end.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  for (const auto& [name, value] : arm.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  dup2(workload, kWorkloadDescriptor);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execv("/proc/self/exe", argv.data());
  fprintf(stderr, "sluice perf: cannot start the program again: %s\n", strerror(errno));
  _exit(1);
}

}  // namespace

std::vector<PluginArm> PluginArms(const RunConfig& config) {
  if (!config.topology.empty()) return {{.name = "plugin"}};
  return {{.name = "roce"}, {.name = "ib", .infiniband = true}};
}

Result<PluginNetwork> PluginNetworkOf(const RunConfig& config, const std::string& default_text,
                                      const PluginArm& arm, uint32_t hosts) {
  PluginNetwork network;
  network.text = config.topology;
  if (network.text.empty()) {
    network.text = default_text + (arm.infiniband ? ",link=infiniband,delay=100ns,switch=infiniband"
                                                  : ",delay=1us,switch=shared64");
  }
  Result<soft::Topology> topology = soft::Topology::Parse(network.text);
  if (!topology.ok()) return topology.status();
  SLUICE_RETURN_IF_ERROR(topology->Add(config.faults, config.background));
  network.topology = std::move(*topology);
  if (network.topology.hosts.size() < hosts) {
    return InvalidArgument("--topology: " + std::to_string(network.topology.hosts.size()) +
                           " hosts are too few; this scenario needs " + std::to_string(hosts));
  }
  return network;
}

Result<workload::Results> RunOverPlugin(const RunConfig& config, const PluginNetwork& network,
                                        const PluginArm& arm, const workload::Workload& workload) {
  workload::Workload described = workload;
  Append(arm.overrides, ',', &described.overrides);
  Append(config.faults, ';', &described.faults);
  Append(config.background, ';', &described.background);
  const Descriptor file(memfd_create("sluice-workload", MFD_CLOEXEC));
  Pipe out;
  Pipe err;
  if (file.get() < 0 || !WriteFile(file.get(), described.ToJson()) || !out.Open() || !err.Open())
    return SystemError("cannot hand a workload to a process", errno);
  fflush(nullptr);
  const std::vector<std::string> arguments = Arguments(config, network);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return SystemError("cannot start a process", errno);
  if (pid == 0) Become(arguments, arm, file.get(), out.write.get(), err.write.get(), parent);
  out.write.Close();
  err.write.Close();
  std::string text;
  std::string complaints;
  ReadBoth(out.read.get(), err.read.get(), &text, &complaints);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return workload::Results::FromJson(text);
  const std::string where = arm.name.empty() ? "" : "arm " + arm.name + ": ";
  if (!complaints.empty()) return RemoteError(where + Complaint(complaints));
  return RemoteError(where + (WIFSIGNALED(status)
                                  ? std::string("ended by signal ") + strsignal(WTERMSIG(status))
                                  : "ended without a word"));
}

std::vector<uint32_t> FirstHosts(uint32_t count) {
  std::vector<uint32_t> hosts(count);
  for (uint32_t i = 0; i < count; ++i) hosts[i] = i;
  return hosts;
}

std::vector<double> DurationsUs(const workload::JobResult& job, uint32_t index) {
  std::vector<double> durations;
  for (const workload::CallTimes& call : job.calls) {
    if (call.call == index) durations.push_back(call.duration_us());
  }
  return durations;
}

std::vector<double> StepsUs(const workload::JobResult& job) {
  std::vector<double> steps;
  double before_us = 0;
  for (const workload::CallTimes& call : job.calls) {
    steps.push_back(call.last_end_us - before_us);
    before_us = call.last_end_us;
  }
  return steps;
}

}  // namespace sluice::scenario
