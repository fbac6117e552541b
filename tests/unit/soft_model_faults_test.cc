// Loss, corruption and delay: go-back-N, timers, duplicates, and memory that answers late.
#include <deque>
#include <random>
#include <set>

#include "soft_model_rig.h"

namespace sluice::soft {
namespace {

// Drops chosen packets, each once.
class Dropper {
 public:
  explicit Dropper(Fabric* fabric) {
    fabric->SetFaultHook([this](const PacketView& view) {
      if (!view.from_host || !match_ || !match_(view)) return PacketFate::kDeliver;
      if (skip_-- > 0) return PacketFate::kDeliver;
      if (count_-- <= 0) return PacketFate::kDeliver;
      ++dropped;
      return fate_;
    });
  }
  // Of the packets that match, `skip` pass, then `count` meet `fate`.
  void Arm(std::function<bool(const PacketView&)> match, int skip, int count,
           PacketFate fate = PacketFate::kDrop) {
    match_ = std::move(match);
    skip_ = skip;
    count_ = count;
    fate_ = fate;
  }
  int dropped = 0;

 private:
  std::function<bool(const PacketView&)> match_;
  int skip_ = 0;
  int count_ = 0;
  PacketFate fate_ = PacketFate::kDrop;
};

bool IsRequestData(const PacketView& view) {
  return view.payload_bytes != 0 && !view.is_read_response;
}

class SoftModelFaults : public ::testing::Test {
 protected:
  Rig rig{"hosts=2"};
  Node& a = rig.AddNode(0);
  Node& b = rig.AddNode(1);
  Dropper dropper{rig.fabric()};
  Buffer from = a.MakeBuffer(1 << 20, 1);
  Buffer to = b.MakeBuffer(1 << 20, 2);
};

TEST_F(SoftModelFaults, LostDataCostsOneNak) {
  const auto [qa, qb] = rig.Connect(a, b);
  dropper.Arm(IsRequestData, 10, 1);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(from.bytes, to.bytes);
  EXPECT_EQ(1u, a.counters().packet_seq_err) << "one NAK per gap";
  EXPECT_EQ(0u, a.counters().local_ack_timeout_err);
  EXPECT_GT(b.counters().out_of_sequence, 1u);
  EXPECT_GT(a.counters().retransmitted_packets, 1u);
  // What was in flight for one round trip is sent again, not more.
  EXPECT_LT(a.counters().retransmitted_packets, 20u);
}

TEST_F(SoftModelFaults, CorruptedDataIsDroppedByTheReceiver) {
  const auto [qa, qb] = rig.Connect(a, b);
  dropper.Arm(IsRequestData, 3, 2, PacketFate::kCorrupt);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(from.bytes, to.bytes);
  EXPECT_EQ(2u, b.counters().dropped_packets);
}

TEST_F(SoftModelFaults, LostLastPacketOrLostNakCostsATimeout) {
  QpOptions options;
  options.timeout = 9;
  const auto [qa, qb] = rig.Connect(a, b, options);
  dropper.Arm(IsRequestData, 255, 1);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(1u, a.counters().local_ack_timeout_err);
  EXPECT_EQ(16u, a.counters().retransmitted_packets) << "all behind the last acknowledgement";

  // The first NAK is lost too: no second one for the same gap.
  bool data_lost = false;
  dropper.Arm(
      [&](const PacketView& view) {
        if (view.is_nak) return true;
        if (data_lost || !IsRequestData(view)) return false;
        return data_lost = true;
      },
      0, 2);
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(2u, a.counters().local_ack_timeout_err);
  EXPECT_EQ(from.bytes, to.bytes);
}

TEST_F(SoftModelFaults, LostAcknowledgementsAreCoveredByLaterOnes) {
  const auto [qa, qb] = rig.Connect(a, b);
  dropper.Arm([](const PacketView& view) { return view.is_ack; }, 0, 3);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(0u, a.counters().retransmitted_packets);
}

TEST_F(SoftModelFaults, DuplicatesAreNotDeliveredTwice) {
  QpOptions options;
  options.timeout = 9;
  const auto [qa, qb] = rig.Connect(a, b, options);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(0, b.Recv(qb, i, {to.Sge(0, 100)}));
  dropper.Arm([](const PacketView& view) { return view.is_ack; }, 0, 1);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND, {from.Sge(0, 100)}));
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(1u, b.Completions().size());
  EXPECT_EQ(1u, b.counters().duplicate_request);
}

