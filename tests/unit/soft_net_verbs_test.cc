// Queue pairs over the whole network: what a work request costs, lanes by service level and traffic class,
// notifications of congestion.
#include "soft_model_rig.h"
#include "verbs/soft/model/network_truth.h"

namespace sluice::soft {
namespace {

class SoftNetVerbs : public ::testing::Test {
 protected:
  std::unique_ptr<Fabric> Make(Topology topology) {
    Result<std::unique_ptr<Fabric>> made = Fabric::Create(std::move(topology), &pool_);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }
  static Topology Parse(const std::string& text) {
    Result<Topology> topology = Topology::Parse(text);
    EXPECT_TRUE(topology.ok()) << topology.status().message();
    return *topology;
  }
  HeapPayloadPool pool_;
};

TEST_F(SoftNetVerbs, AWorkRequestPaysDoorbellAndPcie) {
  for (const bool realistic : {false, true}) {
    Topology topology = Parse("hosts=2,rate=400G,delay=300ns");
    if (realistic) topology.nic_settings = NicSettings::Realistic();
    Rig rig(Make(std::move(topology)));
    Node& a = rig.AddNode(0);
    Node& b = rig.AddNode(1);
    const auto [qa, qb] = rig.Connect(a, b);
    Buffer from = a.MakeBuffer(8, 1);
    Buffer to = b.MakeBuffer(8, 2);
    ASSERT_EQ(0, b.Recv(qb, 1, {to.All()}));
    ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND, {from.All()}));
    rig.Run();
    // Doorbell, read latency and eight bytes at 440 Gb/s, rounded up; acknowledgements cost none of it.
    const Picos cost = realistic ? 300'000 + 700'000 + 146 : 0;
    const Picos there = cost + 2 * ((82 + 8) * 20 + 300'000);
    EXPECT_EQ(there, static_cast<Picos>(b.One().timestamp));
    EXPECT_EQ(there + 2 * (86 * 20 + 300'000), static_cast<Picos>(a.One().timestamp));
  }
}

TEST_F(SoftNetVerbs, LanesFollowServiceLevelAndTrafficClass) {
  struct Case {
    const char* topology;
    SwitchSettings settings;
    uint8_t sl;
    uint8_t traffic_class;
    uint32_t lane;
  };
  const Case cases[] = {{"hosts=2,link=infiniband,delay=100ns", SwitchSettings::InfiniBand(), 6, 0, 2},
                        {"hosts=2", SwitchSettings::Shared64(), 6, 106, 3},
                        {"hosts=2", SwitchSettings::Shared64(), 0, 0, 0}};
  for (const Case& c : cases) {
    Topology topology = Parse(c.topology);
    topology.switch_settings = c.settings;
    Rig rig(Make(std::move(topology)));
    Node& a = rig.AddNode(0);
    Node& b = rig.AddNode(1);
    QpOptions options;
    options.sl = c.sl;
    options.traffic_class = c.traffic_class;
    const auto [qa, qb] = rig.Connect(a, b, options);
    Buffer from = a.MakeBuffer(100000, 1);
    Buffer to = b.MakeBuffer(100000, 2);
    ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
    rig.Run();
    // Links: 0 to host 0, 1 to host 1; data and acknowledgements, in one lane all the way.
    for (uint32_t directed = 0; directed < 4; ++directed) {
      const LinkTruth link = rig.fabric()->truth().link(directed);
      uint64_t bytes = 0;
      for (const uint64_t lane_bytes : link.bytes) bytes += lane_bytes;
      EXPECT_GT(bytes, 0u);
      EXPECT_EQ(bytes, link.bytes[c.lane]);
    }
  }
}

TEST_F(SoftNetVerbs, MarkedQueuePairsAreNotifiedAndSlowDown) {
  Topology topology = Parse("hosts=3");
  topology.switch_settings = SwitchSettings::Shared64();
  topology.nic_settings.rate_control = RateControl::kDcqcn;
  Rig rig(Make(std::move(topology)));
  Node& c = rig.AddNode(2);
  constexpr uint32_t kBytes = 8 << 20;
  Buffer to = c.MakeBuffer(kBytes, 0);
  std::vector<Node*> senders;
  std::vector<Buffer> buffers;
  for (uint32_t host = 0; host < 2; ++host) {
    senders.push_back(&rig.AddNode(host));
    const auto [qs, qc] = rig.Connect(*senders.back(), c);
    buffers.push_back(senders.back()->MakeBuffer(kBytes, 1));
    ASSERT_EQ(0,
              senders.back()->Post(qs, 1, IBV_WR_RDMA_WRITE, {buffers.back().All()}, to.address(), to.key));
  }
  rig.Run();
  const uint64_t sent = c.counters().np_cnp_sent;
  EXPECT_GT(sent, 0u);
  EXPECT_GT(c.counters().np_ecn_marked_roce_packets, sent) << "at most one per 50 us and queue pair";
  EXPECT_EQ(sent, senders[0]->counters().rp_cnp_handled + senders[1]->counters().rp_cnp_handled);
  EXPECT_EQ(IBV_WC_SUCCESS, senders[0]->One().status);
  EXPECT_EQ(IBV_WC_SUCCESS, senders[1]->One().status);
  EXPECT_EQ(0u, rig.fabric()->statistics().dropped_packets);
}

}  // namespace
}  // namespace sluice::soft
