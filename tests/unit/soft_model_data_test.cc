// Every operation of an RC queue pair, without faults: data, completions, order.
#include <arpa/inet.h>

#include "soft_model_rig.h"

namespace sluice::soft {
namespace {

class SoftModelData : public ::testing::TestWithParam<const char*> {
 protected:
  Rig rig{GetParam()};
  Node& a = rig.AddNode(0);
  Node& b = rig.AddNode(1);
};

TEST_P(SoftModelData, SendOfEverySizeArrivesWhole) {
  const auto [qa, qb] = rig.Connect(a, b);
  for (const uint32_t size : {1u, 4u, 4095u, 4096u, 4097u, 65536u, 65537u, 300000u}) {
    Buffer from = a.MakeBuffer(size, 3);
    Buffer to = b.MakeBuffer(size, 90);
    ASSERT_EQ(0, b.Recv(qb, 7, {to.All()}));
    ASSERT_EQ(0, a.Post(qa, 5, IBV_WR_SEND, {from.All()}));
    rig.Run();
    const Completion sent = a.One();
    EXPECT_EQ(5u, sent.wr_id);
    EXPECT_EQ(IBV_WC_SUCCESS, sent.status);
    EXPECT_EQ(IBV_WC_SEND, sent.opcode);
    EXPECT_EQ(qa, sent.qp_num);
    const Completion received = b.One();
    EXPECT_EQ(7u, received.wr_id);
    EXPECT_EQ(IBV_WC_SUCCESS, received.status);
    EXPECT_EQ(IBV_WC_RECV, received.opcode);
    EXPECT_EQ(size, received.byte_len);
    EXPECT_EQ(qb, received.qp_num);
    EXPECT_EQ(from.bytes, to.bytes) << size;
  }
  EXPECT_EQ(0u, rig.pool().bytes_in_use());
}

TEST_P(SoftModelData, GatherAndScatterListsNeedNotMatch) {
  const auto [qa, qb] = rig.Connect(a, b);
  Buffer from = a.MakeBuffer(20000, 1);
  Buffer to = b.MakeBuffer(20000, 2);
  ASSERT_EQ(0, b.Recv(qb, 1, {to.Sge(0, 1), to.Sge(100, 9000), to.Sge(10000, 0), to.Sge(12000, 6000)}));
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND,
                      {from.Sge(0, 5000), from.Sge(9000, 3), from.Sge(6000, 2999), from.Sge(0, 5000)}));
  rig.Run();
  std::vector<uint8_t> sent(from.bytes.begin(), from.bytes.begin() + 5000);
  sent.insert(sent.end(), from.bytes.begin() + 9000, from.bytes.begin() + 9003);
  sent.insert(sent.end(), from.bytes.begin() + 6000, from.bytes.begin() + 8999);
  sent.insert(sent.end(), from.bytes.begin(), from.bytes.begin() + 5000);
  std::vector<uint8_t> got(to.bytes.begin(), to.bytes.begin() + 1);
  got.insert(got.end(), to.bytes.begin() + 100, to.bytes.begin() + 9100);
  got.insert(got.end(), to.bytes.begin() + 12000,
             to.bytes.begin() + 12000 + static_cast<long>(sent.size() - 9001));
  EXPECT_EQ(sent, got);
  EXPECT_EQ(13002u, b.One().byte_len);
}

