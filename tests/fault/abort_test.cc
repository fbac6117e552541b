// Abort at every step of set-up and of a message, by either side: the other side meets an error that names
// the cause, and both are left with nothing.
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "tests/fault/rig.h"

namespace sluice::fault {
namespace {

enum Stage {
  kListening,         // the receiver listens
  kConnectCalled,     // connect was called once
  kConnectPolled,     // and some more times
  kSenderConnected,   // connect has returned a connection, accept was not called
  kReceiverAccepted,  // accept has returned one, connect was called once
  kConnected,         // both have it
  kReceivePosted,     // irecv
  kSendPosted,        // irecv and isend
  kMidMessage,        // of many chunks
  kFlushing,          // iflush
  kStages
};
const char* const kNames[kStages] = {
    "listening", "connect called", "connect polled", "sender connected", "receiver accepted",
    "connected", "receive posted", "send posted",    "mid message",      "flushing"};

constexpr size_t SizeOf(int stage) {
  return stage == kMidMessage ? size_t{24} << 20 : size_t{64} << 10;
}

// How a side leaves. In each case the communicator is finalized in the end.
enum Manner { kDeregisterAndClose, kCloseFirst, kFinalizeOnly, kManners };
const char* const kMannerNames[kManners] = {"deregMr, close", "close, deregMr", "finalize"};

struct SenderEnd {
  void* ctx = Init();
  Handle handle;
  void* comm = nullptr;
  Buffer buffer;
  void* request = nullptr;
  int polls = 0;
  int done = 0;

  // One step towards `stage`; true when there.
  bool Step(int stage) {
    if (stage == kListening) return true;
    if (comm == nullptr) {
      EXPECT_EQ(Net().connect(ctx, 0, handle.data(), &comm, nullptr), kSuccess);
      ++polls;
      if (stage == kConnectCalled || stage == kReceiverAccepted) return true;
      if (stage == kConnectPolled) return polls >= 20 || comm != nullptr;
      return comm != nullptr && stage == kSenderConnected;
    }
    if (stage < kConnected) return true;
    if (buffer.handle() == nullptr) buffer = Buffer(comm, SizeOf(stage), 1);
    if (stage < kSendPosted) return true;
    if (request == nullptr) {
      EXPECT_EQ(Isend(comm, buffer, SizeOf(stage), 0, &request), kSuccess);
      return false;
    }
    if (stage == kFlushing && done == 0) {
      EXPECT_EQ(Net().test(request, &done, nullptr), kSuccess);
    }
    return stage != kFlushing || done != 0;
  }

  void Leave(Manner manner) {
    if (manner == kFinalizeOnly) {
      EXPECT_EQ(Net().finalize(ctx), kSuccess);
    }
    if (manner != kCloseFirst) {
      EXPECT_EQ(buffer.Deregister(), kSuccess);
    }
    if (comm != nullptr) (void)Net().closeSend(comm);
    EXPECT_EQ(buffer.Deregister(), kSuccess);
    if (manner != kFinalizeOnly) {
      EXPECT_EQ(Net().finalize(ctx), kSuccess);
    }
  }

  // Goes on as NCCL would. Connecting to a listener that is gone is an error, and so is any message.
  void MeetsError() {
    NcclResult result = kSuccess;
    if (comm == nullptr) {
      Until(
          [&] {
            result = Net().connect(ctx, 0, handle.data(), &comm, nullptr);
            return comm != nullptr || result != kSuccess;
          },
          "connect to end");
      if (result != kSuccess) return;
    }
    NcclResult registered = kSuccess;
    if (buffer.handle() == nullptr) buffer = Buffer(comm, 1000, 1, &registered);
    if (registered != kSuccess) return;
    if (request != nullptr && done == 0) {
      Until(
          [&] {
            result = Net().test(request, &done, nullptr);
            return done != 0 || result != kSuccess;
          },
          "test at the sender to end");
      if (result != kSuccess) return;
    }
    EXPECT_NE(FirstErrorOfSender(comm, buffer), kSuccess);
  }
};

struct ReceiverEnd {
  void* ctx = Init();
  Handle handle;
  void* listen = Listen(ctx, &handle);
  void* comm = nullptr;
  Buffer buffer;
  void* request = nullptr;
  void* flush = nullptr;
  int done = 0;

