// Buffers of switches: PFC, dynamic thresholds, drops, trimming, ECN marks, and DCQCN over them.
#include <cmath>

#include "soft_net_rig.h"
#include "verbs/soft/model/topology_network_check.h"

namespace sluice::soft {
namespace {

constexpr uint64_t kRate = 100'000'000'000;

struct Incast {
  const char* name;
  const char* topology;
  SwitchSettings settings;
  uint32_t header_bytes;
};

class SoftNetIncast : public ::testing::TestWithParam<Incast> {};

TEST_P(SoftNetIncast, LosesNothingAndFillsTheLink) {
  constexpr uint32_t kSenders = 15;
  constexpr uint64_t kPackets = 1500;
  NetRig rig(NetRig::Make(GetParam().topology, GetParam().settings));
  rig.network().TrackDestinations();
  std::vector<const Stream*> streams;
  for (uint32_t i = 0; i < kSenders; ++i) {
    streams.push_back(
        &rig.Add({.from = i, .to = kSenders, .packets = kPackets, .header_bytes = GetParam().header_bytes}));
  }
  rig.Run();
  uint64_t packets = 0;
  Picos last = 0;
  for (const Stream* stream : streams) {
    packets += rig.Received(*stream).packets;
    last = std::max(last, rig.Received(*stream).last);
  }
  EXPECT_EQ(kSenders * kPackets, packets);
  EXPECT_EQ(0u, rig.statistics().dropped_packets);
  const double expected =
      Seconds(SerialisationTime(kSenders * kPackets * (4096 + GetParam().header_bytes), kRate));
  EXPECT_NEAR(expected, Seconds(last), 0.01 * expected);
  EXPECT_EQ(0u, rig.network().BytesBoundFor(kSenders));
  EXPECT_GT(rig.network().PeakBytesBoundFor(kSenders), 100'000u);
  const bool ethernet = GetParam().header_bytes == 82;
  EXPECT_EQ(ethernet && GetParam().settings.queue == QueueMode::kLossless, rig.PausesSent() > 0);
  EXPECT_EQ(!ethernet, rig.network().link(0).transmit_wait > 0 && rig.PausesSent() == 0);
}

SwitchSettings SmallPool() {
  SwitchSettings settings = SwitchSettings::Shared64();
  settings.lossless_priorities = 1;
  settings.pool_bytes = 4 << 20;
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Fabrics, SoftNetIncast,
                         ::testing::Values(Incast{"htsim", "hosts=16", SwitchSettings::Htsim(), 82},
                                           Incast{"shared64", "hosts=16", SwitchSettings::Shared64(), 82},
                                           Incast{"smallpool", "hosts=16", SmallPool(), 82},
                                           Incast{"leafspine", "leaf-spine:hosts=16", SmallPool(), 82},
                                           Incast{"infiniband", "hosts=16,link=infiniband,delay=100ns",
                                                  SwitchSettings::InfiniBand(), 26},
                                           Incast{"infiniband3",
                                                  "leaf-spine:hosts=16,link=infiniband,delay=100ns",
                                                  SwitchSettings::InfiniBand(), 26}),
                         [](const auto& test) { return test.param.name; });

// From the packet that crosses XOFF the neighbour sends until the frame has come and its packet is through;
// meanwhile half as much leaves, since two ingress ports share the egress.
TEST(SoftNetPfc, PeakFollowsFromTheLoop) {
  SwitchSettings settings;
  settings.buffer = BufferMode::kStatic;
  settings.lossless_priorities = 1;
  settings.xoff_bytes = 20 * 4178;
  settings.xon_bytes = 18 * 4178;
  NetRig rig(NetRig::Make("hosts=3,delay=2us", settings));
  rig.Add({.from = 0, .to = 2});
  rig.Add({.from = 1, .to = 2});
  constexpr Picos kTime = 5 * kPicosPerMs;
  rig.Run(kTime);
  const Picos loop = SerialisationTime(kPauseWireBytes, kRate) + settings.pause_response + 4 * kPicosPerUs;
  const double grown = Seconds(loop) * kRate / 8 / 2;
  for (uint32_t port = 0; port < 2; ++port) {
    const IngressTruth ingress = rig.network().ingress(0, port);
    EXPECT_NEAR(20 * 4178 + grown, static_cast<double>(ingress.peak_bytes), 2 * 4178);
    const LinkTruth link = rig.network().link(2 * port);
    // One may be on its way; refreshes are received, but not counted where they are sent.
    EXPECT_LE(ingress.pauses_sent - link.pauses_received, 1u) << "none lasts long enough for a refresh";
    // Each sender is to be silent half of the time.
    EXPECT_NEAR(0.5, Seconds(link.pause_time) / Seconds(kTime), 0.03);
    EXPECT_NEAR(0.5, Seconds(link.transmit_wait) / Seconds(kTime), 0.03);
  }
  EXPECT_NEAR(1.0, Seconds(rig.network().link(5).busy_time) / Seconds(kTime), 0.01) << "switch to host 2";
}

struct NullSource final : public PacketSource {
  Packet* NextPacket() override {
    ++asked;
    return nullptr;
  }
  bool MayHavePacket() const override { return false; }
  void OnLost(const Packet&) override {}
  int asked = 0;
};
struct DeletingSink final : public PacketSink {
  explicit DeletingSink(NetworkContext* network) : context(network) {}
  void Receive(Packet* packet) override {
    last_quanta = PauseQuanta(*packet);
    lanes = PausedLanes(*packet);
    times.push_back(context->scheduler.Now());
    context->packets.Delete(packet);
  }
  NetworkContext* context;
  uint32_t last_quanta = 0;
  uint32_t lanes = 0;
  std::vector<Picos> times;
};

TEST(SoftNetPfc, PauseExpiresByItsQuanta) {
  NetworkContext context;
  NullSource source;
  DeletingSink sink(&context);
  Transmitter link(&context, 0, kRate, kPicosPerUs, &source, &sink);
  SendGate gate(&context);
  gate.set_transmitter(&link);
  Packet frame;
  frame.kind = PacketKind::kPfcPause;
  frame.flags = 1 << 3;
  frame.psn = 100;
  gate.OnPause(frame, 80 * kPicosPerNs);
  EXPECT_EQ(0u, gate.paused()) << "not before the response time";
  context.scheduler.Run(80 * kPicosPerNs, 100);
  EXPECT_EQ(8u, gate.paused());
  // 100 quanta of 512 bits at 100 Gb/s.
  const Picos end = 80 * kPicosPerNs + 512 * kPicosPerNs;
  context.scheduler.Run(end - 1, 100);
  EXPECT_EQ(8u, gate.paused());
  context.scheduler.Run(end, 100);
  EXPECT_EQ(0u, gate.paused());
  EXPECT_EQ(1, source.asked) << "the sender goes on";
  EXPECT_EQ(512 * kPicosPerNs, link.truth().pause_time);
}

TEST(SoftNetPfc, PauseIsRefreshedUntilItEnds) {
  NetworkContext context;
  NullSource source;
  DeletingSink sink(&context);
  Transmitter link(&context, 0, kRate, kPicosPerUs, &source, &sink);
  SwitchSettings settings;
  settings.pause_quanta = 1000;  // 5.12 us
  PauseSender pauses(&context, &settings);
  pauses.set_transmitter(&link);
  pauses.Pause(5);
  context.scheduler.Run(10 * kPicosPerUs, 1000);
  const Picos first = SerialisationTime(kPauseWireBytes, kRate) + kPicosPerUs;
  ASSERT_EQ(4u, sink.times.size());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(first + static_cast<Picos>(i) * 2'560'000, sink.times[i]);
  EXPECT_EQ(1u << 5, sink.lanes);
  EXPECT_EQ(1000u, sink.last_quanta);
  EXPECT_EQ(1u, pauses.pauses_sent());
  pauses.Resume(5);
  context.scheduler.Run(100 * kPicosPerUs, 1000);
  EXPECT_EQ(0u, sink.last_quanta);
  EXPECT_LE(sink.times.size(), 6u);
}

// One packet of 1250 bytes, 100 ns at 100 Gb/s.
struct OnePacket final : public PacketSource {
  explicit OnePacket(NetworkContext* owner) : context(owner) {}
  Packet* NextPacket() override {
    if (sent++ != 0) return nullptr;
    Packet* packet = context->packets.New();
    packet->wire_bytes = 1250;
    return packet;
  }
  bool MayHavePacket() const override { return sent == 0; }
  void OnLeft() override { left_at = context->scheduler.Now(); }
  void OnLost(const Packet&) override { ++lost; }
  NetworkContext* context;
  int sent = 0;
  int lost = 0;
  Picos left_at = kNever;
};

struct ArrivalsSoFar final : public EventTarget {
  explicit ArrivalsSoFar(const DeletingSink* owner) : sink(owner) {}
  void OnEvent(uint32_t, uint64_t) override { seen = sink->times.size(); }
  const DeletingSink* sink;
  size_t seen = 0;
};

class SoftNetStages : public ::testing::TestWithParam<bool> {};

// What is scheduled while the packet is on its way to the link's end runs before its arrival at the same moment if
// the arrival is an event that the end of the transmission schedules.
TEST_P(SoftNetStages, DecideWhoIsFirst) {
  NetworkContext context;
  context.staged_events = GetParam();
  OnePacket source(&context);
  DeletingSink sink(&context);
  Transmitter link(&context, 0, kRate, kPicosPerUs, &source, &sink);
  ArrivalsSoFar other(&sink);
  link.Kick();
  EXPECT_EQ(GetParam(), !link.idle(100 * kPicosPerNs)) << "until the event of its end has run";
  context.scheduler.At(1100 * kPicosPerNs, &other, 0);
  context.scheduler.Run(2 * kPicosPerUs, 100);
  EXPECT_EQ(GetParam() ? 0u : 1u, other.seen);
  ASSERT_EQ(1u, sink.times.size());
  EXPECT_EQ(1100 * kPicosPerNs, sink.times[0]);
  EXPECT_EQ(GetParam() ? 100 * kPicosPerNs : kNever, source.left_at);
}

TEST_P(SoftNetStages, ALinkThatGoesDownLosesThePacketInProgress) {
  NetworkContext context;
  context.staged_events = GetParam();
  OnePacket source(&context);
  DeletingSink sink(&context);
  Transmitter link(&context, 0, kRate, kPicosPerUs, &source, &sink);
  link.Kick();
  context.scheduler.Run(50 * kPicosPerNs, 100);
  link.SetUp(false);
  link.SetUp(true);
  context.scheduler.Run(60 * kPicosPerNs, 100);
  EXPECT_EQ(1, source.lost);
  context.scheduler.Run(200 * kPicosPerNs, 100);
  source.sent = 0;
  link.Kick();
  context.scheduler.Run(10 * kPicosPerUs, 100);
  ASSERT_EQ(1u, sink.times.size()) << "the second packet only";
  EXPECT_EQ(1300 * kPicosPerNs, sink.times[0]);
}

INSTANTIATE_TEST_SUITE_P(OffAndOn, SoftNetStages, ::testing::Bool());

TEST(SoftNetPfc, APauseStopsItsPriorityOnly) {
  SwitchSettings settings = SwitchSettings::Htsim();
  NetRig rig(NetRig::Make("hosts=4", settings));
  // Priority 3 of host 0 is stopped by an incast at host 2; priority 0 goes to host 3, at what is left.
  rig.Add({.from = 0, .to = 2, .lane = 3});
  rig.Add({.from = 1, .to = 2, .lane = 3});
  const Stream& other = rig.Add({.from = 0, .to = 3, .lane = 0});
  rig.Run(5 * kPicosPerMs);
  // Half of its link, and what the paused priority leaves of the other half.
  const double rate = static_cast<double>(rig.Received(other).bytes) * 8 / 5e-3;
  EXPECT_GT(rate, 49e9);
  EXPECT_LT(rate, 60e9);
}

TEST(SoftNetLossy, DropTailKeepsItsQueueShort) {
  SwitchSettings settings;
  settings.queue = QueueMode::kDropTail;
  settings.queue_bytes = 50 * 4178;
  NetRig rig(NetRig::Make("hosts=3", settings));
  const Stream& a = rig.Add({.from = 0, .to = 2, .packets = 5000});
  const Stream& b = rig.Add({.from = 1, .to = 2, .packets = 5000});
  rig.Run();
  uint64_t drops = 0;
  rig.network().ForEachQueue([&](const QueueTruth& queue) {
    drops += queue.drops;
    EXPECT_LE(queue.peak_bytes, settings.queue_bytes);
  });
  EXPECT_EQ(10000u, rig.Received(a).packets + rig.Received(b).packets + drops);
  EXPECT_NEAR(5000, static_cast<double>(drops), 100);
  EXPECT_EQ(drops, rig.statistics().dropped_packets);
}

TEST(SoftNetLossy, PriorityWithoutPfcIsDroppedFromBeyondItsShare) {
  SwitchSettings settings = SmallPool();
  NetRig rig(NetRig::Make("hosts=5", settings));
  for (uint32_t i = 0; i < 4; ++i) rig.Add({.from = i, .to = 4, .packets = 3000, .lane = 1});
  rig.Run();
  EXPECT_GT(rig.statistics().dropped_packets, 0u);
  EXPECT_EQ(0u, rig.PausesSent());
  // Alone, a queue holds alpha / (1 + alpha) of the pool.
  const uint64_t pool =
      settings.pool_bytes -
      5 * (HeadroomBytes(kRate, kPicosPerUs, 4096, settings.pause_response) + kPauseWireBytes);
  EXPECT_NEAR(static_cast<double>(pool) / 9, static_cast<double>(rig.network().queue(0, 4, 1).peak_bytes),
              2 * 4178);
}

TEST(SoftNetTrim, EveryPacketArrivesWholeOrAsItsHeader) {
  SwitchSettings settings;
  settings.queue = QueueMode::kTrim;
  settings.queue_bytes = 20 * 4178;
  NetRig rig(NetRig::Make("hosts=5", settings));
  std::vector<const Stream*> streams;
  for (uint32_t i = 0; i < 4; ++i) streams.push_back(&rig.Add({.from = i, .to = 4, .packets = 2000}));
  rig.Run();
  uint64_t packets = 0;
  uint64_t trimmed = 0;
  for (const Stream* stream : streams) {
    packets += rig.Received(*stream).packets;
    trimmed += rig.Received(*stream).trimmed;
  }
  EXPECT_EQ(8000u, packets);
  EXPECT_EQ(0u, rig.statistics().dropped_packets);
  // The link carries packets and headers: 4 x C arrives.
  const double whole = (1 - 4 * 64.0 / 4178) / (4 - 4 * 64.0 / 4178);
  EXPECT_NEAR(8000 * (1 - whole), static_cast<double>(trimmed), 100);
  EXPECT_EQ(trimmed, rig.network().queue(0, 4, 0).trims);
}

TEST(SoftNetEcn, MarksWithTheProbabilityOfItsQueue) {
  SwitchSettings settings = SwitchSettings::Unbounded();
  settings.ecn = {
      .enabled = true, .k_min_bytes = 100'000, .k_max_bytes = 500'000, .p_max = 0.4, .per_25g = false};
  for (const bool at_dequeue : {false, true}) {
    settings.ecn.at_dequeue = at_dequeue;
    for (const uint64_t queued : {48, 72, 96, 130}) {
      NetRig rig(NetRig::Make("hosts=3", settings));
      // The second's packets stay in the queue as long as the first fills the link.
      const Stream& steady = rig.Add({.from = 0, .to = 2, .packets = 30000});
      rig.Add({.from = 1, .to = 2, .packets = queued});
      rig.Run();
      const double bytes = static_cast<double>(queued) * 4178;
      const double p = bytes >= 500'000 ? 1.0 : 0.4 * (bytes - 100'000) / 400'000;
      EXPECT_NEAR(p, Ratio(rig.Received(steady).marked, 30000), 0.012) << queued;
    }
  }
}

TEST(SoftNetDcqcn, TwoFlowsShareTheLink) {
  Topology topology = NetRig::Make("hosts=3", SwitchSettings::Shared64());
  topology.nic_settings.rate_control = RateControl::kDcqcn;
  NetRig rig(std::move(topology));
  const Stream& a = rig.Add({.from = 0, .to = 2});
  rig.Run(kPicosPerMs);
  const Stream& b = rig.Add({.from = 1, .to = 2});
  rig.Run(40 * kPicosPerMs);
  const auto before_a = static_cast<double>(rig.Received(a).bytes);
  const auto before_b = static_cast<double>(rig.Received(b).bytes);
  const Picos busy_before = rig.network().link(5).busy_time;
  rig.Run(50 * kPicosPerMs);
  const double share_a = static_cast<double>(rig.Received(a).bytes) - before_a;
  const double share_b = static_cast<double>(rig.Received(b).bytes) - before_b;
  const double jain =
      (share_a + share_b) * (share_a + share_b) / (2 * (share_a * share_a + share_b * share_b));
  EXPECT_GE(jain, 0.98) << share_a << " " << share_b;
  EXPECT_GE(Seconds(rig.network().link(5).busy_time - busy_before) / 10e-3, 0.9);
  EXPECT_EQ(0u, rig.statistics().dropped_packets);
}

// Alpha starts at 1: the first notification halves the rate; recovery halves the distance every 300 us.
TEST(SoftNetDcqcn, RateFollowsThePaper) {
  DcqcnSettings settings;
  DcqcnRate rate(&settings, kRate);
  EXPECT_EQ(kRate, rate.rate_bps(0));
  rate.OnCnp(kPicosPerMs);
  EXPECT_EQ(kRate / 2, rate.rate_bps(kPicosPerMs));
  EXPECT_EQ(kRate, rate.target_bps());
  const Picos timer = 300 * kPicosPerUs;
  EXPECT_EQ(kRate / 2, rate.rate_bps(kPicosPerMs + timer - 1));
  EXPECT_EQ(kRate * 3 / 4, rate.rate_bps(kPicosPerMs + timer));
  EXPECT_EQ(kRate * 7 / 8, rate.rate_bps(kPicosPerMs + 2 * timer));
  // Alpha decays by 1 - g every 55 us.
  EXPECT_NEAR(std::pow(1 - settings.g, 10), rate.alpha(), 0.005);
  rate.OnCnp(kPicosPerMs + 2 * timer + 1);
  const double cut = 1 - std::pow(1 - settings.g, 10) / 2;
  EXPECT_NEAR(cut * 7 / 8 * kRate, static_cast<double>(rate.rate_bps(kPicosPerMs + 2 * timer + 1)),
              0.01 * kRate);
  // The target grows only after the fast recovery.
  const Picos start = kPicosPerMs + 2 * timer + 1;
  rate.rate_bps(start + 5 * timer);
  EXPECT_EQ(kRate * 7 / 8, rate.target_bps());
  rate.rate_bps(start + 7 * timer);
  EXPECT_EQ(kRate * 7 / 8 + 2 * settings.rate_ai_bps, rate.target_bps());
}

// However many CNPs come, the rate is cut once a tick and alpha moves once a tick of its own.
TEST(SoftNetDcqcn, CutsAtTicksOfItsClock) {
  DcqcnSettings settings;
  settings.reduce_period = 40 * kPicosPerUs;
  settings.g = 0.5;
  DcqcnRate rate(&settings, kRate);
  const Picos start = kPicosPerMs;
  rate.OnCnp(start);
  rate.OnCnp(start + 10 * kPicosPerUs);
  EXPECT_EQ(kRate, rate.rate_bps(start + 40 * kPicosPerUs - 1));
  EXPECT_EQ(kRate / 2, rate.rate_bps(start + 40 * kPicosPerUs));
  EXPECT_EQ(1, rate.alpha());
  // A CNP came within the first 55 us: alpha stays 1; none in the second: half.
  EXPECT_EQ(kRate / 2, rate.rate_bps(start + 55 * kPicosPerUs));
  EXPECT_EQ(1, rate.alpha());
  rate.rate_bps(start + 110 * kPicosPerUs);
  EXPECT_EQ(0.5, rate.alpha());
  EXPECT_EQ(kRate, rate.target_bps());
  // The next tick is that of the clock, 120 us; no timer has raised the rate, so the target stays.
  rate.OnCnp(start + 119 * kPicosPerUs);
  EXPECT_EQ(kRate / 2 * 3 / 4, rate.rate_bps(start + 120 * kPicosPerUs));
  EXPECT_EQ(kRate, rate.target_bps());
  // The recovery counts from the cut.
  EXPECT_EQ(kRate / 2 * 3 / 4, rate.rate_bps(start + 420 * kPicosPerUs - 1));
  EXPECT_EQ((kRate / 2 * 3 / 4 + kRate) / 2, rate.rate_bps(start + 420 * kPicosPerUs));
}

}  // namespace
}  // namespace sluice::soft
