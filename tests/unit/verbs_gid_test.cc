// Choice of the GID (field cases A1, A3, A6, A8, A10, A11) and everything that is arithmetic on GIDs.
#include "verbs/gid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

union ibv_gid Gid(const std::string& text) {
  const std::optional<union ibv_gid> gid = ParseGid(text);
  EXPECT_TRUE(gid.has_value()) << text;
  return gid.value_or(ibv_gid{});
}

GidEntry Entry(int index, GidType type, const std::string& gid) {
  return {index, Gid(gid), type, ""};
}

constexpr GidType kV1 = GidType::kRoceV1;
constexpr GidType kV2 = GidType::kRoceV2;

// What a NIC with an IPv4 and an IPv6 address shows.
std::vector<GidEntry> UsualTable() {
  return {Entry(0, kV1, "fe80::1"),  Entry(1, kV2, "fe80::1"),   Entry(2, kV1, "10.0.0.1"),
          Entry(3, kV2, "10.0.0.1"), Entry(4, kV1, "fd00:1::1"), Entry(5, kV2, "fd00:1::1")};
}

AddressRanges Ranges(const std::string& text) {
  Result<AddressRanges> ranges = AddressRanges::Parse(text, "NCCL_IB_ADDR_RANGE");
  EXPECT_TRUE(ranges.ok()) << ranges.status().message();
  return *ranges;
}

int Choose(const std::vector<GidEntry>& table, const GidOptions& options = {}) {
  const Result<GidEntry> chosen = ChooseGid(table, LinkLayer::kEthernet, "mlx5_0", options);
  EXPECT_TRUE(chosen.ok()) << chosen.status().message();
  return chosen.ok() ? chosen->index : -1;
}

TEST(ChooseRoceGid, PrefersRoutableVersionTwoIpv4) {
  EXPECT_EQ(Choose(UsualTable()), 3);
  EXPECT_EQ(Choose({Entry(0, kV1, "fe80::1"), Entry(1, kV2, "fe80::1"), Entry(2, kV1, "10.0.0.1"),
                    Entry(3, kV2, "10.0.0.1")}),
            3);
}

TEST(ChooseRoceGid, FollowsVersionFamilyAndRange) {
  EXPECT_EQ(Choose(UsualTable(), {.roce_version = 1}), 2);
  EXPECT_EQ(Choose(UsualTable(), {.family = AddressFamily::kIpv6}), 5);
  EXPECT_EQ(Choose(UsualTable(), {.family = AddressFamily::kIpv4}), 3);
  EXPECT_EQ(Choose(UsualTable(), {.roce_version = 1, .family = AddressFamily::kIpv6}), 4);
  std::vector<GidEntry> two = UsualTable();
  two.push_back(Entry(6, kV1, "10.0.7.1"));
  two.push_back(Entry(7, kV2, "10.0.7.1"));
  EXPECT_EQ(Choose(two, {.ranges = Ranges("10.0.7.0/24")}), 7);
  EXPECT_EQ(Choose(two, {.ranges = Ranges("192.168.0.0/16,10.0.7.1/32")}), 7);
  EXPECT_EQ(Choose(two, {.family = AddressFamily::kIpv6, .ranges = Ranges("fd00:1::/32")}), 5);
  EXPECT_EQ(Choose(two, {.ranges = Ranges("0.0.0.0/0")}), 3);
}

TEST(ChooseRoceGid, TakesWhatThereIsWhenPreferencesFindNothing) {
  // Only IPv6: unique-local before link-local, whatever the order.
  EXPECT_EQ(Choose({Entry(0, kV1, "fe80::1"), Entry(1, kV2, "fe80::1"), Entry(2, kV2, "fd00::1")}), 2);
  EXPECT_EQ(Choose({Entry(0, kV2, "fd00::1"), Entry(1, kV2, "fe80::1")}), 0);
  // Only version 1.
  EXPECT_EQ(Choose({Entry(0, kV1, "fe80::1"), Entry(1, kV1, "10.0.0.1")}), 1);
  // Only link-local: version 2.
  EXPECT_EQ(Choose({Entry(0, kV1, "fe80::1"), Entry(1, kV2, "fe80::1")}), 1);
  // A routable address of the other family and version beats a link-local one that fits.
  EXPECT_EQ(Choose({Entry(0, kV2, "fe80::1"), Entry(1, kV1, "10.0.0.1")}, {.family = AddressFamily::kIpv6}),
            1);
  // Types unknown, as without sysfs.
  EXPECT_EQ(Choose({Entry(0, GidType::kUnknown, "fe80::1"), Entry(4, GidType::kUnknown, "10.0.0.1")}), 4);
}

