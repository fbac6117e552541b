// Latency, goodput, fairness and byte counts against closed forms, and determinism.
#include "soft_model_rig.h"

namespace sluice::soft {
namespace {

struct Link {
  const char* topology;
  double rate;
  uint32_t header;
  double delay;
};

constexpr Link kLinks[] = {
    {"hosts=3", 100e9, 82, 1e-6},
    {"hosts=3,rate=400G,delay=300ns", 400e9, 82, 300e-9},
    {"hosts=3,rate=400G,link=infiniband,delay=100ns", 400e9, 26, 100e-9},
};

double Seconds(Picos time) {
  return static_cast<double>(time) / kPicosPerSecond;
}

class SoftModelTiming : public ::testing::TestWithParam<Link> {
 protected:
  double Serialise(uint32_t wire_bytes) const { return wire_bytes * 8.0 / GetParam().rate; }
  Rig rig{GetParam().topology};
  Node& a = rig.AddNode(0);
  Node& b = rig.AddNode(1);
  std::vector<Buffer> buffers_;
};

TEST_P(SoftModelTiming, LatencyOfOneSmallMessage) {
  const auto [qa, qb] = rig.Connect(a, b);
  Buffer from = a.MakeBuffer(8, 1);
  Buffer to = b.MakeBuffer(8, 2);
  ASSERT_EQ(0, b.Recv(qb, 1, {to.All()}));
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND, {from.All()}));
  rig.Run();
  const double there = 2 * (Serialise(GetParam().header + 8) + GetParam().delay);
  const double back = 2 * (Serialise(GetParam().header + 4) + GetParam().delay);
  EXPECT_NEAR(there, Seconds(b.One().timestamp), 0.01 * there);
  EXPECT_NEAR(there + back, Seconds(a.One().timestamp), 0.01 * (there + back));
}

TEST_P(SoftModelTiming, GoodputOfOneFlow) {
  const auto [qa, qb] = rig.Connect(a, b);
  constexpr uint32_t kBytes = 16 << 20;
  Buffer from = a.MakeBuffer(kBytes, 1);
  Buffer to = b.MakeBuffer(kBytes, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run();
  const double packets = kBytes / 4096;
  const double expected = packets * Serialise(4096 + GetParam().header);
  EXPECT_NEAR(expected, Seconds(a.One().timestamp), 0.01 * expected);
  // Exact wire bytes: the first packet of a write carries 16 more. An acknowledgement every 16 packets.
  EXPECT_EQ(static_cast<uint64_t>(packets) * (4096 + GetParam().header) + 16, a.counters().tx_bytes);
  EXPECT_EQ(static_cast<uint64_t>(packets) / 16, b.counters().tx_packets);
  EXPECT_EQ((GetParam().header + 4) * b.counters().tx_packets, b.counters().tx_bytes);
  EXPECT_EQ(kBytes, b.counters().rx_payload_bytes);
  EXPECT_EQ(2 * (a.counters().tx_packets + b.counters().tx_packets), rig.fabric()->statistics().packet_hops);
}

TEST_P(SoftModelTiming, ReadGoodputAndLatency) {
  const auto [qa, qb] = rig.Connect(a, b);
  constexpr uint32_t kBytes = 4 << 20;
  Buffer local = a.MakeBuffer(kBytes, 1);
  Buffer remote = b.MakeBuffer(kBytes, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_READ, {local.All()}, remote.address(), remote.key));
  rig.Run();
  const double request = 2 * (Serialise(GetParam().header + 16) + GetParam().delay);
  const double expected = request + kBytes / 4096 * Serialise(4096 + GetParam().header) +
                          2 * GetParam().delay + Serialise(4096 + GetParam().header);
  EXPECT_NEAR(expected, Seconds(a.One().timestamp), 0.01 * expected);
}

