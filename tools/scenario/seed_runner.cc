#include "tools/scenario/seed_runner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <new>
#include <thread>

namespace sluice::scenario {
namespace {

volatile sig_atomic_t interrupted = 0;

void OnInterrupt(int) {
  interrupted = 1;
}

struct Child {
  pid_t pid = -1;
  int pipe = -1;
  size_t index = 0;  // of the seed
  std::string text;
};

// First byte of what a child sends.
constexpr char kGood = '+';
constexpr char kBad = '-';

void WriteAll(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

[[noreturn]] void RunChild(int fd, uint64_t seed, const SeedFunction& run) {
  std::string text;
  try {
    Result<Outcome> outcome = run(seed);
    if (outcome.ok()) {
      outcome->seed = seed;
      // Of this process and, where the plugin runs, of the processes that it started.
      for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
        rusage usage{};
        if (getrusage(who, &usage) != 0) continue;
        outcome->peak_bytes = std::max(outcome->peak_bytes, static_cast<uint64_t>(usage.ru_maxrss) << 10);
        for (const timeval& part : {usage.ru_utime, usage.ru_stime}) {
          outcome->processor_s += static_cast<double>(part.tv_sec) + static_cast<double>(part.tv_usec) * 1e-6;
        }
      }
      text = kGood + outcome->ToJson();
    } else {
      text = kBad + outcome.status().message();
    }
  } catch (const std::bad_alloc&) {
    text = std::string(1, kBad) + "out of memory; use a smaller --size or --topology, or fewer seeds at once";
  }
  WriteAll(fd, text);
  _exit(0);
}

// Fills `child`, which runs with the signal mask; false: the system refused.
bool Start(Child* child, uint64_t seed, const sigset_t& mask, const SeedFunction& run) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  fflush(stdout);
  fflush(stderr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    close(ends[0]);
    close(ends[1]);
    return false;
  }
  if (pid == 0) {
    // No child outlives the command.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    if (getppid() != parent) _exit(1);
    close(ends[0]);
    RunChild(ends[1], seed, run);
  }
  close(ends[1]);
  child->pid = pid;
  child->pipe = ends[0];
  return true;
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return std::string("ended by signal ") + strsignal(number) +
           (number == SIGKILL ? "; out of memory? Use a smaller --size or --topology" : "");
  }
  return "ended with exit status " + std::to_string(WEXITSTATUS(status)) + " and no result";
}

}  // namespace

SeedResults RunSeeds(const std::string& name, const std::vector<uint64_t>& seeds, unsigned jobs,
                     const SeedFunction& run) {
  if (jobs == 0) jobs = std::max(1U, std::thread::hardware_concurrency());
  struct sigaction action {};
  struct sigaction old_int {};
  struct sigaction old_term {};
  action.sa_handler = OnInterrupt;
  // Blocked but for the time of a ppoll: one that comes just before it is not slept over.
  sigset_t blocked, old_mask;
  sigemptyset(&blocked);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&blocked, signal);
  sigprocmask(SIG_BLOCK, &blocked, &old_mask);
  sigset_t waiting_mask = old_mask;
  for (const int signal : {SIGINT, SIGTERM}) sigdelset(&waiting_mask, signal);
  sigaction(SIGINT, &action, &old_int);
  sigaction(SIGTERM, &action, &old_term);
  interrupted = 0;

  const auto begin = std::chrono::steady_clock::now();
  SeedResults results;
  std::map<size_t, Outcome> outcomes;  // by index of the seed
  std::vector<Child> children;
  size_t next = 0;
  size_t done = 0;
  const auto fail = [&](size_t index, const std::string& why) {
    results.failures.push_back("seed " + std::to_string(seeds[index]) + ": " + why);
  };
  while ((next < seeds.size() || !children.empty()) && interrupted == 0) {
    while (next < seeds.size() && children.size() < jobs) {
      Child child;
      child.index = next++;
      if (Start(&child, seeds[child.index], waiting_mask, run)) {
        children.push_back(std::move(child));
      } else {
        fail(child.index, std::string("cannot start a process: ") + strerror(errno));
        ++done;
      }
    }
    if (children.empty()) continue;  // none could be started
    std::vector<pollfd> polls;
    for (const Child& child : children) polls.push_back({child.pipe, POLLIN, 0});
    if (ppoll(polls.data(), polls.size(), nullptr, &waiting_mask) < 0) continue;
    for (size_t i = children.size(); i-- > 0;) {
      if (polls[i].revents == 0) continue;
      Child& child = children[i];
      char buffer[65536];
      const ssize_t n = read(child.pipe, buffer, sizeof buffer);
      if (n < 0) continue;
      if (n > 0) {
        child.text.append(buffer, static_cast<size_t>(n));
        continue;
      }
      int status = 0;
      waitpid(child.pid, &status, 0);
      close(child.pipe);
      if (child.text.empty()) {
        fail(child.index, HowItEnded(status));
      } else if (child.text[0] == kBad) {
        fail(child.index, child.text.substr(1));
      } else {
        Result<Outcome> outcome = Outcome::FromJson(child.text.substr(1));
        if (outcome.ok()) {
          outcomes[child.index] = std::move(*outcome);
        } else {
          fail(child.index, outcome.status().message() + " (" + HowItEnded(status) + ")");
        }
      }
      children.erase(children.begin() + static_cast<std::ptrdiff_t>(i));
      ++done;
      const double elapsed_s =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      fprintf(stderr, "sluice scenario: %s: %zu of %zu seeds, %.1f s\n", name.c_str(), done, seeds.size(),
              elapsed_s);
    }
  }
  for (const Child& child : children) {
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
    close(child.pipe);
  }
  // One that came after the last wait counts too, before the handlers go.
  sigprocmask(SIG_SETMASK, &waiting_mask, nullptr);
  results.interrupted = interrupted != 0;
  for (auto& [index, outcome] : outcomes) results.outcomes.push_back(std::move(outcome));
  sigaction(SIGINT, &old_int, nullptr);
  sigaction(SIGTERM, &old_term, nullptr);
  sigprocmask(SIG_SETMASK, &old_mask, nullptr);
  return results;
}

}  // namespace sluice::scenario
