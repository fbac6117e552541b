#include "verbs/soft/model/pfc.h"

namespace sluice::soft {

void PauseSender::Send(uint32_t lanes, uint32_t quanta) {
  Packet* frame = context_->packets.New();
  frame->kind = PacketKind::kPfcPause;
  frame->wire_bytes = kPauseWireBytes;
  frame->flags = static_cast<uint8_t>(lanes);
  frame->psn = quanta;
  frame->lane = kLanes - 1;
  if (settings_->pause_on_wire) {
    transmitter_->SendControl(frame);
  } else {
    transmitter_->SendBeside(frame);
  }
}

void PauseSender::SendPause(uint32_t lane) {
  Send(1U << lane, settings_->pause_quanta);
  refresh_at_[lane] =
      context_->scheduler.Now() + PauseTime(settings_->pause_quanta, transmitter_->rate_bps()) / 2;
  context_->scheduler.At(refresh_at_[lane], this, 0, lane);
}

void PauseSender::Pause(uint32_t lane) {
  if ((paused_ >> lane & 1) != 0) return;
  paused_ |= 1U << lane;
  ++pauses_sent_;
  SendPause(lane);
}

void PauseSender::Resume(uint32_t lane) {
  if ((paused_ >> lane & 1) == 0) return;
  paused_ &= ~(1U << lane);
  Send(1U << lane, 0);
}

void PauseSender::Repeat() {
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if ((paused_ >> lane & 1) != 0) SendPause(lane);
  }
}

void PauseSender::OnEvent(uint32_t, uint64_t lane) {
  if ((paused_ >> lane & 1) != 0 && refresh_at_[lane] == context_->scheduler.Now()) {
    SendPause(static_cast<uint32_t>(lane));
  }
}

}  // namespace sluice::soft