TEST(ChooseRoceGid, SkipsEntriesWithoutAddress) {
  EXPECT_EQ(Choose({Entry(0, kV2, "::"), Entry(1, kV2, "fe80::"), Entry(2, kV2, "fe80::9")}), 2);
}

TEST(ChooseRoceGid, LowestIndexAmongEquals) {
  EXPECT_EQ(Choose({Entry(9, kV2, "10.0.0.9"), Entry(4, kV2, "10.0.0.4"), Entry(7, kV2, "10.0.0.7")}), 4);
}

TEST(ChooseRoceGid, EachHcaFindsItsOwnIndex) {
  EXPECT_EQ(Choose({Entry(0, kV1, "fe80::1"), Entry(3, kV2, "10.0.0.1")}), 3);
  EXPECT_EQ(Choose({Entry(0, kV1, "fe80::2"), Entry(6, kV2, "10.0.1.1")}), 6);
}

TEST(ChooseRoceGid, AForcedIndexThatOneHcaLacksIsRefusedByName) {
  const std::vector<GidEntry> first = {Entry(0, kV1, "fe80::1"), Entry(3, kV2, "10.0.0.1")};
  const std::vector<GidEntry> second = {Entry(0, kV1, "fe80::2"), Entry(6, kV2, "10.0.1.1")};
  const GidOptions forced{.forced_index = 3};
  EXPECT_EQ(Choose(first, forced), 3);
  const Result<GidEntry> refused = ChooseGid(second, LinkLayer::kEthernet, "mlx5_1", forced);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr("mlx5_1"), HasSubstr("index that is set, 3"),
                    HasSubstr("index 6 RoCE v2 10.0.1.1"), HasSubstr("unset the GID index")));
}

TEST(ChooseRoceGid, AForcedIndexIsTakenAsItIs) {
  EXPECT_EQ(Choose(UsualTable(), {.forced_index = 0, .ranges = Ranges("10.0.0.0/8")}), 0);
}

TEST(ChooseRoceGid, RangeWithoutMatchIsAnErrorThatListsTheTable) {
  const Result<GidEntry> refused =
      ChooseGid(UsualTable(), LinkLayer::kEthernet, "mlx5_0", {.ranges = Ranges("192.168.0.0/16")});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("mlx5_0"), HasSubstr("192.168.0.0/16"),
                                                HasSubstr("index 3 RoCE v2 10.0.0.1"), HasSubstr("widen")));
}

TEST(ChooseRoceGid, EmptyAndUnusableTablesAreErrors) {
  const Result<GidEntry> empty = ChooseGid({}, LinkLayer::kEthernet, "mlx5_0", {});
  ASSERT_FALSE(empty.ok());
  EXPECT_THAT(empty.status().message(), AllOf(HasSubstr("mlx5_0"), HasSubstr("empty"), HasSubstr("address")));
  const std::vector<GidEntry> bare = {Entry(0, kV2, "fe80::")};
  EXPECT_FALSE(ChooseGid(bare, LinkLayer::kEthernet, "mlx5_0", {}).ok());
}

TEST(ChooseRoceGid, CutsLongTablesInMessages) {
  std::vector<GidEntry> table;
  for (int i = 0; i < 200; ++i) table.push_back(Entry(i, kV2, "10.0.0." + std::to_string(i + 1)));
  const Result<GidEntry> refused = ChooseGid(table, LinkLayer::kEthernet, "mlx5_0", {.forced_index = 255});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("and 184 more"));
  EXPECT_LT(refused.status().message().size(), 1000U);
}

