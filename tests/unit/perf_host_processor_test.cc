// Processors of simulated hosts: costs, poll gaps and stalls as the presets say, and equal for equal seeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tools/perf/host_processor.h"

namespace sluice::perf {
namespace {

constexpr Picos kNs = soft::kPicosPerNs, kUs = soft::kPicosPerUs, kMs = soft::kPicosPerMs;

TEST(HostProcessorTest, TypicalPollGapsAreLogNormal) {
  HostProcessor processor(*FindHostPreset("typical"), 1, 0);
  std::vector<Picos> gaps(200'000);
  for (Picos& gap : gaps) gap = processor.PollGap();
  std::sort(gaps.begin(), gaps.end());
  EXPECT_NEAR(static_cast<double>(gaps[gaps.size() / 2]), 1.0 * kUs, 0.03 * kUs);
  EXPECT_NEAR(static_cast<double>(gaps[gaps.size() * 99 / 100]), 20.0 * kUs, 1.0 * kUs);
  EXPECT_GT(gaps.front(), 0);
}

TEST(HostProcessorTest, StallsAreTwoHundredMicrosecondsInFiftyMilliseconds) {
  const HostProcessor processor(*FindHostPreset("typical"), 3, 5);
  int moved = 0;
  constexpr int kSteps = 100'000;
  for (int i = 0; i < kSteps; ++i) {
    const Picos time = i * (100 * kMs / kSteps);
    const Picos after = processor.AfterStall(time);
    ASSERT_GE(after, time);
    ASSERT_LE(after - time, 200 * kUs);
    ASSERT_EQ(processor.AfterStall(after), after);
    moved += after != time;
  }
  EXPECT_NEAR(moved, kSteps * 200 / 50'000, 4);
}

TEST(HostProcessorTest, SeedAndThreadDecideTheDraws) {
  const auto draws = [](uint64_t seed, uint64_t thread) {
    HostProcessor processor(*FindHostPreset("typical"), seed, thread);
    std::vector<Picos> gaps(16);
    for (Picos& gap : gaps) gap = processor.PollGap();
    return gaps;
  };
  EXPECT_EQ(draws(1, 2), draws(1, 2));
  EXPECT_NE(draws(1, 2), draws(1, 3));
  EXPECT_NE(draws(1, 2), draws(2, 2));
}

TEST(HostProcessorTest, PresetsSayWhatCallsCost) {
  const HostPreset* ideal = FindHostPreset("ideal");
  ASSERT_NE(ideal, nullptr);
  EXPECT_EQ(ideal->test + ideal->post + ideal->completion, 0);
  HostProcessor processor(*ideal, 1, 1);
  EXPECT_EQ(processor.PollGap(), 0);
  EXPECT_EQ(processor.AfterStall(12345), 12345);
  const HostPreset* typical = FindHostPreset("typical");
  ASSERT_NE(typical, nullptr);
  EXPECT_EQ(typical->test, 60 * kNs);
  EXPECT_EQ(typical->post, 150 * kNs);
  EXPECT_EQ(typical->completion, 60 * kNs);
  EXPECT_EQ(FindHostPreset("fast"), nullptr);
}

}  // namespace
}  // namespace sluice::perf
