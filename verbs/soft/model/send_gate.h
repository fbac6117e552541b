// What the far end of a link allows its sender: lanes paused by PFC (802.1Qbb), or credits (InfiniBand).
//
// Credits (IBTA volume 1, 7.9) count blocks of 64 bytes per lane; a packet takes whole blocks. The receiver
// gives them back when its buffer is free again; they travel behind the packet in progress on the way back,
// and the sender looks at what has come whenever it wants to send, so credits cost events only while it waits
// for them.
//
// Thread rule: single threaded.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "verbs/soft/model/ring.h"
#include "verbs/soft/model/transmitter.h"

namespace sluice::soft {

class SendGate final : public EventTarget {
 public:
  explicit SendGate(NetworkContext* context) : context_(context) {}
  void set_transmitter(Transmitter* transmitter) { transmitter_ = transmitter; }

  // Lanes, a bit each, that PFC has paused.
  uint32_t paused() const { return paused_; }
  bool has_credits() const { return credits_ != nullptr; }
  // Credits of all lanes; a packet in `lane` needs CreditsOf(its bytes).
  bool Allows(uint32_t lane, uint32_t wire_bytes) {
    if (credits_ == nullptr) return true;
    if (!credits_->returning.empty()) Collect();
    return credits_->left[lane] >= static_cast<int32_t>(CreditsOf(wire_bytes));
  }
  void Take(uint32_t lane, uint32_t wire_bytes) {
    if (credits_ != nullptr) credits_->left[lane] -= static_cast<int32_t>(CreditsOf(wire_bytes));
  }
  // The source has something to send, but no lane may. Wakes the transmitter when credits come.
  void Block();
  // Something is sent, or nothing is left to send: ends the time of waiting.
  void Unblock() {
    if (blocked_since_ != kNever) EndWait();
  }

  // Link with credits: the receiver has room for `blocks` per lane.
  void UseCredits(uint32_t blocks);
  // Blocks of a lane are free again; they are here at `at`.
  void ReturnCredits(uint32_t lane, uint32_t blocks, Picos at);
  // A PFC frame; takes effect `response` later.
  void OnPause(const Packet& frame, Picos response);
  // Link down: nobody pauses any more.
  void ClearPauses();

  void OnEvent(uint32_t kind, uint64_t argument) override;
  // Up to now, the running pause or wait included.
  void AddRunning(LinkTruth* truth) const;
  // Buffer, at the sender and on the way back. With credits only.
  void AddCredits(uint32_t lane, CreditTruth* truth) const;

 private:
  enum : uint32_t { kCredit, kApplyPause, kPauseExpired };
  struct Return {
    Picos at;
    uint32_t lane;
    uint32_t blocks;
  };
  struct Credits {
    std::array<int32_t, kLanes> left{};
    Ring<Return> returning;  // by time
    uint32_t buffer = 0;     // blocks of each lane
    Picos wake_at = kNever;
  };
  struct Pauses {
    std::array<Picos, kLanes> until{};
    std::array<Picos, kLanes> since{};
  };

  void Collect();
  void WakeAtFirst();
  void Apply(uint32_t lanes, uint32_t quanta);
  void EndWait();

  NetworkContext* context_;
  Transmitter* transmitter_ = nullptr;
  uint32_t paused_ = 0;
  bool waits_for_credits_ = false;
  Picos blocked_since_ = kNever;
  std::unique_ptr<Credits> credits_;
  std::unique_ptr<Pauses> pauses_;
};

}  // namespace sluice::soft
