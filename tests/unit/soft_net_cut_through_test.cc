// Cut-through forwarding against its closed form: each switch costs the time of 64 bytes, not of the packet.
#include "soft_net_rig.h"

namespace sluice::soft {
namespace {

constexpr uint32_t kWireBytes = 4096 + 82;

Picos Latency(const std::string& text) {
  NetRig rig(NetRig::Make(text));
  Stream& stream = rig.Add({.from = 0, .to = static_cast<uint32_t>(rig.hosts() - 1), .packets = 1});
  rig.Run();
  return rig.Received(stream).first;
}

TEST(SoftNetCutThrough, LatencyIsThatOfTheHeadersAndOnePacket) {
  constexpr Picos kDelay = 300 * kPicosPerNs;
  const Picos whole = SerialisationTime(kWireBytes, 400'000'000'000);
  const Picos head = SerialisationTime(kCutThroughBytes, 400'000'000'000);
  struct Case {
    const char* shape;
    uint32_t links;
  };
  for (const Case& c : {Case{"single:hosts=2", 2}, {"leaf-spine:hosts=16", 4}, {"fat-tree:hosts=16", 6}}) {
    for (const char* link : {"", ",link=infiniband"}) {
      const std::string text = std::string(c.shape) + ",rate=400G,delay=300ns" + link;
      EXPECT_EQ(c.links * (whole + kDelay), Latency(text)) << text;
      EXPECT_EQ(c.links * (whole + kDelay), Latency(text + ",switches.forwarding=store-and-forward")) << text;
      EXPECT_EQ((c.links - 1) * (head + kDelay) + whole + kDelay,
                Latency(text + ",switches.forwarding=cut-through"))
          << text;
    }
  }
}

// Where the next link is faster, the packet is stored: it would run out of bytes.
TEST(SoftNetCutThrough, AFasterLinkWaitsForTheWholePacket) {
  const std::string text =
      "leaf-spine:hosts=4,hosts_per_leaf=2,spines=1,rate=100G,spine_rate=400G,delay=300ns";
  const auto at = [](uint32_t bytes, uint64_t gigabits) {
    return SerialisationTime(bytes, gigabits * 1'000'000'000);
  };
  const Picos stored = 2 * at(kWireBytes, 100) + 2 * at(kWireBytes, 400) + 4 * 300 * kPicosPerNs;
  EXPECT_EQ(stored, Latency(text));
  // Host to leaf whole; leaf to spine, spine to leaf by their first bytes; the rest at the host's rate.
  const Picos cut =
      at(kWireBytes, 100) + 2 * at(kCutThroughBytes, 400) + at(kWireBytes, 100) + 4 * 300 * kPicosPerNs;
  EXPECT_EQ(cut, Latency(text + ",switches.forwarding=cut-through"));
}

TEST(SoftNetCutThrough, ThroughputStays) {
  for (const char* link : {"", ",link=infiniband"}) {
    NetRig rig(NetRig::Make(
        std::string("leaf-spine:hosts=16,rate=400G,delay=100ns,switches.forwarding=cut-through") + link));
    for (uint32_t i = 0; i < 4; ++i) rig.Add({.from = i, .to = 15, .packets = 1000});
    rig.Run();
    Picos last = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      EXPECT_EQ(1000u, rig.Received(rig.stream(i)).packets) << link;
      last = std::max(last, rig.Received(rig.stream(i)).last);
    }
    EXPECT_NEAR(static_cast<double>(4000 * SerialisationTime(kWireBytes, 400'000'000'000)),
                static_cast<double>(last), 0.01 * static_cast<double>(last))
        << link;
    EXPECT_EQ(0u, rig.statistics().dropped_packets) << link;
  }
}

}  // namespace
}  // namespace sluice::soft