  bool Step(int stage) {
    if (stage < kReceiverAccepted) return true;
    if (comm == nullptr) {
      EXPECT_EQ(Net().accept(listen, &comm, nullptr), kSuccess);
      return comm != nullptr && stage == kReceiverAccepted;
    }
    if (stage == kReceiverAccepted) return true;
    if (buffer.handle() == nullptr) buffer = Buffer(comm, SizeOf(stage), 2);
    if (stage < kReceivePosted) return true;
    if (request == nullptr) {
      EXPECT_EQ(Irecv(comm, buffer, SizeOf(stage), 0, &request), kSuccess);
      return request != nullptr && stage != kFlushing;
    }
    if (stage != kFlushing) return true;
    if (done == 0) {
      EXPECT_EQ(Net().test(request, &done, nullptr), kSuccess);
      return false;
    }
    if (flush == nullptr) {
      void* data = buffer.data();
      int size = static_cast<int>(SizeOf(stage));
      void* memory = buffer.handle();
      EXPECT_EQ(Net().iflush(comm, 1, &data, &size, &memory, &flush), kSuccess);
      EXPECT_NE(flush, nullptr);
    }
    return true;
  }

  void Leave(Manner manner) {
    if (manner == kFinalizeOnly) {
      EXPECT_EQ(Net().finalize(ctx), kSuccess);
    }
    if (manner != kCloseFirst) {
      EXPECT_EQ(buffer.Deregister(), kSuccess);
    }
    if (comm != nullptr) (void)Net().closeRecv(comm);
    (void)Net().closeListen(listen);
    EXPECT_EQ(buffer.Deregister(), kSuccess);
    if (manner != kFinalizeOnly) {
      EXPECT_EQ(Net().finalize(ctx), kSuccess);
    }
  }

