// RC flows: closed forms of one flow, windows, loss, order, limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "verbs/soft/flows/random.h"
#include "verbs/soft/flows/rc_flow.h"
#include "verbs/soft/flows/simulation.h"
#include "verbs/soft/model/background.h"
#include "verbs/soft/model/faults.h"

namespace sluice::soft {
namespace {

std::unique_ptr<Simulation> Make(const char* text, const SimulationSettings& settings = {}) {
  Result<Topology> topology = Topology::FromText(text);
  EXPECT_TRUE(topology.ok()) << topology.status().message();
  topology->switch_settings = SwitchSettings::Unbounded();
  Result<std::unique_ptr<Simulation>> simulation = Simulation::Create(*topology, settings);
  EXPECT_TRUE(simulation.ok()) << simulation.status().message();
  return std::move(*simulation);
}

uint64_t WireBytes(uint64_t bytes, const RcSettings& rc) {
  const uint64_t packets = (bytes + rc.payload_bytes - 1) / rc.payload_bytes;
  return bytes + packets * rc.header_bytes + rc.first_bytes + rc.last_bytes;
}

TEST(SoftFlow, OneFlowTakesTheTimeOfItsWireBytes) {
  const auto simulation = Make("hosts=2,rate=100G,delay=1us");
  const FlowId flow = simulation->AddFlow({.source = 0, .destination = 1});
  constexpr uint64_t kBytes = 10'000'000;
  simulation->PostAt(0, flow, kBytes);
  EXPECT_TRUE(simulation->Run());
  const RcSettings rc;
  // Two links in store and forward: all bytes over the first, the last packet over the second.
  const uint64_t last = kBytes % rc.payload_bytes + rc.header_bytes + rc.last_bytes;
  const Picos received = SerialisationTime(WireBytes(kBytes, rc), 100'000'000'000) +
                         SerialisationTime(last, 100'000'000'000) + 2 * kPicosPerUs;
  const double error = static_cast<double>(simulation->ReceiveTime(flow) - received);
  EXPECT_LT(std::fabs(error), 1e-3 * static_cast<double>(received));
  const Picos answer = 2 * (SerialisationTime(rc.ack_bytes, 100'000'000'000) + kPicosPerUs);
  EXPECT_EQ(simulation->FinishTime(flow), simulation->ReceiveTime(flow) + answer);
  EXPECT_EQ(simulation->counters().retransmitted_packets, 0U);
}

TEST(SoftFlow, AWindowLimitsTheRateToWindowOverRoundTrip) {
  const auto simulation = Make("hosts=2,rate=100G,delay=5us");
  const StaticWindowFactory window(65536);
  const FlowId flow = simulation->AddFlow({.source = 0, .destination = 1, .control = &window});
  constexpr uint64_t kBytes = 6'553'600;
  simulation->PostAt(0, flow, kBytes);
  EXPECT_TRUE(simulation->Run());
  // A window a round trip: the answer to the 16th packet sends the next 16.
  const RcSettings rc;
  const Picos round = SerialisationTime(16 * (4096 + 82), 100'000'000'000) +
                      SerialisationTime(4096 + 82, 100'000'000'000) +
                      2 * SerialisationTime(rc.ack_bytes, 100'000'000'000) + 20 * kPicosPerUs;
  EXPECT_NEAR(static_cast<double>(simulation->FinishTime(flow)), 100.0 * static_cast<double>(round),
              0.01 * 100 * static_cast<double>(round));
}

TEST(SoftFlow, TwoRunsAreEqualAndAnotherSeedDiffers) {
  const auto run = [](uint64_t seed) {
    SimulationSettings settings;
    settings.seed = seed;
    const auto simulation = Make("leaf-spine:hosts=32,rate=100G", settings);
    for (uint32_t host = 0; host < 32; ++host) {
      simulation->PostAt(0, simulation->AddFlow({.source = host, .destination = (host + 9) % 32}), 300'000);
    }
    simulation->Run();
    return simulation->statistics().trace_hash;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(SoftFlow, OneLostPacketCostsOneNakAndWhatWasUnderWay) {
  const auto simulation = Make("hosts=2,rate=100G,delay=1us");
  const FlowId flow = simulation->AddFlow({.source = 0, .destination = 1});
  bool lost = false;
  simulation->context().fault_hook = [&](const PacketView& view) {
    if (lost || view.is_ack || (view.psn & 0xFFFFFF) != 101 || !view.from_host) return PacketFate::kDeliver;
    lost = true;
    return PacketFate::kDrop;
  };
  simulation->PostAt(0, flow, 4'096'000);
  EXPECT_TRUE(simulation->Run());
  EXPECT_NE(simulation->FinishTime(flow), kNever);
  EXPECT_EQ(simulation->counters().naks, 1U);
  EXPECT_EQ(simulation->counters().timeouts, 0U);
  // Two links of 1 us, the NAK back, and three serialisations: 4.7 us of packets, at 0.334 us each.
  EXPECT_NEAR(static_cast<double>(simulation->counters().retransmitted_packets), 4.68 / 0.334, 2);
}

TEST(SoftFlow, ALostTailWaitsForTheTimer) {
  for (const double factor : {1.0, 3.0}) {
    SimulationSettings settings;
    settings.rc.timeout = 6;
    settings.rc.timer_factor = factor;
    const auto simulation = Make("hosts=2,rate=100G,delay=1us", settings);
    const FlowId flow = simulation->AddFlow({.source = 0, .destination = 1});
    bool lost = false;
    simulation->context().fault_hook = [&](const PacketView& view) {
      if (lost || view.is_ack || (view.psn & 0xFFFFFF) != 16) return PacketFate::kDeliver;
      lost = true;
      return PacketFate::kDrop;
    };
    simulation->PostAt(0, flow, 16 * 4096);
    EXPECT_TRUE(simulation->Run());
    EXPECT_EQ(simulation->counters().timeouts, 1U);
    EXPECT_EQ(simulation->counters().naks, 0U);
    const double timer_ps = 4.096e6 * 64 * factor;
    // The timer starts with the last packet, which asks for the answer; then all 16 go again.
    EXPECT_NEAR(static_cast<double>(simulation->FinishTime(flow)), timer_ps + 15e6, 1e6);
  }
}

TEST(SoftFlow, RetriesEnd) {
  SimulationSettings settings;
  settings.rc.timeout = 1;
  settings.rc.retry_count = 3;
  const auto simulation = Make("hosts=2,rate=100G,delay=1us", settings);
  const FlowId flow = simulation->AddFlow({.source = 0, .destination = 1});
  simulation->context().fault_hook = [](const PacketView& view) {
    return view.is_ack ? PacketFate::kDeliver : PacketFate::kDrop;
  };
  simulation->PostAt(0, flow, 4096);
  EXPECT_TRUE(simulation->Run());
  EXPECT_TRUE(simulation->Failed(flow));
  EXPECT_EQ(simulation->counters().timeouts, 4U);
  EXPECT_EQ(simulation->FinishTime(flow), kNever);
}

TEST(SoftFlow, LossOfEveryKindDelaysAndNeverStops) {
  SimulationSettings settings;
  settings.rc.timeout = 4;
  settings.rc.retry_count = 100;
  for (uint32_t reorder : {0U, 64U}) {
    settings.rc.reorder_packets = reorder;
    const auto simulation = Make("hosts=2,rate=100G,delay=1us", settings);
    uint64_t draws = 0;
    simulation->context().fault_hook = [&](const PacketView&) {
      return (++draws * 0x9E3779B97F4A7C15ULL >> 32) % 20 == 0 ? PacketFate::kDrop : PacketFate::kDeliver;
    };
    const FlowId flow = simulation->AddFlow({.source = 0, .destination = 1});
    for (int i = 0; i < 50; ++i) simulation->PostAt(i * kPicosPerUs, flow, 100'000);
    EXPECT_TRUE(simulation->Run());
    EXPECT_FALSE(simulation->Failed(flow));
    EXPECT_EQ(simulation->ReceivedMessages(flow), 50U);
    EXPECT_NE(simulation->FinishTime(flow), kNever);
  }
}

// G = 1 / (1 + p W + p q R T): a loss wastes W packets, what was sent until the NAK came; with probability q
// the NAK or the repeated packet is lost too, and nothing arrives for the time T of the timer.
TEST(SoftFlow, GoBackNObeysItsClosedForm) {
  struct Case {
    double loss;
    uint8_t timeout;
    uint64_t packets;
  };
  for (const Case& c : {Case{0.01, 4, 250'000}, Case{0.01, 8, 250'000}, Case{0.005, 6, 800'000}}) {
    SimulationSettings settings;
    settings.rc.timeout = c.timeout;
    settings.rc.retry_count = 255;
    settings.rc.first_bytes = settings.rc.last_bytes = 0;
    const auto simulation = Make("hosts=2,rate=400G,delay=1us", settings);
    Random random(7, kRandomLoss, c.timeout);
    uint64_t losses = 0;
    simulation->context().fault_hook = [&](const PacketView& view) {
      if (!view.from_host || random.Unit() >= c.loss) return PacketFate::kDeliver;
      if (!view.is_ack) ++losses;
      return PacketFate::kDrop;
    };
    const FlowId flow = simulation->AddFlow({.source = 0, .destination = 1});
    simulation->PostAt(0, flow, c.packets * settings.rc.payload_bytes);
    ASSERT_TRUE(simulation->Run());
    const Picos packet =
        SerialisationTime(settings.rc.payload_bytes + settings.rc.header_bytes, 400'000'000'000);
    // From the lost packet's end to the NAK: the next packet's end, its way, and the NAK's.
    const Picos loop =
        4 * kPicosPerUs + 3 * packet + 2 * SerialisationTime(settings.rc.ack_bytes, 400'000'000'000);
    const double wasted = static_cast<double>(loop) / static_cast<double>(packet);
    const double timer = std::ldexp(4.096e6, c.timeout) / static_cast<double>(packet);  // R T
    const double expected = 1 / (1 + c.loss * wasted + c.loss * 2 * c.loss * timer);
    const double measured = static_cast<double>(c.packets) * static_cast<double>(packet) /
                            static_cast<double>(simulation->FinishTime(flow));
    EXPECT_GE(losses, 1000U);
    EXPECT_GE(simulation->counters().timeouts, 30U);
    EXPECT_NEAR(measured / expected, 1, 0.1) << "loss " << c.loss << " timeout " << int{c.timeout}
                                             << " goodput " << measured << " by the formula " << expected;
  }
}

TEST(SoftFlow, TrafficToItselfStaysInsideTheNic) {
  const auto simulation = Make("hosts=2,rate=100G,delay=1us");
  const FlowId flow = simulation->AddFlow({.source = 0, .destination = 0});
  simulation->PostAt(0, flow, 1'000'000);
  EXPECT_TRUE(simulation->Run());
  EXPECT_NE(simulation->FinishTime(flow), kNever);
  EXPECT_EQ(simulation->statistics().packet_hops, 0U);
}

TEST(SoftFlow, FaultsOfTheTopologyTakePart) {
  const auto time_with = [](const char* faults) {
    Topology topology = *Topology::FromText("hosts=2,rate=100G,delay=1us");
    topology.switch_settings = SwitchSettings::Unbounded();
    topology.faults = *FaultSpec::ListFromText(faults);
    const auto simulation = std::move(*Simulation::Create(topology, {}));
    const FlowId flow = simulation->AddFlow({.source = 0, .destination = 1});
    simulation->PostAt(0, flow, 1'000'000);
    EXPECT_TRUE(simulation->Run());
    return simulation->FinishTime(flow);
  };
  const Picos healthy = time_with("");
  // Half the rate for the whole time, but for the acknowledgement.
  EXPECT_NEAR(static_cast<double>(time_with("slow-link:link=host0,at=0us,rate=50G")),
              2.0 * static_cast<double>(healthy), 0.06 * static_cast<double>(healthy));
  // What a link loses while it is down is sent again.
  const Picos down = time_with("link-down:link=host0,at=20us,for=30us");
  EXPECT_GT(down, healthy + 30 * kPicosPerUs);
  EXPECT_NE(down, kNever);
  EXPECT_GE(time_with("stalled-receiver:port=host1,at=10us,for=500us"), 500 * kPicosPerUs);
  // Retries end on a dead NIC.
  EXPECT_EQ(time_with("nic-death:nic=host1/soft0,at=20us"), kNever);
}

TEST(SoftFlow, BackgroundOfTheTopologyTakesPart) {
  Topology topology = *Topology::FromText("hosts=8,rate=100G,delay=1us");
  topology.switch_settings = SwitchSettings::Unbounded();
  const auto time_with = [&topology] {
    const auto simulation = std::move(*Simulation::Create(topology, {}));
    const FlowId flow = simulation->AddFlow({.source = 0, .destination = 1});
    simulation->PostAt(0, flow, 1'000'000);
    EXPECT_TRUE(simulation->Run());
    return simulation->FinishTime(flow);
  };
  const Picos alone = time_with();
  topology.background = *BackgroundSpec::ListFromText("incast:hosts=host2+host3,targets=host1,bytes=1MB");
  EXPECT_GT(time_with(), 2 * alone);  // three senders share the receiver's link
}

TEST(SoftFlow, SettingsOutOfRangeAreRefused) {
  SimulationSettings settings;
  settings.rc.timer_factor = 5;
  EXPECT_FALSE(Simulation::Create(Topology::Default(), settings).ok());
}

}  // namespace
}  // namespace sluice::soft