TEST_F(SoftModelFaults, LostReadResponseIsAskedForAgainFromTheGap) {
  const auto [qa, qb] = rig.Connect(a, b);
  dropper.Arm([](const PacketView& view) { return view.is_read_response; }, 40, 1);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_READ, {from.All()}, to.address(), to.key));
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(from.bytes, to.bytes);
  EXPECT_EQ(1u, a.counters().implied_nak_seq_err);
  EXPECT_EQ(1u, a.counters().retransmitted_packets);
  EXPECT_EQ(2u, b.counters().rx_read_requests);
}

TEST_F(SoftModelFaults, AtomicIsExecutedOnceWhenItsResponseIsLost) {
  QpOptions options;
  options.timeout = 9;
  const auto [qa, qb] = rig.Connect(a, b, options);
  auto* word = reinterpret_cast<uint64_t*>(to.bytes.data());
  *word = 5;
  dropper.Arm([](const PacketView& view) { return view.is_read_response; }, 0, 1);
  ASSERT_EQ(0, a.PostAtomic(qa, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, from.Sge(0, 8), to.address(), to.key, 10, 0));
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(15u, *word);
  EXPECT_EQ(5u, *reinterpret_cast<uint64_t*>(from.bytes.data()));
}

TEST_F(SoftModelFaults, ReadResponsesLostBehindLaterWrites) {
  const auto [qa, qb] = rig.Connect(a, b);
  dropper.Arm([](const PacketView& view) { return view.is_read_response; }, 0, 2);
  Buffer target = b.MakeBuffer(100000, 7);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_READ, {from.Sge(0, 5000)}, to.address(), to.key));
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_WRITE, {from.Sge(100000, 100000)}, target.address(), target.key));
  rig.Run();
  const std::vector<Completion> done = a.Completions();
  ASSERT_EQ(2u, done.size());
  EXPECT_EQ(1u, done[0].wr_id);
  EXPECT_TRUE(std::equal(to.bytes.begin(), to.bytes.begin() + 5000, from.bytes.begin()));
  EXPECT_EQ(0u, a.counters().local_ack_timeout_err) << "the acknowledgement of the write tells of the gap";
}

TEST_F(SoftModelFaults, LinkDownThenUp) {
  QpOptions options;
  options.timeout = 12;
  const auto [qa, qb] = rig.Connect(a, b, options);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run(30 * kPicosPerUs);
  ASSERT_TRUE(rig.fabric()->SetLinkUp(1, false).ok());
  EXPECT_EQ(std::vector{IBV_EVENT_PORT_ERR}, b.Events());
  rig.Run(40 * kPicosPerMs);
  ASSERT_TRUE(rig.fabric()->SetLinkUp(1, true).ok());
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(from.bytes, to.bytes);
  EXPECT_FALSE(rig.fabric()->SetLinkUp(2, false).ok());
}

