// Random traffic on random InfiniBand networks with buffers of a few packets: credits are conserved at every
// moment, and everything drains without a timer that would hide a sender that nobody asks again.
#include <algorithm>
#include <random>

#include "soft_model_rig.h"
#include "soft_net_rig.h"
#include "verbs/soft/flows/background_player.h"
#include "verbs/soft/model/background.h"
#include "verbs/soft/model/network_truth.h"

namespace sluice::soft {
namespace {

constexpr uint64_t kSmallestBuffer = 66 * kCreditBytes;  // one packet of 4096 bytes with all of its headers

class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed) {}
  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }
  bool Coin() { return Below(2) == 0; }
  template <typename T>
  T OneOf(std::initializer_list<T> choices) {
    return choices.begin()[Below(static_cast<uint32_t>(choices.size()))];
  }

 private:
  std::mt19937_64 random_;
};

Topology RandomNetwork(Draws& draw) {
  const std::string text =
      draw.OneOf<const char*>(
          {"hosts=4", "hosts=6,rate=400G", "leaf-spine:hosts=8,hosts_per_leaf=2,spines=2,rate=400G",
           "leaf-spine:hosts=9,hosts_per_leaf=3,spines=1,rate=100G,spine_rate=400G",
           "leaf-spine:hosts=8,hosts_per_leaf=4,rate=200G,spine_rate=100G,links_per_spine=2",
           "fat-tree:hosts=16,k=4,rate=100G"}) +
      std::string(",link=infiniband,switch=infiniband,delay=") +
      draw.OneOf<const char*>({"0ns", "50ns", "100ns", "1us"});
  Topology topology = NetRig::Make(text);
  SwitchSettings& switches = topology.switch_settings;
  switches.vl_buffer_bytes =
      kSmallestBuffer + kCreditBytes * draw.OneOf({0U, 1U, 2U, 66U, 66U + draw.Below(200)});
  switches.credit_processing = draw.OneOf({0, 50, 333}) * kPicosPerNs;
  if (draw.Coin()) switches.forwarding = Forwarding::kCutThrough;
  const uint32_t lanes = draw.OneOf({1U, 2U, 8U});
  for (uint32_t sl = 0; sl < 16; ++sl) switches.sl_to_vl[sl] = static_cast<uint8_t>(sl % lanes);
  switches.vl_low.clear();
  for (uint8_t lane = 0; lane < kLanes; ++lane) {
    switches.vl_low.push_back({lane, static_cast<uint8_t>(1 + draw.Below(255))});
  }
  if (draw.Coin()) {
    switches.vl_high = {{static_cast<uint8_t>(draw.Below(lanes)), 64}};
    switches.vl_high_limit = static_cast<uint8_t>(draw.OneOf({0, 1, 255}));
  }
  if (draw.Below(4) != 0) topology.nic_settings = NicSettings::Realistic();
  NicSettings& nics = topology.nic_settings;
  if (draw.Coin()) nics.pcie_write_bps = topology.links[0].rate_bps / (1 + draw.Below(3));
  nics.acks_first = draw.Coin();
  nics.burst_packets = draw.OneOf({1U, 4U});
  if (draw.Below(3) == 0) {
    topology.routing.mode = RoutingMode::kAdaptive;
    nics.reorder_packets = 256;
  }
  return topology;
}

// Credits of every lane of every link.
void ExpectConserved(const NetworkTruth& truth, bool at_rest, Picos now) {
  for (uint32_t link = 0; link < truth.directed_links(); ++link) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const CreditTruth credits = truth.credits(link, lane);
      ASSERT_NE(0u, credits.buffer);
      ASSERT_TRUE(at_rest ? credits.at_rest() : credits.conserved())
          << "link " << link << " lane " << lane << " at " << now << " ps: of " << credits.buffer
          << " blocks " << credits.at_sender << " at the sender, " << credits.returning << " returning, "
          << credits.on_wire << " on the wire, " << credits.stored << " stored";
    }
  }
}

// One event after the other, and credits looked at often; then they are all at home.
void RunChecked(Draws& draw, const NetworkTruth& truth, const std::function<Picos()>& next,
                const std::function<void(Picos)>& advance) {
  uint32_t until_check = 1;
  Picos now = 0;
  while (next() != kNever && !::testing::Test::HasFatalFailure()) {
    now = next();
    advance(now);
    if (--until_check != 0) continue;
    until_check = 1 + draw.Below(300);
    ExpectConserved(truth, false, now);
  }
  if (!::testing::Test::HasFatalFailure()) ExpectConserved(truth, true, now);
}

