#include "verbs/soft/model/lane_arbiter.h"

#include <algorithm>
#include <bit>

namespace sluice::soft {
namespace {

constexpr int32_t kQuantumBytes = 4096 + 128;
constexpr uint32_t kLimitUnitBytes = 4096;
constexpr uint8_t kNoLimit = 255;

}  // namespace

uint32_t LaneArbiter::PickPriority(uint32_t eligible) {
  const uint32_t strict = eligible & settings_->strict_priorities;
  if (strict != 0) return static_cast<uint32_t>(std::bit_width(strict)) - 1;
  Turn& turn = turns_[0];
  if (std::has_single_bit(eligible)) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(eligible));
    if (settings_->ets_weight[lane] == 0) return kLanes;
    // Nobody competes: no debt grows.
    if (turn.entry != lane || deficit_[lane] <= 0)
      deficit_[lane] = kQuantumBytes * settings_->ets_weight[lane];
    turn.entry = lane;
    return lane;
  }
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    // A lane that has nothing to send keeps no claim.
    if ((eligible >> lane & 1) == 0) deficit_[lane] = 0;
  }
  for (uint32_t round = 0; round < 64 * kLanes; ++round) {
    const uint32_t lane = turn.entry;
    if ((eligible >> lane & 1) != 0 && deficit_[lane] > 0) return lane;
    turn.entry = (lane + 1) % kLanes;
    if ((eligible >> turn.entry & 1) != 0) {
      deficit_[turn.entry] += kQuantumBytes * settings_->ets_weight[turn.entry];
    }
  }
  return kLanes;
}

uint32_t LaneArbiter::PickFrom(const std::vector<VlWeight>& table, uint32_t eligible, Turn* turn) {
  if (table.empty()) return kLanes;
  if (turn->left_bytes > 0 && (eligible >> table[turn->entry].lane & 1) != 0) return table[turn->entry].lane;
  for (size_t step = 0; step < table.size(); ++step) {
    turn->entry = turn->entry + 1 < table.size() ? turn->entry + 1 : 0;
    const VlWeight& entry = table[turn->entry];
    if (entry.weight == 0 || (eligible >> entry.lane & 1) == 0) continue;
    turn->left_bytes = 64 * entry.weight;
    return entry.lane;
  }
  turn->left_bytes = 0;
  return kLanes;
}

uint32_t LaneArbiter::PickVirtualLane(uint32_t eligible) {
  const bool exhausted = settings_->vl_high_limit != kNoLimit &&
                         high_bytes_ >= std::max<uint32_t>(1, settings_->vl_high_limit * kLimitUnitBytes);
  if (!exhausted) {
    table_ = 1;
    const uint32_t lane = PickFrom(settings_->vl_high, eligible, &turns_[1]);
    if (lane != kLanes) return lane;
  }
  table_ = 0;
  uint32_t lane = PickFrom(settings_->vl_low, eligible, &turns_[0]);
  if (lane != kLanes || !exhausted) return lane;
  // No low packet took its chance.
  high_bytes_ = 0;
  table_ = 1;
  return PickFrom(settings_->vl_high, eligible, &turns_[1]);
}

void LaneArbiter::Sent(uint32_t lane, uint32_t bytes) {
  if (!infiniband_) {
    deficit_[lane] -= static_cast<int32_t>(bytes);
    return;
  }
  turns_[table_].left_bytes -= static_cast<int32_t>(bytes);
  high_bytes_ = table_ == 1 ? high_bytes_ + bytes : 0;
}

}  // namespace sluice::soft
