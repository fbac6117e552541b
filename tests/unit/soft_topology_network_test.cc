// Settings of switches, NICs and routes from a file and from a line, and the combinations that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "verbs/soft/model/topology.h"
#include "verbs/soft/model/topology_check.h"
#include "verbs/soft/model/topology_network_check.h"

namespace sluice::soft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SoftTopologyNetwork, EverySettingOfAFile) {
  const Result<Topology> topology = Topology::FromToml(R"(
[topology]
kind = "leaf-spine"
hosts = 16
rate = "100G"
switch = "shared64"
nic = "realistic"
[switches]
pool = "32M"
ports_per_chip = 32
alpha = "1/4"
lossless_priorities = [3]
xon_offset = "16K"
pause_response = "100ns"
pause_quanta = 1000
pause_on_wire = false
staged_events = true
queue_limit = "2MB"
ets = [1, 1, 1, 4, 1, 1, 1, 1]
strict_priorities = [6]
dscp = { 26 = 3, 48 = 6 }
ecn_min = "150KB"
ecn_max = 600000
ecn_probability = 0.01
ecn_per_25g = false
ecn_at_dequeue = true
[nics]
doorbell = "250ns"
pcie_read = "0.6us"
pcie_read_rate = "200G"
pcie_write_rate = "unlimited"
receive_buffer = "1M"
work_requests_per_second_qp = 1000000
work_requests_per_second = 5000000
burst_packets = 4
acks_first = false
rate_control = "dcqcn"
cnp_priority = 5
dcqcn_g = 0.0625
dcqcn_rate_timer = "55us"
dcqcn_rate_ai = "5M"
dcqcn_cnp_interval = "10us"
dcqcn_reduce_period = "4us"
[routing]
mode = "adaptive"
hash = "toeplitz"
seed = 99
equal_seeds = true
reroute_delay = "2ms"
[[route]]
flow = 17
links = ["leaf0-spine1", "spine1-leaf3", "host15"]
)",
                                                       "x.toml");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  const SwitchSettings& s = topology->switch_settings;
  EXPECT_EQ(uint64_t{32} << 20, s.pool_bytes);
  EXPECT_EQ(32u, s.ports_per_chip);
  EXPECT_EQ(2u, s.alpha_eighths);
  EXPECT_EQ(8, s.lossless_priorities);
  EXPECT_EQ(16384u, s.xon_offset_bytes);
  EXPECT_EQ(100 * kPicosPerNs, s.pause_response);
  EXPECT_EQ(1000, s.pause_quanta);
  EXPECT_FALSE(s.pause_on_wire);
  EXPECT_TRUE(s.staged_events);
  EXPECT_EQ(2'000'000u, s.queue_bytes);
  EXPECT_THAT(s.ets_weight, ElementsAre(1, 1, 1, 4, 1, 1, 1, 1));
  EXPECT_EQ(64, s.strict_priorities);
  EXPECT_EQ(3, s.dscp_to_priority[26]);
  EXPECT_EQ(6, s.dscp_to_priority[48]);
  EXPECT_EQ(1, s.dscp_to_priority[10]) << "others keep the preset's class";
  EXPECT_TRUE(s.ecn.enabled) << "by the preset";
  EXPECT_EQ(150'000u, s.ecn.k_min_bytes);
  EXPECT_EQ(600'000u, s.ecn.k_max_bytes);
  EXPECT_EQ(0.01, s.ecn.p_max);
  EXPECT_FALSE(s.ecn.per_25g);
  EXPECT_TRUE(s.ecn.at_dequeue);
  const NicSettings& n = topology->nic_settings;
  EXPECT_EQ(250 * kPicosPerNs, n.doorbell);
  EXPECT_EQ(600 * kPicosPerNs, n.pcie_read);
  EXPECT_EQ(200'000'000'000u, n.pcie_read_bps);
  EXPECT_EQ(0u, n.pcie_write_bps);
  EXPECT_EQ(1u << 20, n.receive_buffer_bytes);
  EXPECT_EQ(1'000'000u, n.work_requests_per_second_qp);
  EXPECT_EQ(5'000'000u, n.work_requests_per_second);
  EXPECT_EQ(4u, n.burst_packets);
  EXPECT_FALSE(n.acks_first);
  EXPECT_EQ(RateControl::kDcqcn, n.rate_control);
  EXPECT_EQ(5, n.cnp_priority);
  EXPECT_EQ(0.0625, n.dcqcn.g);
  EXPECT_EQ(55 * kPicosPerUs, n.dcqcn.rate_timer);
  EXPECT_EQ(55 * kPicosPerUs, n.dcqcn.alpha_timer);
  EXPECT_EQ(5'000'000u, n.dcqcn.rate_ai_bps);
  EXPECT_EQ(10 * kPicosPerUs, n.dcqcn.cnp_interval);
  EXPECT_EQ(4 * kPicosPerUs, n.dcqcn.reduce_period);
  const RoutingSettings& r = topology->routing;
  EXPECT_EQ(RoutingMode::kAdaptive, r.mode);
  EXPECT_EQ(FlowHashKind::kToeplitz, r.hash);
  EXPECT_EQ(99u, r.seed);
  EXPECT_TRUE(r.equal_seeds);
  EXPECT_EQ(2 * kPicosPerMs, r.reroute_delay);
  ASSERT_EQ(1u, r.static_routes.size());
  EXPECT_EQ(17u, r.static_routes[0].flow);
  EXPECT_THAT(r.static_routes[0].links, ElementsAre(17, 16 + 3 * 4 + 1, 15));
}

TEST(SoftTopologyNetwork, OneLineHasTheSameKeys) {
  const Result<Topology> topology = Topology::FromText(
      "single:hosts=4,link=infiniband,switches.sl2vl=0/1/0/1,switch=infiniband,switches.vl_high=1:64,"
      "switches.vl_low=0:64/1:1/2:8/3:255,switches.vl_high_limit=6,switches.vl_buffer=64K,nic=realistic,"
      "nics.doorbell=0ns,routing.seed=5,max_qp=9");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  const SwitchSettings& s = topology->switch_settings;
  EXPECT_THAT(s.sl_to_vl, ElementsAre(0, 1, 0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3))
      << "the preset applies first, wherever it stands";
  ASSERT_EQ(1u, s.vl_high.size());
  EXPECT_EQ(1, s.vl_high[0].lane);
  ASSERT_EQ(4u, s.vl_low.size());
  EXPECT_EQ(255, s.vl_low[3].weight);
  EXPECT_EQ(6, s.vl_high_limit);
  EXPECT_EQ(65536u, s.vl_buffer_bytes);
  EXPECT_EQ(0, topology->nic_settings.doorbell);
  EXPECT_EQ(16'000'000u, topology->nic_settings.work_requests_per_second_qp);
  EXPECT_EQ(5u, topology->routing.seed);
  EXPECT_EQ(9u, topology->hosts[0].nics[0].limits.max_qp);
}

TEST(SoftTopologyNetwork, PresetsFitTheTopologiesOfTheExperiments) {
  for (const char* text : {
           "fat-tree:hosts=128,rate=100G,switch=htsim",
           "leaf-spine:hosts=8192,rate=400G,switch=shared64",
           "leaf-spine:hosts=128,rate=400G,switch=shared64,nic=realistic,nics.rate_control=dcqcn",
           "leaf-spine:hosts=128,rate=400G,delay=100ns,link=infiniband,switch=infiniband",
           "leaf-spine:hosts=8192,rate=400G,switches.queue=trim,switches.queue_limit=417K",
           "single:hosts=64,rate=800G,delay=5us,switch=deep",
           "leaf-spine:hosts=16,switch=unbounded,delay=100ms",
       }) {
    const Result<Topology> topology = Topology::FromText(text);
    EXPECT_TRUE(topology.ok()) << topology.status().message();
  }
}

TEST(SoftTopologyNetwork, HeadroomIsTheRoundTripTwoPacketsAndTheResponse) {
  // 400 Gb/s, 1 us: 100 KB of round trip, 4 KB of response, two packets.
  const uint64_t bytes = HeadroomBytes(400'000'000'000, kPicosPerUs, 4096, 80 * kPicosPerNs);
  EXPECT_EQ(100'000u + 4'000 + 2 * (4096 + 82 + 20), bytes);
}

TEST(SoftTopologyNetwork, OneLineErrors) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"hosts=2,switch=cisco", {"switch preset \"cisco\"", "shared64, htsim, deep, infiniband"}},
      {"hosts=2,nic=fast", {"NIC preset \"fast\"", "instant, realistic"}},
      {"hosts=2,switch=infiniband", {"preset infiniband is for InfiniBand", "every port is RoCE"}},
      {"hosts=2,link=ib,switch=htsim", {"preset htsim is for RoCE", "use the preset infiniband"}},
      {"hosts=2,switches.colour=1", {"no key colour in [switches]", "pool", "sl2vl"}},
      {"hosts=2,nics.colour=1", {"no key colour in [nics]", "doorbell"}},
      {"hosts=2,routing.colour=1", {"no key colour in [routing]", "hash"}},
      {"hosts=2,fans.speed=1", {"no key fans.speed", "switches.pool", "routing.hash"}},
  };
  for (const auto& [text, parts] : cases) {
    const Result<Topology> topology = Topology::FromText(text);
    ASSERT_FALSE(topology.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(topology.status().message(), HasSubstr(part)) << text;
  }
}

TEST(SoftTopologyNetwork, ValuesOutOfRangeNameLineKeyValueAndRange) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"[switches]\nqueue = \"red\"\n",
       {"bad.toml:2", "queue = red", "unbounded, lossless, drop-tail, trim"}},
      {"[switches]\nbuffer = \"big\"\n", {"bad.toml:2", "buffer = big", "static, dynamic"}},
      {"[switches]\npool = \"1x\"\n", {"bad.toml:2", "pool = 1x", "65536 to"}},
      {"[switches]\npool = 10\n", {"bad.toml:2", "pool = 10"}},
      {"[switches]\nalpha = \"1/3\"\n", {"bad.toml:2", "alpha = 1/3", "1/8 to 8"}},
      {"[switches]\nalpha = 0\n", {"bad.toml:2", "alpha = 0"}},
      {"[switches]\nlossless_priorities = [8]\n", {"bad.toml:2", "lossless_priorities = 8", "0 to 7"}},
      {"[switches]\nstrict_priorities = \"x\"\n", {"bad.toml:2", "strict_priorities = x"}},
      {"[switches]\nets = [256]\n", {"bad.toml:2", "ets = 256", "0 to 255"}},
      {"[switches]\nets = [1,1,1,1,1,1,1,1,1]\n", {"bad.toml:2", "priorities 0 to 7"}},
      {"[switches]\ndscp = { 64 = 1 }\n", {"bad.toml:2", "dscp = 64:1", "DSCP 0 to 63"}},
      {"[switches]\ndscp = { 1 = 8 }\n", {"bad.toml:2", "dscp = 1:8", "priority 0 to 7"}},
      {"[switches]\necn = \"on\"\n", {"bad.toml:2", "ecn = on", "true or false"}},
      {"[switches]\necn_probability = 1.5\n", {"bad.toml:2", "ecn_probability = 1.5", "0 to 1"}},
      {"[switches]\npause_quanta = 65536\n", {"bad.toml:2", "pause_quanta = 65536", "2 to 65535"}},
      {"[switches]\ntrim_bytes = 16\n", {"bad.toml:2", "trim_bytes = 16", "64 to 512"}},
      {"[switches]\nsl2vl = [0, 15]\n", {"bad.toml:2", "sl2vl = 0/15", "SL 1", "VL15"}},
      {"[switches]\nsl2vl = { 16 = 1 }\n", {"bad.toml:2", "sl2vl = 16:1", "0 to 15"}},
      {"[switches]\nsl2vl = { 1 = 9 }\n", {"bad.toml:2", "sl2vl = 1:9", "VL 0 to 7"}},
      {"[switches]\nvl_low = [[15, 4]]\n", {"bad.toml:2", "vl_low = 15:4", "VL15"}},
      {"[switches]\nvl_high = [[0, 256]]\n", {"bad.toml:2", "vl_high = 0:256", "weight 0 to 255"}},
      {"[switches]\nvl_high_limit = 256\n", {"bad.toml:2", "vl_high_limit = 256", "0 to 255"}},
      {"[switches]\npreset = \"best\"\n", {"bad.toml:2", "switch preset \"best\""}},
      {"[nics]\nrate_control = \"hpcc\"\n", {"bad.toml:2", "rate_control = hpcc", "none, dcqcn"}},
      {"[nics]\nburst_packets = 0\n", {"bad.toml:2", "burst_packets = 0", "1 to 1024"}},
      {"[nics]\npcie_read_rate = \"fast\"\n", {"bad.toml:2", "pcie_read_rate = fast", "1M to 3200G"}},
      {"[nics]\ndoorbell = \"1h\"\n", {"bad.toml:2", "doorbell = 1h", "0ns to 1ms"}},
      {"[nics]\ndcqcn_g = 2\n", {"bad.toml:2", "dcqcn_g = 2", "to 1"}},
      {"[nics]\ncnp_priority = 8\n", {"bad.toml:2", "cnp_priority = 8", "0 to 7"}},
      {"[routing]\nmode = \"spray\"\n", {"bad.toml:2", "mode = spray", "ecmp, adaptive"}},
      {"[routing]\nhash = \"md5\"\n", {"bad.toml:2", "hash = md5", "crc32, toeplitz"}},
      {"[routing]\nseed = -1\n", {"bad.toml:2", "seed = -1"}},
      {"[[route]]\nflow = 1\n", {"bad.toml:1", "flow and links"}},
      {"[[route]]\nflow = 1\nlinks = [\"host9999\"]\n", {"bad.toml:3", "host9999"}},
      {"[[route]]\nflow = 1\nlinks = [\"switch0\"]\n", {"bad.toml:3", "256 links", "#0"}},
      {"[[route]]\nflow = 1\nlinks = [\"#1\"]\nvia = 2\n", {"bad.toml:4", "no key via"}},
  };
  for (const auto& [text, parts] : cases) {
    const Result<Topology> topology = Topology::FromToml(text, "bad.toml");
    ASSERT_FALSE(topology.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(topology.status().message(), HasSubstr(part)) << text;
  }
}

