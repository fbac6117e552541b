#include "tuner/port_share.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace sluice {
namespace {

constexpr uint32_t kLatency = 1, kBulk = 2, kBackground = 3, kOther = 4;
constexpr uint64_t kHold = 50'000;  // ticks are nanoseconds here
constexpr uint32_t kPiece = 32'768;
constexpr uint64_t kBudget = 600'000;
constexpr double kBytesPerNs = 50;  // 400 Gb/s
constexpr uint32_t kMessage = 1 << 20;

class PortShareTest : public testing::Test {
 protected:
  std::unique_ptr<PortShare> Engine(uint64_t owner, uint64_t now = 1) {
    auto share = std::make_unique<PortShare>();
    std::array<PortShare::ClassSetting, kMaxServiceClasses> classes;
    classes[0] = {.discipline = PortShare::Discipline::kStrict, .name = "control"};
    classes[kLatency] = {.discipline = PortShare::Discipline::kStrict, .name = "latency"};
    classes[kBulk] = {.weight = 8, .name = "bulk"};
    classes[kBackground] = {.discipline = PortShare::Discipline::kBackground, .name = "background"};
    classes[kOther] = {.weight = 2, .name = "other"};
    share->Configure({.bytes_per_tick = kBytesPerNs,
                      .hold = kHold,
                      .budget_bytes = kBudget,
                      .piece_bytes = kPiece,
                      .background_floor = 0.02},
                     classes);
    share->Join(*board_, {.engine = owner}, now);
    return share;
  }
  // Posts as much as is admitted at `now`; returns the bytes.
  static uint64_t Fill(PortShare& share, uint32_t service_class, uint64_t now, uint32_t most = kMessage) {
    uint64_t posted = 0;
    while (posted < most) {
      const uint32_t bytes = share.Admit(service_class, most - static_cast<uint32_t>(posted), now);
      if (bytes == 0) break;
      share.Posted(service_class, bytes);
      posted += bytes;
    }
    return posted;
  }

