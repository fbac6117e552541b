// A child process of a test with its input and output on pipes.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace sluice::soft {

// What takes longer is a hang.
inline constexpr auto kPatience = std::chrono::seconds(120);

// Dies with this object, and with this process.
class Child {
 public:
  Child(const std::vector<std::string>& command, const std::string& directory) {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) abort();
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent || chdir(directory.c_str()) != 0) _exit(126);
      dup2(in[0], 0);
      dup2(out[1], 1);
      dup2(out[1], 2);
      execvp(arguments[0], arguments.data());
      dprintf(2, "%s cannot be run: scripts/install-deps.sh test installs it\n", arguments[0]);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    CloseInput();
    close(out_);
    if (!ended_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  // All output so far, once it holds `text`, ends, or the deadline is over. Nothing given: to the end.
  std::string ReadUntil(const std::optional<std::string>& text = std::nullopt) {
    const std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::now() + kPatience;
    while (!text || output_.find(*text) == std::string::npos) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd ready{out_, POLLIN, 0};
      if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) break;
      char chunk[4096];
      const ssize_t count = read(out_, chunk, sizeof(chunk));
      if (count <= 0) break;
      output_.append(chunk, static_cast<size_t>(count));
    }
    return output_;
  }

  void Write(const std::string& text) {
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = write(in_, text.data() + done, text.size() - done);
      if (count <= 0) return;
      done += static_cast<size_t>(count);
    }
  }
  void CloseInput() {
    if (in_ >= 0) close(in_);
    in_ = -1;
  }

  // After the output has ended.
  int ExitCode() {
    int status = 0;
    waitpid(pid_, &status, 0);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  bool ended_ = false;
  std::string output_;
};

}  // namespace sluice::soft
