// Paths: hashing, adaptive routing, static routes, links that go down; and that equal input gives equal runs.
#include <algorithm>
#include <set>

#include "soft_net_rig.h"
#include "verbs/soft/model/random.h"

namespace sluice::soft {
namespace {

// Two leaves of 8 hosts, 8 spines.
constexpr const char* kTwoLeaves = "leaf-spine:hosts=16,hosts_per_leaf=8,spines=8";

double ChiSquare(const std::vector<uint64_t>& counts) {
  uint64_t total = 0;
  for (const uint64_t count : counts) total += count;
  const double expected = static_cast<double>(total) / static_cast<double>(counts.size());
  double sum = 0;
  for (const uint64_t count : counts) {
    const double difference = static_cast<double>(count) - expected;
    sum += difference * difference / expected;
  }
  return sum;
}

// As queue pairs between two hosts hash: numbers that follow each other.
uint32_t QueuePairFlow(uint32_t index, FlowHashKind kind) {
  return HashOf({0x0A000001, 0x0A000009, UdpSourcePort(0x40 + index, 0x1040 + index)}, kind);
}

class SoftNetEcmp : public ::testing::TestWithParam<FlowHashKind> {};

TEST_P(SoftNetEcmp, ThousandQueuePairsSpreadEvenly) {
  Topology topology = NetRig::Make(kTwoLeaves);
  RouteTable routes(&topology, &topology.routing);
  routes.Update(std::vector<bool>(topology.links.size(), true));
  ASSERT_EQ(8u, routes.Candidates(0, 15).size());
  std::vector<uint64_t> counts(8);
  for (uint32_t i = 0; i < 1000; ++i) ++counts[routes.Draw(0, QueuePairFlow(i, GetParam()), 8)];
  EXPECT_LT(ChiSquare(counts), 24.3) << "7 degrees of freedom, 0.1 %";
}

TEST_P(SoftNetEcmp, EqualSeedsPolarise) {
  for (const bool equal : {false, true}) {
    Topology topology = NetRig::Make(kTwoLeaves);
    topology.routing.equal_seeds = equal;
    RouteTable routes(&topology, &topology.routing);
    std::vector<uint64_t> counts(4);
    uint64_t drawn = 0;
    for (uint32_t i = 0; drawn < 1000; ++i) {
      const uint32_t flow = QueuePairFlow(i, GetParam());
      if (routes.Draw(0, flow, 4) != 2) continue;
      ++drawn;
      ++counts[routes.Draw(1, flow, 4)];
    }
    if (equal) {
      EXPECT_EQ(1000u, counts[2]) << "the second tier draws as the first";
    } else {
      EXPECT_LT(ChiSquare(counts), 16.3) << "3 degrees of freedom, 0.1 %";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hashes, SoftNetEcmp,
                         ::testing::Values(FlowHashKind::kCrc32, FlowHashKind::kToeplitz));

// The vectors of the receive-side scaling specification.
TEST(SoftNetHash, ToeplitzKnowsItsVectors) {
  const auto ip = [](uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return a << 24 | b << 16 | c << 8 | d;
  };
  EXPECT_EQ(0x51ccc178u,
            HashOf({ip(66, 9, 149, 187), ip(161, 142, 100, 80), 2794, 1766}, FlowHashKind::kToeplitz));
  EXPECT_EQ(0xc626b0eau,
            HashOf({ip(199, 92, 111, 2), ip(65, 69, 140, 83), 14230, 4739}, FlowHashKind::kToeplitz));
}

// What a change of links leaves is what a table that is made new has.
TEST(SoftNetRoutes, ChangesOfLinksGiveTheRoutesOfANewTable) {
  for (const char* text :
       {"leaf-spine:hosts=16,hosts_per_leaf=4,spines=3", "fat-tree:k=4", "rail:hosts=8,nics=2",
        "leaf-spine:hosts=8,hosts_per_leaf=4,spines=2,links_per_spine=2"}) {
    const Topology topology = NetRig::Make(text);
    RouteTable changed(&topology, &topology.routing);
    std::vector<bool> up(topology.links.size(), true);
    changed.Update(up);
    const auto endpoints = static_cast<uint32_t>(EndpointIndex(topology).count());
    Random random(7, 1, 1);
    for (int step = 0; step < 200; ++step) {
      // One link, or several at once as when a switch restarts.
      for (uint64_t links = 1 + (step % 5 == 0 ? random.Below(6) : 0); links > 0; --links) {
        const size_t link = random.Below(up.size());
        // Most links are up, so that there is mostly a way.
        up[link] = !up[link] || random.Below(2) == 0;
      }
      changed.Update(up);
      RouteTable fresh(&topology, &topology.routing);
      fresh.Update(up);
      for (uint32_t node = 0; node < topology.switches.size(); ++node) {
        for (uint32_t endpoint = 0; endpoint < endpoints; ++endpoint) {
          const auto a = changed.Candidates(node, endpoint);
          const auto b = fresh.Candidates(node, endpoint);
          ASSERT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()))
              << text << ", step " << step << ", switch " << node << ", endpoint " << endpoint;
        }
      }
    }
  }
}

// That come to a spine.
uint64_t SpineBytes(NetRig& rig, const Topology& topology, uint32_t spine) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < topology.links.size(); ++i) {
    const LinkSpec& link = topology.links[i];
    if (!link.a.is_switch || !link.b.is_switch) continue;
    // Switches: two leaves, then the spines.
    if (link.b.node == 2 + spine) bytes += rig.network().link(2 * i).bytes[0];
    if (link.a.node == 2 + spine) bytes += rig.network().link(2 * i + 1).bytes[0];
  }
  return bytes;
}

