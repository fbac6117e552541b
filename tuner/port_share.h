// Who may post how much on a port: strict classes at once, the others within what more urgent ones leave.
//
//   PortShare share;                                     // of one engine, on all of its ports
//   share.Configure(settings, classes);
//   share.Join(board, owner, now);                       // for each port
//   uint32_t now_bytes = share.Admit(kBulk, rest, now);  // rest: go on; 0: later; else a piece of that size
//   share.Posted(kBulk, now_bytes);  ...  share.Completed(kBulk, now_bytes);
//
// While nothing competes, everything is admitted whole: an idle port is as fast as without a scheduler. While a
// strict class was active on the port in the last `hold`, by any communicator or process of the host, classes that
// share by weight may have `budget` bytes outstanding together, in pieces of `piece` bytes; the same while two of
// them are active, so that their shares follow their weights. The background class then keeps to its floor. A piece
// is always admitted when the class has nothing outstanding, so nothing can wait for ever.
//
// Engines of all processes see each other on an ActivityBoard in shared memory. Every word there is a time until
// which something counts as active; it expires by the reader's clock, so a process that dies is forgotten by itself.
//
// Threads: a PortShare belongs to its engine's data thread (under its lock); the board is shared and lock-free.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/hash.h"
#include "tuner/policy.h"

namespace sluice {

inline constexpr uint32_t kBoardSeats = 128;  // engines that may be seen on one port at a time

// All zero is an empty board. The layout is part of the name of its file: a change needs another version there.
struct ActivityBoard {
  struct alignas(64) Seat {
    std::atomic<uint64_t> owner{0};          // 0: free
    std::atomic<uint64_t> process{0};        // its pid, and
    std::atomic<uint64_t> pid_namespace{0};  // where that counts
    std::atomic<uint64_t> seen{0};           // when its owner last posted
    std::array<std::atomic<uint64_t>, kMaxServiceClasses> until{};
    std::array<std::atomic<uint64_t>, kMaxServiceClasses>
        share{};  // ClassKey << 16 | weight; 0: does not share
  };
  alignas(64) std::atomic<uint64_t> strict_until{0};
  alignas(64) std::atomic<uint32_t> seats_used{0};  // seats below it may be taken
  std::array<Seat, kBoardSeats> seats{};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class PortShare {
 public:
  static constexpr uint32_t kMaxBoards = 8;
  enum class Discipline : uint8_t { kStrict, kWeighted, kBackground };
  struct ClassSetting {
    Discipline discipline = Discipline::kWeighted;
    uint32_t weight = 1;    // 1 to 65535
    std::string_view name;  // equal names are one class, in all processes
  };
  // Times in ticks of TickClock.
  struct Settings {
    double bytes_per_tick = 0;  // of the port
    uint64_t hold = 0;          // how long a class counts as active after it posted
    uint64_t budget_bytes = 0;  // outstanding bytes of all weighted classes together while others are active
    uint32_t piece_bytes = 0;   // multiple of 128
    double background_floor = 0;  // part of the port's rate
  };

  void Configure(const Settings& settings, const std::array<ClassSetting, kMaxServiceClasses>& classes);
  struct Owner {
    uint64_t engine = 0;  // unique on the host, not 0
    uint64_t process = 0;
    uint64_t pid_namespace = 0;
  };
  // Takes a seat on the board of a port; when it is full this engine sees the others but is not seen. At most
  // kMaxBoards ports.
  void Join(ActivityBoard& board, const Owner& owner, uint64_t now);
  void Leave();

  // Bytes of a message of `rest` bytes that may be posted now; announces the class to the host.
  [[gnu::always_inline]] uint32_t Admit(uint32_t service_class, uint32_t rest, uint64_t now) noexcept {
    if (!Limits(service_class, now)) [[likely]]
      return rest;
    return AdmitPiece(classes_[service_class], rest, now);
  }
  // Whether Admit may give less than everything now.
  [[gnu::always_inline]] bool Limits(uint32_t service_class, uint64_t now) noexcept {
    Class& c = classes_[service_class];
    if (now >= c.look_at) [[unlikely]]
      Look(service_class, now);
    return c.allowance != kUnlimited;
  }
  void Posted(uint32_t service_class, uint64_t bytes) noexcept {
    classes_[service_class].outstanding += bytes;
  }
  void Completed(uint32_t service_class, uint64_t bytes) noexcept {
    classes_[service_class].outstanding -= bytes;
  }
  uint64_t outstanding_bytes(uint32_t service_class) const { return classes_[service_class].outstanding; }
  bool strict(uint32_t service_class) const {
    return classes_[service_class].discipline == Discipline::kStrict;
  }

  // 48 bits that name a class, never 0.
  static constexpr uint64_t ClassKey(std::string_view name) {
    const uint64_t hash = Fnv1a(name);
    const uint64_t folded = (hash ^ hash >> 48) & 0xffffffffffff;
    return folded == 0 ? 1 : folded;
  }

 private:
  static constexpr uint64_t kUnlimited = ~uint64_t{0};
  struct alignas(64) Class {
    uint64_t look_at = ~uint64_t{0};  // when to write and read the boards again
    uint64_t announce_at = 0;
    uint64_t allowance = kUnlimited;
    uint64_t outstanding = 0;
    uint64_t next_at = 0;  // background: when the floor allows the next piece
    double ticks_per_byte = 0;
    uint32_t weight = 1;
    Discipline discipline = Discipline::kWeighted;
  };

  // A time too far ahead is no time: a damaged board must not hold anybody back.
  bool Live(uint64_t until, uint64_t now) const { return until > now && until - now <= 4 * settings_.hold; }
  bool StrictActive(uint64_t now) const;
  [[gnu::noinline]] void Look(uint32_t service_class, uint64_t now) noexcept;
  void Refresh(Class& c, uint64_t now) noexcept;
  [[gnu::noinline]] uint32_t AdmitPiece(Class& c, uint32_t rest, uint64_t now) noexcept;
  void WriteBoards(uint32_t service_class, uint64_t now) noexcept;
  struct Joined {
    ActivityBoard* board = nullptr;
    ActivityBoard::Seat* seat = nullptr;
  };
  ActivityBoard::Seat* TakeSeat(ActivityBoard& board, uint64_t now);

  std::array<Class, kMaxServiceClasses> classes_{};
  std::array<Joined, kMaxBoards> joined_{};
  uint32_t joined_count_ = 0;
  Settings settings_;
  std::array<uint64_t, kMaxServiceClasses> shares_{};  // as on the boards
  Owner owner_;
};

}  // namespace sluice