TEST_P(SoftModelData, WriteAndWriteWithImmediate) {
  const auto [qa, qb] = rig.Connect(a, b);
  Buffer from = a.MakeBuffer(200000, 1);
  Buffer to = b.MakeBuffer(200000, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.Sge(0, 100000)}, to.address(), to.key));
  // A receive entry without elements is enough: the data does not go there.
  ASSERT_EQ(0, b.Recv(qb, 9, {}));
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_WRITE_WITH_IMM, {from.Sge(100000, 100000)}, to.address() + 100000,
                      to.key, IBV_SEND_SIGNALED, htonl(0xCAFE)));
  rig.Run();
  EXPECT_EQ(from.bytes, to.bytes);
  const std::vector<Completion> sent = a.Completions();
  ASSERT_EQ(2u, sent.size());
  EXPECT_EQ(1u, sent[0].wr_id);
  EXPECT_EQ(IBV_WC_RDMA_WRITE, sent[0].opcode);
  EXPECT_EQ(2u, sent[1].wr_id);
  const Completion received = b.One();
  EXPECT_EQ(9u, received.wr_id);
  EXPECT_EQ(IBV_WC_RECV_RDMA_WITH_IMM, received.opcode);
  EXPECT_EQ(100000u, received.byte_len);
  EXPECT_EQ(static_cast<uint32_t>(IBV_WC_WITH_IMM), received.wc_flags);
  EXPECT_EQ(htonl(0xCAFE), received.imm_data);
}

TEST_P(SoftModelData, SendWithImmediateAndSolicited) {
  const auto [qa, qb] = rig.Connect(a, b);
  ASSERT_EQ(0, b.Recv(qb, 1, {}));
  ASSERT_EQ(0, b.Recv(qb, 2, {}));
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND_WITH_IMM, {}, 0, 0, IBV_SEND_SOLICITED, 0x01020304));
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_SEND, {}, 0, 0, 0));
  rig.Run();
  const std::vector<Completion> received = b.Completions();
  ASSERT_EQ(2u, received.size());
  EXPECT_TRUE(received[0].solicited);
  EXPECT_EQ(0x01020304u, received[0].imm_data);
  EXPECT_EQ(0u, received[0].byte_len);
  EXPECT_FALSE(received[1].solicited);
  EXPECT_EQ(0u, received[1].wc_flags);
  EXPECT_TRUE(a.Completions().empty()) << "unsignalled work completes silently";
}

TEST_P(SoftModelData, ReadOfEverySize) {
  const auto [qa, qb] = rig.Connect(a, b);
  for (const uint32_t size : {0u, 1u, 4096u, 4097u, 65536u, 500001u}) {
    Buffer local = a.MakeBuffer(size + 1, 1);
    Buffer remote = b.MakeBuffer(size + 1, 200);
    ASSERT_EQ(0, a.Post(qa, 3, IBV_WR_RDMA_READ, {local.Sge(0, size)}, remote.address(), remote.key));
    rig.Run();
    const Completion done = a.One();
    EXPECT_EQ(IBV_WC_SUCCESS, done.status) << size;
    EXPECT_EQ(IBV_WC_RDMA_READ, done.opcode);
    EXPECT_EQ(size, done.byte_len);
    EXPECT_TRUE(std::equal(remote.bytes.begin(), remote.bytes.begin() + size, local.bytes.begin())) << size;
  }
}

TEST_P(SoftModelData, ManyReadsKeepOrderWithinTheLimit) {
  QpOptions options;
  options.max_rd_atomic = 2;
  options.max_dest_rd_atomic = 2;
  const auto [qa, qb] = rig.Connect(a, b, options);
  Buffer local = a.MakeBuffer(64 * 10000, 1);
  Buffer remote = b.MakeBuffer(64 * 10000, 77);
  for (uint32_t i = 0; i < 64; ++i) {
    ASSERT_EQ(0, a.Post(qa, i, IBV_WR_RDMA_READ, {local.Sge(i * 10000, 10000)}, remote.address() + i * 10000,
                        remote.key));
  }
  rig.Run();
  const std::vector<Completion> done = a.Completions();
  ASSERT_EQ(64u, done.size());
  for (uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(i, done[i].wr_id);
    EXPECT_EQ(IBV_WC_SUCCESS, done[i].status);
  }
  EXPECT_EQ(remote.bytes, local.bytes);
  EXPECT_EQ(0u, a.counters().retransmitted_packets);
}

