// Beginning and end of the fabric process and of the programs that use it, and what is said when it cannot
// be.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "tests/fabric/soft_pair.h"

namespace sluice::soft {
namespace {

// Runs `body` in a child and returns what it writes to standard error; `code` receives its exit code.
std::string InChild(const std::function<int()>& body, int* code) {
  int fds[2];
  SOFT_CHECK(pipe2(fds, O_CLOEXEC) == 0);
  const pid_t child = fork();
  SOFT_CHECK(child >= 0);
  if (child == 0) {
    dup2(fds[1], STDERR_FILENO);
    _exit(body());
  }
  close(fds[1]);
  std::string text;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = read(fds[0], buffer, sizeof(buffer))) > 0) text.append(buffer, static_cast<size_t>(got));
  close(fds[0]);
  int status = 0;
  waitpid(child, &status, 0);
  *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return text;
}

int DeviceListFails() {
  int count = -1;
  errno = 0;
  ibv_device** list = ibv_get_device_list(&count);
  return list == nullptr && count == 0 && errno != 0 ? 0 : 1;
}

// One line that names the cause and what to do.
void ExpectOneLine(const std::string& text, const std::vector<std::string>& parts) {
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_TRUE(text.starts_with("sluice: ")) << text;
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

SOFT_ROLE(OpensAlone) {
  peer.Barrier();
  ibv_context* context = OpenFirst();
  SOFT_CHECK(context != nullptr);
  SOFT_CHECK(ibv_close_device(context) == 0);
}

// A fabric process has its name before it listens: with a large topology, many stale trees to remove or no
// processor, for a while.
TEST_F(SoftFabricTest, WaitsForAFabricProcessThatStartsSlowly) {
  int slow = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "sluice-fabric/" + std::to_string(geteuid()) + "/" + getenv("SLUICE_FABRIC");
  ASSERT_LT(name.size(), sizeof(address.sun_path));
  memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  ASSERT_EQ(bind(slow, reinterpret_cast<const sockaddr*>(&address), length), 0);
  Peer peer = StartPeer("OpensAlone");
  peer.link.Barrier();
  // Not a wait for anything: how long the name has nobody behind it.
  std::this_thread::sleep_for(std::chrono::seconds(3));
  close(slow);
  EXPECT_EQ(peer.Wait(), 0);
}

SOFT_ROLE(Opener) {
  peer.Barrier();
  ibv_context* context = OpenFirst();
  SOFT_CHECK(context != nullptr);
  const __be64 guid = ibv_get_device_guid(context->device);
  const pid_t fabric = FabricPid();
  peer.Send(&guid, sizeof(guid));
  peer.Send(&fabric, sizeof(fabric));
  peer.Barrier();
  SOFT_CHECK(ibv_close_device(context) == 0);
}

TEST_F(SoftFabricTest, ManyProgramsStartAtOnce) {
  std::array<Peer, 8> peers;
  for (Peer& peer : peers) peer = StartPeer("Opener");
  for (Peer& peer : peers) peer.link.Barrier();
  std::set<__be64> guids;
  std::set<pid_t> fabrics;
  for (Peer& peer : peers) {
    __be64 guid;
    pid_t fabric;
    peer.link.Receive(&guid, sizeof(guid));
    peer.link.Receive(&fabric, sizeof(fabric));
    guids.insert(guid);
    fabrics.insert(fabric);
  }
  EXPECT_EQ(guids.size(), 8u) << "every process is a host of its own";
  EXPECT_EQ(fabrics.size(), 1u) << "and one process serves them";
  for (Peer& peer : peers) peer.link.Barrier();
  for (Peer& peer : peers) EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(SoftFabricTest, ProcessesOfOneNamedHostShareItsDevices) {
  const Variables on_first = {{"SLUICE_FABRIC_HOST", "host0"}};
  const Variables on_second = {{"SLUICE_FABRIC_HOST", "host1"}};
  setenv("SLUICE_FABRIC_TOPOLOGY", "hosts=2", 1);
  std::array<Peer, 3> peers{StartPeer("Opener", on_first), StartPeer("Opener", on_first),
                            StartPeer("Opener", on_second)};
  std::array<__be64, 3> guids;
  for (Peer& peer : peers) peer.link.Barrier();
  for (size_t i = 0; i < peers.size(); ++i) {
    pid_t fabric;
    peers[i].link.Receive(&guids[i], sizeof(guids[i]));
    peers[i].link.Receive(&fabric, sizeof(fabric));
  }
  EXPECT_EQ(guids[0], guids[1]);
  EXPECT_NE(guids[0], guids[2]);
  for (Peer& peer : peers) peer.link.Barrier();
  for (Peer& peer : peers) EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(SoftFabricTest, SameDeviceInEverySessionOfAProcess) {
  Peer other = StartPeer("Opener");
  other.link.Barrier();
  std::set<__be64> guids;
  for (int i = 0; i < 20; ++i) {
    ibv_context* context = OpenFirst();
    ASSERT_NE(context, nullptr);
    guids.insert(ibv_get_device_guid(context->device));
    EXPECT_EQ(ibv_close_device(context), 0);
  }
  EXPECT_EQ(guids.size(), 1u);
  __be64 guid;
  pid_t fabric;
  other.link.Receive(&guid, sizeof(guid));
  other.link.Receive(&fabric, sizeof(fabric));
  EXPECT_FALSE(guids.contains(guid));
  other.link.Barrier();
  EXPECT_EQ(other.Wait(), 0);
}

int CountEntries(const char* directory) {
  DIR* open = opendir(directory);
  int count = 0;
  while (readdir(open) != nullptr) ++count;
  closedir(open);
  return count;
}

TEST_F(SoftFabricTest, ClosedDevicesLeaveNoDescriptorsAndThreads) {
  const int fds = CountEntries("/proc/self/fd");
  const int threads = CountEntries("/proc/self/task");
  for (int i = 0; i < 3; ++i) {
    Endpoint e;
    e.ToInit();
    EXPECT_GT(CountEntries("/proc/self/fd"), fds);
  }
  EXPECT_EQ(CountEntries("/proc/self/fd"), fds);
  EXPECT_EQ(CountEntries("/proc/self/task"), threads);
}

TEST_F(SoftFabricTest, ChildThatExitsDoesNotDisturbItsParent) {
  Endpoint e;
  e.ToInit();
  e.Connect(e.address());
  EXPECT_EQ(ibv_fork_init(), 0);
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    if (child == 0) exit(0);  // with all handlers of a normal end
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 100'000, 200'000), 0);
    EXPECT_EQ(e.Wait().status, IBV_WC_SUCCESS);
  }
}

