// Devices with small limits: fewer messages fly, or a refusal that says which limit, never a job that hangs.
#include <cstring>

#include "tests/fault/rig.h"

namespace sluice::fault {
namespace {

// Small limits of the device make fewer messages fly, nothing else.
FAULT_ROLE(SmallDevice) {
  void* const sender = Init();
  void* const receiver = Init();
  std::vector<Wire> wires;
  for (int i = 0; i < 6; ++i) wires.push_back(Connect(sender, receiver));
  // As many messages as NCCL may have open, on every connection at once.
  struct Stream {
    std::vector<Buffer> from, to;
    std::vector<void*> sends, receives;
    size_t sent = 0, received = 0;
  };
  constexpr size_t kMessages = 32;
  std::vector<Stream> streams(wires.size());
  for (size_t i = 0; i < wires.size(); ++i) {
    for (size_t j = 0; j < kMessages; ++j) {
      streams[i].from.emplace_back(wires[i].send, 3000, static_cast<unsigned>(i * 100 + j));
      streams[i].to.emplace_back(wires[i].recv, 3000, 255);
    }
    streams[i].sends.resize(kMessages);
    streams[i].receives.resize(kMessages);
  }
  bool failed = false;
  Until(
      [&] {
        size_t finished = 0;
        for (size_t i = 0; i < wires.size(); ++i) {
          Stream& stream = streams[i];
          for (size_t j = 0; j < kMessages; ++j) {
            if (stream.receives[j] == nullptr)
              failed |= Irecv(wires[i].recv, stream.to[j], 3000, 0, &stream.receives[j]) != kSuccess;
            if (stream.receives[j] == nullptr) break;
          }
          for (size_t j = 0; j < kMessages; ++j) {
            if (stream.sends[j] == nullptr)
              failed |= Isend(wires[i].send, stream.from[j], 3000, 0, &stream.sends[j]) != kSuccess;
            if (stream.sends[j] == nullptr) break;
          }
          int done = 0;
          if (stream.sent < kMessages && stream.sends[stream.sent] != nullptr) {
            failed |= Net().test(stream.sends[stream.sent], &done, nullptr) != kSuccess;
            if (done != 0) ++stream.sent;
          }
          done = 0;
          if (stream.received < kMessages && stream.receives[stream.received] != nullptr) {
            failed |= Net().test(stream.receives[stream.received], &done, nullptr) != kSuccess;
            if (done != 0) ++stream.received;
          }
          finished += stream.sent == kMessages && stream.received == kMessages;
        }
        return failed || finished == wires.size();
      },
      "all messages");
  EXPECT_FALSE(failed) << testing::PrintToString(Lines());
  for (Stream& stream : streams) {
    for (size_t j = 0; j < kMessages; ++j)
      EXPECT_EQ(memcmp(stream.from[j].data(), stream.to[j].data(), 3000), 0);
  }
  streams.clear();
  for (const Wire& wire : wires) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{200000}, size_t{1} << 20}) Transfer(wire, bytes);
    Close(wire);
  }
  EXPECT_EQ(Net().finalize(sender), kSuccess);
  EXPECT_EQ(Net().finalize(receiver), kSuccess);
}

class SmallDeviceTest : public FaultTest, public testing::WithParamInterface<const char*> {};
TEST_P(SmallDeviceTest, MovesDataRight) {
  RunRole("SmallDevice", {{"SLUICE_FABRIC_TOPOLOGY", GetParam()},
                          {"NCCL_IB_SPLIT_DATA_ON_QPS", "1"},
                          {"NCCL_IB_QPS_PER_CONNECTION", "4"},
                          {"SLUICE_STRIPE_MIN_BYTES", "4096"}});
}
INSTANTIATE_TEST_SUITE_P(Limits, SmallDeviceTest,
                         testing::Values("hosts=2,max_srq_wr=16", "hosts=2,max_qp_wr=63",
                                         "hosts=2,max_cqe=32", "hosts=2,max_inline=0",
                                         "hosts=2,max_qp_wr=16,max_srq_wr=8,max_cqe=24,max_inline=0",
                                         "hosts=2,max_inline=0,link=infiniband",
                                         "hosts=2,max_qp_wr=3,max_cqe=5,link=infiniband",
                                         "hosts=2,max_qp_wr=3,max_cqe=5"));

// A queue that could never hold a chunk is refused when connecting, instead of a job that hangs.
FAULT_ROLE(TooSmallDevice) {
  void* const ctx = Init();
  Wire none;
  EXPECT_NE(TryConnect(ctx, ctx, &none), kSuccess);
  EXPECT_THAT(Lines("and Sluice needs"), testing::SizeIs(testing::Ge(1u))) << testing::PrintToString(Lines());
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

class TooSmallDeviceTest : public FaultTest, public testing::WithParamInterface<const char*> {};
TEST_P(TooSmallDeviceTest, IsRefused) {
  RunRole("TooSmallDevice", {{"SLUICE_FABRIC_TOPOLOGY", GetParam()}});
}
INSTANTIATE_TEST_SUITE_P(Limits, TooSmallDeviceTest,
                         testing::Values("hosts=2,max_qp_wr=1", "hosts=2,max_qp_wr=2,link=infiniband",
                                         "hosts=2,max_cqe=1", "hosts=2,max_cqe=4",
                                         "hosts=2,max_cqe=4,link=infiniband"));

// Queue pairs run out: an error that says so, and what stands goes on.
FAULT_ROLE(FewQueuePairs) {
  void* const first = Init();
  const Wire wire = Connect(first, first);
  void* const second = Init();
  Wire none;
  EXPECT_NE(TryConnect(second, second, &none), kSuccess);
  EXPECT_EQ(none.send, nullptr);
  EXPECT_EQ(none.recv, nullptr);
  Until([] { return LiveObjects().queue_pairs == 12; }, "what the failed connection had to go");
  Transfer(wire, 100000);
  Close(wire);
  Until([] { return LiveObjects().queue_pairs == 0; }, "the queue pairs to go");
  const Wire later = Connect(second, second);
  Transfer(later, 1000);
  Close(later);
  EXPECT_EQ(Net().finalize(first), kSuccess);
  EXPECT_EQ(Net().finalize(second), kSuccess);
}

TEST_F(FaultTest, QueuePairsRunOut) {
  RunRole("FewQueuePairs", {{"SLUICE_FABRIC_TOPOLOGY", "hosts=1,max_qp=14"}});
}

}  // namespace
}  // namespace sluice::fault
