#include "verbs/soft/model/dcqcn.h"

namespace sluice::soft {

DcqcnRate::DcqcnRate(const DcqcnSettings* settings, uint64_t link_rate_bps)
    : settings_(settings),
      link_rate_bps_(link_rate_bps),
      rate_bps_(link_rate_bps),
      target_bps_(link_rate_bps) {}

void DcqcnRate::Increase() {
  const uint32_t fast = settings_->fast_recovery_rounds;
  if (std::min(timer_rounds_, byte_rounds_) > fast) {
    target_bps_ += settings_->rate_hai_bps;
  } else if (std::max(timer_rounds_, byte_rounds_) > fast) {
    target_bps_ += settings_->rate_ai_bps;
  }
  target_bps_ = std::min(target_bps_, link_rate_bps_);
  rate_bps_ = (rate_bps_ + target_bps_) / 2;
  // Half a step short of the link rate for ever: close enough is there.
  if (link_rate_bps_ - rate_bps_ < link_rate_bps_ / 4096) {
    rate_bps_ = link_rate_bps_;
    limited_ = reduce_at_ != kNever;
  }
}

void DcqcnRate::Advance(Picos now) {
  for (;;) {
    const Picos rate_at = limited_ ? rate_at_ : kNever;
    const Picos next = std::min({alpha_at_, reduce_at_, rate_at});
    if (next > now) return;
    if (next == alpha_at_) {
      alpha_ *= 1 - settings_->g;
      if (cnp_in_alpha_time_) alpha_ += settings_->g;
      cnp_in_alpha_time_ = false;
      alpha_at_ += settings_->alpha_timer;
    } else if (next == reduce_at_) {
      reduce_at_ = kNever;
      Cut(next);
    } else {
      ++timer_rounds_;
      rate_at_ += settings_->rate_timer;
      Increase();
    }
  }
}

void DcqcnRate::OnSent(Picos now, uint32_t wire_bytes) {
  if (!limited_) return;
  Advance(now);
  bytes_ += wire_bytes;
  if (bytes_ < settings_->byte_counter_bytes) return;
  bytes_ -= settings_->byte_counter_bytes;
  ++byte_rounds_;
  Increase();
}

void DcqcnRate::OnCnp(Picos now) {
  // A first CNP finds alpha as it was left; it has decayed meanwhile.
  if (alpha_at_ == 0) alpha_at_ = now + settings_->alpha_timer;
  Advance(now);
  if (settings_->reduce_period == 0) {
    Cut(now);
    alpha_ = (1 - settings_->g) * alpha_ + settings_->g;
    alpha_at_ = now + settings_->alpha_timer;
    return;
  }
  if (first_cnp_ == kNever) {
    first_cnp_ = now;
  } else {
    cnp_in_alpha_time_ = true;
  }
  if (reduce_at_ != kNever) return;
  const Picos ticks = (now - first_cnp_) / settings_->reduce_period + 1;
  reduce_at_ = first_cnp_ + ticks * settings_->reduce_period;
  // Until the cut it is so by name only.
  if (!limited_) rate_at_ = kNever;
  limited_ = true;
}

void DcqcnRate::Cut(Picos at) {
  if (timer_rounds_ != 0 || !limited_) target_bps_ = rate_bps_;
  rate_bps_ = std::max(settings_->min_rate_bps,
                       static_cast<uint64_t>(static_cast<double>(rate_bps_) * (1 - alpha_ / 2)));
  rate_at_ = at + settings_->rate_timer;
  bytes_ = 0;
  timer_rounds_ = byte_rounds_ = 0;
  limited_ = true;
}

}  // namespace sluice::soft
