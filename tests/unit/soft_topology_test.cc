// Generated topologies (names, numbering, rates, oversubscription) and explicit ones, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "verbs/soft/model/topology.h"
#include "verbs/soft/model/topology_check.h"
#include "verbs/soft/model/topology_names.h"

namespace sluice::soft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Topology Make(const std::string& text) {
  Result<Topology> topology = Topology::FromText(text);
  EXPECT_TRUE(topology.ok()) << text << ": " << topology.status().message();
  return std::move(*topology);
}

// Ports that are in use, by switch name.
std::map<std::string, int> Degrees(const Topology& topology) {
  std::map<std::string, int> degrees;
  for (const LinkSpec& link : topology.links) {
    for (const LinkEnd* end : {&link.a, &link.b}) {
      if (end->is_switch) ++degrees[topology.switches[end->node].name];
    }
  }
  return degrees;
}

std::set<std::string> Cables(const Topology& topology) {
  std::set<std::string> cables;
  for (const LinkSpec& link : topology.links) {
    cables.insert(EndText(topology, link.a) + " " + EndText(topology, link.b));
  }
  return cables;
}

TEST(SoftTopology, LeafSpineOf128Hosts) {
  const Topology topology = Make("leaf-spine:hosts=128,rate=400G,delay=0.6us");
  EXPECT_FALSE(topology.on_demand);
  EXPECT_EQ(128u, topology.hosts.size());
  EXPECT_EQ(16u + 8u, topology.switches.size());
  EXPECT_EQ(128u + 16 * 8, topology.links.size());
  for (const LinkSpec& link : topology.links) {
    EXPECT_EQ(400'000'000'000u, link.rate_bps);
    EXPECT_EQ(600 * kPicosPerNs, link.delay);
  }
  const auto degrees = Degrees(topology);
  EXPECT_EQ(16, degrees.at("leaf15"));
  EXPECT_EQ(16, degrees.at("spine7"));
  // Link i hangs on NIC port i.
  for (uint32_t i = 0; i < 128; ++i) {
    EXPECT_EQ(i, topology.links[i].a.node);
    EXPECT_EQ(i / 8, topology.links[i].b.node);
    EXPECT_EQ(i % 8, topology.links[i].b.port);
  }
  const auto cables = Cables(topology);
  EXPECT_TRUE(cables.contains("host9/soft0/1 leaf1/1"));
  EXPECT_TRUE(cables.contains("leaf3/8 spine0/3"));
  EXPECT_TRUE(cables.contains("leaf15/15 spine7/15"));
}

TEST(SoftTopology, LeafSpineSizesFollowTheHosts) {
  const std::pair<const char*, std::pair<size_t, size_t>> cases[] = {
      {"leaf-spine:hosts=64", {8, 8}},
      {"leaf-spine:hosts=256", {16, 16}},
      {"leaf-spine:hosts=8192", {128, 64}},
      {"leaf-spine:hosts=1", {1, 1}},
      {"leaf-spine:hosts=7", {4, 2}},
      {"leaf-spine:hosts=64,hosts_per_leaf=16", {4, 16}},
      {"leaf-spine:hosts=64,hosts_per_leaf=16,oversubscription=4", {4, 4}},
      {"leaf-spine:hosts=64,hosts_per_leaf=16,spines=2", {4, 2}},
      {"leaf-spine:hosts=64,hosts_per_leaf=16,spines=4,oversubscription=1", {4, 4}},
      {"leaf-spine:hosts=64,rate=100G,spine_rate=400G", {8, 2}},
      {"leaf-spine:hosts=16,nics=2,ports=2", {4, 16}},
      {"leaf-spine:hosts=16,links_per_spine=2", {4, 2}},
  };
  for (const auto& [text, sizes] : cases) {
    const Topology topology = Make(text);
    EXPECT_EQ(sizes.first + sizes.second, topology.switches.size()) << text;
    EXPECT_EQ("spine" + std::to_string(sizes.second - 1), topology.switches.back().name) << text;
  }
  const Topology parallel = Make("leaf-spine:hosts=64,hosts_per_leaf=16,spines=4,oversubscription=1");
  EXPECT_EQ(64u + 4 * 4 * 4, parallel.links.size()) << "four parallel links to each spine";
  const Topology fast = Make("leaf-spine:hosts=64,rate=100G,spine_rate=400G,spine_delay=2us");
  EXPECT_EQ(100'000'000'000u, fast.links.front().rate_bps);
  EXPECT_EQ(400'000'000'000u, fast.links.back().rate_bps);
  EXPECT_EQ(2 * kPicosPerUs, fast.links.back().delay);
  EXPECT_EQ(kPicosPerUs, fast.links.front().delay);
}

TEST(SoftTopology, FatTreeOf128HostsHasRadix8) {
  for (const char* text : {"fat-tree:hosts=128,rate=100G", "fat-tree:k=8"}) {
    const Topology topology = Make(text);
    EXPECT_EQ(128u, topology.hosts.size());
    EXPECT_EQ(32u + 32 + 16, topology.switches.size());
    EXPECT_EQ(3u * 128, topology.links.size());
    for (const auto& [name, degree] : Degrees(topology)) EXPECT_EQ(8, degree) << name;
    const auto cables = Cables(topology);
    EXPECT_TRUE(cables.contains("host127/soft0/1 edge31/3"));
    EXPECT_TRUE(cables.contains("edge5/4 aggregation4/1")) << "pod 1: edges 4 to 7, aggregations 4 to 7";
    EXPECT_TRUE(cables.contains("edge5/7 aggregation7/1"));
    EXPECT_TRUE(cables.contains("aggregation4/4 core0/1"));
    EXPECT_TRUE(cables.contains("aggregation7/7 core15/1"));
  }
  EXPECT_EQ(512u + 512 + 256, Make("fat-tree:hosts=8192").switches.size());
  const Topology partial = Make("fat-tree:hosts=100");
  EXPECT_EQ(7u * 4 * 2 + 16, partial.switches.size()) << "whole pods without hosts are left out";
  const Topology oversubscribed = Make("fat-tree:k=4,oversubscription=4");
  EXPECT_EQ(64u, oversubscribed.hosts.size());
  EXPECT_EQ(2 * 4 + 2, Degrees(oversubscribed).at("edge0"));
  const Topology merged = Make("fat-tree:hosts=16,nics=2,ports=2");
  EXPECT_EQ(64u + 2 * 64, merged.links.size());
}

TEST(SoftTopology, RailsCarryTheSameNicOfEveryHost) {
  const Topology topology = Make("rail:hosts=64,nics=8");
  EXPECT_EQ(8u + 64, topology.switches.size());
  for (const LinkSpec& link : topology.links) {
    if (link.a.is_switch) continue;
    EXPECT_EQ("rail" + std::to_string(link.a.nic), topology.switches[link.b.node].name);
  }
  EXPECT_EQ(128, Degrees(topology).at("rail3"));
  EXPECT_EQ(8, Degrees(topology).at("spine0"));
  const Topology groups = Make("rail:hosts=16,nics=2,hosts_per_leaf=4,oversubscription=2");
  EXPECT_EQ(8u + 2, groups.switches.size());
  EXPECT_TRUE(Cables(groups).contains("host5/soft1/1 group1-rail1/1"));
}

TEST(SoftTopology, SingleAndTheOldForm) {
  const Topology topology = Make("single:hosts=8,nics=2");
  EXPECT_EQ(1u, topology.switches.size());
  EXPECT_EQ(16u, topology.links.size());
  EXPECT_EQ(Cables(topology), Cables(Make("hosts=8,nics=2")));
  EXPECT_TRUE(Make("").on_demand);
}

TEST(SoftTopology, TheLargestAreBuilt) {
  // Building and checking are linear; a quadratic slip would run into the time limit of the test.
  for (const char* text :
       {"leaf-spine:hosts=8192,rate=400G", "fat-tree:hosts=8192", "rail:hosts=4096,nics=8"}) {
    const Topology topology = Make(text);
    EXPECT_TRUE(CheckTopology(topology).ok());
    EXPECT_GE(topology.links.size(), 16384u);
  }
}

TEST(SoftTopology, ImpossibleShapesAreRefused) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"ring:hosts=8", {"kind = ring", "single, leaf-spine, fat-tree, rail"}},
      {"explicit:hosts=2", {"TOML file"}},
      {"leaf-spine", {"needs hosts", "hosts = 128"}},
      {"leaf-spine:rate=100G", {"needs hosts"}},
      {"fat-tree:rate=100G", {"needs hosts"}},
      {"fat-tree:k=7", {"k = 7", "even"}},
      {"fat-tree:k=66", {"k = 66", "2 to 64"}},
      {"fat-tree:k=64", {"k = 64", "65536 hosts"}},
      {"fat-tree:hosts=200,k=8", {"k = 8", "128 NIC ports", "raise k"}},
      {"fat-tree:hosts=2,k=6,nics=2", {"no multiple", "2 NIC ports"}},
      {"single:hosts=8,spines=2", {"spines = 2", "means nothing for kind single", "leaf-spine, rail"}},
      {"fat-tree:hosts=8,hosts_per_leaf=2", {"hosts_per_leaf = 2", "fat-tree"}},
      {"leaf-spine:hosts=64,oversubscription=3", {"oversubscription = 3", "no whole number of links"}},
      {"leaf-spine:hosts=64,spine_rate=300G", {"300G", "spine_rate"}},
      {"leaf-spine:hosts=64,spines=3,oversubscription=1", {"spines = 3", "8 links"}},
      {"leaf-spine:hosts=64,spines=0", {"spines = 0", "1 to 1024"}},
      {"leaf-spine:hosts=64,oversubscription=65", {"1 to 64"}},
      {"leaf-spine:hosts=64,spine_rate=9", {"spine_rate = 9", "1M to 3200G"}},
      {"hosts=2,hosts=3", {"hosts = 3", "it was 2 before"}},
      {"leaf-spine:hosts=64,colour=1", {"no key colour", "oversubscription"}},
  };
  for (const auto& [text, parts] : cases) {
    const Result<Topology> topology = Topology::FromText(text);
    ASSERT_FALSE(topology.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(topology.status().message(), HasSubstr(part)) << text;
  }
}

TEST(SoftTopology, KindsInAFile) {
  const Result<Topology> topology = Topology::FromToml(R"(
[topology]
kind = "leaf-spine"
hosts = 16
rate = "100G"
spine_rate = "400G"
[[host]]
name = "host3"
rename = "storage"
rate = "200G"
nics = 2
)",
                                                       "cluster.toml");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_EQ(4u + 1, topology->switches.size());
  EXPECT_TRUE(Cables(*topology).contains("storage/soft1/1 leaf0/4"));
  EXPECT_EQ(200'000'000'000u, topology->links[4].rate_bps);
}

constexpr char kRing[] = R"(
[topology]
hosts = 3
rate = "100G"
spine_rate = "200G"
[[host]]
index = 2
ports = 2
[[switch]]
name = "left"
[[switch]]
name = "right"
[[link]]
a = "host0"
b = "left"
[[link]]
a = "host1/soft0/1"
b = "right/7"
delay = "5us"
[[link]]
a = "left"
b = "right"
count = 2
[[link]]
a = "host2/soft0/2"
b = "left"
[[link]]
a = "right"
b = "host2"
)";