TEST(SoftTopologyNetwork, SettingsOfTrimmingAndForwarding) {
  const Result<Topology> topology = Topology::FromText(
      "hosts=2,switches.queue=trim,switches.queue_limit=400K,switches.trim_bytes=128,switches.trim_priority="
      "5,"
      "switches.forwarding=cut-through");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_EQ(128u, topology->switch_settings.trim_bytes);
  EXPECT_EQ(5, topology->switch_settings.trim_priority);
  EXPECT_EQ(Forwarding::kCutThrough, topology->switch_settings.forwarding);
}

TEST(SoftTopologyNetwork, WhatHasNoEffectIsRefused) {
  const std::string roce = "[topology]\nhosts = 2\n[switches]\n";               // 3 lines
  const std::string ib = "[topology]\nhosts = 2\nlink = \"ib\"\n[switches]\n";  // 4 lines
  const std::string nics = "[topology]\nhosts = 2\n[nics]\n";
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {roce + "vl_buffer = \"64K\"\n", {"bad.toml:4", "vl_buffer = 64K has no effect", "InfiniBand"}},
      {roce + "vl_low = [[0, 64]]\n", {"bad.toml:4", "vl_low", "no effect"}},
      {roce + "sl2vl = [0, 1]\n", {"bad.toml:4", "sl2vl", "no effect"}},
      {roce + "credit_processing = \"1us\"\n", {"bad.toml:4", "credit_processing", "no effect"}},
      {roce + "xoff = \"60K\"\n", {"bad.toml:4", "xoff = 60K has no effect", "buffer = \"static\""}},
      {roce + "xon = \"60K\"\n", {"bad.toml:4", "xon", "no effect"}},
      {roce + "buffer = \"static\"\nxoff = \"60K\"\nxon = \"48K\"\nalpha = 2\n",
       {"bad.toml:7", "alpha = 2 has no effect", "buffer = \"dynamic\""}},
      {roce + "queue = \"unbounded\"\nqueue_limit = \"1M\"\n", {"bad.toml:5", "queue_limit", "has no limit"}},
      {roce + "trim_bytes = 128\n", {"bad.toml:4", "trim_bytes", "queue = \"trim\""}},
      {roce + "ecn = false\necn_min = \"50K\"\n", {"bad.toml:5", "ecn_min", "ecn = false"}},
      {roce + "lossless_priorities = \"none\"\npause_quanta = 100\n", {"bad.toml:5", "there are none"}},
      {ib + "pool = \"32M\"\n", {"bad.toml:5", "pool = 32M has no effect", "RoCE"}},
      {ib + "ets = [1, 1, 1, 1, 1, 1, 1, 1]\n", {"bad.toml:5", "ets", "RoCE"}},
      {ib + "vl_high_limit = 4\n", {"bad.toml:5", "vl_high is empty"}},
      {nics + "cnp_priority = 5\n", {"bad.toml:4", "cnp_priority = 5 has no effect", "dcqcn"}},
      {nics + "dcqcn_g = 0.1\n", {"bad.toml:4", "dcqcn_g", "rate_control"}},
  };
  for (const auto& [text, parts] : cases) {
    const Result<Topology> topology = Topology::FromToml(text, "bad.toml");
    ASSERT_FALSE(topology.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(topology.status().message(), HasSubstr(part)) << text;
  }
  EXPECT_THAT(Topology::FromText("hosts=2,switches.vl_buffer=64K").status().message(),
              HasSubstr("no effect"));
  // What a preset says beside is nobody's wish.
  EXPECT_TRUE(Topology::FromText("hosts=2,switch=shared64,nic=realistic").ok());
}

