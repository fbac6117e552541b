// Hostile bytes for every frame of the link: nothing crashes, nothing is allocated beyond the frame's size,
// and whatever is accepted means the same when it is written again.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plugin/transport/frames.h"
#include "plugin/transport/wire.h"

namespace sluice {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kRounds = 20000;

PortAddress SomePort(std::mt19937& random) {
  PortAddress port;
  port.link_layer = static_cast<uint8_t>(random() % 3);
  port.mtu = static_cast<uint8_t>(random() % 6);
  port.lid = static_cast<uint16_t>(random());
  for (uint8_t& byte : port.gid) byte = static_cast<uint8_t>(random());
  port.name = "mlx5_" + std::to_string(random() % 12);
  return port;
}

template <typename Frame>
Frame Sample(std::mt19937&) {
  return Frame();
}
template <>
HelloFrame Sample<HelloFrame>(std::mt19937& random) {
  HelloFrame frame;
  frame.library = "0.1.0";
  frame.host = "host:1";
  frame.ports.resize(random() % 9);
  for (PortAddress& port : frame.ports) port = SomePort(random);
  return frame;
}
template <>
HelloOkFrame Sample<HelloOkFrame>(std::mt19937& random) {
  HelloOkFrame frame;
  frame.host = "host:2";
  frame.ports.resize(random() % 9);
  for (PortAddress& port : frame.ports) port = SomePort(random);
  return frame;
}
template <>
PathFrame Sample<PathFrame>(std::mt19937& random) {
  PathFrame frame;
  frame.classes.resize(random() % 4);
  for (ClassFrame& service_class : frame.classes) service_class.name = "bulk";
  frame.pairs.resize(random() % 9);
  for (PairFrame& pair : frame.pairs) {
    pair.data_qpns.resize(random() % 20, 17);
    pair.service_levels.resize(random() % 9, 3);
  }
  return frame;
}
template <>
OpenFrame Sample<OpenFrame>(std::mt19937& random) {
  OpenFrame frame;
  frame.rkeys.resize(random() % 9, 5);
  return frame;
}
template <>
ConnFrame Sample<ConnFrame>(std::mt19937& random) {
  ConnFrame frame;
  frame.rkeys.resize(random() % 9, 6);
  return frame;
}
template <>
TextFrame Sample<TextFrame>(std::mt19937& random) {
  return {7, std::string(random() % 200, 'x')};
}

// Flips, cuts, doubles, grows.
void Mutate(std::mt19937& random, Bytes& bytes) {
  for (uint32_t edits = random() % 4; edits > 0; --edits) {
    const size_t at = bytes.empty() ? 0 : random() % bytes.size();
    switch (random() % 6) {
      case 0:
        if (!bytes.empty()) bytes[at] ^= static_cast<std::byte>(1u << random() % 8);
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<std::byte>(random() % 2 == 0 ? 0xff : random());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), random() % 40,
                     static_cast<std::byte>(random()));
        break;
      case 4:
        if (!bytes.empty()) bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
        break;
      default: {
        const Bytes copy(bytes.begin() + static_cast<ptrdiff_t>(at), bytes.end());
        bytes.insert(bytes.end(), copy.begin(), copy.end());
      }
    }
  }
  bytes.resize(std::min(bytes.size(), kMaxFrameBytes));
}

template <typename Frame>
class FrameFuzzTest : public testing::Test {};
using Frames = testing::Types<HelloFrame, HelloOkFrame, PathFrame, PathIdFrame, OpenFrame, ConnFrame,
                              CloseFrame, TextFrame>;
TYPED_TEST_SUITE(FrameFuzzTest, Frames);

TYPED_TEST(FrameFuzzTest, RandomBytes) {
  std::mt19937 random(1);
  for (int round = 0; round < kRounds; ++round) {
    Bytes bytes(random() % (round % 10 == 0 ? kMaxFrameBytes : 64));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(round % 3 == 0 ? random() % 3 : random());
    if (const auto frame = Decode<TypeParam>(bytes)) {
      const Bytes again = Encode(*frame);
      // Texts are cut at 1024 when they are written.
      if (bytes.size() <= 1024) {
        EXPECT_EQ(again, bytes);
      }
    }
  }
}

TYPED_TEST(FrameFuzzTest, MutatedFrames) {
  std::mt19937 random(2);
  int accepted = 0;
  for (int round = 0; round < kRounds; ++round) {
    Bytes bytes = Encode(Sample<TypeParam>(random));
    ASSERT_LE(bytes.size(), kMaxFrameBytes);
    ASSERT_TRUE(Decode<TypeParam>(bytes).has_value());
    Mutate(random, bytes);
    if (const auto frame = Decode<TypeParam>(bytes)) {
      ++accepted;
      if (bytes.size() <= 1024) {
        EXPECT_EQ(Encode(*frame), bytes);
      }
    }
  }
  EXPECT_GT(accepted, 0);
}

TYPED_TEST(FrameFuzzTest, EveryTruncationIsRefused) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    const Bytes bytes = Encode(Sample<TypeParam>(random));
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(Decode<TypeParam>(std::span(bytes).first(size)).has_value())
          << size << " of " << bytes.size();
    }
    Bytes longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(Decode<TypeParam>(longer).has_value());
  }
}

TEST(ImmediateFuzzTest, EveryValueUnpacksInRange) {
  std::mt19937 random(4);
  for (int round = 0; round < 1'000'000; ++round) {
    const auto value = static_cast<uint32_t>(random());
    const Immediate immediate = Immediate::Unpack(value);
    ASSERT_LT(immediate.slot, kSlots);
    ASSERT_LT(immediate.sub, kMaxGroup);
    const uint64_t group = (uint64_t{immediate.epoch} << 5 | immediate.slot) + 2048 * (random() % 1000);
    ASSERT_EQ(Immediate::Pack(immediate.kind, group, immediate.connection, immediate.sub), value);
  }
}

}  // namespace
}  // namespace sluice
