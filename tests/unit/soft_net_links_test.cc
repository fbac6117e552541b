// Wire bytes, lanes and their arbitration, credits, and what a NIC costs, against closed forms.
#include <cmath>

#include "soft_net_rig.h"

namespace sluice::soft {
namespace {

struct Wire {
  const char* topology;
  double rate_bps;
  double delay_s;
  uint32_t header_bytes;
};

class SoftNetWire : public ::testing::TestWithParam<Wire> {};

TEST_P(SoftNetWire, OneFlowTakesItsWireBytes) {
  constexpr uint64_t kPackets = 2000;
  NetRig rig(NetRig::Make(GetParam().topology));
  const Stream& stream = rig.Add({.packets = kPackets, .header_bytes = GetParam().header_bytes});
  rig.Run();
  const double packet = (4096 + GetParam().header_bytes) * 8 / GetParam().rate_bps;
  const double latency = 2 * (packet + GetParam().delay_s);
  const Arrivals& got = rig.Received(stream);
  EXPECT_EQ(kPackets, got.packets);
  EXPECT_NEAR(latency, Seconds(got.first), 0.001 * latency);
  EXPECT_NEAR((kPackets - 1) * packet + latency, Seconds(got.last), 0.001 * Seconds(got.last));
  EXPECT_EQ(2 * kPackets, rig.statistics().packet_hops);
  EXPECT_EQ(kPackets * (4096 + GetParam().header_bytes), rig.network().link(0).bytes[0]);
}

INSTANTIATE_TEST_SUITE_P(
    Links, SoftNetWire,
    ::testing::Values(Wire{"hosts=2", 100e9, 1e-6, 82},
                      Wire{"hosts=2,rate=400G,delay=300ns", 400e9, 300e-9, 102},
                      Wire{"hosts=2,rate=400G,delay=100ns,link=infiniband", 400e9, 100e-9, 26},
                      Wire{"hosts=2,rate=800G,delay=100ns,link=infiniband", 800e9, 100e-9, 26}));

struct Shares {
  uint8_t weight[2];
  uint32_t payload_bytes;
};

class SoftNetVirtualLanes : public ::testing::TestWithParam<Shares> {};

// 64:96 at 4 KB packets is 1:2: a turn ends with the packet that uses its weight up.
TEST_P(SoftNetVirtualLanes, SharesAreWholePacketsPerTurn) {
  SwitchSettings settings = SwitchSettings::InfiniBand();
  settings.vl_low = {{0, GetParam().weight[0]}, {1, GetParam().weight[1]}, {2, 4}, {3, 4}};
  // From two hosts, so that the switch arbitrates as well; each lane has room for the link's loop.
  NetRig rig(NetRig::Make("hosts=3,rate=400G,delay=100ns,link=infiniband", settings));
  const Stream* streams[2];
  uint64_t turn[2];
  for (uint8_t lane = 0; lane < 2; ++lane) {
    streams[lane] = &rig.Add(
        {.from = lane, .to = 2, .payload_bytes = GetParam().payload_bytes, .header_bytes = 26, .lane = lane});
    const double packet = GetParam().payload_bytes + 26;
    turn[lane] = static_cast<uint64_t>(std::ceil(64.0 * GetParam().weight[lane] / packet));
  }
  rig.Run(2 * kPicosPerMs);
  const double expected = Ratio(turn[1], turn[0]);
  EXPECT_NEAR(expected, Ratio(rig.Received(*streams[1]).packets, rig.Received(*streams[0]).packets),
              0.01 * expected);
  EXPECT_EQ(0u, rig.statistics().dropped_packets);
}

INSTANTIATE_TEST_SUITE_P(Weights, SoftNetVirtualLanes,
                         ::testing::Values(Shares{{64, 64}, 4096}, Shares{{64, 96}, 4096},
                                           Shares{{4, 4}, 4096}, Shares{{64, 255}, 4096},
                                           Shares{{16, 64}, 256}, Shares{{100, 33}, 1024}));

class SoftNetHighLimit : public ::testing::TestWithParam<uint8_t> {};

// One low packet after limit x 4 KB of the high table.
TEST_P(SoftNetHighLimit, LowTableGetsItsPacket) {
  SwitchSettings settings = SwitchSettings::InfiniBand();
  settings.vl_high = {{1, 64}};
  settings.vl_low = {{0, 64}, {2, 64}, {3, 64}};
  settings.vl_high_limit = GetParam();
  NetRig rig(NetRig::Make("hosts=3,rate=400G,delay=100ns,link=infiniband", settings));
  const Stream& low = rig.Add({.from = 0, .to = 2, .header_bytes = 26, .lane = 0});
  const Stream& high = rig.Add({.from = 1, .to = 2, .header_bytes = 26, .lane = 1});
  rig.Run(kPicosPerMs);
  const double expected = std::max(1.0, std::ceil(GetParam() * 4096.0 / (4096 + 26)));
  EXPECT_NEAR(expected, Ratio(rig.Received(high).packets, rig.Received(low).packets), 0.01 * expected);
}

INSTANTIATE_TEST_SUITE_P(Limits, SoftNetHighLimit, ::testing::Values(0, 1, 2, 4, 16));

TEST(SoftNetPriority, StrictAddsAtMostOnePacketPerHop) {
  const auto last_latency = [](bool with_bulk) {
    NetRig rig(NetRig::Make("hosts=3"));
    if (with_bulk) {
      rig.Add({.from = 0, .to = 2, .lane = 0});
      rig.Add({.from = 1, .to = 2, .lane = 0});
    }
    rig.Run(200 * kPicosPerUs);
    Picos worst = 0;
    for (int i = 0; i < 50; ++i) {
      const Picos start = rig.Now();
      const Stream& probe = rig.Add({.from = 0, .to = 2, .packets = 1, .payload_bytes = 64, .lane = 6});
      rig.Run(start + 10 * kPicosPerUs + i * 7919);
      worst = std::max(worst, rig.Received(probe).last - start);
      EXPECT_EQ(1u, rig.Received(probe).packets);
    }
    return worst;
  };
  const Picos packet = SerialisationTime(4096 + 82, 100'000'000'000);
  const Picos alone = last_latency(false);
  EXPECT_EQ(2 * (SerialisationTime(146, 100'000'000'000) + kPicosPerUs), alone);
  const Picos beside = last_latency(true);
  EXPECT_GT(beside, alone);
  EXPECT_LE(beside, alone + 2 * packet);
}

TEST(SoftNetPriority, EtsSharesByWeight) {
  SwitchSettings settings = SwitchSettings::Shared64();
  settings.ets_weight = {1, 3, 1, 1, 1, 1, 1, 1};
  settings.lossless_priorities = 3;
  NetRig rig(NetRig::Make("hosts=3", settings));
  const Stream& one = rig.Add({.from = 0, .to = 2, .payload_bytes = 1000, .lane = 0});
  const Stream& three = rig.Add({.from = 1, .to = 2, .payload_bytes = 4096, .lane = 1});
  rig.Run(10 * kPicosPerMs);
  EXPECT_NEAR(3.0, Ratio(rig.Received(three).bytes, rig.Received(one).bytes), 0.03);
}

struct Credits {
  uint64_t buffer_bytes;
  uint32_t wire_bytes;
  Picos delay;
  Picos processing;
};

class SoftNetCredits : public ::testing::TestWithParam<Credits> {};

// A buffer of the switch is taken from the packet's start on the first link to its end on the second, and its
// credits take their processing and the way back.
TEST_P(SoftNetCredits, ThroughputIsBufferByLoop) {
  SwitchSettings settings = SwitchSettings::InfiniBand();
  settings.vl_buffer_bytes = GetParam().buffer_bytes;
  settings.credit_processing = GetParam().processing;
  Topology topology = NetRig::Make("hosts=2,rate=400G,link=infiniband", settings);
  for (LinkSpec& link : topology.links) link.delay = GetParam().delay;
  NetRig rig(std::move(topology));
  const Stream& stream = rig.Add({.payload_bytes = GetParam().wire_bytes - 26, .header_bytes = 26});
  constexpr Picos kTime = 2 * kPicosPerMs;
  rig.Run(kTime);
  const double packet = GetParam().wire_bytes * 8 / 400e9;
  const double loop = 2 * packet + 2 * Seconds(GetParam().delay) + Seconds(GetParam().processing);
  const uint64_t in_flight = GetParam().buffer_bytes / 64 / CreditsOf(GetParam().wire_bytes);
  const double expected = std::min(400e9, static_cast<double>(in_flight * GetParam().wire_bytes) * 8 / loop);
  const double got = static_cast<double>(rig.Received(stream).bytes) * 8 / Seconds(kTime);
  EXPECT_NEAR(expected, got, 0.01 * expected);
  EXPECT_EQ(0u, rig.statistics().dropped_packets);
  // Below the knee the sender waits; above it never does.
  const double waited = Seconds(rig.network().link(0).transmit_wait) / Seconds(kTime);
  EXPECT_NEAR(1 - expected / 400e9, waited, 0.02);
}

INSTANTIATE_TEST_SUITE_P(Buffers, SoftNetCredits,
                         ::testing::Values(Credits{32 << 10, 1024, kPicosPerUs, 0},
                                           Credits{32 << 10, 4122, kPicosPerUs, 50 * kPicosPerNs},
                                           Credits{64 << 10, 2074, kPicosPerUs, 50 * kPicosPerNs},
                                           Credits{16 << 10, 282, 100 * kPicosPerNs, 50 * kPicosPerNs},
                                           Credits{256 << 10, 4122, kPicosPerUs, 50 * kPicosPerNs}));

TEST(SoftNetCreditsOfOldFabrics, ThirtyTwoKilobytesAtOneMicrosecondAre128Gigabits) {
  SwitchSettings settings = SwitchSettings::InfiniBand();
  settings.vl_buffer_bytes = 32 << 10;
  settings.credit_processing = 0;
  NetRig rig(NetRig::Make("hosts=2,rate=400G,delay=1us,link=infiniband", settings));
  const Stream& stream = rig.Add({.payload_bytes = 1024 - 26, .header_bytes = 26});
  rig.Run(2 * kPicosPerMs);
  EXPECT_NEAR(128e9, static_cast<double>(rig.Received(stream).bytes) * 8 / 2e-3, 1.28e9);
}

class SoftNetNic : public ::testing::Test {
 protected:
  static Topology Make(uint64_t write_bps = 0) {
    Topology topology = NetRig::Make("hosts=2,rate=400G");
    topology.nic_settings = NicSettings::Realistic();
    if (write_bps != 0) topology.nic_settings.pcie_write_bps = write_bps;
    return topology;
  }
};

TEST_F(SoftNetNic, MemoryIsReadAheadOfTheLink) {
  NetRig rig(Make());
  const Stream& stream = rig.Add({.packets = 5000});
  rig.Run();
  const double packet = 4178 * 8 / 400e9;
  const double read = 700e-9 + 4096 * 8 / 440e9;
  const double first = read + 2 * (packet + 1e-6);
  EXPECT_NEAR(first, Seconds(rig.Received(stream).first), 0.001 * first);
  EXPECT_NEAR(first + 4999 * packet, Seconds(rig.Received(stream).last), 0.001 * 5000 * packet);
}

TEST_F(SoftNetNic, WorkRequestRates) {
  NetRig rig(Make());
  const StreamOptions small{.payload_bytes = 64, .one_packet_messages = true};
  const Stream& alone = rig.Add(small);
  rig.Run(100 * kPicosPerUs);
  EXPECT_NEAR(16e6, static_cast<double>(rig.Received(alone).packets) / 100e-6, 0.04 * 16e6);
  for (int i = 0; i < 19; ++i) rig.Add(small);
  const auto all = [&] {
    uint64_t packets = 0;
    for (const Arrivals& arrivals : rig.host(1).received) packets += arrivals.packets;
    return packets;
  };
  rig.Run(200 * kPicosPerUs);
  const uint64_t before = all();
  rig.Run(300 * kPicosPerUs);
  EXPECT_NEAR(200e6, static_cast<double>(all() - before) / 100e-6, 0.01 * 200e6);
}

TEST_F(SoftNetNic, SlowHostMemoryPausesItsSwitch) {
  constexpr uint64_t kPackets = 20000;
  NetRig rig(Make(200'000'000'000));
  const Stream& stream = rig.Add({.packets = kPackets});
  rig.Run();
  EXPECT_EQ(kPackets, rig.Received(stream).packets);
  EXPECT_EQ(0u, rig.statistics().dropped_packets);
  const double expected = kPackets * 4096 * 8 / 200e9;
  EXPECT_NEAR(expected, Seconds(rig.Received(stream).last), 0.01 * expected);
  EXPECT_GT(rig.network().link(3).pauses_received, 0u) << "switch to host 1";
}

TEST_F(SoftNetNic, StalledReceiverLosesNothing) {
  for (const char* link : {"roce", "infiniband"}) {
    NetRig rig(NetRig::Make(std::string("hosts=2,rate=400G,delay=300ns,link=") + link));
    rig.host(1).port.SetStalled(true);
    const Stream& stream = rig.Add({.packets = 3000});
    rig.Run(kPicosPerMs);
    EXPECT_EQ(0u, rig.Received(stream).packets);
    EXPECT_LT(stream.sent, 3000u) << "the sender is stopped";
    rig.host(1).port.SetStalled(false);
    rig.Run();
    EXPECT_EQ(3000u, rig.Received(stream).packets);
    EXPECT_EQ(0u, rig.statistics().dropped_packets);
  }
}

}  // namespace
}  // namespace sluice::soft