TEST_F(SoftFabricTest, ChildOpensADeviceOfItsOwn) {
  Endpoint e;
  const __be64 parent = ibv_get_device_guid(e.context->device);
  int code = -1;
  InChild(
      [&] {
        ibv_context* context = OpenFirst();
        if (context == nullptr || ibv_get_device_guid(context->device) == parent) return 1;
        ibv_port_attr port{};
        return ibv_query_port(context, 1, &port) == 0 ? 0 : 2;
      },
      &code);
  EXPECT_EQ(code, 0);
  ibv_port_attr port{};
  EXPECT_EQ(ibv_query_port(e.context, 1, &port), 0);
}

SOFT_ROLE(ForkingVictim) {
  Endpoint e;
  e.ConnectOver(peer);
  // A child that lives on with the parent's socket must not keep the parent's queue pairs alive.
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  peer.Send(&child, sizeof(child));
  pause();
}

TEST_F(SoftFabricTest, KilledParentOfALivingChild) {
  Peer peer = StartPeer("ForkingVictim");
  Endpoint::Options options;
  options.timeout = 8;
  options.retry_cnt = 2;
  Endpoint e(options);
  e.ConnectOver(peer.link);
  pid_t child;
  peer.link.Receive(&child, sizeof(child));
  peer.Kill();
  ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 64), 0);
  ibv_wc_status status = e.Wait().status;
  // The end of a process is noticed a moment after it.
  while (status == IBV_WC_SUCCESS) {
    ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 64), 0);
    status = e.Wait().status;
  }
  EXPECT_EQ(status, IBV_WC_RETRY_EXC_ERR);
  kill(child, SIGKILL);
}

