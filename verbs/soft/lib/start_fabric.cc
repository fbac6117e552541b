#include "verbs/soft/lib/start_fabric.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <vector>

#include "verbs/soft/ipc/socket.h"

extern char** environ;

namespace sluice::soft {
namespace {

constexpr int kReadyFd = 3;  // in the new process
constexpr int64_t kStartTimeoutMs = 20'000;

int64_t NowMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

Result<std::string> FabricBinary() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&StartFabric), &info) == 0 || info.dli_fname == nullptr) {
    return InternalError("cannot find out where the software fabric's libibverbs.so.1 was loaded from");
  }
  std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  path = slash == std::string::npos ? "./sluice-fabric" : path.substr(0, slash) + "/sluice-fabric";
  if (access(path.c_str(), X_OK) != 0) {
    return SystemError(
        "cannot start the fabric process \"" + path + "\"", errno,
        "it must lie beside the software fabric's libibverbs.so.1; build or install both together");
  }
  return path;
}

// The program's environment without libraries that were meant for the program only.
std::vector<char*> FabricEnvironment() {
  std::vector<char*> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (strncmp(*entry, "LD_PRELOAD=", 11) != 0) result.push_back(*entry);
  }
  result.push_back(nullptr);
  return result;
}

Status Spawn(const std::string& path, const std::string& instance, int ready, pid_t* child) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ready, kReadyFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string name = "--instance=" + instance;
  std::string ready_option = "--ready-fd=" + std::to_string(kReadyFd);
  std::string file = path;
  char* arguments[] = {file.data(), name.data(), ready_option.data(), nullptr};
  std::vector<char*> environment = FabricEnvironment();
  const int error = posix_spawn(child, path.c_str(), &files, &attributes, arguments, environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error == 0) return Status::Ok();
  return SystemError("cannot start the fabric process \"" + path + "\"", error,
                     "raise the limit of processes (ulimit -u) or free memory");
}

// What the new process says before it detaches: "ok" or one line of error.
std::string ReadReady(int fd, bool* timed_out) {
  std::string text;
  const int64_t deadline = NowMs() + kStartTimeoutMs;
  *timed_out = false;
  for (;;) {
    const int64_t left = deadline - NowMs();
    pollfd wait{fd, POLLIN, 0};
    const int ready = left <= 0 ? 0 : poll(&wait, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      *timed_out = true;
      return text;
    }
    char buffer[1024];
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.back() == '\n') {
      text.pop_back();
      return text;
    }
  }
}

}  // namespace

Status StartFabric(const std::string& instance) {
  Result<std::string> path = FabricBinary();
  if (!path.ok()) return path.status();
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
    return SystemError("cannot start the fabric process: no pipe", errno,
                       "raise the limit of open files (ulimit -n)");
  }
  UniqueFd ours(pipe_fds[0]), theirs(pipe_fds[1]);
  if (theirs.get() == kReadyFd || ours.get() == kReadyFd) {
    // A descriptor that already has the wanted number keeps its close-on-exec flag through dup2.
    UniqueFd& wrong = theirs.get() == kReadyFd ? theirs : ours;
    UniqueFd moved(fcntl(wrong.get(), F_DUPFD_CLOEXEC, kReadyFd + 1));
    if (!moved.valid()) {
      return SystemError("cannot start the fabric process: no descriptor", errno,
                         "raise the limit of open files (ulimit -n)");
    }
    wrong = std::move(moved);
  }
  pid_t child = -1;
  SLUICE_RETURN_IF_ERROR(Spawn(*path, instance, theirs.get(), &child));
  theirs.reset();
  bool timed_out = false;
  const std::string answer = ReadReady(ours.get(), &timed_out);
  if (timed_out) kill(child, SIGKILL);
  // The child has forked the fabric process and ends at once; a program that ignores SIGCHLD has no zombie.
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (answer == "ok") return Status::Ok();
  if (!answer.empty()) return SystemError(answer);
  return SystemError("the fabric process \"" + *path + "\" " +
                     (timed_out ? "did not start within 20 seconds" : "ended before it was ready") +
                     "; run it by hand with --foreground to see why");
}

}  // namespace sluice::soft