TEST_F(SoftModelFaults, GoodputUnderLossFollowsTheClosedForm) {
  // G = 1 / (1 + p W + p q R T): W packets are wasted per NAK, and a lost repeat, NAK or tail waits for the
  // timer.
  constexpr double kLoss = 2e-3;
  QpOptions options;
  options.timeout = 8;
  options.retry_cnt = 7;
  const auto [qa, qb] = rig.Connect(a, b, options);
  std::mt19937_64 random(4);
  rig.fabric()->SetFaultHook([&](const PacketView& view) {
    if (!view.from_host) return PacketFate::kDeliver;
    return std::uniform_real_distribution<>()(random) < kLoss ? PacketFate::kDrop : PacketFate::kDeliver;
  });
  // The queue is kept full, so that messages have no ends but the last one.
  constexpr int kMessages = 2200;
  int posted = 0;
  int done = 0;
  Picos end = 0;
  while (done < kMessages) {
    while (posted < kMessages && posted - done < 64) {
      ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
      ++posted;
    }
    rig.fabric()->Advance(rig.fabric()->NextEventTime());
    for (const Completion& completion : a.Completions()) {
      ASSERT_EQ(IBV_WC_SUCCESS, completion.status);
      end = completion.timestamp;
      ++done;
    }
  }
  const double packets = kMessages * 256.0;
  const double packet_time = static_cast<double>(SerialisationTime(4178, 100'000'000'000)) / kPicosPerSecond;
  const double seconds = static_cast<double>(end) / kPicosPerSecond;
  const double goodput = packets * packet_time / seconds;
  // From the packet behind the lost one: to the receiver, and the NAK back, behind the data packet in its
  // way.
  const double wasted = (2 * 2e-6 + 2 * packet_time + 2 * 86 * 8 / 100e9) / packet_time;
  // Lost repeat or lost NAK; what is in flight behind the NAK that was lost cannot be repaired before the
  // timer.
  const double timeouts = 2 * kLoss;
  const double expected = 1 / (1 + kLoss * wasted + kLoss * timeouts * (4.096e-6 * 256) / packet_time);
  EXPECT_GT(static_cast<double>(rig.fabric()->statistics().dropped_packets), 1000.0);
  EXPECT_NEAR(expected, goodput, 0.1 * expected);
}

// A process that answers when told.
class LateMemory : public DirectMemory {
 public:
  explicit LateMemory(Fabric* fabric) : DirectMemory(fabric) {}
  void Gather(DmaId id, std::span<const MemoryRange> ranges, const PayloadRef& into) override {
    waiting_.push_back([this, id, list = std::vector<MemoryRange>(ranges.begin(), ranges.end()), into] {
      DirectMemory::Gather(id, list, into);
    });
  }
  void Atomic(DmaId id, AtomicOp op, uint64_t address, uint64_t compare_or_add, uint64_t swap) override {
    waiting_.push_back([=, this] { DirectMemory::Atomic(id, op, address, compare_or_add, swap); });
  }
  size_t waiting() const { return waiting_.size(); }
  void AnswerAll() {
    while (!waiting_.empty()) {
      const auto answer = std::move(waiting_.front());
      waiting_.pop_front();
      answer();
    }
  }

 private:
  std::deque<std::function<void()>> waiting_;
};

TEST(SoftModelLateMemory, TimersWaitForMemoryOnEitherSide) {
  Rig rig("hosts=2");
  auto memory_a = std::make_unique<LateMemory>(rig.fabric());
  auto memory_b = std::make_unique<LateMemory>(rig.fabric());
  LateMemory& late_a = *memory_a;
  LateMemory& late_b = *memory_b;
  Node& a = rig.AddNode(0, 0, std::move(memory_a));
  Node& b = rig.AddNode(1, 0, std::move(memory_b));
  QpOptions options;
  options.timeout = 1;  // 8 us
  options.retry_cnt = 0;
  const auto [qa, qb] = rig.Connect(a, b, options);
  Buffer local = a.MakeBuffer(300000, 1);
  Buffer remote = b.MakeBuffer(300000, 2);
  const std::vector<uint8_t> original = remote.bytes;
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_READ, {local.All()}, remote.address(), remote.key));
  ASSERT_EQ(0, a.PostAtomic(qa, 2, IBV_WR_ATOMIC_FETCH_AND_ADD, local.Sge(0, 8), remote.address(), remote.key,
                            1, 0));
  Picos now = 0;
  size_t seen = 0;
  while (a.State(qa) == IBV_QPS_RTS && seen < 2) {
    now += kPicosPerMs;
    rig.Run(now);
    seen += a.Completions().size();
    EXPECT_LE(late_b.waiting(), 3u) << "reads ahead by a bounded amount";
    late_b.AnswerAll();
  }
  EXPECT_EQ(2u, seen);
  ASSERT_EQ(0, a.Post(qa, 3, IBV_WR_RDMA_WRITE, {local.All()}, remote.address(), remote.key));
  std::vector<Completion> written;
  while (written.empty()) {
    rig.Run(now += kPicosPerMs);
    EXPECT_LE(late_a.waiting(), 3u);
    late_a.AnswerAll();
    written = a.Completions();
  }
  EXPECT_EQ(IBV_WC_SUCCESS, written[0].status);
  EXPECT_EQ(local.bytes, remote.bytes);
  EXPECT_EQ(0u, a.counters().local_ack_timeout_err);
  EXPECT_EQ(0u, a.counters().retransmitted_packets);
}