TEST(SoftNetRouting, AFlowKeepsItsPathAndAdaptivePacketsDoNot) {
  for (const bool adaptive : {false, true}) {
    Topology topology = NetRig::Make(kTwoLeaves);
    if (adaptive) topology.routing.mode = RoutingMode::kAdaptive;
    NetRig rig(topology);
    // All hosts of a leaf at once: colliding flows would lose time.
    for (uint32_t i = 0; i < 8; ++i)
      rig.Add({.from = i, .to = 8 + i, .packets = 4000, .flow = 77 + i * 1000});
    rig.Run();
    Picos last = 0;
    for (uint32_t i = 0; i < 8; ++i) last = std::max(last, rig.Received(rig.stream(i)).last);
    const Picos alone = 4000 * SerialisationTime(4178, 100'000'000'000);
    if (adaptive) {
      EXPECT_LT(last, alone + alone / 50);
      for (uint32_t spine = 0; spine < 8; ++spine) {
        EXPECT_NEAR(4000 * 4178, static_cast<double>(SpineBytes(rig, topology, spine)), 0.05 * 4000 * 4178);
      }
    } else {
      EXPECT_GT(last, alone * 3 / 2) << "some flows share a spine";
    }
  }
}

TEST(SoftNetRouting, StaticRoutesAndDownedLinks) {
  Topology topology = NetRig::Make(kTwoLeaves);
  const auto link_between = [&](uint32_t leaf, uint32_t spine) {
    for (uint32_t i = 0; i < topology.links.size(); ++i) {
      const LinkSpec& link = topology.links[i];
      if (!link.a.is_switch || !link.b.is_switch) continue;
      if (std::minmax(link.a.node, link.b.node) == std::pair<const uint32_t&, const uint32_t&>(leaf, spine))
        return i;
    }
    return UINT32_MAX;
  };
  for (uint32_t spine = 0; spine < 8; ++spine) {
    topology.routing.static_routes = {{4711, {link_between(0, 2 + spine), link_between(1, 2 + spine), 15}}};
    NetRig rig(topology);
    const Stream& stream = rig.Add({.from = 0, .to = 15, .packets = 100, .flow = 4711});
    rig.Run();
    EXPECT_EQ(100u, rig.Received(stream).packets);
    EXPECT_EQ(100u * 4178, SpineBytes(rig, topology, spine));
  }
  topology.routing.static_routes.clear();
  topology.routing.reroute_delay = 100 * kPicosPerUs;
  NetRig rig(topology);
  for (uint32_t spine = 0; spine < 7; ++spine) rig.network().SetLinkUp(link_between(0, 2 + spine), false);
  const Stream& early = rig.Add({.from = 0, .to = 15, .packets = 1000, .flow = 5});
  rig.Run(kPicosPerMs);
  EXPECT_LT(rig.Received(early).packets, 1000u) << "lost until the routes know";
  EXPECT_GT(rig.Received(early).packets, 0u);
  const Stream& late = rig.Add({.from = 0, .to = 15, .packets = 1000, .flow = 5});
  rig.Run();
  EXPECT_EQ(1000u, rig.Received(late).packets);
  rig.network().SetLinkUp(link_between(0, 9), false);
  rig.Run(rig.Now() + kPicosPerMs);
  const Stream& lost = rig.Add({.from = 0, .to = 15, .packets = 10, .flow = 5});
  rig.Run();
  EXPECT_EQ(0u, rig.Received(lost).packets);
}

// What a switch loses in a reboot frees its buffers: traffic goes on behind it.
TEST(SoftNetRouting, ResetLosesWhatIsQueued) {
  for (const char* text : {"hosts=4", "hosts=4,link=infiniband,delay=100ns"}) {
    NetRig rig(NetRig::Make(text));
    for (uint32_t i = 0; i < 3; ++i) rig.Add({.from = i, .to = 3, .packets = 2000});
    rig.Run(100 * kPicosPerUs);
    rig.network().ResetSwitch(0);
    rig.Run();
    uint64_t packets = 0;
    for (uint32_t i = 0; i < 3; ++i) packets += rig.Received(rig.stream(i)).packets;
    EXPECT_GT(rig.statistics().dropped_packets, 0u);
    EXPECT_EQ(6000u, packets + rig.statistics().dropped_packets);
  }
}

uint64_t BusyRun(const SwitchSettings& settings, const char* text, uint64_t seed, uint64_t slice_events) {
  Topology topology = NetRig::Make(text, settings);
  topology.routing.seed = seed;
  topology.nic_settings = NicSettings::Realistic();
  if (settings.ecn.enabled) topology.nic_settings.rate_control = RateControl::kDcqcn;
  NetRig rig(std::move(topology));
  for (uint32_t i = 0; i < 16; ++i) {
    for (uint32_t j = 1; j < 4; ++j) rig.Add({.from = i, .to = (i * 5 + j) % 16, .packets = 300});
  }
  for (Picos now = 0; slice_events != 0 && now < kPicosPerMs; now += 777'777) {
    while (!rig.context().scheduler.Run(now, slice_events)) {
    }
  }
  rig.Run();
  EXPECT_EQ(0u, rig.statistics().dropped_packets);
  return rig.statistics().trace_hash;
}

TEST(SoftNetDeterminism, EqualInputEqualTrace) {
  struct Case {
    SwitchSettings settings;
    const char* text;
  };
  SwitchSettings marking = SwitchSettings::Shared64();
  marking.ecn.k_min_bytes = 10'000;
  marking.ecn.k_max_bytes = 60'000;
  const Case cases[] = {{SwitchSettings::Htsim(), "leaf-spine:hosts=16"},
                        {marking, "leaf-spine:hosts=16"},
                        {SwitchSettings::InfiniBand(), "leaf-spine:hosts=16,link=infiniband,delay=100ns"}};
  for (const Case& c : cases) {
    const uint64_t first = BusyRun(c.settings, c.text, 1, 0);
    EXPECT_EQ(first, BusyRun(c.settings, c.text, 1, 0));
    EXPECT_EQ(first, BusyRun(c.settings, c.text, 1, 13)) << "how time is advanced must not matter";
    EXPECT_NE(first, BusyRun(c.settings, c.text, 2, 0));
  }
}

}  // namespace
}  // namespace sluice::soft
