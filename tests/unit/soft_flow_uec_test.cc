// The yardstick transports: their laws, and delivery through switches that trim.
#include <gtest/gtest.h>

#include <set>

#include "verbs/soft/flows/simulation.h"
#include "verbs/soft/flows/uec_nscc.h"
#include "verbs/soft/flows/uec_spray.h"

namespace sluice::soft {
namespace {

constexpr Picos kRtt = 8'337'120;

NsccSettings Settings() {
  NsccSettings settings;
  settings.network_rtt = kRtt;
  settings.packet_bytes = 4150;
  settings.payload_bytes = 4086;
  settings.initial_window_bytes = 200'000;
  return settings;
}

TEST(Nscc, GrowsTowardsTheTargetAndFasterWithoutQueue) {
  Nscc slow(Settings());
  Nscc fast(Settings());
  Picos now = 0;
  for (int i = 0; i < 200; ++i) {
    now += 100'000;
    slow.CountReceived(4150);
    slow.OnAck(now, false, 5'000'000, 4150, 100'000);
    fast.CountReceived(4150);
    fast.OnAck(now, false, 0, 4150, 100'000);
  }
  EXPECT_GT(slow.window_bytes(), 200'000U);
  EXPECT_GT(fast.window_bytes(), slow.window_bytes());
  EXPECT_LE(fast.window_bytes(), fast.max_window_bytes());
  EXPECT_NEAR(static_cast<double>(fast.max_window_bytes()), 1.5 * 8.33712e-6 * 50e9, 2);
}

TEST(Nscc, AMarkBelowTheTargetChangesNothing) {
  Nscc nscc(Settings());
  nscc.OnAck(2 * kRtt, true, 1'000'000, 0, 100'000);
  const uint64_t before = nscc.window_bytes();
  for (int i = 0; i < 5; ++i) nscc.OnAck(2 * kRtt + 1000 * i, true, 1'000'000, 4150, 100'000);
  EXPECT_EQ(nscc.window_bytes(), before);
}

TEST(Nscc, MarksAboveTheTargetHalveItAtMostOncePerRoundTrip) {
  Nscc nscc(Settings());
  Picos now = 0;
  // The average follows slowly.
  for (int i = 0; i < 600; ++i) nscc.OnDelaySample(kRtt + 30'000'000, true);
  EXPECT_GT(nscc.average_delay(), nscc.target());
  now = 3 * kRtt;
  nscc.OnAck(now, true, 30'000'000, 4150, 100'000);
  const uint64_t once = nscc.window_bytes();
  EXPECT_GE(once, 100'000U);
  EXPECT_LT(once, 200'000U);
  nscc.OnAck(now + 1000, true, 20'000'000, 4150, 100'000);
  EXPECT_EQ(nscc.window_bytes(), once);
  nscc.OnAck(now + 2 * kRtt, true, 20'000'000, 4150, 100'000);
  EXPECT_LT(nscc.window_bytes(), once);
}

TEST(Nscc, QuickAdaptTakesWhatWasDelivered) {
  Nscc nscc(Settings());
  nscc.OnAck(1000, false, 0, 0, 100'000);  // starts the first round
  nscc.CountReceived(20'000);
  nscc.OnTrim(kRtt * 3, 4150, 100'000);
  EXPECT_EQ(nscc.window_bytes(), 20'000U);
  // While what was under way comes back, marks and trims change nothing.
  nscc.OnTrim(kRtt * 3 + 1000, 4150, 100'000);
  EXPECT_EQ(nscc.window_bytes(), 20'000U);
}

TEST(UecSpray, UsesEveryPathAndAvoidsBadOnes) {
  UecSpray spray(16, 1, 1);
  std::multiset<uint16_t> seen;
  for (int i = 0; i < 16; ++i) seen.insert(spray.Next());
  for (uint16_t path = 0; path < 16; ++path) EXPECT_EQ(seen.count(path), 1U);
  spray.OnFeedback(5, PathFeedback::kTimeout);
  int uses = 0;
  for (int i = 0; i < 150; ++i) uses += spray.Next() == 5 ? 1 : 0;
  EXPECT_EQ(uses, 0);
  // A path that is known to be good comes first.
  spray.OnFeedback(9, PathFeedback::kGood);
  EXPECT_EQ(spray.Next(), 9);
}

std::unique_ptr<Simulation> Make(Transport transport, uint64_t seed = 1) {
  Result<Topology> topology = Topology::FromText("leaf-spine:hosts=64,rate=400G,delay=1us");
  EXPECT_TRUE(topology.ok());
  SwitchSettings& switches = topology->switch_settings;
  switches.queue = QueueMode::kTrim;
  switches.queue_bytes = 100 * 4150;
  switches.ecn = {true, 25 * 4150, 75 * 4150, 1.0, false, true};
  switches.strict_priorities = 1 << 7;
  SimulationSettings settings;
  settings.seed = seed;
  settings.transport = transport;
  settings.uec.network_rtt = kRtt;
  Result<std::unique_ptr<Simulation>> simulation = Simulation::Create(*topology, settings);
  EXPECT_TRUE(simulation.ok()) << simulation.status().message();
  return std::move(*simulation);
}

class UecIncast : public testing::TestWithParam<Transport> {};

TEST_P(UecIncast, EveryFlowArrivesAndTheLinkStaysBusy) {
  const auto simulation = Make(GetParam());
  constexpr uint32_t kSenders = 32;
  constexpr uint64_t kBytes = 1 << 20;
  for (uint32_t i = 1; i <= kSenders; ++i) {
    simulation->PostAt(0, simulation->AddFlow({.source = i, .destination = 0}), kBytes);
  }
  simulation->Run(20 * kPicosPerMs);
  Picos last = 0;
  for (FlowId flow = 0; flow < simulation->flows(); ++flow) {
    ASSERT_NE(simulation->FinishTime(flow), kNever) << flow;
    last = std::max(last, simulation->FinishTime(flow));
  }
  const double ideal_us = kSenders * 257.0 * 4150 * 8 / 400e3 + 8.34;
  EXPECT_NEAR(static_cast<double>(last) * 1e-6, ideal_us, 0.05 * ideal_us);
  EXPECT_GT(simulation->counters().trimmed, 0U);
}

TEST_P(UecIncast, SurvivesLoss) {
  const auto simulation = Make(GetParam());
  uint64_t draws = 0;
  simulation->context().fault_hook = [&](const PacketView&) {
    return (++draws * 0x9E3779B97F4A7C15ULL >> 32) % 50 == 0 ? PacketFate::kDrop : PacketFate::kDeliver;
  };
  const FlowId flow = simulation->AddFlow({.source = 1, .destination = 40});
  simulation->PostAt(0, flow, 2'000'000);
  simulation->Run(100 * kPicosPerMs);
  EXPECT_NE(simulation->FinishTime(flow), kNever);
}

TEST_P(UecIncast, TwoRunsAreEqual) {
  const auto run = [](uint64_t seed) {
    const auto simulation = Make(GetParam(), seed);
    for (uint32_t i = 1; i <= 8; ++i) {
      simulation->PostAt(0, simulation->AddFlow({.source = i, .destination = 0}), 200'000);
    }
    simulation->Run(kPicosPerMs);
    return simulation->statistics().trace_hash;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

INSTANTIATE_TEST_SUITE_P(Both, UecIncast, testing::Values(Transport::kNscc, Transport::kRccc),
                         [](const testing::TestParamInfo<Transport>& info) {
                           return info.param == Transport::kNscc ? "Nscc" : "Rccc";
                         });

}  // namespace
}  // namespace sluice::soft