TEST_P(SoftModelData, Atomics) {
  const auto [qa, qb] = rig.Connect(a, b);
  Buffer local = a.MakeBuffer(64, 1);
  Buffer remote = b.MakeBuffer(64, 1);
  auto* word = reinterpret_cast<uint64_t*>(remote.bytes.data());
  const auto* result = reinterpret_cast<const uint64_t*>(local.bytes.data());
  *word = 40;
  ASSERT_EQ(0, a.PostAtomic(qa, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, local.Sge(0, 8), remote.address(), remote.key,
                            2, 0));
  ASSERT_EQ(0, a.PostAtomic(qa, 2, IBV_WR_ATOMIC_CMP_AND_SWP, local.Sge(8, 8), remote.address(), remote.key,
                            41, 1));
  ASSERT_EQ(0, a.PostAtomic(qa, 3, IBV_WR_ATOMIC_CMP_AND_SWP, local.Sge(16, 8), remote.address(), remote.key,
                            42, 99));
  rig.Run();
  const std::vector<Completion> done = a.Completions();
  ASSERT_EQ(3u, done.size());
  EXPECT_EQ(IBV_WC_FETCH_ADD, done[0].opcode);
  EXPECT_EQ(IBV_WC_COMP_SWAP, done[1].opcode);
  EXPECT_EQ(8u, done[0].byte_len);
  EXPECT_EQ(40u, result[0]);
  EXPECT_EQ(42u, result[1]) << "compare failed, the word is returned and stays";
  EXPECT_EQ(42u, result[2]);
  EXPECT_EQ(99u, *word);
}

TEST_P(SoftModelData, InlineDataIsTakenAtPost) {
  const auto [qa, qb] = rig.Connect(a, b);
  Buffer to = b.MakeBuffer(256, 2);
  std::vector<std::byte> bytes(256, std::byte{0x5A});
  SendWork work;
  work.opcode = IBV_WR_RDMA_WRITE;
  work.flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  work.inline_data = bytes;
  work.remote_address = to.address();
  work.rkey = to.key;
  ASSERT_EQ(0, a.nic->PostSend(qa, work));
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(std::vector<uint8_t>(256, 0x5A), to.bytes);
  std::vector<std::byte> large(257);
  work.inline_data = large;
  EXPECT_EQ(EINVAL, a.nic->PostSend(qa, work));
}

TEST_P(SoftModelData, AllSignalledCompletesEverythingInOrder) {
  QpOptions options;
  options.sq_sig_all = true;
  const auto [qa, qb] = rig.Connect(a, b, options);
  Buffer from = a.MakeBuffer(5000, 1);
  Buffer to = b.MakeBuffer(5000, 2);
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(0, a.Post(qa, i, i % 3 == 0 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, {from.Sge(0, 5000)},
                        to.address(), to.key, 0));
  }
  rig.Run();
  const std::vector<Completion> done = a.Completions();
  ASSERT_EQ(100u, done.size());
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(i, done[i].wr_id);
}

TEST_P(SoftModelData, FenceWaitsForEarlierReads) {
  const auto [qa, qb] = rig.Connect(a, b);
  Buffer local = a.MakeBuffer(100000, 1);
  Buffer remote = b.MakeBuffer(100000, 50);
  Buffer target = b.MakeBuffer(100000, 9);
  // What is read is sent on. The data of a fenced request is read ahead of it, so the copy needs two steps:
  // with the fence the write leaves only when the READ is complete.
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_READ, {local.All()}, remote.address(), remote.key));
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_WRITE, {local.Sge(0, 8)}, target.address(), target.key,
                      IBV_SEND_SIGNALED | IBV_SEND_FENCE));
  rig.Run();
  const std::vector<Completion> done = a.Completions();
  ASSERT_EQ(2u, done.size());
  EXPECT_EQ(1u, done[0].wr_id);
  EXPECT_EQ(remote.bytes, local.bytes);
  EXPECT_TRUE(std::equal(remote.bytes.begin(), remote.bytes.begin() + 8, target.bytes.begin()))
      << "the fenced write carries what the READ brought";
}