TEST_F(SoftFabricTest, StaleTreeOfAKilledFabricIsRemoved) {
  {
    ibv_context* context = OpenFirst();
    ASSERT_NE(context, nullptr);
    const std::string tree = std::filesystem::path(context->device->ibdev_path).parent_path();
    ASSERT_EQ(kill(FabricPid(), SIGKILL), 0);
    EXPECT_TRUE(std::filesystem::exists(tree));
    ibv_close_device(context);
  }
  setenv("SLUICE_FABRIC", ("second-" + std::to_string(getpid())).c_str(), 1);
  ibv_context* context = OpenFirst();
  ASSERT_NE(context, nullptr);
  int trees = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    trees += entry.path().filename().string().starts_with("sluice-fabric-") ? 1 : 0;
  }
  EXPECT_EQ(trees, 1) << "only the living one";
  ibv_close_device(context);
}

TEST_F(SoftFabricTest, FabricProcessIsDetached) {
  ibv_context* context = OpenFirst();
  ASSERT_NE(context, nullptr);
  const pid_t fabric = FabricPid();
  EXPECT_EQ(getsid(fabric), fabric);
  EXPECT_NE(getpgid(fabric), getpgrp());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "it is no child of the program";
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(fabric) + "/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    EXPECT_EQ(target.find("pipe:"), std::string::npos) << "holds a pipe of the program open: " << target;
  }
  ibv_close_device(context);
}

// ---- control

TEST_F(SoftFabricTest, ControlNamesWhatThereIsNot) {
  Endpoint e;
  const auto control = [](const std::string& command) {
    int code = 0;
    const std::string answer = RunFabricTool("--control '" + command + "'", &code);
    EXPECT_EQ(code, answer == "ok\n" ? 0 : 1);
    return answer;
  };
  for (const char* host : {"9", "99", "host9", "nowhere"}) {
    EXPECT_EQ(control(std::string("kill ") + host + " soft0"),
              std::string("error: no device \"soft0\" on a host \"") + host + "\"; programs use host0\n");
  }
  for (const char* port : {"3", "0", "-1", "1x", "4294967297"}) {
    EXPECT_EQ(control(std::string("port 0 soft0 ") + port + " down"),
              std::string("error: no port \"") + port +
                  "\" on device \"soft0\" of host \"0\"; its only port is 1\n");
  }
  EXPECT_EQ(control("port 0 soft0 1 sideways"),
            "error: state \"sideways\" of a port; use port HOST DEVICE PORT up|down\n");
  EXPECT_EQ(control("port host0 soft0 1 down"), "ok\n");
  EXPECT_EQ(control("kill 0 soft0"), "ok\n");
}

// ---- what cannot be

TEST_F(SoftFabricTest, TopologyWithErrors) {
  int code = -1;
  setenv("SLUICE_FABRIC_TOPOLOGY", "hosts=2,colour=red", 1);
  ExpectOneLine(InChild(DeviceListFails, &code), {"colour"});
  EXPECT_EQ(code, 0);
  setenv("SLUICE_FABRIC_TOPOLOGY", "hosts=0", 1);
  ExpectOneLine(InChild(DeviceListFails, &code), {"hosts"});
  EXPECT_EQ(code, 0);
  setenv("SLUICE_FABRIC_TOPOLOGY", "/nonexistent/cluster.toml", 1);
  ExpectOneLine(InChild(DeviceListFails, &code), {"/nonexistent/cluster.toml", "No such file"});
  EXPECT_EQ(code, 0);
  const std::string file = directory_ + "/log";
  std::ofstream(file) << "[fabric]\nhosts = 2\nrate = \"fast\"\n";
  setenv("SLUICE_FABRIC_TOPOLOGY", file.c_str(), 1);
  ExpectOneLine(InChild(DeviceListFails, &code), {"log", "rate", "fast"});
  EXPECT_EQ(code, 0);
}

TEST_F(SoftFabricTest, TopologyFileIsReadWhereTheProgramIs) {
  const std::string file = directory_ + "/log";
  std::ofstream(file) << "[fabric]\nhosts = 2\nnics = 3\n";
  int code = -1;
  const std::string text = InChild(
      [&] {
        if (chdir(directory_.c_str()) != 0) return 1;
        setenv("SLUICE_FABRIC_TOPOLOGY", "log", 1);
        unsetenv("SLUICE_FABRIC_LOG");
        int count = 0;
        ibv_get_device_list(&count);
        return count == 3 ? 0 : 2;
      },
      &code);
  EXPECT_EQ(code, 0) << text;
}

