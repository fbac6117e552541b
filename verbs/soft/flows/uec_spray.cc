#include "verbs/soft/flows/uec_spray.h"

#include <algorithm>

namespace sluice::soft {
namespace {

constexpr int kMaxPenalty = 15;

int PenaltyOf(PathFeedback feedback) {
  switch (feedback) {
    case PathFeedback::kGood:
      return 0;
    case PathFeedback::kMarked:
      return 1;
    case PathFeedback::kTimeout:
      return kMaxPenalty;
  }
  return 0;
}

}  // namespace

UecSpray::UecSpray(uint16_t paths, uint64_t seed, uint64_t flow)
    : random_(seed, kRandomSpray, flow),
      mask_(static_cast<uint16_t>(paths - 1)),
      order_(static_cast<uint16_t>(random_.Below(paths))),
      penalty_(paths, 0) {}

void UecSpray::Advance() {
  if (++index_ <= mask_) return;
  index_ = 0;
  order_ = static_cast<uint16_t>(random_.Next() & mask_);
}

uint16_t UecSpray::Next() {
  if (!good_.empty()) {
    const uint16_t path = good_.front();
    good_.PopFront();
    return path;
  }
  uint16_t path = Current();
  if (penalty_[path] > 0) {
    // Only the first path that is skipped pays for it: a round over penalised paths does not clear them all.
    --penalty_[path];
    for (int tries = 0; tries <= mask_; ++tries) {
      Advance();
      path = Current();
      if (penalty_[path] == 0) break;
    }
  }
  Advance();
  return path;
}

void UecSpray::OnFeedback(uint16_t path, PathFeedback feedback) {
  path &= mask_;
  if (feedback == PathFeedback::kGood) {
    good_.PushBack() = path;
    return;
  }
  penalty_[path] = static_cast<uint8_t>(std::min(kMaxPenalty, penalty_[path] + PenaltyOf(feedback)));
}

}  // namespace sluice::soft