TEST(SoftTopologyNetwork, FaultsAndBackgroundMayBeAdded) {
  Topology topology = *Topology::FromText("leaf-spine:hosts=4");
  EXPECT_TRUE(topology.Add("loss:probability=0.1;link-down:link=host1,at=1ms", "incast:targets=host0").ok());
  EXPECT_EQ(2u, topology.faults.size());
  EXPECT_EQ(1u, topology.background.size());
  EXPECT_THAT(topology.Add("link-down:link=host9", "").message(),
              HasSubstr("fault \"link-down:link=host9\""));
  topology = *Topology::FromText("leaf-spine:hosts=4");
  EXPECT_THAT(topology.Add("", "incast:targets=host9").message(), HasSubstr("host9"));
}

TEST(SoftTopologyNetwork, ImpossibleCombinationsAreRefused) {
  const std::string two = "[topology]\nhosts = 2\n[switches]\n";  // 3 lines
  const std::string ib = "[topology]\nhosts = 2\nlink = \"ib\"\n[switches]\n";
  const std::string leaf = "[topology]\nkind = \"leaf-spine\"\nhosts = 16\n";
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {two + "queue = \"trim\"\n", {"bad.toml:3", "queue_limit = 0", "at least one packet, 4198 bytes"}},
      {two + "queue = \"drop-tail\"\nqueue_limit = 4000\n", {"bad.toml:5", "queue_limit = 4000", "4198"}},
      {two + "queue_limit = 100\n", {"bad.toml:4", "queue_limit = 100", "never fits"}},
      {ib + "queue = \"trim\"\nqueue_limit = \"1M\"\n", {"bad.toml:5", "neither drop nor trim"}},
      {two + "ecn_min = 500000\n", {"bad.toml:4", "ecn_min = 500000", "ecn_max = 400000"}},
      {two + "ets = [1,1,1,0,1,1,1,1]\n", {"bad.toml:4", "priority 3", "never sends"}},
      {two + "buffer = \"static\"\n", {"bad.toml:3", "xoff = 0", "pause threshold"}},
      {two + "buffer = \"static\"\nxoff = 1000\nxon = 2000\n", {"bad.toml:6", "xon = 2000", "xoff = 1000"}},
      {two + "pool = \"64K\"\n", {"bad.toml:4", "headroom does not fit", "switch switch0", "2 ports x 2"}},
      {"[topology]\nhosts = 64\nrate = \"800G\"\ndelay = \"10us\"\n",
       {"bad.toml:1", "headroom does not fit", "preset deep"}},
      {ib + "vl_low = [[0, 64]]\n", {"bad.toml:4", "SL 1 on VL 1", "would never send"}},
      {ib + "vl_buffer = 4000\n", {"bad.toml:5", "vl_buffer = 4000", "never gets credits"}},
      // 4182 bytes with a global route header: 66 blocks of 64.
      {ib + "vl_buffer = 4223\n", {"bad.toml:5", "a packet of 4224 bytes never gets credits"}},
      {"[topology]\nhosts = 2\nlink = \"ib\"\n[nics]\nrate_control = \"dcqcn\"\n",
       {"bad.toml:5", "InfiniBand has no such rate control"}},
      {"[topology]\nhosts = 2\n[nics]\nrate_control = \"dcqcn\"\n", {"bad.toml:4", "ecn = false"}},
      {"[topology]\nhosts = 2\nrate = \"400G\"\n[nics]\npcie_write_rate = \"440G\"\nreceive_buffer = "
       "\"128K\"\n",
       {"bad.toml:6", "receive_buffer = 131072", "host0/soft0/1", "may still arrive"}},
      {"[topology]\nhosts = 2\nrate = \"800G\"\ndelay = \"2us\"\nswitch = \"deep\"\n[[fault]]\nkind = "
       "\"stalled-receiver\"\nport = \"host0\"\n",
       {"receive_buffer = 524288"}},
      {leaf + "[[route]]\nflow = 1\nlinks = [\"leaf0-spine1\", \"spine2-leaf3\", \"host15\"]\n",
       {"bad.toml:4", "flow 1", "does not start where the one before ends"}},
      {leaf + "[[route]]\nflow = 1\nlinks = [\"leaf0-spine1\", \"spine1-leaf3\"]\n",
       {"bad.toml:4", "does not lead to a host"}},
      {leaf + "[[route]]\nflow = 1\nlinks = [\"host3\", \"host3\"]\n", {"bad.toml:4", "flow 1"}},
  };
  for (const auto& [text, parts] : cases) {
    const Result<Topology> topology = Topology::FromToml(text, "bad.toml");
    ASSERT_FALSE(topology.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(topology.status().message(), HasSubstr(part)) << text;
  }
  // A value made by a program is checked alike.
  Topology topology = *Topology::FromText("hosts=2,link=ib");
  topology.switch_settings.sl_to_vl[4] = 15;
  EXPECT_THAT(CheckTopology(topology).message(), HasSubstr("SL 4 on VL 15"));
  topology = *Topology::FromText("hosts=2");
  topology.routing.static_routes.push_back({1, {77}});
  EXPECT_THAT(CheckTopology(topology).message(), HasSubstr("no link #77"));
}

}  // namespace
}  // namespace sluice::soft
