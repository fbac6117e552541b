#include <gtest/gtest.h>

#include "plugin/transport/frames.h"
#include "plugin/transport/wire.h"
#include "tuner/policy.h"

namespace sluice {
namespace {

HelloFrame ExampleHello() {
  HelloFrame hello;
  hello.min_version = 1;
  hello.max_version = 3;
  hello.sender_uid = 0x1122334455667788;
  hello.receiver_uid = 42;
  hello.listen_id = 7;
  hello.secret[0] = 9;
  hello.library = "0.1.0";
  hello.host = "node7:123";
  hello.ports.resize(2);
  hello.ports[1].name = "mlx5_1";
  hello.ports[1].lid = 17;
  return hello;
}

TEST(Frames, RoundTrip) {
  const auto decoded = Decode<HelloFrame>(Encode(ExampleHello()));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->sender_uid, 0x1122334455667788u);
  EXPECT_EQ(decoded->secret[0], 9);
  EXPECT_EQ(decoded->host, "node7:123");
  ASSERT_EQ(decoded->ports.size(), 2u);
  EXPECT_EQ(decoded->ports[1].name, "mlx5_1");
  EXPECT_EQ(decoded->ports[1].lid, 17);
}

TEST(Frames, EveryTruncationIsRefused) {
  const std::vector<std::byte> bytes = Encode(ExampleHello());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(Decode<HelloFrame>(std::span(bytes).first(length)).has_value()) << length;
  }
}

TEST(Frames, TrailingBytesAreRefused) {
  std::vector<std::byte> bytes = Encode(PathIdFrame{7});
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(Decode<PathIdFrame>(bytes).has_value());
}

TEST(Frames, LargestPathFitsAFrame) {
  PathFrame path;
  path.classes.resize(kMaxServiceClasses);
  for (ClassFrame& service_class : path.classes) service_class.name = std::string(64, 'x');
  path.pairs.resize(kMaxMergedPorts);
  for (PairFrame& pair : path.pairs) {
    pair.data_qpns.resize(64);
    pair.service_levels.resize(2 * kMaxServiceClasses);
  }
  EXPECT_LE(Encode(path).size(), kMaxFrameBytes);
}

TEST(Wire, ImmediateRoundTrip) {
  for (const uint64_t group : {0ull, 31ull, 32ull, 2047ull, 2048ull, 1ull << 40}) {
    for (const uint32_t sub : {0u, 7u}) {
      const Immediate immediate = Immediate::Unpack(Immediate::Pack(ImmKind::kLast, group, 65535, sub));
      EXPECT_EQ(immediate.kind, ImmKind::kLast);
      EXPECT_EQ(immediate.connection, 65535);
      EXPECT_EQ(immediate.slot, group % 32);
      EXPECT_EQ(immediate.epoch, group / 32 % 64);
      EXPECT_EQ(immediate.sub, sub);
    }
  }
}

TEST(Wire, SequenceSkipsZeroAndFollowsTheGroup) {
  EXPECT_EQ(SequenceOf(0), 1u);
  EXPECT_EQ(SequenceOf(0xfffffffeull), 0xffffffffu);
  EXPECT_EQ(SequenceOf(0xffffffffull), 1u);
  for (const uint64_t group : {0ull, 5ull, 0xfffffffdull, 0xfffffffeull, 0x1fffffffdull}) {
    EXPECT_EQ(NextSequence(SequenceOf(group)), SequenceOf(group + 1)) << group;
  }
}

}  // namespace
}  // namespace sluice