TEST_P(SoftModelTiming, QueuePairsShareTheirPortEvenly) {
  constexpr int kFlows = 5;
  constexpr uint32_t kBytes = 1 << 20;
  Buffer from = a.MakeBuffer(kBytes, 1);
  Buffer to = b.MakeBuffer(kBytes, 2);
  for (int i = 0; i < kFlows; ++i) {
    const auto [qa, qb] = rig.Connect(a, b);
    ASSERT_EQ(0, a.Post(qa, static_cast<uint64_t>(i), IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  }
  rig.Run();
  const std::vector<Completion> done = a.Completions();
  ASSERT_EQ(static_cast<size_t>(kFlows), done.size());
  const double expected = kFlows * 256 * Serialise(4096 + GetParam().header);
  // Taking turns, all end within one round of each other, at the end.
  for (const Completion& completion : done)
    EXPECT_NEAR(expected, Seconds(completion.timestamp), 0.05 * expected);
}

TEST_P(SoftModelTiming, IncastIsLossless) {
  Node& c = rig.AddNode(2);
  Buffer to = c.MakeBuffer(8 << 20, 0);
  int done = 0;
  for (Node* sender : {&a, &b}) {
    const auto [qs, qc] = rig.Connect(*sender, c);
    Buffer from = sender->MakeBuffer(4 << 20, 1);
    ASSERT_EQ(0,
              sender->Post(qs, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address() + done * (4u << 20), to.key));
    ++done;
    // The buffers must live until the run ends.
    buffers_.push_back(std::move(from));
  }
  rig.Run();
  const double expected = 2048 * Serialise(4096 + GetParam().header);
  EXPECT_NEAR(expected, std::max(Seconds(a.One().timestamp), Seconds(b.One().timestamp)), 0.02 * expected);
  EXPECT_EQ(0u, rig.fabric()->statistics().dropped_packets);
  EXPECT_EQ(0u, a.counters().retransmitted_packets + b.counters().retransmitted_packets);
}

TEST_P(SoftModelTiming, BytesAreCountedByServiceLevelAndTrafficClass) {
  QpOptions options;
  options.sl = 5;
  options.traffic_class = 106;
  const auto [qa, qb] = rig.Connect(a, b, options);
  Buffer from = a.MakeBuffer(4096, 1);
  Buffer to = b.MakeBuffer(4096, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run();
  const bool roce = GetParam().header == 82;
  EXPECT_EQ(a.counters().tx_bytes, a.counters().tx_bytes_by_sl[5]);
  EXPECT_EQ(a.counters().tx_bytes, a.counters().tx_bytes_by_traffic_class[roce ? 106 : 0]);
  EXPECT_EQ(b.counters().tx_bytes, b.counters().tx_bytes_by_sl[5])
      << "acknowledgements travel in the same lane";
}

INSTANTIATE_TEST_SUITE_P(Links, SoftModelTiming, ::testing::ValuesIn(kLinks),
                         [](const auto& test) { return "Link" + std::to_string(test.index); });

uint64_t TraceOfABusyRun(bool in_slices) {
  Rig rig("hosts=8,nics=2");
  std::vector<Node*> nodes;
  std::vector<Buffer> buffers;
  for (uint32_t host = 0; host < 8; ++host) {
    nodes.push_back(&rig.AddNode(host, host % 2));
    buffers.push_back(nodes.back()->MakeBuffer(100000, static_cast<uint8_t>(host)));
  }
  uint64_t count = 0;
  rig.fabric()->SetFaultHook(
      [&](const PacketView&) { return ++count % 97 == 0 ? PacketFate::kDrop : PacketFate::kDeliver; });
  for (uint32_t i = 0; i < 8; ++i) {
    for (uint32_t j = 0; j < 8; ++j) {
      const auto [qa, qb] = rig.Connect(*nodes[i], *nodes[j]);
      EXPECT_EQ(0, nodes[i]->Post(qa, 1, (i + j) % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
                                  {buffers[i].All()}, buffers[j].address(), buffers[j].key));
    }
  }
  if (in_slices) {
    // As the real-time driver does: at odd moments, a few events at a time.
    for (Picos now = 0; now < 50 * kPicosPerMs; now += 7'777'777) {
      while (!rig.fabric()->AdvanceBounded(now, 13)) {
      }
    }
  }
  rig.Run();
  return rig.fabric()->statistics().trace_hash;
}

TEST(SoftModelDeterminism, SameInputSameTrace) {
  const uint64_t first = TraceOfABusyRun(false);
  EXPECT_EQ(first, TraceOfABusyRun(false));
  EXPECT_EQ(first, TraceOfABusyRun(true)) << "how time is advanced must not matter";
}

TEST(SoftModelDeterminism, CallsOfTheOwnerRunInOrder) {
  Rig rig("hosts=1");
  std::vector<int> order;
  rig.fabric()->CallAt(20, [&] { order.push_back(3); });
  rig.fabric()->CallAt(10, [&] {
    order.push_back(1);
    rig.fabric()->CallAt(10, [&] { order.push_back(2); });
  });
  rig.fabric()->CallAt(20, [&] { order.push_back(4); });
  rig.Run();
  EXPECT_EQ((std::vector{1, 2, 3, 4}), order);
  EXPECT_EQ(20, rig.fabric()->Now());
}

}  // namespace
}  // namespace sluice::soft
