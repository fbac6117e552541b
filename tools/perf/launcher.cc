#include "tools/perf/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tools/perf/socket.h"

namespace sluice::perf {
namespace {

using Clock = std::chrono::steady_clock;

// What the other ranks get, once one has failed, to close their connections by themselves; then SIGTERM, then
// SIGKILL.
constexpr std::chrono::seconds kGrace{3};
constexpr std::chrono::seconds kTermination{1};
// Both, after --timeout: the ranks have known the end before.
constexpr std::chrono::milliseconds kLateGrace{500};
// Beyond --timeout, within which the ranks end themselves.
constexpr std::chrono::milliseconds kTimeoutGrace{3500};

struct Child {
  pid_t pid = -1;
  std::optional<int> status;  // of waitpid
};

std::string RandomHex() {
  unsigned char bytes[16];
  while (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
  }
  std::string text;
  for (unsigned char b : bytes) {
    char hex[3];
    snprintf(hex, sizeof hex, "%02x", b);
    text += hex;
  }
  return text;
}

class Launcher {
 public:
  Launcher(const Options& options, const FabricSetup& fabric, const std::vector<std::string>& arguments)
      : options_(options),
        fabric_(fabric),
        arguments_(arguments),
        children_(static_cast<size_t>(options.ranks)) {}

  Status Start();
  int Supervise();

 private:
  [[noreturn]] void ExecRank(int rank, pid_t launcher);
  void ReadReports();
  void Reap();
  bool AllEnded() const {
    return std::all_of(children_.begin(), children_.end(),
                       [](const Child& c) { return c.status.has_value(); });
  }
  void SignalAll(int signal);
  // Why the job failed; empty: it did not.
  std::string Cause() const;

  const Options& options_;
  const FabricSetup& fabric_;
  const std::vector<std::string>& arguments_;
  std::vector<Child> children_;
  std::string secret_ = RandomHex();
  int port_ = 0;
  FileDescriptor listener_;
  FileDescriptor report_read_;
  FileDescriptor report_write_;
  FileDescriptor signals_;
  sigset_t old_mask_{};
  std::string reports_;
  std::vector<FailureRecord> records_;
  int first_signalled_ = -1;  // the rank that a signal of somebody else ended first
  bool signalled_ = false;    // we have sent signals ourselves
  int interrupted_by_ = 0;
};

Status Launcher::Start() {
  Result<FileDescriptor> listener = ListenTcp("127.0.0.1", &port_);
  if (!listener.ok()) return listener.status();
  listener_ = std::move(*listener);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("cannot start ranks: no pipe", errno, kResourcesRemedy);
  report_read_ = FileDescriptor(ends[0]);
  report_write_ = FileDescriptor(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);

  sigset_t mask;
  sigemptyset(&mask);
  for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&mask, signal);
  sigprocmask(SIG_BLOCK, &mask, &old_mask_);
  signals_ = FileDescriptor(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid())
    return SystemError("cannot start ranks: no signal descriptor", errno, kResourcesRemedy);

  const pid_t self = getpid();
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) return SystemError("cannot start rank " + std::to_string(rank), errno);
    if (pid == 0) ExecRank(rank, self);
    children_[static_cast<size_t>(rank)].pid = pid;
  }
  listener_.Reset();
  report_write_.Reset();
  return Status::Ok();
}

void Launcher::ExecRank(int rank, pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(EXIT_FAILURE);  // it died before the line above
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(options_.ranks).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port_).c_str(), 1);
  setenv("SLUICE_PERF_SECRET", secret_.c_str(), 1);
  setenv("SLUICE_PERF_REPORT_FD", std::to_string(report_write_.get()).c_str(), 1);
  if (!fabric_.rank_hosts.empty()) {
    setenv("SLUICE_FABRIC_HOST", fabric_.rank_hosts[static_cast<size_t>(rank)].c_str(), 0);
  }
  fcntl(report_write_.get(), F_SETFD, 0);
  if (rank == 0) {
    setenv("SLUICE_PERF_LISTEN_FD", std::to_string(listener_.get()).c_str(), 1);
    fcntl(listener_.get(), F_SETFD, 0);
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments_) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(ProgramPath().c_str(), argv.data());
  const FailureRecord record{rank, rank, 0,
                             std::string("cannot start the program again: ") + strerror(errno)};
  const std::string line = record.Encode();
  [[maybe_unused]] const ssize_t n = write(report_write_.get(), line.data(), line.size());
  _exit(EXIT_FAILURE);
}