TEST_F(SoftFabricTest, AnotherTopologyThanTheRunningOne) {
  setenv("SLUICE_FABRIC_TOPOLOGY", "hosts=4,nics=2", 1);
  Endpoint first;
  int code = -1;
  const auto asks_for = [&](const char* topology) {
    return InChild(
        [&] {
          setenv("SLUICE_FABRIC_TOPOLOGY", topology, 1);
          return DeviceListFails();
        },
        &code);
  };
  ExpectOneLine(asks_for("hosts=4,nics=1"), {"hosts=4,nics=2", "hosts=4,nics=1", "SLUICE_FABRIC"});
  EXPECT_EQ(code, 0);
  asks_for("hosts=4,nics=2");
  EXPECT_EQ(code, 1) << "the same text joins";
  asks_for("");
  EXPECT_EQ(code, 1) << "and so does who names none";
}

// Between two jobs nobody needs the fabric process that lingers.
TEST_F(SoftFabricTest, AnotherTopologyAfterTheLastProgramLeft) {
  const int wanted[] = {1, 2, 1, 3};
  for (const int nics : wanted) {
    int code = -1;
    const std::string text = InChild(
        [&] {
          setenv("SLUICE_FABRIC_TOPOLOGY", ("hosts=2,nics=" + std::to_string(nics)).c_str(), 1);
          int count = 0;
          ibv_device** list = ibv_get_device_list(&count);
          if (list == nullptr) return 99;
          ibv_free_device_list(list);
          return count;
        },
        &code);
    EXPECT_EQ(text, "");
    EXPECT_EQ(code, nics);
  }
}

TEST_F(SoftFabricTest, MoreProcessesThanHosts) {
  setenv("SLUICE_FABRIC_TOPOLOGY", "hosts=1", 1);
  Endpoint first;
  int code = -1;
  ExpectOneLine(InChild(DeviceListFails, &code), {"host"});
  EXPECT_EQ(code, 0);
  ExpectOneLine(InChild(
                    [] {
                      setenv("SLUICE_FABRIC_HOST", "nowhere", 1);
                      return DeviceListFails();
                    },
                    &code),
                {"nowhere"});
  EXPECT_EQ(code, 0);
}

TEST_F(SoftFabricTest, BadInstanceName) {
  int code = -1;
  const std::string text = InChild(
      [] {
        setenv("SLUICE_FABRIC", "a/b", 1);
        return DeviceListFails();
      },
      &code);
  ExpectOneLine(text, {"SLUICE_FABRIC=\"a/b\"", "letters"});
  EXPECT_EQ(code, 0);
}

TEST_F(SoftFabricTest, NoSharedMemory) {
  int code = -1;
  const std::string text = InChild(
      [] {
        const rlimit limit{4096, 4096};
        setrlimit(RLIMIT_FSIZE, &limit);
        return DeviceListFails();
      },
      &code);
  ExpectOneLine(text, {"shared memory", "ulimit -f"});
  EXPECT_EQ(code, 0) << "and no signal";
}

TEST_F(SoftFabricTest, FabricProcessWithoutMemory) {
  int code = -1;
  // Enough for the program's part, not for the payload pool.
  const std::string text = InChild(
      [] {
        const rlimit limit{8 << 20, 8 << 20};
        setrlimit(RLIMIT_FSIZE, &limit);
        return DeviceListFails();
      },
      &code);
  ExpectOneLine(text, {"payload", "memory"});
  EXPECT_EQ(code, 0);
}

// Sanitizers map more than such a limit allows.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(SoftFabricTest, NoVirtualMemoryForThePool) {
  int code = -1;
  const std::string text = InChild(
      [] {
        const rlimit limit{50'000 << 10, 50'000 << 10};
        setrlimit(RLIMIT_AS, &limit);
        execl("/proc/self/exe", "soft-peer", "--role=ListsNothing", nullptr);
        return 3;
      },
      &code);
  ExpectOneLine(text, {"fabric process: cannot map the payload pool", "Cannot allocate memory", "ulimit -v"});
  EXPECT_EQ(text.find("ulimit -f"), std::string::npos) << text;
  EXPECT_EQ(code, 0);
}
#endif

