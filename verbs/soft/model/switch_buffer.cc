#include "verbs/soft/model/switch_buffer.h"

#include <algorithm>

namespace sluice::soft {
uint64_t PoolBytes(const SwitchSettings& settings, uint32_t ports) {
  return settings.pool_bytes * ((ports + settings.ports_per_chip - 1) / settings.ports_per_chip);
}

void SwitchBuffer::Configure(const SwitchSettings* settings, uint32_t ports, uint64_t headroom_bytes) {
  settings_ = settings;
  const uint64_t pool = PoolBytes(*settings, ports);
  shared_bytes_ = pool > headroom_bytes ? pool - headroom_bytes : 0;
}

Admission SwitchBuffer::Admit(IngressBuffer* ingress, uint32_t lane, uint32_t bytes, bool paused) {
  bool pause;
  if (settings_->buffer == BufferMode::kStatic) {
    ingress->shared_bytes[lane] += bytes;
    pause = ingress->shared_bytes[lane] > settings_->xoff_bytes;
  } else {
    pause = paused || WouldPause(*ingress, lane, bytes);
    // While paused everything goes to headroom, or a threshold that rises meanwhile would let the lane
    // overrun the pool in small steps. The packet that crosses the threshold is the last in the pool.
    if (!paused && used_bytes_ + bytes <= shared_bytes_) {
      ingress->shared_bytes[lane] += bytes;
      used_bytes_ += bytes;
    } else if (ingress->headroom_bytes[lane] + bytes <= ingress->headroom_limit_bytes) {
      ingress->headroom_bytes[lane] += bytes;
    } else {
      return Admission::kDrop;
    }
  }
  ingress->peak_bytes = std::max(ingress->peak_bytes, ingress->bytes(lane));
  return pause ? Admission::kAcceptAndPause : Admission::kAccept;
}

Admission SwitchBuffer::AdmitLossy(uint32_t bytes, uint64_t queue_bytes) {
  if (settings_->buffer == BufferMode::kDynamic && queue_bytes + bytes > Threshold()) return Admission::kDrop;
  used_bytes_ += bytes;
  return Admission::kAccept;
}

bool SwitchBuffer::Release(IngressBuffer* ingress, uint32_t lane, uint32_t bytes) {
  if (settings_->buffer == BufferMode::kStatic) {
    ingress->shared_bytes[lane] -= bytes;
    return ingress->shared_bytes[lane] < settings_->xon_bytes;
  }
  const uint32_t from_headroom = std::min(bytes, ingress->headroom_bytes[lane]);
  ingress->headroom_bytes[lane] -= from_headroom;
  ingress->shared_bytes[lane] -= bytes - from_headroom;
  used_bytes_ -= bytes - from_headroom;
  if (ingress->headroom_bytes[lane] != 0) return false;
  const uint64_t held = ingress->shared_bytes[lane];
  return held == 0 || held + settings_->xon_offset_bytes <= Threshold();
}

}  // namespace sluice::soft