TEST(ChooseInfiniBandGid, IndexZeroUnlessTheOtherHasAFlid) {
  const std::vector<GidEntry> plain = {Entry(0, GidType::kInfiniBand, "fe80::2:c903:1"),
                                       Entry(1, GidType::kInfiniBand, "fec0::2:c903:1")};
  const std::vector<GidEntry> routed = {Entry(0, GidType::kInfiniBand, "fe80::2:c903:1"),
                                        Entry(1, GidType::kInfiniBand, "fe80:0:12:5::1")};
  const auto choose = [](const std::vector<GidEntry>& table, const GidOptions& options) {
    const Result<GidEntry> chosen = ChooseGid(table, LinkLayer::kInfiniBand, "mlx5_0", options);
    return chosen.ok() ? chosen->index : -1;
  };
  EXPECT_EQ(choose(plain, {}), 0);
  EXPECT_EQ(choose(plain, {.forced_index = 1}), 0);  // the forced index is for RoCE
  EXPECT_EQ(choose(routed, {}), 1);
  EXPECT_EQ(choose(routed, {.routable_flid_index = 7}), 0);
  EXPECT_EQ(choose(routed, {.routable_flid_index = -1}), 0);
  EXPECT_EQ(choose({plain[1]}, {}), -1);
}

TEST(FindGid, FollowsAGidToItsNewIndex) {
  const GidEntry own = Entry(3, kV2, "10.0.0.1");
  EXPECT_EQ(FindGid(UsualTable(), own)->index, 3);
  const std::vector<GidEntry> moved = {Entry(0, kV1, "fe80::1"), Entry(3, kV1, "10.0.0.1"),
                                       Entry(5, kV2, "10.0.0.1")};
  EXPECT_EQ(FindGid(moved, own)->index, 5);
  const std::vector<GidEntry> not_yet = {Entry(0, kV1, "fe80::1"), Entry(2, kV1, "10.0.0.1")};
  EXPECT_FALSE(FindGid(not_yet, own).has_value());
  // The same address on two network devices: the one it had.
  const std::vector<GidEntry> twice = {Entry(1, kV2, "10.0.0.1"), Entry(3, kV2, "10.0.0.1")};
  EXPECT_EQ(FindGid(twice, own)->index, 3);
}

TEST(AddressRanges, ContainsByPrefix) {
  const AddressRanges v4 = Ranges("10.1.0.0/16");
  EXPECT_TRUE(v4.Contains(Gid("10.1.255.1")));
  EXPECT_FALSE(v4.Contains(Gid("10.2.0.1")));
  EXPECT_FALSE(v4.Contains(Gid("fd00::1")));
  const AddressRanges odd = Ranges("10.1.128.0/17");
  EXPECT_TRUE(odd.Contains(Gid("10.1.200.1")));
  EXPECT_FALSE(odd.Contains(Gid("10.1.100.1")));
  EXPECT_TRUE(Ranges("10.1.2.3/32").Contains(Gid("10.1.2.3")));
  EXPECT_FALSE(Ranges("10.1.2.3/32").Contains(Gid("10.1.2.2")));
  EXPECT_FALSE(Ranges("0.0.0.0/0").Contains(Gid("fd00::1")));
  EXPECT_TRUE(Ranges("::/0").Contains(Gid("10.0.0.1")));
  EXPECT_TRUE(Ranges("fd00:1::/33").Contains(Gid("fd00:1:7fff::1")));
  EXPECT_FALSE(Ranges("fd00:1::/33").Contains(Gid("fd00:1:8000::1")));
  EXPECT_TRUE(Ranges(" 10.0.0.0/8 , fd00::/8 ").Contains(Gid("fd77::1")));
  EXPECT_TRUE(Ranges("").empty());
  EXPECT_TRUE(Ranges(" , ").empty());
}

