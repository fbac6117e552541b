// MTU, speed and PCI path arithmetic.
#include "verbs/link.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace sluice {
namespace {

TEST(Mtu, ConvertsBothWays) {
  EXPECT_EQ(MtuBytes(IBV_MTU_256), 256U);
  EXPECT_EQ(MtuBytes(IBV_MTU_1024), 1024U);
  EXPECT_EQ(MtuBytes(IBV_MTU_4096), 4096U);
  EXPECT_EQ(MtuBytes(static_cast<ibv_mtu>(0)), 0U);
  EXPECT_EQ(MtuBytes(static_cast<ibv_mtu>(6)), 0U);
  for (int mtu = IBV_MTU_256; mtu <= IBV_MTU_4096; ++mtu) {
    const auto value = static_cast<ibv_mtu>(mtu);
    EXPECT_EQ(MtuFromBytes(MtuBytes(value)), value);
    EXPECT_EQ(MtuFromBytes(MtuBytes(value) + 1), value);
  }
  EXPECT_EQ(MtuFromBytes(0), IBV_MTU_256);
  EXPECT_EQ(MtuFromBytes(1500), IBV_MTU_1024);
  EXPECT_EQ(MtuFromBytes(9000), IBV_MTU_4096);
}

TEST(Mtu, PathTakesTheSmallerOfBoth) {
  EXPECT_EQ(PathMtu(IBV_MTU_1024, IBV_MTU_4096), IBV_MTU_1024);
  EXPECT_EQ(PathMtu(IBV_MTU_4096, IBV_MTU_1024), IBV_MTU_1024);
  EXPECT_EQ(PathMtu(IBV_MTU_4096, IBV_MTU_4096), IBV_MTU_4096);
  EXPECT_EQ(PathMtu(static_cast<ibv_mtu>(0), IBV_MTU_4096), IBV_MTU_1024);
  EXPECT_EQ(PathMtu(IBV_MTU_512, static_cast<ibv_mtu>(77)), IBV_MTU_512);
}

TEST(MaxMessage, IsAlignedAndNeverZero) {
  ibv_port_attr port{};
  EXPECT_EQ(MaxMessageBytes(port), 1U << 30);
  port.max_msg_sz = 0x7fffffff;
  EXPECT_EQ(MaxMessageBytes(port), 0x7fffff80U);
  port.max_msg_sz = 1000;
  EXPECT_EQ(MaxMessageBytes(port), 896U);
}

struct SpeedCase {
  int width;
  int speed;
  const char* sysfs;
  int override_mbps;
  int expected;
};

TEST(Speed, ComesFromOverrideThenPortThenSysfsThenFallback) {
  constexpr SpeedCase kCases[] = {
      {2, 1, "", 0, 10000},                        // 4X SDR
      {2, 4, "", 0, 40000},                        // 4X QDR
      {2, 8, "", 0, 40000},                        // 4X FDR10
      {2, 16, "", 0, 56000},                       // 4X FDR
      {2, 32, "", 0, 100000},                      // 4X EDR
      {2, 64, "", 0, 200000},                      // 4X HDR
      {2, 128, "", 0, 400000},                     // 4X NDR
      {16, 128, "", 0, 200000},                    // 2X NDR
      {1, 32, "", 0, 25000},                       // 1X EDR, as 25GbE reports
      {2, 128, "800 Gb/sec (4X XDR)", 0, 800000},  // beyond the 8 bits
      {2, 128, "400 Gb/sec (4X NDR)", 0, 400000},  // same
      {2, 64, "800 Gb/sec", 0, 200000},            // below NDR the port knows
      {0, 64, "200 Gb/sec (4X HDR)", 0, 200000},   // no width
      {2, 0, "2.5 Gb/sec (1X SDR)", 0, 2500},      // no speed
      {0, 0, "", 0, kFallbackSpeedMbps},           // nothing known
      {2, 3, "", 0, kFallbackSpeedMbps},           // two speeds at once
      {3, 64, "", 0, kFallbackSpeedMbps},          // two widths at once
      {255, 255, "0 Gb/sec", 0, kFallbackSpeedMbps},
      {2, 64, "", 25000, 25000},
      {0, 0, "", 1, 1},
  };
  for (const SpeedCase& c : kCases) {
    EXPECT_EQ(
        PortSpeedMbps(static_cast<uint8_t>(c.width), static_cast<uint8_t>(c.speed), c.sysfs, c.override_mbps),
        c.expected)
        << c.width << " " << c.speed << " " << c.sysfs;
  }
}

TEST(Speed, RefusesRatesThatAreNone) {
  EXPECT_EQ(ParseSysfsRateMbps("100 Gb/sec (4X EDR)"), 100000);
  EXPECT_EQ(ParseSysfsRateMbps(""), 0);
  EXPECT_EQ(ParseSysfsRateMbps("fast"), 0);
  EXPECT_EQ(ParseSysfsRateMbps("100"), 0);
  EXPECT_EQ(ParseSysfsRateMbps("100 Mb/sec"), 0);
  EXPECT_EQ(ParseSysfsRateMbps("-4 Gb/sec"), 0);
  EXPECT_EQ(ParseSysfsRateMbps("nan Gb/sec"), 0);
  EXPECT_EQ(ParseSysfsRateMbps("inf Gb/sec"), 0);
  EXPECT_EQ(ParseSysfsRateMbps("1e300 Gb/sec"), 0);
}

TEST(LinkLayers, KnowsWhatCarriesVerbs) {
  EXPECT_EQ(LinkLayerOf(IBV_LINK_LAYER_INFINIBAND), LinkLayer::kInfiniBand);
  EXPECT_EQ(LinkLayerOf(IBV_LINK_LAYER_UNSPECIFIED), LinkLayer::kInfiniBand);
  EXPECT_EQ(LinkLayerOf(IBV_LINK_LAYER_ETHERNET), LinkLayer::kEthernet);
  EXPECT_EQ(LinkLayerOf(9), std::nullopt);
  EXPECT_EQ(LinkLayerName(LinkLayer::kEthernet), "RoCE");
}

TEST(PciPath, FoldsFunctionsAndVirtualFunctions) {
  const std::string path = "/sys/devices/pci0000:00/0000:00:01.0/0000:3b:02.5";
  EXPECT_EQ(FoldPciPath(path, true), "/sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0");
  EXPECT_EQ(FoldPciPath(path, false), "/sys/devices/pci0000:00/0000:00:01.0/0000:3b:02.0");
  EXPECT_EQ(FoldPciPath("0000:3b:00.1", true), "0000:3b:00.0");
  EXPECT_EQ(FoldPciPath("/x/10000:e1:00.1", true), "/x/10000:e1:00.0");  // long domain
}

TEST(PciPath, LeavesWhatIsNoPciAddressAlone) {
  for (const char* path : {"", "/", "x", "/sys/devices/virtual/net/veth0", "0000:3b:00", "/a/0000-3b:00.1",
                           "3b:00.1", "/sys/bus/vmbus/devices/zzzz:3b:00.0", "123456789:3b:00.0"}) {
    EXPECT_EQ(FoldPciPath(path, true), path);
    EXPECT_EQ(PciOrder(path), UINT64_MAX) << path;
  }
}

TEST(PciPath, OrdersLikeTheBus) {
  EXPECT_LT(PciOrder("/z/0000:3b:00.0"), PciOrder("/a/0000:3b:00.1"));
  EXPECT_LT(PciOrder("0000:3b:1f.7"), PciOrder("0000:3c:00.0"));
  EXPECT_LT(PciOrder("0000:ff:1f.7"), PciOrder("0001:00:00.0"));
  EXPECT_EQ(PciOrder("0000:3b:00.0"), 0x3b0000U);
}

class SysfsTree : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "sluice-verbs-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::filesystem::path root_;
};

