// Random operations on several queue pairs under random loss, against a plain model of what memory must
// become: all data right, completions in order, each exactly once.
#include <deque>
#include <random>

#include "soft_model_rig.h"

namespace sluice::soft {
namespace {

constexpr uint32_t kSlot = 20000;  // bytes of memory per work request, so that operations do not meet
constexpr int kOperations = 50;    // per queue pair

struct Expectation {
  uint64_t wr_id;
  bool signalled;
};

// One direction of one connection, with its memory at both ends.
class Flow {
 public:
  Flow(Node* a, Node* b, uint32_t qa, uint32_t qb, uint64_t seed)
      : a_(a), b_(b), qa_(qa), qb_(qb), random_(seed) {
    local_ = a->MakeBuffer(size_t{kSlot} * kOperations, static_cast<uint8_t>(seed));
    remote_ = b->MakeBuffer(size_t{kSlot} * kOperations, static_cast<uint8_t>(seed + 100));
    received_ = b->MakeBuffer(size_t{kSlot} * kOperations, 0);
    want_local_ = local_.bytes;
    want_remote_ = remote_.bytes;
    want_received_ = received_.bytes;
    counter_ = b->MakeBuffer(8, 0);
    counter_.bytes.assign(8, 0);
    result_ = a->MakeBuffer(8 * kOperations, 0);
  }

  uint32_t sender_qp() const { return qa_; }
  uint32_t receiver_qp() const { return qb_; }

  void PostAll() {
    for (int i = 0; i < kOperations; ++i) PostOne(static_cast<uint32_t>(i));
  }

  void OnSent(const Completion& completion) {
    ASSERT_EQ(IBV_WC_SUCCESS, completion.status);
    while (!sent_.empty() && !sent_.front().signalled) sent_.pop_front();
    ASSERT_FALSE(sent_.empty());
    EXPECT_EQ(sent_.front().wr_id, completion.wr_id);
    sent_.pop_front();
  }
  void OnReceived(const Completion& completion) {
    ASSERT_EQ(IBV_WC_SUCCESS, completion.status);
    ASSERT_FALSE(receives_.empty());
    EXPECT_EQ(receives_.front().wr_id, completion.wr_id);
    EXPECT_EQ(receives_.front().length, completion.byte_len);
    if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) {
      EXPECT_EQ(receives_.front().wr_id, completion.imm_data);
    }
    receives_.pop_front();
  }

  void Check() {
    for (const Expectation& left : sent_) EXPECT_FALSE(left.signalled) << left.wr_id << " never completed";
    EXPECT_TRUE(receives_.empty());
    EXPECT_EQ(want_local_, local_.bytes);
    EXPECT_EQ(want_remote_, remote_.bytes);
    EXPECT_EQ(want_received_, received_.bytes);
    uint64_t counter;
    std::memcpy(&counter, counter_.bytes.data(), 8);
    EXPECT_EQ(adds_, counter) << "each fetch-and-add exactly once";
    for (const auto& [index, value] : want_result_) {
      uint64_t got;
      std::memcpy(&got, result_.bytes.data() + index * 8, 8);
      EXPECT_EQ(value, got);
    }
  }

 private:
  struct Receive {
    uint64_t wr_id;
    uint32_t length;
  };
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  void PostOne(uint32_t i) {
    const uint32_t length = Draw(4) == 0 ? Draw(20) : Draw(kSlot + 1);
    const uint32_t offset = i * kSlot;
    const unsigned flags = (Draw(3) != 0 ? IBV_SEND_SIGNALED : 0) | (Draw(5) == 0 ? IBV_SEND_FENCE : 0);
    const uint32_t split = length == 0 ? 0 : Draw(length);
    const std::vector<ibv_sge> sges = {local_.Sge(offset, split), local_.Sge(offset + split, length - split)};
    const auto copy = [&](const std::vector<uint8_t>& source, std::vector<uint8_t>& target) {
      std::copy_n(source.begin() + offset, length, target.begin() + offset);
    };
    int error = 0;
    switch (Draw(6)) {
      case 0:
      case 1: {
        const bool with_imm = Draw(2) == 0;
        ExpectReceive(i, offset, length);
        copy(want_local_, want_received_);
        error = a_->Post(qa_, i, with_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, sges, 0, 0, flags, i);
        break;
      }
      case 2:
        copy(want_local_, want_remote_);
        error = a_->Post(qa_, i, IBV_WR_RDMA_WRITE, sges, remote_.address() + offset, remote_.key, flags);
        break;
      case 3:
        ExpectReceive(i, offset, length);
        copy(want_local_, want_remote_);
        error = a_->Post(qa_, i, IBV_WR_RDMA_WRITE_WITH_IMM, sges, remote_.address() + offset, remote_.key,
                         flags, i);
        break;
      case 4:
        copy(want_remote_, want_local_);
        error = a_->Post(qa_, i, IBV_WR_RDMA_READ, sges, remote_.address() + offset, remote_.key, flags);
        break;
      default:
        want_result_.emplace_back(i, adds_);
        error = a_->PostAtomic(qa_, i, IBV_WR_ATOMIC_FETCH_AND_ADD, result_.Sge(i * 8, 8), counter_.address(),
                               counter_.key, i + 1, 0);
        adds_ += i + 1;
        sent_.push_back({i, true});
        ASSERT_EQ(0, error);
        return;
    }
    ASSERT_EQ(0, error);
    sent_.push_back({i, (flags & IBV_SEND_SIGNALED) != 0});
  }

