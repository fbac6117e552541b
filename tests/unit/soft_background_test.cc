// Background traffic: sizes, loads, shapes and determinism of the lists, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "verbs/soft/model/topology.h"

namespace sluice::soft {
namespace {

using ::testing::HasSubstr;

std::vector<BackgroundMessage> Make(const Topology& topology, const std::string& text, uint64_t seed = 1) {
  Result<std::vector<BackgroundSpec>> specs = BackgroundSpec::ListFromText(text);
  EXPECT_TRUE(specs.ok()) << text << ": " << specs.status().message();
  Result<std::vector<BackgroundMessage>> messages = MakeBackground(topology, *specs, seed);
  EXPECT_TRUE(messages.ok()) << text << ": " << messages.status().message();
  for (size_t i = 1; i < messages->size(); ++i) EXPECT_LE((*messages)[i - 1].start, (*messages)[i].start);
  return std::move(*messages);
}

double Bytes(const std::vector<BackgroundMessage>& messages) {
  double sum = 0;
  for (const BackgroundMessage& m : messages) sum += static_cast<double>(m.bytes);
  return sum;
}

TEST(SoftBackground, PermutationGivesEverybodyOnePartner) {
  const Topology topology = *Topology::FromText("leaf-spine:hosts=128,rate=400G");
  const auto messages =
      Make(topology, "permutation:bytes=1M,count=2,start=5us,spread=10us,sl=3,traffic_class=96");
  ASSERT_EQ(256u, messages.size());
  std::map<uint32_t, uint32_t> to;
  std::set<uint32_t> receivers;
  for (const BackgroundMessage& m : messages) {
    EXPECT_NE(m.source, m.destination);
    EXPECT_EQ(m.destination, to.emplace(m.source, m.destination).first->second);
    receivers.insert(m.destination);
    EXPECT_EQ(uint64_t{1} << 20, m.bytes);
    EXPECT_GE(m.start, 5 * kPicosPerUs);
    EXPECT_LE(m.start, 15 * kPicosPerUs);
    EXPECT_EQ(3, m.sl);
    EXPECT_EQ(96, m.traffic_class);
  }
  EXPECT_EQ(128u, receivers.size());
  EXPECT_NE(messages[0].start, messages.back().start);
}

TEST(SoftBackground, IncastHasOneReceiver) {
  const Topology topology = *Topology::FromText("rail:hosts=16,nics=2");
  const auto messages = Make(topology, "incast:hosts=host0..host9+host12,targets=host4,bytes=64K,nic=1");
  ASSERT_EQ(10u, messages.size()) << "the target itself does not send";
  std::set<uint32_t> streams;
  for (const BackgroundMessage& m : messages) {
    EXPECT_EQ(4u * 2 + 1, m.destination) << "endpoints count NICs: the second one of host4";
    EXPECT_EQ(1u, m.source % 2);
    EXPECT_EQ(0, m.start);
    streams.insert(m.stream);
  }
  EXPECT_EQ(10u, streams.size());
}

TEST(SoftBackground, StorageOffersItsLoad) {
  const Topology topology = *Topology::FromText("hosts=10,rate=100G");
  const auto messages =
      Make(topology,
           "storage:hosts=host0..host7,targets=host8+host9,bytes=128K,load=30%,read_share=0.25,stop=200ms");
  // 8 hosts x 0.3 x 12.5 GB/s x 0.2 s; about 45 000 blocks, 0.5 % standard deviation.
  EXPECT_NEAR(6e9, Bytes(messages), 6e9 * 0.025);
  double reads = 0;
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> pair_of_stream;
  for (const BackgroundMessage& m : messages) {
    EXPECT_NE(m.source >= 8, m.destination >= 8) << "between a host and a server";
    if (m.source >= 8) ++reads;
    EXPECT_LT(m.start, 200 * kPicosPerMs);
    const auto pair = std::make_pair(m.source, m.destination);
    EXPECT_EQ(pair, pair_of_stream.emplace(m.stream, pair).first->second);
  }
  EXPECT_EQ(32u, pair_of_stream.size()) << "one connection per host, server and direction";
  EXPECT_NEAR(0.25, reads / static_cast<double>(messages.size()), 0.02);
}

TEST(SoftBackground, BurstsComeAndGo) {
  const Topology topology = *Topology::FromText("hosts=16,rate=100G");
  const auto messages = Make(topology, "bursts:load=0.4,on=50us,start=1ms,stop=101ms");
  // 16 hosts x 0.4 x 12.5 GB/s x 0.1 s in about 12 800 bursts.
  EXPECT_NEAR(8e9, Bytes(messages), 8e9 * 0.06);
  std::map<uint32_t, Picos> end;
  for (const BackgroundMessage& m : messages) {
    EXPECT_NE(m.source, m.destination);
    EXPECT_GE(m.start, end[m.source] - kPicosPerNs) << "a host's next burst begins after the last";
    end[m.source] = m.start + SerialisationTime(m.bytes, 100'000'000'000);
  }
}

TEST(SoftBackground, TheListFollowsTheSeedAndNothingElse) {
  const Topology topology = *Topology::FromText("hosts=16");
  const auto key = [](const std::vector<BackgroundMessage>& messages) {
    std::vector<std::tuple<Picos, uint32_t, uint32_t, uint32_t, uint64_t>> keys;
    for (const auto& m : messages) keys.emplace_back(m.start, m.source, m.destination, m.stream, m.bytes);
    return keys;
  };
  for (const char* text : {"permutation:spread=1ms", "bursts:stop=2ms", "storage:targets=host3,stop=2ms"}) {
    EXPECT_EQ(key(Make(topology, text, 5)), key(Make(topology, text, 5))) << text;
    EXPECT_NE(key(Make(topology, text, 5)), key(Make(topology, text, 6))) << text;
  }
  // Several at once: streams are numbered on.
  const auto both = Make(topology, "permutation;incast:targets=host0");
  EXPECT_EQ(31u, both.size());
  EXPECT_EQ(30u, both.back().stream);
}

TEST(SoftBackground, InAFile) {
  const Result<Topology> topology = Topology::FromToml(R"(
[topology]
hosts = 8
seed = 12
[[background]]
kind = "storage"
hosts = ["host0..host3", "host5"]
targets = ["host7"]
load = 0.2
sl = 2
[[fault]]
kind = "loss"
probability = 1e-3
)",
                                                       "x.toml");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  ASSERT_EQ(1u, topology->background.size());
  EXPECT_EQ(2u, topology->background[0].hosts.size());
  EXPECT_EQ(0.2, topology->background[0].load);
  EXPECT_EQ(12u, topology->seed);
  ASSERT_EQ(1u, topology->faults.size());
  EXPECT_EQ(1e-3, topology->faults[0].probability);
}

TEST(SoftBackground, ImpossibleTrafficIsRefusedWithItsLine) {
  const std::string start = "[topology]\nhosts = 4\n[[background]]\n";  // 3 lines
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {"kind = \"rain\"\n", {"bad.toml:4", "kind = rain", "storage, permutation, incast, bursts"}},
      {"load = 0.1\n", {"bad.toml:3", "no kind"}},
      {"kind = \"incast\"\n", {"bad.toml:3", "needs targets"}},
      {"kind = \"incast\"\ntargets = [\"host1\", \"host2\"]\n", {"2 targets", "one receiver"}},
      {"kind = \"incast\"\ntargets = [\"host1\"]\nhosts = [\"host1\"]\n",
       {"0 hosts take part", "at least 1"}},
      {"kind = \"incast\"\ntargets = [\"host9\"]\n", {"bad.toml:3", "targets", "no host \"host9\""}},
      {"kind = \"permutation\"\nhosts = [\"host0\"]\n", {"1 hosts take part", "at least 2"}},
      {"kind = \"permutation\"\nhosts = [\"host3..host1\"]\n", {"no range"}},
      {"kind = \"permutation\"\nload = 0.5\n", {"bad.toml:5", "no key load", "spread"}},
      {"kind = \"permutation\"\nbytes = 0\n", {"bad.toml:5", "bytes = 0"}},
      {"kind = \"permutation\"\nsl = 16\n", {"bad.toml:5", "sl = 16", "0 to 15"}},
      {"kind = \"permutation\"\ntraffic_class = 256\n", {"bad.toml:5", "traffic_class = 256", "0 to 255"}},
      {"kind = \"permutation\"\nnic = 1\n", {"nic = 1", "has 1 NICs"}},
      {"kind = \"bursts\"\nload = 1.5\n", {"bad.toml:5", "load = 1.5", "to 1"}},
      {"kind = \"bursts\"\non = \"0us\"\n", {"bad.toml:5", "on = 0us"}},
      {"kind = \"bursts\"\nstart = \"2ms\"\nstop = \"1ms\"\n", {"stop = 1ms", "not after start"}},
      {"kind = \"storage\"\ntargets = [\"host0\"]\nbytes = 1\nstop = \"10s\"\n", {"messages", "10 million"}},
  };
  for (const auto& [text, parts] : cases) {
    const Result<Topology> topology = Topology::FromToml(start + text, "bad.toml");
    ASSERT_FALSE(topology.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(topology.status().message(), HasSubstr(part)) << text;
  }
}

}  // namespace
}  // namespace sluice::soft