// Packets without acknowledgements: nothing ever asks a sender again but credits. Receivers stall now and then.
TEST(SoftNetCreditsProperty, StreamsDrain) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Draws draw(seed);
    NetRig rig(RandomNetwork(draw));
    const auto hosts = static_cast<uint32_t>(rig.hosts());
    std::vector<const Stream*> streams;
    const auto add = [&] {
      StreamOptions options;
      options.from = draw.Below(hosts);
      options.to = (options.from + 1 + draw.Below(hosts - 1)) % hosts;
      options.packets = 1 + draw.Below(150);
      options.payload_bytes = draw.OneOf({0U, 1U, 64U, 1000U, 4096U});
      options.header_bytes = draw.OneOf({26U, 30U, 66U, 86U});
      options.lane = static_cast<uint8_t>(draw.Below(kLanes));
      options.one_packet_messages = draw.Coin();
      streams.push_back(&rig.Add(options));
    };
    for (int i = 0; i < 20; ++i) add();
    for (int i = 0; i < 20; ++i) {
      Port& port = rig.host(draw.Below(hosts)).port;
      port.SetStalled(draw.Coin());
      rig.Run(rig.Now() + Picos{draw.Below(10'000)} * kPicosPerNs);
      ASSERT_NO_FATAL_FAILURE(ExpectConserved(rig.network(), false, rig.Now()));
      add();
    }
    for (uint32_t host = 0; host < hosts; ++host) rig.host(host).port.SetStalled(false);
    Scheduler& scheduler = rig.context().scheduler;
    ASSERT_NO_FATAL_FAILURE(RunChecked(
        draw, rig.network(), [&] { return scheduler.NextTime(); },
        [&](Picos now) { scheduler.Run(now, UINT64_MAX); }));
    for (const Stream* stream : streams) {
      EXPECT_EQ(stream->options.packets, rig.Received(*stream).packets) << "stream " << stream->number;
    }
    EXPECT_EQ(0u, rig.statistics().dropped_packets);
  }
}

// Queue pairs and background flows share ports, lanes and switches.
class Mixed {
 public:
  Mixed(uint64_t seed, std::string faults, uint8_t timeout)
      : draw_(seed), faulty_(!faults.empty()), timeout_(timeout) {
    Topology topology = RandomNetwork(draw_);
    topology.seed = seed;
    const std::string background =
        draw_.OneOf<std::string>(
            {"storage:hosts=host0..host2,targets=host3,load=0.3,bytes=64K,stop=200us,read_share=0.5",
             "bursts:load=0.3,stop=200us,on=20us", "permutation:bytes=40K,count=4,spread=50us",
             "incast:hosts=host0+host1+host2,targets=host3,bytes=100K,count=2,spread=20us"}) +
        ",sl=" + std::to_string(draw_.Below(16));
    constexpr std::string_view kSwitch = "SWITCH";
    const size_t place = faults.find(kSwitch);
    if (place != std::string::npos) faults.replace(place, kSwitch.size(), topology.switches[0].name);
    const Status added = topology.Add(faults, background);
    EXPECT_TRUE(added.ok()) << added.message();
    Result<std::vector<BackgroundMessage>> messages =
        MakeBackground(topology, topology.background, topology.seed);
    EXPECT_TRUE(messages.ok()) << messages.status().message();
    for (const BackgroundMessage& message : *messages) {
      if (message.source != message.destination) background_bytes_ += message.bytes;
    }
    Result<std::unique_ptr<Fabric>> made = Fabric::Create(std::move(topology), &pool_, MakeBackgroundPlayer);
    EXPECT_TRUE(made.ok()) << made.status().message();
    rig_ = std::make_unique<Rig>(std::move(*made));
    const auto hosts = static_cast<uint32_t>(fabric().topology().hosts.size());
    for (uint32_t host = 0; host < hosts; ++host) nodes_.push_back(&rig_->AddNode(host));
    for (uint32_t i = 0; i < 2 * hosts; ++i) Connect(i % hosts, (i + 1 + draw_.Below(hosts - 1)) % hosts);
  }

  void Run() {
    ASSERT_NO_FATAL_FAILURE(RunChecked(
        draw_, fabric().truth(), [&] { return fabric().NextEventTime(); },
        [&](Picos now) { fabric().Advance(now); }));
    uint64_t completed = 0;
    uint64_t failed = 0;
    for (Node* node : nodes_) {
      for (const Completion& completion : node->Completions()) {
        ++completed;
        if (completion.status != IBV_WC_SUCCESS) ++failed;
      }
    }
    EXPECT_EQ(posted_, completed);
    EXPECT_EQ(0u, pool_.bytes_in_use());
    if (faulty_) return;
    EXPECT_EQ(0u, failed);
    EXPECT_EQ(0u, fabric().statistics().dropped_packets);
    uint64_t sent = 0;
    uint64_t received = 0;
    for (Node* node : nodes_) {
      sent += node->counters().tx_payload_bytes;
      received += node->counters().rx_payload_bytes;
    }
    EXPECT_EQ(sent, received);
    // Nothing went twice, unless packets overtook more others than a receiver takes.
    if (fabric().topology().routing.mode == RoutingMode::kAdaptive) {
      EXPECT_LE(background_bytes_ + posted_bytes_, sent);
    } else {
      EXPECT_EQ(background_bytes_ + posted_bytes_, sent);
    }
  }

 private:
  Fabric& fabric() { return *rig_->fabric(); }

  void Connect(uint32_t from, uint32_t to) {
    Node& a = *nodes_[from];
    Node& b = *nodes_[to];
    QpOptions options;
    options.sl = static_cast<uint8_t>(draw_.Below(16));
    options.with_grh = draw_.Coin();
    options.timeout = timeout_;
    options.mtu = draw_.OneOf({IBV_MTU_4096, IBV_MTU_256});
    const auto [qa, qb] = rig_->Connect(a, b, options);
    constexpr uint32_t kBytes = 60'000;
    buffers_.push_back(
        std::make_unique<std::pair<Buffer, Buffer>>(a.MakeBuffer(kBytes, 1), b.MakeBuffer(kBytes, 2)));
    const Buffer* local = &buffers_.back()->first;
    const Buffer* remote = &buffers_.back()->second;
    // Not both on one queue pair, since an acknowledgement may overtake the answer to a READ that the NIC has
    // fetched before; and no READs where their answers overtake each other. Both would be sent twice.
    const bool writes = draw_.Coin() || fabric().topology().routing.mode == RoutingMode::kAdaptive;
    for (int i = 0; i < 12; ++i) {
      const auto opcode = writes         ? IBV_WR_RDMA_WRITE
                          : draw_.Coin() ? IBV_WR_RDMA_READ
                                         : IBV_WR_ATOMIC_FETCH_AND_ADD;
      const uint32_t bytes = draw_.OneOf({0U, 8U, 700U, 1 + draw_.Below(kBytes)});
      const Picos at = Picos{draw_.Below(150'000)} * kPicosPerNs;
      ++posted_;
      posted_bytes_ += opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : bytes;
      fabric().CallAt(at, [&a, qp = qa, opcode, bytes, local, remote, i] {
        const auto id = static_cast<uint64_t>(i);
        const int error =
            opcode == IBV_WR_ATOMIC_FETCH_AND_ADD
                ? a.PostAtomic(qp, id, opcode, local->Sge(0, 8), remote->address(), remote->key, 1, 0)
                : a.Post(qp, id, opcode, {local->Sge(0, bytes)}, remote->address(), remote->key);
        EXPECT_EQ(0, error);
      });
    }
  }

  Draws draw_;
  HeapPayloadPool pool_;
  std::vector<std::unique_ptr<std::pair<Buffer, Buffer>>> buffers_;
  std::unique_ptr<Rig> rig_;
  std::vector<Node*> nodes_;
  bool faulty_;
  uint8_t timeout_;
  uint64_t posted_ = 0;
  uint64_t posted_bytes_ = 0;
  uint64_t background_bytes_ = 0;
};

TEST(SoftNetCreditsProperty, QueuePairsAndBackgroundDrain) {
  for (uint64_t seed = 100; seed < 180; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    // No retransmission timer.
    Mixed(seed, "", 0).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

// What a fault takes, and what is sent again, holds no credits for ever.
TEST(SoftNetCreditsProperty, FaultsTakeNoCredits) {
  const char* const kFaults[] = {
      "loss:probability=0.01",
      "loss:probability=0.02,packets=data;corruption:probability=0.01",
      "link-down:link=#1,at=20us,for=30us,times=3,every=60us",
      "port-flap:port=host1,at=20us,for=40us",
      "switch-reboot:switch=SWITCH,at=40us,for=30us",
      "stalled-receiver:port=host3,at=10us,for=200us",
      "stalled-receiver:port=host1,at=10us,for=90us;loss:probability=0.005;link-down:link=#2,at=50us,for="
      "20us",
      "slow-link:link=#0,rate=10G,at=20us,for=80us;stalled-receiver:port=host0,at=5us,for=100us,times=2,"
      "every=150us",
      "nic-death:nic=host2,at=60us",
  };
  uint64_t seed = 1000;
  for (int round = 0; round < 3; ++round) {
    for (const char* faults : kFaults) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " " << faults);
      Mixed(seed++, faults, 8).Run();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace sluice::soft