TEST(AddressRanges, RefusesWhatIsNoRange) {
  for (const char* text : {"10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/8x", "10.0.0/8",
                           "host/8", "fd00::/129", "/8", "10.0.0.0/8,eth0/16", "10.0.0.0/8/8"}) {
    const Result<AddressRanges> refused = AddressRanges::Parse(text, "NCCL_IB_ADDR_RANGE");
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr(std::string("NCCL_IB_ADDR_RANGE=") + text), HasSubstr("10.1.0.0/16")));
  }
}

TEST(Gid, FormatsAndParses) {
  for (const char* text : {"10.0.0.1", "fe80::1", "fd00:1:2:3:4:5:6:7", "::", "255.255.255.255"}) {
    EXPECT_EQ(FormatGid(Gid(text)), text);
  }
  EXPECT_EQ(FormatGid(Gid("::ffff:10.0.0.1")), "10.0.0.1");
  for (const char* text : {"", "10.0.0", "mlx5_0", "fe80::1%eth0", "10.0.0.1/8"}) {
    EXPECT_FALSE(ParseGid(text).has_value()) << text;
  }
}

TEST(Gid, Classifies) {
  EXPECT_TRUE(IsLinkLocalGid(Gid("fe80::1")));
  EXPECT_FALSE(IsLinkLocalGid(Gid("fec0::1")));
  EXPECT_FALSE(IsLinkLocalGid(Gid("169.254.1.1")));
  EXPECT_FALSE(IsConfiguredGid(Gid("::")));
  EXPECT_FALSE(IsConfiguredGid(Gid("fe80::")));
  EXPECT_TRUE(IsConfiguredGid(Gid("fe80::1")));
  EXPECT_EQ(GidFamily(Gid("10.0.0.1")), AddressFamily::kIpv4);
  EXPECT_EQ(GidFamily(Gid("fd00::1")), AddressFamily::kIpv6);
  EXPECT_EQ(GidFlid(Gid("fe80:0:12:5::1")), 0x12);
  EXPECT_EQ(GidFlid(Gid("fe80::1")), 0);
  EXPECT_EQ(GidFlid(Gid("fec0:0:12:5::1")), 0);
  EXPECT_EQ(GidFlid(Gid("10.0.0.1")), 0);
}

TEST(Gid, KnowsNeighbours) {
  constexpr LinkLayer kIb = LinkLayer::kInfiniBand;
  constexpr LinkLayer kRoce = LinkLayer::kEthernet;
  EXPECT_TRUE(SameSubnet(kIb, Gid("fe80::1"), Gid("fe80::2")));
  EXPECT_TRUE(
      SameSubnet(kIb, Gid("fe80:0:12:5::1"), Gid("fe80:0:13:5::2")));  // FLIDs differ, subnet does not
  EXPECT_FALSE(SameSubnet(kIb, Gid("fe80:0:12:5::1"), Gid("fe80:0:12:6::2")));
  EXPECT_FALSE(SameSubnet(kIb, Gid("fec0:0:0:1::1"), Gid("fec0:0:0:2::1")));
  EXPECT_FALSE(SameSubnet(kIb, Gid("fec0:0:1:1::1"), Gid("fec0:0:2:1::1")));
  EXPECT_TRUE(SameSubnet(kRoce, Gid("10.0.1.1"), Gid("10.0.1.200")));
  EXPECT_FALSE(SameSubnet(kRoce, Gid("10.0.1.1"), Gid("10.0.2.1")));
  EXPECT_TRUE(SameSubnet(kRoce, Gid("10.0.1.1"), Gid("10.0.2.1"), 16));
  EXPECT_TRUE(SameSubnet(kRoce, Gid("10.0.1.1"), Gid("99.0.2.1"), 0));
  EXPECT_FALSE(SameSubnet(kRoce, Gid("10.0.1.1"), Gid("10.0.1.2"), 99));
  EXPECT_TRUE(SameSubnet(kRoce, Gid("fd00:1::1"), Gid("fd00:1::2")));
  EXPECT_FALSE(SameSubnet(kRoce, Gid("fd00:1::1"), Gid("fd00:1:0:1::1")));
  EXPECT_FALSE(SameSubnet(kRoce, Gid("10.0.1.1"), Gid("fd00:1::1")));
}