  void ExpectReceive(uint32_t i, uint32_t offset, uint32_t length) {
    receives_.push_back({i, length});
    // Some entries come late: the sender must wait for them.
    const auto post = [this, i, offset] { ASSERT_EQ(0, b_->Recv(qb_, i, {received_.Sge(offset, kSlot)})); };
    late_ = std::max(late_, Picos{Draw(3) == 0 ? Draw(500) : 0} * kPicosPerUs);
    b_->fabric->CallAt(late_, post);
  }

  Node* a_;
  Node* b_;
  uint32_t qa_;
  uint32_t qb_;
  std::mt19937_64 random_;
  Buffer local_, remote_, received_, counter_, result_;
  std::vector<uint8_t> want_local_, want_remote_, want_received_;
  std::vector<std::pair<size_t, uint64_t>> want_result_;
  uint64_t adds_ = 0;
  Picos late_ = 0;
  std::deque<Expectation> sent_;
  std::deque<Receive> receives_;
};

void RunRandomTraffic(uint64_t seed, double loss, const char* topology, uint64_t pool_bytes) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed << " loss " << loss << " " << topology);
  Rig rig(topology, pool_bytes);
  std::vector<Node*> nodes;
  for (uint32_t i = 0; i < 3; ++i) nodes.push_back(&rig.AddNode(i));
  std::mt19937_64 random(seed);
  rig.fabric()->SetFaultHook([&](const PacketView&) {
    const double draw = std::uniform_real_distribution<>()(random);
    return draw < loss ? PacketFate::kDrop : draw < 1.2 * loss ? PacketFate::kCorrupt : PacketFate::kDeliver;
  });
  QpOptions options;
  options.timeout = 5;  // 131 us
  options.mtu = seed % 2 == 0 ? IBV_MTU_4096 : IBV_MTU_1024;
  options.psn_a = 0xFFFFFF - static_cast<uint32_t>(seed % 50);
  std::vector<std::unique_ptr<Flow>> flows;
  for (uint32_t i = 0; i < 3; ++i) {
    for (uint32_t j = 0; j < 3; ++j) {
      options.max_rd_atomic = options.max_dest_rd_atomic = static_cast<uint8_t>(1 + random() % 8);
      const auto [qa, qb] = rig.Connect(*nodes[i], *nodes[j], options);
      // Both directions of a connection at once, except where both ends share one completion queue.
      flows.push_back(std::make_unique<Flow>(nodes[i], nodes[j], qa, qb, random()));
      if (i != j) flows.push_back(std::make_unique<Flow>(nodes[j], nodes[i], qb, qa, random()));
    }
  }
  bool completed = false;
  for (Node* node : nodes) node->memory->OnCompletion([&](CqId) { completed = true; });
  for (auto& flow : flows) flow->PostAll();
  while (rig.fabric()->NextEventTime() != kNever && !::testing::Test::HasFatalFailure()) {
    rig.fabric()->Advance(rig.fabric()->NextEventTime());
    if (!std::exchange(completed, false)) continue;
    for (Node* node : nodes) {
      for (const Completion& completion : node->Completions()) {
        const bool receive = (completion.opcode & IBV_WC_RECV) != 0;
        for (auto& flow : flows) {
          const uint32_t qp = receive ? flow->receiver_qp() : flow->sender_qp();
          if (qp == completion.qp_num) {
            receive ? flow->OnReceived(completion) : flow->OnSent(completion);
            break;
          }
        }
      }
    }
  }
  for (auto& flow : flows) flow->Check();
  EXPECT_EQ(0u, rig.pool().bytes_in_use());
}

TEST(SoftModelProperty, RandomTrafficWithoutLoss) {
  for (uint64_t seed = 1; seed <= 3; ++seed) RunRandomTraffic(seed, 0, "hosts=3", UINT64_MAX);
}

TEST(SoftModelProperty, RandomTrafficUnderLoss) {
  for (uint64_t seed = 10; seed < 16; ++seed) {
    RunRandomTraffic(seed, seed % 2 == 0 ? 0.002 : 0.01,
                     seed % 3 == 0 ? "hosts=3,link=infiniband" : "hosts=3", UINT64_MAX);
  }
}

TEST(SoftModelProperty, RandomTrafficUnderLossWithFewBuffers) {
  for (uint64_t seed = 30; seed < 32; ++seed) RunRandomTraffic(seed, 0.005, "hosts=3", 400000);
}

}  // namespace
}  // namespace sluice::soft
