// DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015): the rate of one
// queue pair, and when its receiver notifies.
//
//   DcqcnRate rate(&settings, link_rate_bps);
//   hook.rate = &rate;            // the port then paces this client
//   rate.OnCnp(now);              // a CNP came
//   if (notifier.Due(now, settings.cnp_interval)) ...send a CNP...   // an ECN mark came
//
// A CNP cuts the rate by alpha/2 and remembers what it was as the target; alpha is an average of how often CNPs
// come. As in NICs (clamp_tgt_rate off) the target stays if no timer has raised the rate since the last cut: else
// the CNPs of one burst would lower the target for hundreds of milliseconds.
// With reduce_period CNPs only leave a note, and the rate is cut at the next tick of that clock; alpha rises or
// decays every alpha_timer, whichever the notes of that time say.
// Every rate_timer and every byte_counter bytes the rate goes up: halfway to the target while both counts are
// within the fast recovery, then the target grows by rate_ai, and by rate_hai when both are past it. Timers
// are worked off when somebody looks, so an idle queue pair costs no events.
//
// Thread rule: as a value type.
#pragma once

#include <algorithm>
#include <cstdint>

#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/network_settings.h"

namespace sluice::soft {

class DcqcnRate {
 public:
  // `settings` outlives this object.
  DcqcnRate(const DcqcnSettings* settings, uint64_t link_rate_bps);

  // The rate at this moment, at most that of the link.
  uint64_t rate_bps(Picos now) {
    if (limited_) Advance(now);
    return rate_bps_;
  }
  double alpha() const { return alpha_; }
  uint64_t target_bps() const { return target_bps_; }
  void OnSent(Picos now, uint32_t wire_bytes);
  void OnCnp(Picos now);

 private:
  // What the timers did up to now, in the order of time.
  void Advance(Picos now);
  void Increase();
  void Cut(Picos at);

  const DcqcnSettings* settings_;
  uint64_t link_rate_bps_;
  uint64_t rate_bps_;
  uint64_t target_bps_;
  double alpha_ = 1;
  Picos alpha_at_ = 0;        // next decay
  Picos rate_at_ = kNever;    // next increase by time
  Picos reduce_at_ = kNever;  // a CNP came: the tick at which the rate is cut
  Picos first_cnp_ = kNever;
  uint64_t bytes_ = 0;  // since the last increase by bytes
  uint32_t timer_rounds_ = 0;
  uint32_t byte_rounds_ = 0;
  bool cnp_in_alpha_time_ = false;  // with reduce_period: came since the last tick of alpha
  bool limited_ = false;            // a CNP came, and the rate is not back at that of the link
};

// The receiver's side.
class CnpNotifier {
 public:
  // A marked packet came: whether a CNP is due for its queue pair.
  bool Due(Picos now, Picos interval) {
    if (now < next_) return false;
    next_ = now + interval;
    return true;
  }

 private:
  Picos next_ = 0;
};

// CNP on the wire: as a RoCE v2 packet with 16 reserved bytes behind the base transport header.
inline constexpr uint32_t kCnpExtensionBytes = 16;

}  // namespace sluice::soft