TEST_F(SysfsTree, PciPathFollowsTheDeviceLink) {
  const std::filesystem::path pci = root_ / "devices/0000:3b:00.1";
  const std::filesystem::path hca = root_ / "class/mlx5_0";
  std::filesystem::create_directories(pci);
  std::filesystem::create_directories(hca);
  std::filesystem::create_symlink(pci, hca / "device");
  EXPECT_EQ(ReadPciPath(hca.string()), std::filesystem::canonical(pci).string());
}

TEST_F(SysfsTree, NoDeviceLinkMeansNoPciPath) {
  EXPECT_EQ(ReadPciPath(root_.string()), "");
  EXPECT_EQ(ReadPciPath(""), "");
  EXPECT_EQ(ReadPciPath("/nonexistent"), "");
}

TEST_F(SysfsTree, ReadsSmallFilesWithoutTrailingBlanks) {
  std::ofstream(root_ / "rate") << "100 Gb/sec (4X EDR)\n";
  EXPECT_EQ(ReadTextFile((root_ / "rate").string()), "100 Gb/sec (4X EDR)");
  EXPECT_EQ(ReadTextFile((root_ / "rate").string(), 3), "100");
  EXPECT_EQ(ReadTextFile((root_ / "absent").string()), std::nullopt);
  EXPECT_EQ(ReadTextFile(root_.string()), std::nullopt);
}

}  // namespace
}  // namespace sluice