  std::unique_ptr<ActivityBoard> board_ = std::make_unique<ActivityBoard>();
};

TEST_F(PortShareTest, AloneEveryMessageGoesWhole) {
  auto share = Engine(1);
  uint64_t now = 1000;
  for (const uint32_t service_class : {kBackground, kBulk, kOther, kLatency}) {
    EXPECT_EQ(share->Admit(service_class, kMessage, now), kMessage) << service_class;
    now += 2 * kHold;
  }
}

TEST_F(PortShareTest, UrgentTrafficBoundsBulkAndItsEndLiftsTheBound) {
  auto urgent = Engine(1);
  auto bulk = Engine(2);
  (void)urgent->Admit(kLatency, 1, 1000);
  const uint64_t posted = Fill(*bulk, kBulk, 2000);
  EXPECT_LE(posted, kBudget);
  EXPECT_GT(posted, kBudget - kPiece);
  EXPECT_EQ(bulk->Admit(kBulk, kMessage, 2000), 0u);
  EXPECT_EQ(urgent->Admit(kLatency, kMessage, 2000), kMessage) << "urgent classes are never held back";
  bulk->Completed(kBulk, kPiece);
  EXPECT_EQ(bulk->Admit(kBulk, kMessage, 2000), kPiece);
  EXPECT_EQ(bulk->Admit(kBulk, kMessage, 1000 + kHold + 1), kMessage)
      << "activity expires by the reader's clock";
}

TEST_F(PortShareTest, TheLeastIsOnePiece) {
  auto urgent = Engine(1);
  (void)urgent->Admit(kLatency, 1, 1000);
  std::vector<std::unique_ptr<PortShare>> engines;
  for (uint64_t i = 0; i < 40; ++i) {
    engines.push_back(Engine(10 + i));
    (void)engines.back()->Admit(kBulk, 1, 1000);
  }
  // 40 engines of 15 000 bytes each: less than a piece, and still nobody waits for ever.
  for (auto& engine : engines) EXPECT_EQ(Fill(*engine, kBulk, 1000 + kHold / 2), kPiece);
}

TEST_F(PortShareTest, WeightsDivideTheBudgetByClassNotByEngine) {
  auto bulk = Engine(1);
  auto second_bulk = Engine(2);
  auto other = Engine(3);
  for (PortShare* share : {bulk.get(), second_bulk.get()}) (void)share->Admit(kBulk, 1, 1000);
  (void)other->Admit(kOther, 1, 1000);
  const uint64_t bulk_bytes =
      Fill(*bulk, kBulk, 1000 + kHold / 2) + Fill(*second_bulk, kBulk, 1000 + kHold / 2);
  const uint64_t other_bytes = Fill(*other, kOther, 1000 + kHold / 2);
  EXPECT_NEAR(static_cast<double>(bulk_bytes), kBudget * 0.8, 2.0 * kPiece);
  EXPECT_NEAR(static_cast<double>(other_bytes), kBudget * 0.2, 1.0 * kPiece);
}

TEST_F(PortShareTest, EnginesOfOneClassAreNotLimitedByEachOther) {
  auto one = Engine(1);
  auto two = Engine(2);
  (void)two->Admit(kBulk, 1, 1000);
  EXPECT_EQ(one->Admit(kBulk, kMessage, 1100), kMessage);
}

TEST_F(PortShareTest, BackgroundKeepsToItsFloorAndNeverStarves) {
  auto bulk = Engine(1);
  auto background = Engine(2);
  uint64_t sent = 0;
  constexpr uint64_t kEnd = 20'000'000;
  for (uint64_t now = 1000; now < kEnd; now += 1000) {
    (void)bulk->Admit(kBulk, 1, now);
    EXPECT_EQ(bulk->Admit(kBulk, kMessage, now), kMessage) << "background is no rival of bulk";
    const uint32_t bytes = background->Admit(kBackground, kMessage, now);
    background->Posted(kBackground, bytes);
    background->Completed(kBackground, bytes);
    sent += bytes;
  }
  EXPECT_NEAR(static_cast<double>(sent), 0.02 * kBytesPerNs * kEnd, 2.0 * kPiece);
  EXPECT_EQ(background->Admit(kBackground, kMessage, kEnd + 2 * kHold), kMessage);
}

TEST_F(PortShareTest, ADeadProcessIsForgotten) {
  const auto dead = Engine(1);  // never leaves while the test looks: as after kill -9
  (void)dead->Admit(kLatency, 1, 1000);
  auto bulk = Engine(2, 1100);
  EXPECT_LE(Fill(*bulk, kBulk, 1100), kBudget);
  bulk->Completed(kBulk, bulk->outstanding_bytes(kBulk));
  EXPECT_EQ(bulk->Admit(kBulk, kMessage, 1000 + 2 * kHold), kMessage);
}

TEST_F(PortShareTest, SeatsOfTheDeadAreTakenAndWithoutASeatWorkGoesOn) {
  std::vector<std::unique_ptr<PortShare>> engines;
  for (uint64_t i = 0; i < kBoardSeats; ++i) engines.push_back(Engine(1 + i, 1000));
  auto standing = Engine(1000, 1000);
  (void)standing->Admit(kLatency, 1, 2000);  // strict activity needs no seat
  EXPECT_LE(Fill(*engines[0], kBulk, 2100), kBudget);
  const uint64_t later = 1000 + 300'000 * kHold;
  auto heir = Engine(2000, later);
  EXPECT_EQ(board_->seats[0].owner.load(), 2000u);
  // The former owner finds its seat taken, and takes another.
  (void)engines[0]->Admit(kBulk, 1, later);
  EXPECT_EQ(board_->seats[1].owner.load(), 1u);
  engines[0]->Leave();
  EXPECT_EQ(board_->seats[0].owner.load(), 2000u) << "the heir's seat is not given up by the former owner";
}

TEST_F(PortShareTest, ADamagedBoardHoldsNobodyBack) {
  auto bulk = Engine(1);
  board_->strict_until = ~uint64_t{0};
  board_->seats_used = ~0u;
  for (ActivityBoard::Seat& seat : board_->seats) {
    for (auto& until : seat.until) until = ~uint64_t{0};
    for (auto& share : seat.share) share = ~uint64_t{0};
  }
  EXPECT_EQ(bulk->Admit(kBulk, kMessage, 1000), kMessage);
}

TEST_F(PortShareTest, WithoutABoardNothingIsHeldBack) {
  PortShare share;
  EXPECT_EQ(share.Admit(kBulk, kMessage, 5), kMessage);
  share.Posted(kBulk, 7);
  share.Completed(kBulk, 7);
  EXPECT_EQ(share.outstanding_bytes(kBulk), 0u);
}

TEST(ClassKeyTest, NamesAreToldApartAndNeverZero) {
  EXPECT_NE(PortShare::ClassKey("bulk"), PortShare::ClassKey("background"));
  EXPECT_NE(PortShare::ClassKey(""), 0u);
  EXPECT_EQ(PortShare::ClassKey("bulk") >> 48, 0u);
}

}  // namespace
}  // namespace sluice