TEST_F(SoftFabricTest, NoDescriptorsLeft) {
  for (rlim_t extra = 0; extra < 12; ++extra) {
    int code = -1;
    const std::string text = InChild(
        [&] {
          const auto used = static_cast<rlim_t>(CountEntries("/proc/self/fd"));
          const rlimit limit{used + extra, 4096};
          setrlimit(RLIMIT_NOFILE, &limit);
          int count = 0;
          ibv_device** list = ibv_get_device_list(&count);
          if (list == nullptr) return errno != 0 ? 0 : 1;
          ibv_free_device_list(list);
          return 7;
        },
        &code);
    if (code == 7) continue;
    EXPECT_EQ(code, 0);
    ExpectOneLine(text, {"ulimit -n"});
  }
}

// The undefined behaviour sanitizer's check of virtual tables takes descriptors itself, and ends the fabric
// process when it gets none.
#if !defined(__SANITIZE_ADDRESS__)
// Starts programs that keep the fabric until one gets none. Returns the exit code of a test's child.
int FillFabric(rlim_t files) {
  const rlimit limit{files, files};
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
  setenv("SLUICE_FABRIC_HOST", "host0", 1);  // no files to write for the programs after the first
  int hold[2], told[2];
  if (pipe2(hold, O_CLOEXEC) != 0 || pipe2(told, O_CLOEXEC) != 0) return 2;
  char failed = 0;
  for (int programs = 0; failed == 0 && programs < 40; ++programs) {
    if (fork() == 0) {
      close(hold[1]);
      failed = ibv_get_device_list(nullptr) == nullptr;
      if (write(told[1], &failed, 1) != 1) _exit(1);
      [[maybe_unused]] const ssize_t end = read(hold[0], &failed, 1);
      _exit(0);
    }
    if (read(told[0], &failed, 1) != 1) return 3;
  }
  close(hold[1]);
  while (wait(nullptr) > 0) {
  }
  return failed == 1 ? 0 : 4;
}

TEST_F(SoftFabricTest, FabricProcessWithoutDescriptorsForMorePrograms) {
  for (rlim_t files = 36; files < 42; ++files) {  // so that each of its steps is the first without one
    setenv("SLUICE_FABRIC", ("full-" + std::to_string(getpid()) + "-" + std::to_string(files)).c_str(), 1);
    int code = -1;
    const std::string text = InChild([&] { return FillFabric(files); }, &code);
    EXPECT_EQ(code, 0);
    ExpectOneLine(text, {"(errno 24)", "ulimit -"});
  }
}
#endif

TEST_F(SoftFabricTest, NoPlaceForTheTree) {
  // ibv_device holds paths of 256 bytes.
  const std::string deep = directory_ + "/" + std::string(150, 'd');
  std::filesystem::create_directory(deep);
  int code = -1;
  const std::string text = InChild(
      [&] {
        setenv("TMPDIR", deep.c_str(), 1);
        return DeviceListFails();
      },
      &code);
  ExpectOneLine(text, {deep, "TMPDIR"});
  EXPECT_EQ(code, 0);
  std::filesystem::remove_all(deep);
}

TEST_F(SoftFabricTest, LibraryWithoutItsFabricProcess) {
  const std::string library = std::string(getenv("SLUICE_BUILD_DIR")) + "/lib/soft/libibverbs.so.1";
  const std::string alone = directory_ + "/alone";
  std::filesystem::create_directory(alone);
  std::filesystem::copy_file(library, alone + "/libibverbs.so.1");
  int code = -1;
  const std::string text = InChild(
      [&] {
        setenv("LD_LIBRARY_PATH", alone.c_str(), 1);
        execl("/proc/self/exe", "soft-peer", "--role=ListsNothing", nullptr);
        return 3;
      },
      &code);
  ExpectOneLine(text, {alone + "/sluice-fabric", "beside"});
  EXPECT_EQ(code, 0);
  std::filesystem::remove_all(alone);
}
SOFT_ROLE(ListsNothing) {
  _exit(DeviceListFails());
}

}  // namespace
}  // namespace sluice::soft
