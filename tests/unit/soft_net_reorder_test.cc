// Packets that overtake each other, at queue pairs: adaptive routing over two paths of different length, once with
// queue pairs that accept it and once with those that answer NAKs. Data is right in both cases.
#include <tuple>

#include "soft_model_rig.h"

namespace sluice::soft {
namespace {

// Two leaves with a host each. A spine link carries half of what a host sends, so packets take turns between the
// two spines; the way over the second one is longer.
constexpr char kTwoPaths[] = R"(
[topology]
hosts = 2
rate = "100G"
spine_rate = "50G"
[[switch]]
name = "leaf"
count = 2
[[switch]]
name = "spine"
count = 2
[[link]]
a = "host0"
b = "leaf0"
[[link]]
a = "host1"
b = "leaf1"
[[link]]
a = "leaf0"
b = "spine0"
[[link]]
a = "leaf1"
b = "spine0"
[[link]]
a = "leaf0"
b = "spine1"
delay = "5us"
[[link]]
a = "leaf1"
b = "spine1"
)";

constexpr uint32_t kBytes = 4 << 20;
constexpr uint64_t kPackets = kBytes / 4096;

class SoftNetReorder : public ::testing::Test {
 protected:
  void Make(RoutingMode mode, uint32_t reorder_packets) {
    Result<Topology> topology = Topology::FromToml(kTwoPaths, "two-paths.toml");
    ASSERT_TRUE(topology.ok()) << topology.status().message();
    topology->routing.mode = mode;
    topology->nic_settings.reorder_packets = reorder_packets;
    Result<std::unique_ptr<Fabric>> made = Fabric::Create(std::move(*topology), &pool_);
    ASSERT_TRUE(made.ok()) << made.status().message();
    rig_ = std::make_unique<Rig>(std::move(*made));
    a_ = &rig_->AddNode(0);
    b_ = &rig_->AddNode(1);
    QpOptions options;
    options.retry_cnt = 7;
    std::tie(qa_, qb_) = rig_->Connect(*a_, *b_, options);
    from_ = a_->MakeBuffer(kBytes, 1);
    to_ = b_->MakeBuffer(kBytes, 2);
  }
  HeapPayloadPool pool_;
  std::unique_ptr<Rig> rig_;
  Node* a_ = nullptr;
  Node* b_ = nullptr;
  uint32_t qa_ = 0, qb_ = 0;
  Buffer from_, to_;
};

TEST_F(SoftNetReorder, QueuePairsThatAcceptItUseBothPaths) {
  Make(RoutingMode::kAdaptive, 256);
  ASSERT_EQ(0, a_->Post(qa_, 1, IBV_WR_RDMA_WRITE, {from_.All()}, to_.address(), to_.key));
  rig_->Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a_->One().status);
  EXPECT_EQ(from_.bytes, to_.bytes);
  EXPECT_EQ(0u, b_->counters().out_of_sequence);
  EXPECT_EQ(0u, a_->counters().retransmitted_packets);
  EXPECT_EQ(kPackets, a_->counters().tx_packets);
  // Both spine links together carry the host's rate; the longer way shows once.
  Make(RoutingMode::kAdaptive, 256);
  ASSERT_EQ(0, a_->Post(qa_, 1, IBV_WR_RDMA_WRITE, {from_.All()}, to_.address(), to_.key));
  rig_->Run();
  const double seconds = static_cast<double>(a_->One().timestamp) / kPicosPerSecond;
  const double wire = (kPackets * (4096 + 82) + 16) * 8 / 100e9;
  EXPECT_GT(seconds, wire);
  EXPECT_LT(seconds, wire + 20e-6);
}

TEST_F(SoftNetReorder, QueuePairsThatDoNotAnswerNaksAndLoseTime) {
  Make(RoutingMode::kAdaptive, 0);
  ASSERT_EQ(0, a_->Post(qa_, 1, IBV_WR_RDMA_WRITE, {from_.All()}, to_.address(), to_.key));
  rig_->Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a_->One().status);
  EXPECT_EQ(from_.bytes, to_.bytes);
  EXPECT_GT(b_->counters().out_of_sequence, 0u);
  EXPECT_GT(a_->counters().packet_seq_err, 0u);
  EXPECT_GT(a_->counters().retransmitted_packets, kPackets / 10);
}

TEST_F(SoftNetReorder, OnOnePathNothingOvertakes) {
  for (const uint32_t reorder : {0u, 256u}) {
    Make(RoutingMode::kEcmp, reorder);
    ASSERT_EQ(0, a_->Post(qa_, 1, IBV_WR_RDMA_WRITE, {from_.All()}, to_.address(), to_.key));
    rig_->Run();
    EXPECT_EQ(IBV_WC_SUCCESS, a_->One().status);
    EXPECT_EQ(from_.bytes, to_.bytes);
    EXPECT_EQ(0u, b_->counters().out_of_sequence);
  }
}

// Overtaken by more packets than it accepts, a queue pair answers a NAK as any other.
TEST_F(SoftNetReorder, ThereIsALimit) {
  Make(RoutingMode::kAdaptive, 4);
  ASSERT_EQ(0, a_->Post(qa_, 1, IBV_WR_RDMA_WRITE, {from_.All()}, to_.address(), to_.key));
  rig_->Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a_->One().status);
  EXPECT_EQ(from_.bytes, to_.bytes);
  EXPECT_GT(b_->counters().out_of_sequence, 0u);
}

// Completions keep the order of the posts, and a receive is completed only when all before it is in place.
TEST_F(SoftNetReorder, CompletionsKeepTheirOrder) {
  for (const uint32_t reorder : {0u, 256u}) {
    Make(RoutingMode::kAdaptive, reorder);
    constexpr uint32_t kMessages = 64;
    constexpr uint32_t kPart = kBytes / kMessages;
    for (uint32_t i = 0; i < kMessages; ++i) {
      ASSERT_EQ(0, b_->Recv(qb_, i, {}));
      ASSERT_EQ(0, a_->Post(qa_, i, IBV_WR_RDMA_WRITE_WITH_IMM, {from_.Sge(i * kPart, kPart)},
                            to_.address() + i * kPart, to_.key, IBV_SEND_SIGNALED, i));
    }
    uint32_t received = 0;
    while (rig_->fabric()->NextEventTime() != kNever) {
      rig_->fabric()->Advance(rig_->fabric()->NextEventTime());
      for (const Completion& done : b_->Completions()) {
        ASSERT_EQ(IBV_WC_SUCCESS, done.status);
        ASSERT_EQ(received, done.wr_id);
        ASSERT_EQ(received, done.imm_data);
        const size_t end = size_t{received + 1} * kPart;
        ASSERT_EQ(0, std::memcmp(from_.bytes.data(), to_.bytes.data(), end)) << received;
        ++received;
      }
    }
    EXPECT_EQ(kMessages, received);
    const std::vector<Completion> sent = a_->Completions();
    ASSERT_EQ(kMessages, sent.size());
    for (uint32_t i = 0; i < kMessages; ++i) EXPECT_EQ(i, sent[i].wr_id);
  }
}

}  // namespace
}  // namespace sluice::soft
