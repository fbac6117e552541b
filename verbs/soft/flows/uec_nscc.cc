#include "verbs/soft/flows/uec_nscc.h"

#include <algorithm>

namespace sluice::soft {
namespace {

// The constants of the law refer to this network.
constexpr double kReferenceRateBps = 100e9;
constexpr double kReferenceRttPicos = 12e6;
constexpr double kDelayGain = 0.0125;
constexpr double kDecrease = 0.8;
constexpr double kMaxDecrease = 0.5;
constexpr Picos kNoQueue = kPicosPerUs;
constexpr double kPackets = 8;  // of new data between two applications of the increase

double BytesIn(Picos time, uint64_t rate_bps) {
  return static_cast<double>(time) * 1e-12 * static_cast<double>(rate_bps) / 8;
}

}  // namespace

Nscc::Nscc(const NsccSettings& settings)
    : rate_bps_(settings.rate_bps),
      network_rtt_(settings.network_rtt),
      base_rtt_(settings.network_rtt),
      target_(settings.trimming ? settings.network_rtt * 3 / 4 : settings.network_rtt),
      quick_adapt_gate_(settings.quick_adapt_gate),
      packet_bytes_(settings.packet_bytes) {
  const double bdp = BytesIn(network_rtt_, rate_bps_);
  const double scale = bdp / (kReferenceRttPicos * 1e-12 * kReferenceRateBps / 8);
  const double payload = settings.payload_bytes;
  alpha_ = 4 * payload * scale * (static_cast<double>(target_) / kReferenceRttPicos) /
           static_cast<double>(target_);
  fair_ = 5 * payload * scale;
  fast_ = 0.25 * scale;
  per_rtt_ = 0.15 * payload * scale;
  max_window_ = 1.5 * bdp;
  window_ =
      settings.initial_window_bytes == 0 ? max_window_ : static_cast<double>(settings.initial_window_bytes);
}

void Nscc::Clamp() {
  window_ = std::min(std::max(window_, packet_bytes_), max_window_);
}

void Nscc::OnRtt(Picos rtt) {
  if (rtt >= base_rtt_) return;
  base_rtt_ = rtt;
  max_window_ = 1.5 * BytesIn(rtt, rate_bps_);
}

Picos Nscc::OnDelaySample(Picos rtt, bool marked) {
  OnRtt(rtt);
  Smooth(rtt - base_rtt_, marked);
  return rtt - base_rtt_;
}

void Nscc::Smooth(Picos delay, bool marked) {
  // A long delay without a mark is an old queue that is draining: it pulls the average down.
  const double sample =
      !marked && delay > target_ ? 0.25 * static_cast<double>(base_rtt_) : static_cast<double>(delay);
  average_delay_ += kDelayGain * (sample - average_delay_);
}

void Nscc::CountReceived(uint64_t bytes) {
  received_ += bytes;
  achieved_ += bytes;
  ignored_ += bytes;
}

bool Nscc::QuickAdapt(Picos now, bool loss, bool marked, Picos delay, uint64_t in_flight_bytes) {
  bool handled = false;
  if (ignored_ < to_ignore_ && marked) {
    handled = true;
  } else if (now > quick_adapt_at_) {
    const double gate = max_window_ / static_cast<double>(1 << quick_adapt_gate_);
    if (quick_adapt_at_ != 0 && (quick_adapt_due_ || loss || delay > 4 * target_) &&
        static_cast<double>(achieved_) < gate) {
      window_ = std::max(static_cast<double>(achieved_), packet_bytes_);
      to_ignore_ = in_flight_bytes;
      ignored_ = 0;
      quick_adapt_due_ = false;
      handled = true;
    }
    achieved_ = 0;
    quick_adapt_at_ = now + base_rtt_ + target_;
  }
  if (handled) {
    pending_increase_ = 0;
    received_ = 0;
  }
  return handled;
}

bool Nscc::IncreaseFast(uint64_t bytes, Picos delay) {
  increasing_fast_ =
      delay < kNoQueue && (static_cast<double>(uncongested_ += bytes) > window_ || increasing_fast_);
  if (delay >= kNoQueue) uncongested_ = 0;
  if (increasing_fast_) window_ += static_cast<double>(bytes) * fast_;
  return increasing_fast_;
}

void Nscc::IncreaseTowardsTarget(uint64_t bytes, Picos delay) {
  if (IncreaseFast(bytes, delay)) return;
  pending_increase_ += alpha_ * static_cast<double>(bytes) * static_cast<double>(target_ - delay);
}

void Nscc::Decrease(Picos now) {
  increasing_fast_ = false;
  uncongested_ = 0;
  const double target = static_cast<double>(target_);
  if (average_delay_ <= target || now - last_decrease_ <= base_rtt_) return;
  window_ *= std::max(1 - kDecrease * (average_delay_ - target) / average_delay_, kMaxDecrease);
  window_ = std::max(window_, packet_bytes_);
  last_decrease_ = now;
}

void Nscc::ApplyIncrease(Picos now) {
  window_ += pending_increase_ / window_;
  if (now - last_apply_ >= network_rtt_) {
    window_ += per_rtt_;
    last_apply_ = now;
  }
  pending_increase_ = 0;
  received_ = 0;
}

void Nscc::OnAck(Picos now, bool marked, Picos delay, uint64_t bytes, uint64_t in_flight_bytes) {
  if (QuickAdapt(now, false, marked, delay, in_flight_bytes)) return;
  if (!marked && delay >= target_) {
    pending_increase_ += fair_ * static_cast<double>(bytes);
  } else if (!marked) {
    IncreaseTowardsTarget(bytes, delay);
  } else if (delay >= target_) {
    Decrease(now);
  }
  Clamp();
  if (static_cast<double>(received_) > kPackets * packet_bytes_ || now - last_apply_ > network_rtt_) {
    ApplyIncrease(now);
  }
  Clamp();
}

void Nscc::OnTrim(Picos now, uint64_t bytes, uint64_t in_flight_bytes) {
  ignored_ += bytes;
  // A trimmed packet found a full queue: about a round trip of delay.
  Smooth(network_rtt_, true);
  quick_adapt_due_ = true;
  if (QuickAdapt(now, true, true, 0, in_flight_bytes)) return;
  window_ -= static_cast<double>(bytes);
  Clamp();
}

void Nscc::OnTimeout(uint64_t bytes) {
  window_ = std::max(window_ - static_cast<double>(bytes), packet_bytes_);
}

}  // namespace sluice::soft