TEST(Route, RoceIsAlwaysGlobal) {
  Result<Route> route = PlanRoute(LinkLayer::kEthernet, Gid("10.0.0.1"), Gid("10.9.0.1"), 0, 0);
  ASSERT_TRUE(route.ok());
  EXPECT_TRUE(route->is_global);
  EXPECT_EQ(route->dlid, 0);
  EXPECT_FALSE(PlanRoute(LinkLayer::kEthernet, Gid("10.0.0.1"), Gid("::"), 0, 0).ok());
}

TEST(Route, InfiniBandUsesLidsInsideASubnet) {
  constexpr LinkLayer kIb = LinkLayer::kInfiniBand;
  Result<Route> near = PlanRoute(kIb, Gid("fe80::1"), Gid("fe80::2"), 7, 0);
  ASSERT_TRUE(near.ok());
  EXPECT_FALSE(near->is_global);
  EXPECT_EQ(near->dlid, 7);
  Result<Route> required = PlanRoute(kIb, Gid("fe80::1"), Gid("fe80::2"), 7, IBV_QPF_GRH_REQUIRED);
  ASSERT_TRUE(required.ok());
  EXPECT_TRUE(required->is_global);
  EXPECT_EQ(required->dlid, 7);
  Result<Route> far = PlanRoute(kIb, Gid("fe80:0:12:5::1"), Gid("fe80:0:13:6::1"), 7, 0);
  ASSERT_TRUE(far.ok());
  EXPECT_TRUE(far->is_global);
  EXPECT_EQ(far->dlid, 0x13);
  Result<Route> far_without_flid = PlanRoute(kIb, Gid("fec0:0:0:1::1"), Gid("fec0:0:0:2::1"), 7, 0);
  ASSERT_TRUE(far_without_flid.ok());
  EXPECT_TRUE(far_without_flid->is_global);
  EXPECT_EQ(far_without_flid->dlid, 7);
  const Result<Route> no_lid = PlanRoute(kIb, Gid("fe80::1"), Gid("fe80::2"), 0, 0);
  ASSERT_FALSE(no_lid.ok());
  EXPECT_THAT(no_lid.status().message(), HasSubstr("LID 0"));
}

TEST(GidFiles, ReadTypeAndNetworkDeviceUnderTheDevicePath) {
  std::string name = ::testing::TempDir() + "sluice-gid-XXXXXX";
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const std::filesystem::path root = name;
  std::filesystem::create_directories(root / "ports/1/gid_attrs/types");
  std::filesystem::create_directories(root / "ports/1/gid_attrs/ndevs");
  std::ofstream(root / "ports/1/gid_attrs/types/0") << "IB/RoCE v1\n";
  std::ofstream(root / "ports/1/gid_attrs/types/3") << "RoCE v2\n";
  std::ofstream(root / "ports/1/gid_attrs/types/4") << "something new\n";
  std::ofstream(root / "ports/1/gid_attrs/ndevs/3") << "eth2\n";
  EXPECT_EQ(ReadGidType(name, 1, 0, LinkLayer::kEthernet), GidType::kRoceV1);
  EXPECT_EQ(ReadGidType(name, 1, 3, LinkLayer::kEthernet), GidType::kRoceV2);
  EXPECT_EQ(ReadGidType(name, 1, 4, LinkLayer::kEthernet), GidType::kUnknown);
  EXPECT_EQ(ReadGidType(name, 1, 9, LinkLayer::kEthernet), GidType::kUnknown);
  EXPECT_EQ(ReadGidType(name, 2, 0, LinkLayer::kEthernet), GidType::kUnknown);
  EXPECT_EQ(ReadGidType(name, 1, 0, LinkLayer::kInfiniBand), GidType::kInfiniBand);
  EXPECT_EQ(ReadGidNetDevice(name, 1, 3), "eth2");
  EXPECT_EQ(ReadGidNetDevice(name, 1, 0), "");
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace sluice
