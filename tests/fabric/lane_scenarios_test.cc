// What lanes are for: small operations do not wait behind bulk, a training step not behind storage. Virtual time, so the
// figures are the same on every machine. The sizes are small; `sluice scenario priority` runs a thousand operations.
#include <gtest/gtest.h>

#include "tests/fabric/scenario_run.h"

namespace sluice {
namespace {

constexpr char kNetwork[] =
    " --engine plugin --size ci --host typical --json --topology "
    "leaf-spine:hosts=16,rate=400G,hosts_per_leaf=4";

TEST(LaneScenarios, UrgentOperationsDoNotWaitBehindBulk) {
  const Ran ran = RunScenario(std::string("priority") + kNetwork);
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_GT(ran.Metric("plugin one class", "1 MiB, median / alone"), 1.5);
  EXPECT_LT(ran.Metric("plugin lanes, 2 VLs", "64 KiB, median / alone"), 1.15);
  EXPECT_LT(ran.Metric("plugin lanes, 2 VLs", "1 MiB, median / alone"), 1.15);
  EXPECT_GT(ran.Metric("plugin lanes, 2 VLs", "bulk goodput / oracle"), 0.95);
  // On one lane the scheduler can only keep our own queues short.
  EXPECT_LT(ran.Metric("plugin lanes, 1 VL", "1 MiB, median / alone"),
            ran.Metric("plugin one class", "1 MiB, median / alone"));
}

TEST(LaneScenarios, StepsDoNotWaitBehindStorage) {
  const Ran ran = RunScenario("storage --engine plugin --size ci --host typical --json");
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  for (const std::string network : {"roce", "ib"}) {
    EXPECT_GT(ran.Metric(network + " one class, writers 70 %", "step / alone"), 1.15);
    for (const char* writers : {"30", "50", "70"}) {
      EXPECT_LT(ran.Metric(network + " lanes, 2 VLs, writers " + writers + " %", "step / alone"), 1.05);
    }
  }
}

}  // namespace
}  // namespace sluice
