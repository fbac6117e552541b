// What decides how much a sender may have under way. A flow asks before every packet and tells what came
// back.
//
// Thread rule: single threaded. Calls never re-enter the flow.
#pragma once

#include <cstdint>
#include <memory>

#include "verbs/soft/model/clock.h"

namespace sluice::soft {

struct AckInfo {
  Picos now = 0;
  uint64_t acked_bytes = 0;      // payload that this answer acknowledged first
  uint64_t in_flight_bytes = 0;  // payload sent and not acknowledged, after it
  Picos rtt = 0;                 // from sending the packet that asked for the answer; 0: it was sent again
};

class CongestionControl {
 public:
  virtual ~CongestionControl() = default;
  // Whether `bytes` more may be sent. False: asked again after the next answer or loss.
  virtual bool MaySend(uint64_t in_flight_bytes, uint32_t bytes) const = 0;
  // The next packet leaves no earlier. 0: no pacing.
  virtual Picos NotBefore() const { return 0; }
  virtual void OnSent(Picos /*now*/, uint32_t /*wire_bytes*/) {}
  virtual void OnAck(const AckInfo& /*ack*/) {}
  virtual void OnLoss(Picos /*now*/) {}
};

// One for each flow, made when the flow is first used.
class CongestionControlFactory {
 public:
  virtual ~CongestionControlFactory() = default;
  virtual std::unique_ptr<CongestionControl> Make() const = 0;
};

// A fixed amount under way: what NCCL's transport allows by the depth of its buffers (4 MiB a channel).
class StaticWindow final : public CongestionControl {
 public:
  explicit StaticWindow(uint64_t window_bytes) : window_bytes_(window_bytes) {}
  // One packet may always go, so a window below a packet slows down and never stops.
  bool MaySend(uint64_t in_flight_bytes, uint32_t bytes) const override {
    return in_flight_bytes == 0 || in_flight_bytes + bytes <= window_bytes_;
  }

 private:
  uint64_t window_bytes_;
};

class StaticWindowFactory final : public CongestionControlFactory {
 public:
  explicit StaticWindowFactory(uint64_t window_bytes) : window_bytes_(window_bytes) {}
  std::unique_ptr<CongestionControl> Make() const override {
    return std::make_unique<StaticWindow>(window_bytes_);
  }

 private:
  uint64_t window_bytes_;
};

// NCCL's static amount: buffer bytes of a channel times the channels that two ranks use together.
inline constexpr uint64_t kNcclChannelBytes = 4 << 20;

}  // namespace sluice::soft