  // A sender that never came is none of the receiver's errors.
  void MeetsError(int stage) {
    if (comm == nullptr) {
      if (stage < kSenderConnected) {
        EXPECT_EQ(Net().accept(listen, &comm, nullptr), kSuccess);
        if (comm == nullptr) return;
      } else {
        Until([&] { return Net().accept(listen, &comm, nullptr) != kSuccess || comm != nullptr; },
              "accept to end");
        if (comm == nullptr) return;
      }
    }
    NcclResult registered = kSuccess;
    if (buffer.handle() == nullptr) buffer = Buffer(comm, 1000, 2, &registered);
    if (registered != kSuccess) return;
    NcclResult result = kSuccess;
    for (void* open : {done == 0 ? request : nullptr, flush}) {
      if (open == nullptr) continue;
      int finished = 0;
      Until(
          [&] {
            result = Net().test(open, &finished, nullptr);
            return finished != 0 || result != kSuccess;
          },
          "test at the receiver to end");
      if (result != kSuccess) return;
    }
    EXPECT_NE(FirstErrorOfReceiver(comm, buffer), kSuccess);
  }
};

// The cause travels on the link: nobody waits until the network gives up on a queue pair.
void ExpectNoTimeouts(const std::string& what) {
  for (const char* sign : {"retry counter exceeded", "retries exceeded", "RETRY_EXC", "took longer than"}) {
    EXPECT_THAT(Lines(sign), testing::IsEmpty()) << what;
  }
}

FAULT_ROLE(AbortAtEveryStep) {
  const Holdings start = HeldAfterWarmUp();
  std::chrono::steady_clock::duration slowest{};
  for (int stage = 0; stage < kStages; ++stage) {
    for (const bool sender_leaves : {true, false}) {
      for (int manner = 0; manner < kManners; ++manner) {
        const std::string what = std::string(kNames[stage]) + ", " + (sender_leaves ? "sender" : "receiver") +
                                 " leaves by " + kMannerNames[manner];
        SCOPED_TRACE(what);
        ForgetLines();
        {
          ReceiverEnd receiver;
          SenderEnd sender;
          sender.handle = receiver.handle;
          bool sender_there = false, receiver_there = false;
          Until(
              [&] {
                if (!receiver_there) receiver_there = receiver.Step(stage);
                if (!sender_there) sender_there = sender.Step(stage);
                return (receiver_there && sender_there) || testing::Test::HasFailure();
              },
              "both sides to get there");
          const auto before = std::chrono::steady_clock::now();
          if (sender_leaves) {
            sender.Leave(static_cast<Manner>(manner));
            receiver.MeetsError(stage);
            slowest = std::max(slowest, std::chrono::steady_clock::now() - before);
            receiver.Leave(kDeregisterAndClose);
          } else {
            receiver.Leave(static_cast<Manner>(manner));
            sender.MeetsError();
            slowest = std::max(slowest, std::chrono::steady_clock::now() - before);
            sender.Leave(kDeregisterAndClose);
          }
        }
        ExpectBackTo(start, what);
        ExpectNoTimeouts(what);
        if (testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) return;
      }
    }
  }
  printf("slowest way to the error: %lld ms\n",
         static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(slowest).count()));
}

// A process that goes as far as `stage` and stays there until it is killed.
struct VictimPlan {
  int stage;
  bool sends;
};

FAULT_ROLE(Victim) {
  VictimPlan plan;
  peer.Receive(&plan, sizeof(plan));
  if (plan.sends) {
    SenderEnd sender;
    peer.Receive(sender.handle.data(), nccl::kNetHandleBytes);
    Until([&] { return sender.Step(plan.stage); }, "the victim to get there");
    peer.Barrier();
    peer.Barrier();
  } else {
    ReceiverEnd receiver;
    peer.Send(receiver.handle.data(), nccl::kNetHandleBytes);
    Until([&] { return receiver.Step(plan.stage); }, "the victim to get there");
    peer.Barrier();
    peer.Barrier();
  }
}

FAULT_ROLE(PeerKilledAtEveryStep) {
  const Holdings start = HeldAfterWarmUp();
  std::chrono::steady_clock::duration slowest{};
  for (int stage = 0; stage < kStages; ++stage) {
    for (const bool victim_sends : {true, false}) {
      const std::string what =
          std::string(kNames[stage]) + ", " + (victim_sends ? "sender" : "receiver") + " is killed";
      SCOPED_TRACE(what);
      ForgetLines();
      {
        Peer victim = StartPeer("Victim");
        const VictimPlan plan{stage, victim_sends};
        victim.link.Send(&plan, sizeof(plan));
        if (victim_sends) {
          ReceiverEnd receiver;
          victim.link.Send(receiver.handle.data(), nccl::kNetHandleBytes);
          Until([&] { return receiver.Step(stage); }, "the receiver to get there");
          victim.link.Barrier();
          victim.Kill();
          const auto before = std::chrono::steady_clock::now();
          receiver.MeetsError(stage);
          slowest = std::max(slowest, std::chrono::steady_clock::now() - before);
          receiver.Leave(kDeregisterAndClose);
        } else {
          SenderEnd sender;
          victim.link.Receive(sender.handle.data(), nccl::kNetHandleBytes);
          Until([&] { return sender.Step(stage); }, "the sender to get there");
          victim.link.Barrier();
          victim.Kill();
          const auto before = std::chrono::steady_clock::now();
          sender.MeetsError();
          slowest = std::max(slowest, std::chrono::steady_clock::now() - before);
          sender.Leave(kDeregisterAndClose);
        }
      }
      ExpectBackTo(start, what);
      ExpectNoTimeouts(what);
      if (testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) return;
    }
  }
  printf("slowest way to the error: %lld ms\n",
         static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(slowest).count()));
}

const Variables kAbortVariables = {
    {"SLUICE_FORCE_FLUSH", "1"}, {"NCCL_IB_SPLIT_DATA_ON_QPS", "1"}, {"NCCL_IB_QPS_PER_CONNECTION", "4"}};

TEST_F(FaultTest, AbortAtEveryStepByEitherSide) {
  RunRole("AbortAtEveryStep", kAbortVariables);
}

TEST_F(FaultTest, PeerKilledAtEveryStep) {
  RunRole("PeerKilledAtEveryStep", kAbortVariables);
}

}  // namespace
}  // namespace sluice::fault
