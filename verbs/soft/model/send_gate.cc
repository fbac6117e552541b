#include "verbs/soft/model/send_gate.h"

#include <algorithm>

#include "verbs/soft/model/pfc.h"

namespace sluice::soft {

void SendGate::UseCredits(uint32_t blocks) {
  credits_ = std::make_unique<Credits>();
  credits_->left.fill(static_cast<int32_t>(blocks));
  credits_->buffer = blocks;
}

void SendGate::Collect() {
  const Picos now = context_->scheduler.Now();
  Ring<Return>& returning = credits_->returning;
  while (!returning.empty() && returning.front().at <= now) {
    credits_->left[returning.front().lane] += static_cast<int32_t>(returning.front().blocks);
    returning.PopFront();
  }
}

void SendGate::WakeAtFirst() {
  if (!waits_for_credits_ || credits_->returning.empty()) return;
  // What is here already is taken when the link is idle: a time that has passed would never come.
  const Picos at = std::max(credits_->returning.front().at, context_->scheduler.Now());
  if (credits_->wake_at <= at) return;
  credits_->wake_at = at;
  context_->scheduler.At(at, this, kCredit);
}

void SendGate::ReturnCredits(uint32_t lane, uint32_t blocks, Picos at) {
  Ring<Return>& returning = credits_->returning;
  returning.PushBack() = {at, lane, blocks};
  // Buffers become free in an order of their own when packets leave by ports of different speed.
  for (uint64_t i = returning.end() - 1; i != returning.begin() && returning[i - 1].at > at; --i) {
    std::swap(returning[i - 1], returning[i]);
  }
  WakeAtFirst();
}

void SendGate::Block() {
  if (blocked_since_ == kNever) blocked_since_ = context_->scheduler.Now();
  if (credits_ == nullptr) return;
  waits_for_credits_ = true;
  WakeAtFirst();
}

void SendGate::EndWait() {
  transmitter_->truth().transmit_wait += context_->scheduler.Now() - blocked_since_;
  blocked_since_ = kNever;
  waits_for_credits_ = false;
}

void SendGate::OnPause(const Packet& frame, Picos response) {
  const uint32_t lanes = PausedLanes(frame);
  const uint32_t quanta = PauseQuanta(frame);
  if (quanta != 0) ++transmitter_->truth().pauses_received;
  if (response == 0) {
    Apply(lanes, quanta);
  } else {
    context_->scheduler.At(context_->scheduler.Now() + response, this, kApplyPause, lanes | quanta << 8);
  }
}

void SendGate::Apply(uint32_t lanes, uint32_t quanta) {
  if (pauses_ == nullptr) pauses_ = std::make_unique<Pauses>();
  const Picos now = context_->scheduler.Now();
  const Picos until = now + PauseTime(quanta, transmitter_->rate_bps());
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const bool was_paused = (paused_ >> lane & 1) != 0;
    if (quanta != 0) {
      if (!was_paused) pauses_->since[lane] = now;
      paused_ |= 1U << lane;
      pauses_->until[lane] = until;
      context_->scheduler.At(until, this, kPauseExpired, lane);
    } else if (was_paused) {
      paused_ &= ~(1U << lane);
      transmitter_->truth().pause_time += now - pauses_->since[lane];
    }
  }
  if (quanta == 0) transmitter_->Kick();
}

void SendGate::ClearPauses() {
  if (paused_ != 0) Apply(paused_, 0);
}

void SendGate::AddRunning(LinkTruth* truth) const {
  const Picos now = context_->scheduler.Now();
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if ((paused_ >> lane & 1) != 0) truth->pause_time += now - pauses_->since[lane];
  }
  if (blocked_since_ != kNever) truth->transmit_wait += now - blocked_since_;
}

void SendGate::AddCredits(uint32_t lane, CreditTruth* truth) const {
  truth->buffer = credits_->buffer;
  truth->at_sender = credits_->left[lane];
  const Ring<Return>& returning = credits_->returning;
  for (uint64_t i = returning.begin(); i != returning.end(); ++i) {
    if (returning[i].lane == lane) truth->returning += returning[i].blocks;
  }
}

void SendGate::OnEvent(uint32_t kind, uint64_t argument) {
  const Picos now = context_->scheduler.Now();
  if (kind == kCredit) {
    // An event that an earlier one replaced.
    if (credits_->wake_at != now) return;
    credits_->wake_at = kNever;
    if (waits_for_credits_) transmitter_->Kick();
  } else if (kind == kApplyPause) {
    Apply(static_cast<uint32_t>(argument & 0xFF), static_cast<uint32_t>(argument >> 8));
  } else if ((paused_ >> argument & 1) != 0 && pauses_->until[argument] == now) {
    Apply(1U << argument, 0);
  }
}

}  // namespace sluice::soft