TEST(SoftTopology, ExplicitLinks) {
  const Result<Topology> topology = Topology::FromToml(kRing, "ring.toml");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_THAT(Cables(*topology),
              ElementsAre("host0/soft0/1 left/0", "host1/soft0/1 right/7", "host2/soft0/2 left/3",
                          "left/1 right/0", "left/2 right/1", "right/2 host2/soft0/1"));
  EXPECT_EQ(100'000'000'000u, topology->links[0].rate_bps);
  EXPECT_EQ(5 * kPicosPerUs, topology->links[1].delay);
  EXPECT_EQ(200'000'000'000u, topology->links[2].rate_bps) << "between switches: spine_rate";
  const Result<Topology> many = Topology::FromToml(
      "[topology]\nhosts = 1\n[[switch]]\nname = \"s\"\ncount = 3\n[[link]]\na = \"host0\"\nb = \"s2\"\n"
      "[[link]]\na = \"s0\"\nb = \"s1\"\n[[link]]\na = \"s1\"\nb = \"s2\"\n",
      "many.toml");
  ASSERT_TRUE(many.ok()) << many.status().message();
  EXPECT_EQ("s1", many->switches[1].name);
}

TEST(SoftTopology, ExplicitErrorsNameTheLine) {
  const std::string hosts = "[topology]\nhosts = 2\n[[switch]]\nname = \"s\"\n";  // 4 lines
  const std::string first = "[[link]]\na = \"host0\"\nb = \"s\"\n";               // lines 5 to 7
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {hosts + "[[link]]\na = \"host0\"\n", {"bad.toml:5", "both ends"}},
      {hosts + "[[link]]\na = \"host9\"\nb = \"s\"\n", {"bad.toml:6", "a = host9", "no host or switch"}},
      {hosts + "[[link]]\na = \"host0/soft3\"\nb = \"s\"\n", {"bad.toml:6", "no NIC \"soft3\"", "soft0"}},
      {hosts + "[[link]]\na = \"host0/soft0/2\"\nb = \"s\"\n", {"bad.toml:6", "no port \"2\"", "1 to 1"}},
      {hosts + "[[link]]\na = \"host0\"\nb = \"s/x\"\n", {"bad.toml:7", "no port of switch s"}},
      {hosts + first + "[[link]]\na = \"host0\"\nb = \"s\"\n", {"bad.toml:9", "two links"}},
      {hosts + first + "[[link]]\na = \"host1\"\nb = \"s/0\"\n", {"bad.toml:10", "s/0 has two links"}},
      {hosts + first + "[[link]]\na = \"host1\"\nb = \"s\"\nrate = \"400G\"\n",
       {"bad.toml:9", "400G", "host1/soft0/1 at 100G"}},
      {hosts + first + "[[link]]\na = \"host1\"\nb = \"s\"\nspeed = 1\n", {"bad.toml:11", "no key speed"}},
      {hosts + first + "[[link]]\na = \"host1\"\nb = \"s\"\ncount = 2\n", {"bad.toml:8", "count = 2"}},
      {hosts + first, {"bad.toml", "has no link"}},
      {hosts + "[[switch]]\nname = \"s\"\n" + first + "[[link]]\na = \"host1\"\nb = \"s\"\n",
       {"bad.toml", "\"s\"", "twice"}},
      {hosts + "[[switch]]\n", {"bad.toml:5", "no name"}},
      {hosts + "[[switch]]\nname = \"t\"\nports = 4\n", {"bad.toml:7", "no key ports"}},
      {"[topology]\nkind = \"single\"\nhosts = 2\n[[switch]]\nname = \"s\"\n",
       {"bad.toml:4", "kind = \"explicit\""}},
      {"[[switch]]\nname = \"s\"\n", {"bad.toml", "explicit needs hosts"}},
      {"[topology]\nkind = \"mesh\"\n", {"bad.toml:2", "kind = mesh"}},
      {"hosts = 4\n", {"bad.toml:1", "unexpected hosts", "[topology]"}},
      {"[topology]\nhosts = [1, 2]\n", {"bad.toml:2", "hosts = 1/2"}},
      {"[topology]\nhosts = 2\n[[host]]\nindex = 0\nrename = \"a/b\"\n", {"bad.toml:5", "rename = a/b"}},
      {"[topology]\nhosts = 2\n[[host]]\nindex = 0\nrename = \"a b\"\n", {"bad.toml:5", "1 to 63 letters"}},
      {"[topology]\nhosts = 2\n[[host]]\nindex = 0\nrename = \"a\\nb\"\n", {"bad.toml:5", "1 to 63 letters"}},
      {"[topology]\nhosts = 2\n[[host]]\nindex = 0\nrename = \"" + std::string(64, 'x') + "\"\n",
       {"bad.toml:5", "1 to 63 letters"}},
      {"[topology]\nhosts = 2\n[[host]]\nindex = 0\nrename = \"\"\n", {"bad.toml:5", "rename = ;"}},
      {"[[switch]]\nname = \"a/0\"\n[topology]\nhosts = 1\n", {"bad.toml:2", "name = a/0"}},
  };
  for (const auto& [text, parts] : cases) {
    const Result<Topology> topology = Topology::FromToml(text, "bad.toml");
    ASSERT_FALSE(topology.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(topology.status().message(), HasSubstr(part)) << text;
  }
}

TEST(SoftTopology, ADirectoryIsNoFile) {
  for (const char* path : {"/tmp", "/tmp/"}) {
    const Result<Topology> topology = Topology::Parse(path);
    ASSERT_FALSE(topology.ok()) << path;
    EXPECT_THAT(topology.status().message(), HasSubstr("Is a directory")) << path;
  }
}

TEST(SoftTopology, LinksByName) {
  const Topology topology = Make("rail:hosts=4,nics=2,hosts_per_leaf=2,spines=2");
  const TopologyNames names(topology);
  EXPECT_THAT(*names.Links("host1"), ElementsAre(2, 3));
  EXPECT_THAT(*names.Links("host1/soft1"), ElementsAre(3));
  EXPECT_THAT(*names.Links("#5"), ElementsAre(5));
  EXPECT_THAT(*names.Links("group0-rail1-spine1"), ElementsAre(11));
  EXPECT_THAT(*names.Links("spine1-group0-rail1"), ElementsAre(11));
  EXPECT_THAT(*names.Links("host0-group0-rail0"), ElementsAre(0));
  EXPECT_THAT(*names.Links("spine0"), ElementsAre(8, 10, 12, 14));
  EXPECT_THAT(*names.Links("spine0/1"), ElementsAre(10));
  for (const char* text : {"nobody", "host0-host1", "#16", "host0-nobody", "", "-", "host0/soft0/1/1"}) {
    EXPECT_FALSE(names.Links(text).ok()) << text;
  }
  EXPECT_EQ(3u, *names.Host("3"));
  EXPECT_THAT(names.Host("spine0").status().message(), HasSubstr("host0 to host3"));
  EXPECT_THAT(names.Switch("host0").status().message(), HasSubstr("group0-rail0 to spine1"));
}

}  // namespace
}  // namespace sluice::soft
