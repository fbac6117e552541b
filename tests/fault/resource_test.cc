// What runs out or breaks: descriptors, memory, queue pairs, routes, devices, ports, the network, the peer.
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/fault/rig.h"

namespace sluice::fault {
namespace {

FAULT_ROLE(FewDescriptors) {
  const Holdings start = HeldAfterWarmUp();
  rlimit previous{};
  SOFT_CHECK(getrlimit(RLIMIT_NOFILE, &previous) == 0);
  rlimit few = previous;
  few.rlim_cur = 64;
  SOFT_CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  ForgetLines();
  std::vector<std::pair<void*, Wire>> connected;
  void* failed = nullptr;
  NcclResult result = kSuccess;
  for (int i = 0; i < 64 && result == kSuccess; ++i) {
    void* const ctx = Init();
    Wire wire;
    result = TryConnect(ctx, ctx, &wire);
    if (result == kSuccess) {
      connected.emplace_back(ctx, wire);
    } else {
      failed = ctx;
      if (wire.recv != nullptr) (void)Net().closeRecv(wire.recv);
      if (wire.send != nullptr) (void)Net().closeSend(wire.send);
    }
  }
  EXPECT_GT(connected.size(), 4u);
  for (const auto& [ctx, wire] : connected) Transfer(wire, 10000);  // those that stand do not suffer
  SOFT_CHECK(setrlimit(RLIMIT_NOFILE, &previous) == 0);
  // Now: undefined behaviour sanitizers check objects with a pipe.
  EXPECT_NE(result, kSuccess) << "64 descriptors were enough: raise the number of connections";
  EXPECT_THAT(Lines("ulimit -n"), testing::Not(testing::IsEmpty())) << testing::PrintToString(Lines());
  for (int i = 0; i < 8; ++i) {
    void* const ctx = Init();
    connected.emplace_back(ctx, Connect(ctx, ctx));
    Transfer(connected.back().second, 10000);
  }
  if (failed != nullptr) {
    EXPECT_EQ(Net().finalize(failed), kSuccess);
  }
  for (const auto& [ctx, wire] : connected) {
    Close(wire);
    EXPECT_EQ(Net().finalize(ctx), kSuccess);
  }
  ExpectBackTo(start, "descriptors ran out");
}

TEST_F(FaultTest, FewDescriptors) {
  RunRole("FewDescriptors", {{"SLUICE_CONNECT_TIMEOUT_MS", "2500"}, {"SLUICE_ADMIT_TIMEOUT_MS", "1000"}});
}

// Each verb that set-up needs fails once, at each of its calls: an error that names the cause at the end that
// asked, nothing kept, and the next try works.
FAULT_ROLE(VerbsFail) {
  const Holdings start = HeldAfterWarmUp();
  struct Case {
    VerbsCall call;
    int error;
    const char* name;
    std::vector<const char*> says = {};  // beside the error's own text
  };
  for (const Case& fault :
       {Case{VerbsCall::kCreateCq, ENOMEM, "create_cq"}, Case{VerbsCall::kCreateSrq, ENOMEM, "create_srq"},
        Case{VerbsCall::kRegMr, ENOMEM, "reg_mr", {"memory lock limit", "max_mr"}},
        Case{VerbsCall::kCreateQp, ENOMEM, "create_qp"},
        Case{VerbsCall::kModifyToRtr, ENETUNREACH, "to RTR", {"10.0.0.1"}},
        Case{VerbsCall::kModifyToRtr, ETIMEDOUT, "to RTR", {"10.0.0.1"}},
        Case{VerbsCall::kModifyToRts, EINVAL, "to RTS"}}) {
    bool failed_before = true;
    for (int successes = 0; failed_before && successes < 12; ++successes) {
      const std::string what = std::string(fault.name) + " answers " + strerror(fault.error) + " at call " +
                               std::to_string(successes + 1);
      SCOPED_TRACE(what);
      void* const sender = Init();
      void* const receiver = Init();
      ForgetLines();
      FailAfter(fault.call, successes, fault.error);
      Wire wire;
      const NcclResult result = TryConnect(sender, receiver, &wire);
      FailAfter(fault.call, -1, 0);
      failed_before = result != kSuccess;
      if (failed_before) {
        EXPECT_THAT(Lines(strerror(fault.error)), testing::Not(testing::IsEmpty()))
            << testing::PrintToString(Lines());
        for (const char* part : fault.says) {
          EXPECT_THAT(Lines(strerror(fault.error)), testing::Contains(testing::HasSubstr(part)));
        }
        if (wire.send != nullptr) (void)Net().closeSend(wire.send);
        if (wire.recv != nullptr) (void)Net().closeRecv(wire.recv);
        wire = Connect(sender, receiver);
      } else {
        EXPECT_GT(successes, 0) << "set-up does not need the call";
      }
      Transfer(wire, 3000);
      Close(wire);
      EXPECT_EQ(Net().finalize(sender), kSuccess);
      EXPECT_EQ(Net().finalize(receiver), kSuccess);
      ExpectBackTo(start, what);
      if (testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) return;
    }
  }
}

TEST_F(FaultTest, EveryVerbOfSetUpFailsOnce) {
  RunRole("VerbsFail");
}

// The second of two devices cannot be opened: it is named with the cause, at once, and the first one works.
FAULT_ROLE(SecondDeviceRefused) {
  FailAfter(VerbsCall::kOpenDevice, 1, EPERM);
  void* const ctx = Init();
  int count = 0;
  EXPECT_EQ(Net().devices(&count), kSuccess);
  EXPECT_EQ(count, 1);
  EXPECT_THAT(Lines("Operation not permitted"), testing::ElementsAre(testing::HasSubstr("soft1")))
      << testing::PrintToString(Lines());
  const Wire wire = Connect(ctx, ctx);
  Transfer(wire, 1000);
  Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

TEST_F(FaultTest, SecondDeviceCannotBeOpened) {
  RunRole("SecondDeviceRefused", {{"SLUICE_FABRIC_TOPOLOGY", "hosts=2,nics=2"}});
}

// Registration fails on the second of two merged NICs: the first one's is released.
FAULT_ROLE(SecondRegistrationFails) {
  const Holdings start = HeldAfterWarmUp();
  nccl::NetVDevicePropsV12 members{2, {0, 1}};
  int merged = -1;
  void* const ctx = Init();
  SOFT_CHECK(Net().makeVDevice(&merged, &members) == kSuccess);
  const Wire wire = Connect(ctx, ctx, merged, merged);
  const Census before = LiveObjects();
  std::vector<unsigned char> memory(1 << 16);
  void* handle = nullptr;
  FailAfter(VerbsCall::kRegMr, 1, ENOMEM);
  EXPECT_NE(Net().regMr(wire.send, memory.data(), memory.size(), nccl::kPtrHost, &handle), kSuccess);
  FailAfter(VerbsCall::kRegMr, -1, 0);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(LiveObjects(), before);
  EXPECT_EQ(Net().regMr(wire.send, memory.data(), memory.size(), nccl::kPtrHost, &handle), kSuccess);
  EXPECT_EQ(LiveObjects().memory_regions, before.memory_regions + 2);
  EXPECT_EQ(Net().deregMr(wire.send, handle), kSuccess);
  EXPECT_EQ(LiveObjects(), before);
  Transfer(wire, 1 << 20);
  Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
  Until([&] { return LiveObjects().memory_regions == start.objects.memory_regions; },
        "the tables to be released");
}

TEST_F(FaultTest, RegistrationFailsOnSecondMergedNic) {
  RunRole("SecondRegistrationFails", {{"SLUICE_FABRIC_TOPOLOGY", "hosts=2,nics=2"}});
}

// A peer in a process of its own: connects, sends what it is told to, until it is killed or told to stop.
FAULT_ROLE(StreamingSender) {
  void* const ctx = Init();
  Handle handle;
  peer.Receive(handle.data(), nccl::kNetHandleBytes);
  void* comm = nullptr;
  Until([&] { return Net().connect(ctx, 0, handle.data(), &comm, nullptr) != kSuccess || comm != nullptr; },
        "connect");
  Buffer buffer(comm, 1 << 20, 3);
  peer.Barrier();
  uint32_t messages = 0;
  peer.Receive(&messages, sizeof(messages));
  std::array<void*, 8> requests{};
  NcclResult result = kSuccess;
  uint32_t posted = 0, finished = 0;
  while (finished < messages && result == kSuccess) {
    void*& slot = requests[posted % requests.size()];
    if (posted < messages && slot == nullptr) {
      result = Isend(comm, buffer, 1 << 20, 0, &slot);
      if (slot != nullptr) ++posted;
    }
    void*& oldest = requests[finished % requests.size()];
    int done = 0;
    if (result == kSuccess && oldest != nullptr) result = Net().test(oldest, &done, nullptr);
    if (done != 0) {
      oldest = nullptr;
      ++finished;
    }
  }
  peer.Send(&result, sizeof(result));
  const uint32_t lines = static_cast<uint32_t>(Lines("").size());
  peer.Send(&lines, sizeof(lines));
  for (const std::string& line : Lines("")) {
    const uint32_t size = static_cast<uint32_t>(line.size());
    peer.Send(&size, sizeof(size));
    peer.Send(line.data(), line.size());
  }
  EXPECT_EQ(buffer.Deregister(), kSuccess);
  (void)Net().closeSend(comm);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

struct Stream {
  Peer process;
  void* ctx = Init();
  void* recv = nullptr;
  Buffer buffer;
  std::array<void*, 8> requests{};
  uint32_t posted = 0, finished = 0;

  explicit Stream(const Variables& variables = {}) : process(StartPeer("StreamingSender", variables)) {
    Handle handle;
    void* const listen = Listen(ctx, &handle);
    process.link.Send(handle.data(), nccl::kNetHandleBytes);
    Until([&] { return Net().accept(listen, &recv, nullptr) != kSuccess || recv != nullptr; }, "accept");
    EXPECT_EQ(Net().closeListen(listen), kSuccess);
    buffer = Buffer(recv, 1 << 20, 9);
    process.link.Barrier();
  }
  void Start(uint32_t messages) { process.link.Send(&messages, sizeof(messages)); }
  // Receives; the first error, if any.
  NcclResult Step() {
    void*& slot = requests[posted % requests.size()];
    if (slot == nullptr) {
      const NcclResult result = Irecv(recv, buffer, 1 << 20, 0, &slot);
      if (result != kSuccess) return result;
      if (slot != nullptr) ++posted;
    }
    void*& oldest = requests[finished % requests.size()];
    int done = 0;
    const NcclResult result = oldest == nullptr ? kSuccess : Net().test(oldest, &done, nullptr);
    if (done != 0) {
      oldest = nullptr;
      ++finished;
    }
    return result;
  }
  NcclResult RunUntilError() {
    NcclResult result = kSuccess;
    Until([&] { return (result = Step()) != kSuccess; }, "an error of the stream");
    return result;
  }
  // What the sender met in the end, with its log.
  NcclResult Outcome(std::vector<std::string>* log) {
    NcclResult result = kSuccess;
    process.link.Receive(&result, sizeof(result));
    uint32_t lines = 0;
    process.link.Receive(&lines, sizeof(lines));
    for (uint32_t i = 0; i < lines; ++i) {
      uint32_t size = 0;
      process.link.Receive(&size, sizeof(size));
      std::string line(size, '\0');
      process.link.Receive(line.data(), size);
      log->push_back(line);
    }
    return result;
  }
  void End() {
    (void)buffer.Deregister();
    (void)Net().closeRecv(recv);
    EXPECT_EQ(Net().finalize(ctx), kSuccess);
  }
};

constexpr uint32_t kForEver = 1u << 30;
const Variables kOnHost1 = {{"SLUICE_FABRIC_HOST", "host1"}};

// One peer is killed in the middle of its data; the other communicator on the same NIC does not notice.
FAULT_ROLE(OneOfTwoPeersKilled) {
  Stream killed;
  Stream stays;
  killed.Start(kForEver);
  stays.Start(kForEver);
  Until(
      [&] {
        return killed.Step() != kSuccess || stays.Step() != kSuccess ||
               (killed.finished > 8 && stays.finished > 8);
      },
      "data of both");
  ForgetLines();
  killed.process.Kill();
  NcclResult result = kSuccess;
  const uint32_t before = stays.finished;
  Until(
      [&] {
        EXPECT_EQ(stays.Step(), kSuccess);
        return (result = killed.Step()) != kSuccess;
      },
      "the error");
  EXPECT_EQ(result, nccl::kRemoteError);
  // Every later call reports it as well.
  for (void* request : killed.requests) {
    int done = 0;
    if (request != nullptr) {
      EXPECT_TRUE(Net().test(request, &done, nullptr) == nccl::kRemoteError || done != 0);
    }
  }
  EXPECT_EQ(FirstErrorOfReceiver(killed.recv, killed.buffer), nccl::kRemoteError);
  Until([&] { return stays.Step() != kSuccess || stays.finished > before + 32; },
        "the other stream to go on");
  EXPECT_GT(stays.finished, before + 32);
  // The cause, once; what is flushed is counted, not printed.
  EXPECT_THAT(Lines("its process ended or aborted"), testing::SizeIs(testing::Le(2u)))
      << testing::PrintToString(Lines());
  EXPECT_THAT(Lines("its process ended or aborted"), testing::Not(testing::IsEmpty()));
  EXPECT_THAT(Lines("flush"), testing::IsEmpty());
  EXPECT_LE(Lines().size(), 4u) << testing::PrintToString(Lines());
  killed.End();
  const uint32_t after = stays.finished;
  Until([&] { return stays.Step() != kSuccess || stays.finished > after + 8; },
        "the other stream to go on after the close");
  stays.End();
  std::vector<std::string> log;
  EXPECT_NE(stays.Outcome(&log), kSuccess);
  EXPECT_EQ(stays.process.Wait(), 0);
}

TEST_F(FaultTest, OnePeerKilledTheOtherGoesOn) {
  RunRole("OneOfTwoPeersKilled");
}

// The device of one end dies: that end names it, and tells the other.
FAULT_ROLE(DeviceDies) {
  Stream stream(kOnHost1);
  stream.Start(kForEver);
  Until([&] { return stream.Step() != kSuccess || stream.finished > 4; }, "data");
  int code = -1;
  const std::string answer = soft::RunFabricTool("--control \"kill host0 soft0\"", &code);
  EXPECT_EQ(code, 0) << answer;
  EXPECT_NE(stream.RunUntilError(), kSuccess);
  EXPECT_THAT(Lines("soft0"), testing::Not(testing::IsEmpty())) << testing::PrintToString(Lines());
  std::vector<std::string> log;
  EXPECT_NE(stream.Outcome(&log), kSuccess);
  EXPECT_THAT(log, testing::Contains(testing::HasSubstr("reports:"))) << testing::PrintToString(log);
  stream.End();
  EXPECT_EQ(stream.process.Wait(), 0);
}

TEST_F(FaultTest, DeviceDies) {
  RunRole("DeviceDies", {{"SLUICE_FABRIC_TOPOLOGY", "hosts=2"}, {"SLUICE_FABRIC_HOST", "host0"}});
}

FAULT_ROLE(PortFlaps) {
  Stream stream(kOnHost1);
  stream.Start(kForEver);
  Until([&] { return stream.Step() != kSuccess || stream.finished > 4; }, "data");
  // Shorter than timeout x retries: the data goes on as if nothing had been.
  for (int flap = 0; flap < 3; ++flap) {
    int code = -1;
    soft::RunFabricTool("--control \"port host0 soft0 1 down\"", &code);
    EXPECT_EQ(code, 0);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(stream.Step(), kSuccess) << testing::PrintToString(Lines());
    soft::RunFabricTool("--control \"port host0 soft0 1 up\"", &code);
    EXPECT_EQ(code, 0);
    const uint32_t before = stream.finished;
    NcclResult result = kSuccess;
    Until([&] { return (result = stream.Step()) != kSuccess || stream.finished > before + 16; },
          "the data to go on");
    EXPECT_EQ(result, kSuccess) << testing::PrintToString(Lines());
  }
  EXPECT_THAT(Lines("soft0"), testing::Not(testing::IsEmpty()));
  stream.End();
  std::vector<std::string> log;
  (void)stream.Outcome(&log);
  EXPECT_EQ(stream.process.Wait(), 0);
}

TEST_F(FaultTest, ShortFlapsPassUnnoticed) {
  RunRole("PortFlaps", {{"SLUICE_FABRIC_TOPOLOGY", "hosts=2"}, {"SLUICE_FABRIC_HOST", "host0"}});
}

// Longer: an error by name at both ends, and a new connection works once the port is back.
FAULT_ROLE(PortStaysDown) {
  Stream stream(kOnHost1);
  stream.Start(kForEver);
  Until([&] { return stream.Step() != kSuccess || stream.finished > 4; }, "data");
  ForgetLines();
  int code = -1;
  soft::RunFabricTool("--control \"port host0 soft0 1 down\"", &code);
  EXPECT_EQ(code, 0);
  EXPECT_NE(stream.RunUntilError(), kSuccess);
  std::vector<std::string> log;
  EXPECT_NE(stream.Outcome(&log), kSuccess);
  // At least one of the two ends saw the network give up, by name and with its addresses.
  std::vector<std::string> both = Lines();
  both.insert(both.end(), log.begin(), log.end());
  EXPECT_THAT(both, testing::Contains(testing::AllOf(testing::HasSubstr("soft0"), testing::HasSubstr("GID"),
                                                     testing::HasSubstr("retr"))))
      << testing::PrintToString(both);
  stream.End();
  EXPECT_EQ(stream.process.Wait(), 0);
  soft::RunFabricTool("--control \"port host0 soft0 1 up\"", &code);
  EXPECT_EQ(code, 0);
  Stream again(kOnHost1);
  again.Start(16);
  Until([&] { return again.Step() != kSuccess || again.finished >= 16; }, "data after the port came back");
  EXPECT_EQ(again.finished, 16u);
  log.clear();
  EXPECT_EQ(again.Outcome(&log), kSuccess);
  again.End();
  EXPECT_EQ(again.process.Wait(), 0);
}

TEST_F(FaultTest, LongOutageIsAnErrorByName) {
  RunRole("PortStaysDown", {{"SLUICE_FABRIC_TOPOLOGY", "hosts=2"},
                            {"SLUICE_FABRIC_HOST", "host0"},
                            {"NCCL_IB_TIMEOUT", "12"},
                            {"NCCL_IB_RETRY_CNT", "3"}});
}

FAULT_ROLE(FabricKilled) {
  Stream stream;
  stream.Start(kForEver);
  Until([&] { return stream.Step() != kSuccess || stream.finished > 4; }, "data");
  const pid_t fabric = soft::FabricPid();
  SOFT_CHECK(fabric > 0);
  SOFT_CHECK(kill(fabric, SIGKILL) == 0);
  EXPECT_NE(stream.RunUntilError(), kSuccess);
  std::vector<std::string> log;
  EXPECT_NE(stream.Outcome(&log), kSuccess);
  stream.End();
  EXPECT_EQ(stream.process.Wait(), 0);
}

// The killed process could not remove its tree of device attributes: the next fabric does.
TEST_F(FaultTest, FabricKilledIsAnErrorEverywhere) {
  RunRole("FabricKilled");
  RunRole("ForkedChildEnds");
}

// A child made by fork that ends, by exit or at once, leaves its parent's connections alone.
FAULT_ROLE(ForkedChildEnds) {
  void* const ctx = Init();
  const Wire wire = Connect(ctx, ctx);
  Transfer(wire, 1000);
  for (int round = 0; round < 3; ++round) {
    const pid_t child = fork();
    SOFT_CHECK(child >= 0);
    if (child == 0) {
      if (round == 0) exit(0);
      if (round == 1) _exit(0);
      abort();
    }
    int status = 0;
    SOFT_CHECK(waitpid(child, &status, 0) == child);
    if (round < 2) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
    Transfer(wire, 100000);
    const Wire another = Connect(ctx, ctx);
    Transfer(another, 5000);
    Close(another);
  }
  Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

TEST_F(FaultTest, ForkedChildEndsParentUnharmed) {
  RunRole("ForkedChildEnds");
}

// Communicators come and go in a process that keeps an engine (NET v10 and below): what is large is used
// again.
FAULT_ROLE(ManyConnections) {
  void* const ctx = Init();
  const Wire stays = Connect(ctx, ctx);
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const Wire wire = Connect(ctx, ctx);
      Transfer(wire, 1000);
      Close(wire);
    }
    // One more, which is ready only after the event thread has dealt with all that closed before.
    const Wire last = Connect(ctx, ctx);
    Close(last);
    return static_cast<int64_t>(mallinfo2().uordblks);
  };
  constexpr int kRounds = 200;
  const int64_t before = rounds(50);
  const int64_t grown = rounds(kRounds) - before;
  EXPECT_LT(grown, kRounds * 4096);  // requests and tables of both ends are 22 KB
  Transfer(stays, 1000);
  Close(stays);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

TEST_F(FaultTest, ClosedConnectionsLeaveLittle) {
  RunRole("ManyConnections");
}

}  // namespace
}  // namespace sluice::fault
