#include "tools/perf/virtual_program.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "tools/perf/descriptors.h"
#include "tools/perf/host_processor.h"
#include "tools/perf/launcher.h"
#include "tools/perf/watchdog.h"

namespace sluice::perf {
namespace {

constexpr char kTunables[] = "GLIBC_TUNABLES";
constexpr char kStaticTls[] = "glibc.rtld.optional_static_tls=";

Result<soft::VirtualFabric*> LoadFabric() {
  const std::string path = ProgramDirectory() + "/../lib/virtual/libibverbs.so.1";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return SystemError(std::string("cannot load the virtual fabric: ") + dlerror());
  auto* get = reinterpret_cast<soft::VirtualFabricGetter*>(dlsym(library, soft::kVirtualFabricSymbol));
  if (get == nullptr) return SystemError(path + " is not the virtual fabric; build it again");
  return get();
}

std::atomic<bool> ended_by_signal{false};

// What a signal interrupts may fail: the thread that removes the files says why, and ends the process.
void LeaveTheEndToTheSignal() {
  while (ended_by_signal.load()) pause();
}

// Signals that end the process remove its files first. Blocks them in this thread and all that it will start.
void EndCleanlyOnSignals(soft::VirtualFabric* fabric) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, fabric] {
    int signal = 0;
    while (sigwait(&signals, &signal) != 0) {
    }
    ended_by_signal.store(true);
    fabric->RemoveFiles();
    fprintf(stderr, "sluice perf: ended by signal %d (%s)\n", signal, strsignal(signal));
    _exit(128 + signal);
  }).detach();
}

// Many copies of a plugin that wants thread-local memory in the block that is laid out at the start of a
// program need a larger block, which the loader makes when told so by the environment.
void StartAgainWithMoreStaticTls(const Status& failure, int ranks,
                                 const std::vector<std::string>& arguments) {
  if (failure.message().find("static TLS") == std::string::npos) return;
  const char* old = getenv(kTunables);
  std::string value = old == nullptr ? "" : old;
  if (value.find(kStaticTls) != std::string::npos) return;
  value += (value.empty() ? "" : ":") + std::string(kStaticTls) + std::to_string(4096 + 4096 * ranks);
  setenv(kTunables, value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  execv(ProgramPath().c_str(), argv.data());
}

// What Sluice needs to know: the clock that is virtual, and that other runs on this machine are not its hosts.
void SetPluginEnvironment(const soft::VirtualFabric& fabric) {
  setenv("SLUICE_CLOCK", "monotonic", 1);
  setenv("SLUICE_SHARED_DIR", fabric.directory(), 1);
}

void PrintFailure(const JobState& state) {
  const std::string rank = state.origin() >= 0 ? "rank " + std::to_string(state.origin()) + ": " : "";
  fprintf(stderr, "sluice perf: %s%s\n", rank.c_str(), state.cause().c_str());
}

void PrintStuck(const std::vector<std::string>& lines) {
  constexpr size_t kMaxLines = 40;
  for (size_t i = 0; i < std::min(lines.size(), kMaxLines); ++i)
    fprintf(stderr, "#   %s\n", lines[i].c_str());
  if (lines.size() > kMaxLines) fprintf(stderr, "#   and %zu more\n", lines.size() - kMaxLines);
}

}  // namespace

void RunVirtualProgram(const Options& options, soft::VirtualFabricSettings settings,
                       const std::vector<std::string>& arguments, const MakeVirtualProgram& make) {
  const Result<soft::VirtualFabric*> loaded = LoadFabric();
  if (!loaded.ok()) {
    fprintf(stderr, "sluice perf: %s\n", loaded.status().message().c_str());
    _exit(2);
  }
  soft::VirtualFabric* fabric = *loaded;
  EndCleanlyOnSignals(fabric);
  const auto end_early = [&](int code, const std::string& why) {
    LeaveTheEndToTheSignal();
    fprintf(stderr, "sluice perf: %s\n", why.c_str());
    fabric->RemoveFiles();
    fflush(stdout);
    _exit(code);
  };
  settings.topology = options.topology.c_str();
  settings.seed = options.has_seed ? &options.seed : nullptr;
  settings.completion_cost = FindHostPreset(options.host_preset.c_str())->completion;
  if (const char* error = fabric->Create(settings)) end_early(2, std::string("--topology: ") + error);
  SetPluginEnvironment(*fabric);
  JobState state;
  const std::unique_ptr<VirtualProgram> program = make(fabric, &state);
  if (const Status status = ReserveDescriptors(program->descriptors()); !status.ok())
    end_early(1, status.message());
  int code = 0;
  try {
    Watchdog watchdog(&state, -1, std::chrono::duration<double>(options.timeout_s), [&] {
      PrintFailure(state);
      fabric->RemoveFiles();
    });
    if (const Status status = program->Run(); !status.ok()) {
      LeaveTheEndToTheSignal();
      state.Abort(status.message(), -1);
      fabric->RemoveFiles();
      StartAgainWithMoreStaticTls(status, static_cast<int>(program->descriptors().processes), arguments);
      PrintFailure(state);
      PrintStuck(program->stuck());
      code = 1;
    }
  } catch (const std::bad_alloc&) {
    end_early(1, "out of memory; use fewer ranks or smaller operations, or raise the limit (ulimit -v)");
  }
  LeaveTheEndToTheSignal();
  if (code == 0 && program->wrong() != 0) {
    fprintf(stderr, "sluice perf: %llu wrong values\n", static_cast<unsigned long long>(program->wrong()));
    code = 1;
  }
  fabric->RemoveFiles();
  fflush(nullptr);
  if (ferror(stdout) != 0) {
    fprintf(stderr, "sluice perf: cannot write the results to standard output; free space where they go\n");
    if (code == 0) code = 1;
  }
  _exit(code);
}

}  // namespace sluice::perf
