#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "plugin/transport/path.h"

namespace sluice {
namespace {

using Pairs = std::vector<std::pair<uint8_t, uint8_t>>;

PortAddress Roce(const char* name, uint8_t subnet) {
  PortAddress port;
  port.link_layer = static_cast<uint8_t>(LinkLayer::kEthernet);
  port.name = name;
  port.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, subnet, 1};
  return port;
}

PortAddress Infiniband(const char* name) {
  PortAddress port;
  port.link_layer = static_cast<uint8_t>(LinkLayer::kInfiniBand);
  port.name = name;
  return port;
}

TEST(MatchPorts, OneToOne) {
  EXPECT_EQ(*MatchPorts({Roce("a", 1)}, {Roce("b", 9)}), (Pairs{{0, 0}}));
}

TEST(MatchPorts, SwappedSubnetsArePairedBySubnet) {
  EXPECT_EQ(*MatchPorts({Roce("a", 1), Roce("b", 2)}, {Roce("c", 2), Roce("d", 1)}), (Pairs{{0, 1}, {1, 0}}));
}

TEST(MatchPorts, TheLargerSideDecidesTheNumber) {
  EXPECT_EQ(*MatchPorts({Roce("a", 1), Roce("b", 1)}, {Roce("c", 1)}), (Pairs{{0, 0}, {1, 0}}));
  EXPECT_EQ(*MatchPorts({Roce("a", 1)}, {Roce("c", 1), Roce("d", 1)}), (Pairs{{0, 0}, {0, 1}}));
}

TEST(MatchPorts, MixedLinkLayersAreNeverConnected) {
  EXPECT_EQ(*MatchPorts({Infiniband("a"), Roce("b", 1)}, {Roce("c", 1), Infiniband("d")}),
            (Pairs{{0, 1}, {1, 0}}));
  const auto refused = MatchPorts({Infiniband("ib0")}, {Roce("eth0", 1)});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(),
              ::testing::AllOf(::testing::HasSubstr("ib0"), ::testing::HasSubstr("eth0"),
                               ::testing::HasSubstr("NCCL_IB_HCA")));
}

TEST(Psn, DistinctPerQueuePairAnd24Bit) {
  std::set<uint32_t> seen;
  for (uint32_t pair = 0; pair < 8; ++pair) {
    for (uint32_t queue = 0; queue < 65; ++queue) {
      const uint32_t psn = PsnOf(0xfffff0, pair, queue);
      EXPECT_LT(psn, 1u << 24);
      EXPECT_TRUE(seen.insert(psn).second);
    }
  }
}

}  // namespace
}  // namespace sluice