TEST(SoftModelLateMemory, AnswersThatComeTooLateAreIgnored) {
  Rig rig("hosts=2");
  auto memory = std::make_unique<LateMemory>(rig.fabric());
  LateMemory& late = *memory;
  Node& a = rig.AddNode(0, 0, std::move(memory));
  Node& b = rig.AddNode(1);
  const QpOptions options;
  const auto [qa, qb] = rig.Connect(a, b, options);
  Buffer local = a.MakeBuffer(300000, 1);
  Buffer remote = b.MakeBuffer(300000, 2);
  const std::vector<uint8_t> before = remote.bytes;
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {local.All()}, remote.address(), remote.key));
  ibv_qp_attr reset{};
  ASSERT_EQ(0, a.nic->ModifyQp(a.process, qa, reset, IBV_QP_STATE));
  ASSERT_EQ(0, b.nic->ModifyQp(b.process, qb, reset, IBV_QP_STATE));
  Rig::Establish(a, qa, b, qb, options, 7, 8);
  Rig::Establish(b, qb, a, qa, options, 8, 7);
  late.AnswerAll();
  rig.Run();
  EXPECT_EQ(before, remote.bytes);
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_WRITE, {local.All()}, remote.address(), remote.key));
  rig.fabric()->DetachProcess(a.process);
  EXPECT_EQ(0u, rig.fabric()->statistics().dma_pending);
  late.AnswerAll();
  rig.Run();
  EXPECT_EQ(before, remote.bytes);
  EXPECT_EQ(0u, rig.pool().bytes_in_use());
}

// Memory that cannot be read any more, as when a program unmapped what it registered.
class BrokenMemory : public DirectMemory {
 public:
  explicit BrokenMemory(Fabric* fabric) : DirectMemory(fabric), fabric_(fabric) {}
  void Gather(DmaId id, std::span<const MemoryRange>, const PayloadRef&) override {
    fabric_->DmaDone(id, false, 0);
  }
  void Atomic(DmaId id, AtomicOp, uint64_t, uint64_t, uint64_t) override { fabric_->DmaDone(id, false, 0); }

 private:
  Fabric* fabric_;
};

TEST(SoftModelLateMemory, UnreadableMemoryIsAnError) {
  Rig rig("hosts=2");
  Node& a = rig.AddNode(0);
  Node& b = rig.AddNode(1, 0, std::make_unique<BrokenMemory>(rig.fabric()));
  Buffer local = a.MakeBuffer(1000, 1);
  Buffer remote = b.MakeBuffer(1000, 2);
  const auto [q1, r1] = rig.Connect(a, b);
  ASSERT_EQ(0, a.Post(q1, 1, IBV_WR_RDMA_READ, {local.All()}, remote.address(), remote.key));
  rig.Run();
  EXPECT_EQ(IBV_WC_REM_OP_ERR, a.One().status);
  const auto [q2, r2] = rig.Connect(a, b);
  ASSERT_EQ(0, a.PostAtomic(q2, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, local.Sge(0, 8), remote.address(), remote.key,
                            1, 0));
  rig.Run();
  EXPECT_EQ(IBV_WC_REM_OP_ERR, a.One().status);
  const auto [q3, r3] = rig.Connect(a, b);
  ASSERT_EQ(0, b.Post(r3, 1, IBV_WR_RDMA_WRITE, {remote.All()}, local.address(), local.key));
  rig.Run();
  EXPECT_EQ(IBV_WC_LOC_PROT_ERR, b.One().status);
}

}  // namespace
}  // namespace sluice::soft
