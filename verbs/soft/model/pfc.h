// Priority flow control (802.1Qbb), the side that pauses: sends pause frames for lanes that must stop, again
// before they expire, and frames that let them go on. The side that obeys is send_gate.h.
//
// Thread rule: single threaded.
#pragma once

#include <array>
#include <cstdint>

#include "verbs/soft/model/network_settings.h"
#include "verbs/soft/model/transmitter.h"

namespace sluice::soft {

// Frame of 64 bytes with preamble and gap.
inline constexpr uint32_t kPauseWireBytes = 84;

// A quantum is the time of 512 bits.
inline Picos PauseTime(uint32_t quanta, uint64_t rate_bps) {
  return SerialisationTime(uint64_t{quanta} * 64, rate_bps);
}
inline uint32_t PausedLanes(const Packet& frame) {
  return frame.flags;
}
inline uint32_t PauseQuanta(const Packet& frame) {
  return frame.psn;
}

class PauseSender final : public EventTarget {
 public:
  // `settings` outlives this object.
  PauseSender(NetworkContext* context, const SwitchSettings* settings)
      : context_(context), settings_(settings) {}
  // The direction that leads to the one who must pause.
  void set_transmitter(Transmitter* transmitter) { transmitter_ = transmitter; }

  uint32_t paused() const { return paused_; }
  void Pause(uint32_t lane);
  void Resume(uint32_t lane);
  // The link came up again: says once more what is paused.
  void Repeat();
  uint64_t pauses_sent() const { return pauses_sent_; }

  void OnEvent(uint32_t kind, uint64_t lane) override;

 private:
  void Send(uint32_t lanes, uint32_t quanta);
  void SendPause(uint32_t lane);

  NetworkContext* context_;
  const SwitchSettings* settings_;
  Transmitter* transmitter_ = nullptr;
  std::array<Picos, kLanes> refresh_at_{};
  uint32_t paused_ = 0;
  uint64_t pauses_sent_ = 0;
};

}  // namespace sluice::soft
