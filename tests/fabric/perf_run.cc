#include "tests/fabric/perf_run.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

extern char** environ;

namespace sluice::test {

std::string Built(const std::string& name) {
  const char* directory = getenv("SLUICE_BUILD_DIR");
  if (directory == nullptr) throw std::runtime_error("SLUICE_BUILD_DIR is not set; run the test with ctest");
  return std::string(directory) + "/" + name;
}

std::vector<std::string> PerfResult::complaints() const {
  std::vector<std::string> lines;
  std::istringstream in(err);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  }
  return lines;
}

PerfRun::PerfRun(const std::vector<std::string>& arguments, const Environment& environment) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    const std::string program = Built("bin/sluice");
    std::vector<char*> argv{const_cast<char*>(program.c_str()), const_cast<char*>("perf")};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

PerfRun::~PerfRun() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(out_);
  close(err_);
}

void PerfRun::Collect(bool to_end, size_t lines) {
  pollfd fds[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  std::string* texts[2] = {&result_.out, &result_.err};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    if (!to_end && static_cast<size_t>(std::count(result_.out.begin(), result_.out.end(), '\n')) >= lines)
      return;
    poll(fds, 2, -1);
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = read(fds[i].fd, buffer, sizeof buffer);
      if (n > 0) {
        texts[i]->append(buffer, static_cast<size_t>(n));
      } else if (n == 0 || errno != EINTR) {
        fds[i].fd = -1;
      }
    }
  }
}

void PerfRun::WaitForOutput(size_t lines) {
  Collect(false, lines);
}

int PerfRun::WaitForRank(int rank) {
  for (;;) {
    for (int pid : ProcessesWith("RANK", std::to_string(rank))) {
      std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
      std::string text((std::istreambuf_iterator<char>(stat)), {});
      const size_t after_name = text.rfind(')');
      int parent = -1;
      char state = 0;
      if (after_name != std::string::npos) sscanf(text.c_str() + after_name + 1, " %c %d", &state, &parent);
      if (parent == pid_) return pid;
    }
    siginfo_t ended{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0)
      return -1;
    usleep(1000);
  }
}

PerfResult PerfRun::Finish() {
  Collect(true, 0);
  int status = 0;
  rusage usage{};
  wait4(pid_, &status, 0, &usage);
  result_.peak_bytes = static_cast<uint64_t>(usage.ru_maxrss) << 10;
  pid_ = -1;
  result_.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  std::istringstream in(result_.out);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line[0] == '{') result_.rows.push_back(nlohmann::json::parse(line));
  }
  return result_;
}

PerfResult RunPerf(const std::vector<std::string>& arguments, const Environment& environment) {
  PerfRun run(arguments, environment);
  return run.Finish();
}

std::vector<int> ProcessesWith(const std::string& variable, const std::string& value) {
  std::vector<int> found;
  DIR* proc = opendir("/proc");
  while (const dirent* entry = readdir(proc)) {
    const int pid = atoi(entry->d_name);
    if (pid <= 0) continue;
    std::ifstream in("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
    for (std::string item; std::getline(in, item, '\0');) {
      if (item == variable + "=" + value) {
        found.push_back(pid);
        break;
      }
    }
  }
  closedir(proc);
  return found;
}

}  // namespace sluice::test
