// Which operation and service class each message belongs to, and the counters that say so.
//
// An engine holds its answers ready (claims), by what the message's memory tells; isend and irecv take one with a few
// loads. They are written when setNetAttr announces another operation, for the engines that the calling thread drives.
// Where the profiler half has just named the operation, a slower way merges both:
//
//   1. setNetAttr (NET v11 and later) names function, algorithm, protocol; the profiler adds the bytes, and of
//      point-to-point calls of different kinds in one group the kind.
//   2. The profiler half alone (NCCL 2.23 to 2.27).
//   3. NCCL's callback with the phandle of isend (NET v10), when neither spoke.
//   4. Kind of connection and protocol, by the sizes that it registers.
//
// Threads: Announce from any (NCCL: progress thread, and service thread at connect time); the rest of an
// EngineClassifier under its engine's data lock.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/classify/statistics.h"
#include "plugin/classify/thread_state.h"
#include "plugin/net.h"
#include "plugin/statistics_layout.h"
#include "tuner/operation.h"

namespace sluice {

class BiasedLock;
class CommunicatorState;

// What a registration tells of the messages from and into it.
enum class ConnectionKind : uint8_t { kUnknown = 0, kCollective = 1, kPointToPoint = 2 };
class MemoryHint {
 public:
  static constexpr int kHints = 16;
  constexpr MemoryHint() = default;
  constexpr MemoryHint(ConnectionKind kind, Protocol protocol)
      : scaled_(static_cast<uint8_t>((static_cast<int>(kind) * kProtocols + static_cast<int>(protocol)) *
                                     kScale)) {}
  constexpr size_t index() const { return scaled_ / kScale; }
  constexpr size_t scaled() const { return scaled_; }
  constexpr ConnectionKind kind() const { return static_cast<ConnectionKind>(index() / kProtocols); }
  constexpr Protocol protocol() const { return static_cast<Protocol>(index() % kProtocols); }
  static constexpr int kScale = 16;  // so that the data path adds it to the address of the claims

 private:
  uint8_t scaled_ = static_cast<uint8_t>(static_cast<int>(Protocol::kUnknown) * kScale);
};

// Kind and protocol from the order and sizes of a connection's registrations: a collective connection registers LL,
// LL128 and Simple; a point-to-point one Simple, or LL and Simple. What comes later is the user's.
//
// Threads: one at a time.
class RegistrationPattern {
 public:
  // Of the next registration. `*earlier` becomes true when those made before are now known better: HintAgain.
  MemoryHint Register(size_t bytes, bool* earlier);
  ConnectionKind kind() const { return kind_; }

 private:
  enum class Stage : uint8_t { kEmpty, kLl, kLl128, kComplete };
  Stage stage_ = Stage::kEmpty;
  ConnectionKind kind_ = ConnectionKind::kUnknown;
};

// What is said of a message.
struct Claim {
  MessageCounter* counter = nullptr;  // of sent messages; received ones are kReceivedOffset behind
  uint32_t op_hint = 0;
  uint8_t service_class = 0;
  OperationSource source = OperationSource::kNone;
};
static_assert(sizeof(Claim) == MemoryHint::kScale);

// CtsEntry::op_hint, the receiver's idea of the operation: valid:1 (bit 31) | class:8 | source:3 | protocol:2 |
// algorithm:3 | function:5.
constexpr uint32_t PackOpHint(const Operation& operation, OperationSource source, uint8_t service_class) {
  return 1u << 31 | uint32_t{service_class} << 13 | static_cast<uint32_t>(source) << 10 |
         static_cast<uint32_t>(operation.protocol) << 8 | static_cast<uint32_t>(operation.algorithm) << 5 |
         static_cast<uint32_t>(operation.function);
}
constexpr Function FunctionOfHint(uint32_t hint) {
  return static_cast<Function>(hint & 31);
}
constexpr Algorithm AlgorithmOfHint(uint32_t hint) {
  return static_cast<Algorithm>(hint >> 5 & 7);
}
constexpr Protocol ProtocolOfHint(uint32_t hint) {
  return static_cast<Protocol>(hint >> 8 & 3);
}

class EngineClassifier;

// What setNetAttr said last to one thread of one context. Never freed.
struct AttributeLatch {
  const CommunicatorState* communicator = nullptr;
  AttributeLatch* next = nullptr;          // of the same thread
  Operation operation;                     // function kUnknown: nothing was said
  uint32_t version = 0;                    // counts changes
  std::vector<EngineClassifier*> engines;  // that this thread drives
};

// setNetAttr. Connect-time attributes (several operations at once) say nothing of messages.
void Announce(const CommunicatorState& communicator, const NetAttributes& attributes);

class EngineClassifier {
 public:
  EngineClassifier() = default;
  EngineClassifier(const EngineClassifier&) = delete;
  EngineClassifier& operator=(const EngineClassifier&) = delete;

  // Before any message. `lock`: the engine's.
  void Open(CommunicatorState& communicator, BiasedLock& lock, std::string_view device, uint64_t uid);
  // The calling thread moves data now. Whenever the engine's lock was not taken the fast way.
  void Bind() noexcept {
    const AttributeLatch* const latch = this_thread.latches;
    if (bound_ != latch || bound_ == nullptr || bound_version_ != latch->version) [[unlikely]]
      Rebind();
  }

  [[gnu::always_inline]] const Claim& OfSend(MemoryHint hint, void* phandle) noexcept {
    if (this_thread.next_send != nullptr) [[unlikely]]
      return OfToldSend(hint, phandle);
    return At(hint);
  }
  [[gnu::always_inline]] const Claim& OfReceive(MemoryHint hint) noexcept {
    if (this_thread.next_receive != nullptr) [[unlikely]]
      return OfToldReceive(hint);
    return At(hint);
  }
  [[gnu::always_inline]] static void CountSent(const Claim& claim, uint64_t bytes) noexcept {
    AddRelaxed(claim.counter->messages, 1);
    AddRelaxed(claim.counter->bytes, bytes);
  }

  // One line: messages and how their operations were known. Any thread.
  std::string Summary() const;

  // Under the lock, as data.
  void Refill(const AttributeLatch& latch);

 private:
  [[gnu::always_inline]] const Claim& At(MemoryHint hint) const noexcept {
    return *reinterpret_cast<const Claim*>(reinterpret_cast<const char*>(claims_.data()) + hint.scaled());
  }
  [[gnu::noinline]] void Rebind() noexcept;
  [[gnu::noinline]] const Claim& OfToldSend(MemoryHint hint, void* phandle) noexcept;
  [[gnu::noinline]] const Claim& OfToldReceive(MemoryHint hint) noexcept;
  const Claim& Merge(MemoryHint hint, const OpenProxyOp& told) noexcept;
  Claim Make(const Operation& operation, OperationSource source, uint8_t service_class) const;

  friend void Announce(const CommunicatorState& communicator, const NetAttributes& attributes);

  std::array<Claim, MemoryHint::kHints> claims_{};
  Claim merged_;  // the last answer of Merge
  EngineStatistics statistics_;
  CommunicatorState* communicator_ = nullptr;
  BiasedLock* lock_ = nullptr;
  const AttributeLatch* bound_ = nullptr;  // what claims_ say
  uint32_t bound_version_ = 0;
};

// NCCL's callback as NET v10 gets it: called with the phandle of an isend whose operation nobody has told.
using AskNccl = bool (*)(void* phandle, void* query);
void SetAskNccl(AskNccl ask);

}  // namespace sluice
