// The congestion window of a UEC sender (NSCC), computed from what acknowledgements and trim notices bring:
// newly received bytes, the queueing delay of the acknowledged packet and its ECN mark.
//
//   no mark, delay >= target   additive increase (fair)
//   no mark, delay <  target   increase in proportion to the distance from the target; fast after a window
//                              without queueing
//   mark,    delay >= target   multiplicative decrease, once per round trip
//   mark,    delay <  target   nothing (the sender changes the path)
//   loss or delay > 4 targets  quick adapt: the window becomes what was delivered in the last round trip
//
// A yardstick: it sees single packets, which no verbs program can. Thread rule: single threaded.
#pragma once

#include <cstdint>

#include "verbs/soft/model/clock.h"

namespace sluice::soft {

struct NsccSettings {
  uint64_t rate_bps = 400'000'000'000;
  Picos network_rtt = 0;      // unloaded, between the hosts that are farthest apart
  uint32_t packet_bytes = 0;  // with headers
  uint32_t payload_bytes = 0;
  bool trimming = true;
  uint64_t initial_window_bytes = 0;  // 0: 1.5 bandwidth-delay products
  int quick_adapt_gate = 3;           // quick adapt only below max_window / 2^gate
};

class Nscc {
 public:
  explicit Nscc(const NsccSettings& settings);

  // An acknowledgement of `bytes` newly received bytes.
  void OnAck(Picos now, bool marked, Picos delay, uint64_t bytes, uint64_t in_flight_bytes);
  // A packet of `bytes` was trimmed on its way.
  void OnTrim(Picos now, uint64_t bytes, uint64_t in_flight_bytes);
  // A packet is given up as lost (timer).
  void OnTimeout(uint64_t bytes);
  // A sample of the round-trip time; keeps the lowest as the base.
  void OnRtt(Picos rtt);
  // As OnRtt, and follows the smoothed queueing delay. Returns the delay of this sample.
  Picos OnDelaySample(Picos rtt, bool marked);
  void CountReceived(uint64_t bytes);

  uint64_t window_bytes() const { return static_cast<uint64_t>(window_); }
  uint64_t max_window_bytes() const { return static_cast<uint64_t>(max_window_); }
  Picos base_rtt() const { return base_rtt_; }
  Picos average_delay() const { return static_cast<Picos>(average_delay_); }
  Picos target() const { return target_; }

 private:
  bool QuickAdapt(Picos now, bool loss, bool marked, Picos delay, uint64_t in_flight_bytes);
  void IncreaseTowardsTarget(uint64_t bytes, Picos delay);
  bool IncreaseFast(uint64_t bytes, Picos delay);
  void Decrease(Picos now);
  void ApplyIncrease(Picos now);
  void Smooth(Picos delay, bool marked);
  void Clamp();

  uint64_t rate_bps_;
  Picos network_rtt_;
  Picos base_rtt_;
  Picos target_;
  int quick_adapt_gate_;
  double packet_bytes_;
  double alpha_;    // bytes per picosecond
  double fair_;     // bytes
  double fast_;     // fraction
  double per_rtt_;  // bytes
  double window_ = 0;
  double max_window_ = 0;

  double pending_increase_ = 0;  // bytes * window
  uint64_t received_ = 0;        // since the last ApplyIncrease
  uint64_t achieved_ = 0;        // since the last look of quick adapt
  uint64_t ignored_ = 0;
  uint64_t to_ignore_ = 0;
  uint64_t uncongested_ = 0;  // bytes acknowledged in a row without queueing
  double average_delay_ = 0;
  Picos last_apply_ = 0;
  Picos last_decrease_ = 0;
  Picos quick_adapt_at_ = 0;
  bool quick_adapt_due_ = false;
  bool increasing_fast_ = false;
};

}  // namespace sluice::soft