TEST_P(SoftModelData, LoopbackBetweenQueuePairsOfOnePort) {
  Node& other = rig.AddNode(0);
  const auto [qa, qb] = rig.Connect(a, other);
  Buffer from = a.MakeBuffer(50000, 1);
  Buffer to = other.MakeBuffer(50000, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_READ, {from.All()}, to.address(), to.key));
  rig.Run();
  EXPECT_EQ(2u, a.Completions().size());
  EXPECT_EQ(from.bytes, to.bytes);
  EXPECT_EQ(0u, a.counters().tx_packets) << "does not leave the NIC";
}

TEST_P(SoftModelData, OneQueuePairConnectedToItself) {
  const QpOptions options;
  const uint32_t qp = rig.CreateQp(a, options);
  Rig::Establish(a, qp, a, qp, options, 5, 5);
  Buffer local = a.MakeBuffer(8, 1);
  Buffer remote = a.MakeBuffer(8, 9);
  ASSERT_EQ(0, a.Post(qp, 1, IBV_WR_RDMA_READ, {local.All()}, remote.address(), remote.key));
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(remote.bytes, local.bytes);
}

TEST_P(SoftModelData, SharedReceiveQueueServesAllAndTellsItsLimit) {
  ibv_srq_attr attr{100, 2, 0};
  ibv_srq_attr actual{};
  ASSERT_EQ(0, b.nic->CreateSrq(b.process, b.pd, attr, &b.srq, &actual));
  QpOptions options;
  const uint32_t q1 = rig.CreateQp(a, options);
  const uint32_t q2 = rig.CreateQp(a, options);
  options.with_srq = true;
  const uint32_t r1 = rig.CreateQp(b, options);
  const uint32_t r2 = rig.CreateQp(b, options);
  Rig::Establish(a, q1, b, r1, options, 1, 2);
  Rig::Establish(b, r1, a, q1, options, 2, 1);
  Rig::Establish(a, q2, b, r2, options, 3, 4);
  Rig::Establish(b, r2, a, q2, options, 4, 3);
  Buffer to = b.MakeBuffer(1000, 0);
  EXPECT_EQ(EINVAL, b.Recv(r1, 0, {to.All()})) << "the queue pair has no receive queue of its own";
  for (uint32_t i = 0; i < 10; ++i)
    ASSERT_EQ(0, b.nic->PostSrqRecv(b.srq, {i, std::vector{to.Sge(i * 100, 100)}}));
  attr.srq_limit = 8;
  ASSERT_EQ(0, b.nic->ModifySrq(b.process, b.srq, attr, IBV_SRQ_LIMIT));
  Buffer from = a.MakeBuffer(100, 5);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(0, a.Post(q1, 1, IBV_WR_SEND, {from.All()}));
    ASSERT_EQ(0, a.Post(q2, 2, IBV_WR_SEND, {from.All()}));
    rig.Run();
    EXPECT_EQ(i == 1, b.Events() == std::vector{IBV_EVENT_SRQ_LIMIT_REACHED});
  }
  const std::vector<Completion> received = b.Completions();
  ASSERT_EQ(4u, received.size());
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(i, received[i].wr_id);
  ASSERT_EQ(0, b.nic->QuerySrq(b.process, b.srq, &actual));
  EXPECT_EQ(0u, actual.srq_limit) << "the limit fires once";
  EXPECT_EQ(EBUSY, b.nic->DestroySrq(b.process, b.srq));
}