void Launcher::ReadReports() {
  char buffer[8192];
  ssize_t n;
  while ((n = read(report_read_.get(), buffer, sizeof buffer)) > 0)
    reports_.append(buffer, static_cast<size_t>(n));
  for (size_t end; (end = reports_.find('\n')) != std::string::npos; reports_.erase(0, end + 1)) {
    FailureRecord record;
    if (FailureRecord::Decode(reports_.substr(0, end), &record)) records_.push_back(record);
  }
}

void Launcher::Reap() {
  for (size_t r = 0; r < children_.size(); ++r) {
    Child& child = children_[r];
    int status = 0;
    if (child.status.has_value() || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.status = status;
    if (WIFSIGNALED(status) && !signalled_ && first_signalled_ < 0) first_signalled_ = static_cast<int>(r);
  }
}

void Launcher::SignalAll(int signal) {
  for (const Child& child : children_) {
    if (child.pid > 0 && !child.status.has_value()) kill(child.pid, signal);
  }
  signalled_ = true;
}

std::string Launcher::Cause() const {
  if (first_signalled_ >= 0) {
    const int signal = WTERMSIG(*children_[static_cast<size_t>(first_signalled_)].status);
    return absl::StrCat("rank ", first_signalled_, ": ended by signal ", signal, " (", strsignal(signal),
                        ")");
  }
  const FailureRecord* best = nullptr;
  auto rank_of_kind = [](const FailureRecord& r) {
    return r.origin == r.rank ? 0 : 1;
  };  // first-hand before hearsay
  for (const FailureRecord& r : records_) {
    if (best == nullptr ||
        std::pair(rank_of_kind(r), r.time_ns) < std::pair(rank_of_kind(*best), best->time_ns))
      best = &r;
  }
  if (best != nullptr) {
    const int rank = best->origin >= 0 ? best->origin : best->rank;
    return absl::StrCat("rank ", rank, ": ", best->text);
  }
  for (size_t r = 0; r < children_.size(); ++r) {
    const auto& status = children_[r].status;
    if (status.has_value() && WIFEXITED(*status) && WEXITSTATUS(*status) > 1) {
      return absl::StrCat("rank ", r, ": ended with exit code ", WEXITSTATUS(*status));
    }
  }
  return "";
}

int Launcher::Supervise() {
  const Clock::time_point timeout = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                       std::chrono::duration<double>(options_.timeout_s));
  std::optional<Clock::time_point> terminate, slay;
  bool overdue = false;
  while (!AllEnded()) {
    pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {report_read_.get(), POLLIN, 0}};
    poll(fds, 2, 100);
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD || interrupted_by_ != 0) continue;
      interrupted_by_ = static_cast<int>(info.ssi_signo);
      terminate = Clock::now();
    }
    ReadReports();
    Reap();
    const Clock::time_point now = Clock::now();
    const bool failed = std::any_of(children_.begin(), children_.end(),
                                    [](const Child& c) { return c.status.has_value() && *c.status != 0; });
    if (failed && !terminate.has_value()) terminate = now < timeout ? now + kGrace : now + kLateGrace;
    if (now > timeout + kTimeoutGrace && !terminate.has_value()) {
      overdue = true;
      terminate = now;
    }
    if (terminate.has_value() && now >= *terminate && !slay.has_value()) {
      SignalAll(SIGTERM);
      slay = now < timeout ? now + kTermination : now + kLateGrace;
    }
    if (slay.has_value() && now >= *slay) SignalAll(SIGKILL);
  }
  ReadReports();
  if (interrupted_by_ != 0) {
    fprintf(stderr, "sluice perf: ended by signal %d (%s)\n", interrupted_by_, strsignal(interrupted_by_));
    return 128 + interrupted_by_;
  }
  const bool all_ok =
      std::all_of(children_.begin(), children_.end(), [](const Child& c) { return *c.status == 0; });
  if (all_ok) return 0;
  std::string cause = Cause();
  if (cause.empty() && overdue) cause = "the ranks did not end after --timeout and were killed";
  if (!cause.empty()) fprintf(stderr, "sluice perf: %s\n", cause.c_str());
  return 1;
}

}  // namespace

int LaunchRanks(const Options& options, const FabricSetup& fabric,
                const std::vector<std::string>& arguments) {
  Launcher launcher(options, fabric, arguments);
  if (Status status = launcher.Start(); !status.ok()) {
    fprintf(stderr, "sluice perf: %s\n", status.message().c_str());
    return 1;  // the ranks that were started die with this process
  }
  return launcher.Supervise();
}

}  // namespace sluice::perf
