// The buffer of an Ethernet switch: who may fill it, and when a neighbour must pause.
//
// kDynamic: lossless packets count against their ingress (port, priority), whose threshold is alpha x the
// free part of the shared pool; above it the neighbour is told to pause and what still comes goes to headroom
// that is reserved for this (port, priority). Lossy packets count against their egress queue with the same
// threshold and are dropped above it. kStatic: fixed thresholds, no pool.
//
// Thread rule: single threaded.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "verbs/soft/model/network_settings.h"
#include "verbs/soft/model/packet.h"

namespace sluice::soft {

// Of one ingress port.
struct IngressBuffer {
  std::array<uint32_t, kLanes> shared_bytes{};
  std::array<uint32_t, kLanes> headroom_bytes{};
  uint64_t headroom_limit_bytes = 0;  // of each lossless priority
  uint64_t peak_bytes = 0;

  uint64_t bytes(uint32_t lane) const { return uint64_t{shared_bytes[lane]} + headroom_bytes[lane]; }
};

enum class Admission : uint8_t { kAccept, kAcceptAndPause, kDrop };

class SwitchBuffer {
 public:
  // `settings` outlives this object. `headroom_bytes`: the sum over all ports and lossless priorities.
  void Configure(const SwitchSettings* settings, uint32_t ports, uint64_t headroom_bytes);

  bool lossless(uint32_t lane) const { return (settings_->lossless_priorities >> lane & 1) != 0; }
  // A packet of a lossless priority that is not paused would make it so.
  bool WouldPause(const IngressBuffer& ingress, uint32_t lane, uint32_t bytes) const {
    const uint64_t held = ingress.shared_bytes[lane] + uint64_t{bytes};
    return held > (settings_->buffer == BufferMode::kStatic ? settings_->xoff_bytes : Threshold());
  }
  // A packet of a lossless priority has come; `paused`: its neighbour was told so already.
  Admission Admit(IngressBuffer* ingress, uint32_t lane, uint32_t bytes, bool paused);
  // A lossy one, for a queue of `queue_bytes`.
  Admission AdmitLossy(uint32_t bytes, uint64_t queue_bytes);
  // A lossless packet has left. True: its ingress may go on if it was paused.
  bool Release(IngressBuffer* ingress, uint32_t lane, uint32_t bytes);
  void ReleaseLossy(uint32_t bytes) { used_bytes_ -= bytes; }

  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t shared_bytes() const { return shared_bytes_; }
  uint64_t Threshold() const {
    return used_bytes_ >= shared_bytes_ ? 0 : (shared_bytes_ - used_bytes_) * settings_->alpha_eighths / 8;
  }

 private:
  const SwitchSettings* settings_ = nullptr;
  uint64_t shared_bytes_ = 0;  // pool less headroom
  uint64_t used_bytes_ = 0;    // of it
};

// Pool of a switch with that many ports.
uint64_t PoolBytes(const SwitchSettings& settings, uint32_t ports);

}  // namespace sluice::soft
