// Background traffic beside queue pairs: it takes its share of links, shows in counters, and changes nothing from
// run to run.
#include "soft_model_rig.h"
#include "verbs/soft/flows/background_player.h"

namespace sluice::soft {
namespace {

struct Shared {
  explicit Shared(const std::string& text, const std::string& background, const std::string& faults = "",
                  uint64_t seed = 1) {
    Result<Topology> topology = Topology::FromText(text);
    EXPECT_TRUE(topology.ok()) << topology.status().message();
    topology->seed = seed;
    const Status added = topology->Add(faults, background);
    EXPECT_TRUE(added.ok()) << added.message();
    Result<std::unique_ptr<Fabric>> made = Fabric::Create(std::move(*topology), &pool, MakeBackgroundPlayer);
    EXPECT_TRUE(made.ok()) << made.status().message();
    rig = std::make_unique<Rig>(std::move(*made));
  }
  // 4 MB from host 0 to host 1; how long it took. What is left of the background runs to its end.
  Picos Write() {
    Node& a = rig->AddNode(0);
    Node& b = rig->AddNode(1);
    const auto [qa, qb] = rig->Connect(a, b);
    Buffer from = a.MakeBuffer(4 << 20, 1);
    Buffer to = b.MakeBuffer(4 << 20, 2);
    EXPECT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
    rig->Run();
    const Completion done = a.One();
    EXPECT_EQ(IBV_WC_SUCCESS, done.status);
    EXPECT_EQ(from.bytes, to.bytes);
    return static_cast<Picos>(done.timestamp);
  }
  const PortCounters& counters(uint32_t host) { return *rig->fabric()->nic(host, 0)->counters(1); }
  HeapPayloadPool pool;
  std::unique_ptr<Rig> rig;
};

constexpr uint64_t kWritten = 4 << 20;
constexpr uint64_t kBackground = 8 << 20;

TEST(SoftNetTraffic, SharesTheReceiversLinkAndItsCounters) {
  for (const std::string link : {"roce", "infiniband,delay=100ns"}) {
    const std::string text = "hosts=3,link=" + link;
    const Picos alone = Shared(text, "").Write();
    Shared shared(text, "incast:hosts=host2,targets=host1,bytes=8M");
    const Picos time = shared.Write();
    // Two senders of equal right on one link: while both send, each has half.
    EXPECT_NEAR(2.0, static_cast<double>(time) / static_cast<double>(alone), 0.05) << link;
    EXPECT_EQ(kBackground, shared.counters(2).tx_payload_bytes) << link;
    EXPECT_EQ(kBackground + kWritten, shared.counters(1).rx_payload_bytes) << link;
    EXPECT_EQ(kWritten, shared.counters(0).tx_payload_bytes) << link;
    EXPECT_EQ(0u, shared.counters(1).dropped_packets) << link;
  }
}

TEST(SoftNetTraffic, EqualSeedsGiveEqualRuns) {
  const std::string storage = "storage:hosts=host0..host5,targets=host6+host7,load=0.4,bytes=64K,stop=2ms";
  const auto hash = [&](uint64_t seed) {
    Shared shared("leaf-spine:hosts=8,hosts_per_leaf=4", storage, "loss:probability=1e-3", seed);
    shared.Write();
    EXPECT_GT(shared.rig->fabric()->statistics().dropped_packets, 0u);
    return shared.rig->fabric()->statistics().trace_hash;
  };
  EXPECT_EQ(hash(5), hash(5));
  EXPECT_NE(hash(5), hash(6));
}

TEST(SoftNetTraffic, ANicThatDiesTakesItsTrafficWithIt) {
  Shared shared("hosts=4", "permutation:bytes=64M", "nic-death:nic=host3/soft0,at=1ms");
  shared.Write();
  // Ends, because nothing waits for an answer of the dead NIC; the others have sent everything.
  const uint64_t gone = shared.counters(3).tx_payload_bytes;
  EXPECT_LT(gone, 64u << 20);
  uint64_t complete = 0;
  for (uint32_t host = 0; host < 3; ++host) {
    const uint64_t own = shared.counters(host).tx_payload_bytes - (host == 0 ? kWritten : 0);
    if (own == 64u << 20) ++complete;
  }
  EXPECT_EQ(2u, complete) << "all but the one that sends to the dead NIC";
}

TEST(SoftNetTraffic, WithoutAPlayerItIsRefused) {
  Topology topology = *Topology::FromText("hosts=2");
  ASSERT_TRUE(topology.Add("", "permutation").ok());
  HeapPayloadPool pool;
  EXPECT_NE(std::string::npos, Fabric::Create(topology, &pool).status().message().find("[[background]]"));
}

}  // namespace
}  // namespace sluice::soft