TEST_P(SoftModelData, PayloadPoolBoundsMemoryAndStillDelivers) {
  Rig tight(GetParam(), 200000);
  Node& x = tight.AddNode(0);
  Node& y = tight.AddNode(1);
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (int i = 0; i < 4; ++i) pairs.push_back(tight.Connect(x, y));
  Buffer from = x.MakeBuffer(1 << 20, 1);
  Buffer to = y.MakeBuffer(1 << 20, 2);
  Buffer back = x.MakeBuffer(1 << 20, 3);
  for (int i = 0; i < 4; ++i) {
    const uint32_t offset = static_cast<uint32_t>(i) << 18;
    ASSERT_EQ(0, x.Post(pairs[i].first, 1, IBV_WR_RDMA_WRITE, {from.Sge(offset, 1 << 18)},
                        to.address() + offset, to.key));
    ASSERT_EQ(0, x.Post(pairs[i].first, 2, IBV_WR_RDMA_READ, {back.Sge(offset, 1 << 18)},
                        to.address() + offset, to.key));
  }
  tight.Run();
  EXPECT_EQ(8u, x.Completions().size());
  EXPECT_EQ(from.bytes, to.bytes);
  EXPECT_EQ(from.bytes, back.bytes);
  EXPECT_LE(tight.pool().peak_bytes(), 200000u);
  EXPECT_EQ(0u, x.counters().local_ack_timeout_err);
}

// Memory that holds nothing: for messages larger than a test should touch.
class NoMemory : public DirectMemory {
 public:
  explicit NoMemory(Fabric* fabric) : DirectMemory(fabric), fabric_(fabric) {}
  void Gather(DmaId id, std::span<const MemoryRange>, const PayloadRef&) override {
    fabric_->DmaDone(id, true, 0);
  }
  void Scatter(uint64_t, const PayloadRef&, uint32_t, uint32_t length) override { written += length; }
  uint64_t written = 0;

 private:
  Fabric* fabric_;
};

TEST(SoftModelLargeMessage, TwoGibibytesInOneRequest) {
  constexpr uint64_t kBytes = uint64_t{1} << 31;
  Rig rig("hosts=2,rate=400G");
  auto memory_a = std::make_unique<NoMemory>(rig.fabric());
  auto memory_b = std::make_unique<NoMemory>(rig.fabric());
  NoMemory& mine = *memory_a;
  NoMemory& theirs = *memory_b;
  Node& a = rig.AddNode(0, 0, std::move(memory_a));
  Node& b = rig.AddNode(1, 0, std::move(memory_b));
  const auto [qa, qb] = rig.Connect(a, b);
  uint32_t key_a = 0;
  uint32_t key_b = 0;
  ASSERT_EQ(0, a.nic->RegMr(a.process, a.pd, 4096, kBytes, 4096, kAllAccess, &key_a));
  ASSERT_EQ(0, b.nic->RegMr(b.process, b.pd, 4096, kBytes, 0, kAllAccess, &key_b));
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {{4096, static_cast<uint32_t>(kBytes), key_a}}, 0, key_b));
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_READ, {{4096, static_cast<uint32_t>(kBytes), key_a}}, 0, key_b));
  rig.Run();
  const std::vector<Completion> done = a.Completions();
  ASSERT_EQ(2u, done.size());
  EXPECT_EQ(IBV_WC_SUCCESS, done[1].status);
  EXPECT_EQ(static_cast<uint32_t>(kBytes), done[1].byte_len);
  EXPECT_EQ(kBytes, theirs.written);
  EXPECT_EQ(kBytes, mine.written);
  EXPECT_LT(rig.pool().peak_bytes(), 16u << 20)
      << "memory in use is what is read ahead and what is on the wire";
}

INSTANTIATE_TEST_SUITE_P(Links, SoftModelData,
                         ::testing::Values("hosts=2", "hosts=2,link=infiniband,rate=400G"),
                         [](const auto& test) {
                           return std::string(test.index == 0 ? "Roce" : "InfiniBand");
                         });

}  // namespace
}  // namespace sluice::soft
