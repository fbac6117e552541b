#include "tuner/port_share.h"

#include <algorithm>

namespace sluice {
namespace {

// A seat whose owner posted nothing for this many holds may be taken by another.
constexpr uint64_t kDeadAfterHolds = 200'000;  // 10 s at the default hold of 50 us

// How soon urgent activity of others is noticed: 6 us at the default hold.
constexpr uint64_t kLooksPerHold = 8;

constexpr uint64_t KeyOf(uint64_t share) {
  return share >> 16;
}
constexpr uint64_t WeightOf(uint64_t share) {
  return share & 0xffff;
}

// The classes, other than one's own, that are active and share by weight.
class Rivals {
 public:
  void Add(uint64_t share) {
    if (std::find(keys_.begin(), keys_.begin() + count_, KeyOf(share)) != keys_.begin() + count_) return;
    if (count_ == static_cast<std::ptrdiff_t>(keys_.size())) return;
    keys_[static_cast<size_t>(count_++)] = KeyOf(share);
    weight_ += WeightOf(share);
  }
  uint64_t weight() const { return weight_; }
  bool any() const { return count_ != 0; }

 private:
  std::array<uint64_t, size_t{2} * kMaxServiceClasses> keys_{};
  std::ptrdiff_t count_ = 0;
  uint64_t weight_ = 0;
};

}  // namespace

void PortShare::Configure(const Settings& settings,
                          const std::array<ClassSetting, kMaxServiceClasses>& classes) {
  settings_ = settings;
  for (size_t i = 0; i < classes.size(); ++i) {
    classes_[i].discipline = classes[i].discipline;
    classes_[i].weight = std::clamp<uint32_t>(classes[i].weight, 1, 0xffff);
    const bool shares = classes[i].discipline != Discipline::kStrict && !classes[i].name.empty();
    shares_[i] = shares ? ClassKey(classes[i].name) << 16 | classes_[i].weight : 0;
  }
}

ActivityBoard::Seat* PortShare::TakeSeat(ActivityBoard& board, uint64_t now) {
  for (uint32_t i = 0; i < kBoardSeats; ++i) {
    ActivityBoard::Seat& seat = board.seats[i];
    uint64_t holder = seat.owner.load(std::memory_order_relaxed);
    const uint64_t seen = seat.seen.load(std::memory_order_relaxed);
    // Also one that was seen in the future: the host was started again, or the board is damaged.
    const bool dead = holder != 0 && (seen > now + 4 * settings_.hold ||
                                      now - std::min(now, seen) > kDeadAfterHolds * settings_.hold);
    if (holder != 0 && !dead) continue;
    if (!seat.owner.compare_exchange_strong(holder, owner_.engine, std::memory_order_acq_rel)) continue;
    seat.process.store(owner_.process, std::memory_order_relaxed);
    seat.pid_namespace.store(owner_.pid_namespace, std::memory_order_relaxed);
    seat.seen.store(now, std::memory_order_relaxed);
    for (size_t k = 0; k < shares_.size(); ++k) {
      seat.until[k].store(0, std::memory_order_relaxed);
      seat.share[k].store(shares_[k], std::memory_order_relaxed);
    }
    uint32_t used = board.seats_used.load(std::memory_order_relaxed);
    while (used <= i && !board.seats_used.compare_exchange_weak(used, i + 1, std::memory_order_release))
      continue;
    return &seat;
  }
  return nullptr;
}

void PortShare::Join(ActivityBoard& board, const Owner& owner, uint64_t now) {
  if (joined_count_ == kMaxBoards) return;
  owner_ = owner;
  joined_[joined_count_++] = {&board, TakeSeat(board, now)};
  for (Class& c : classes_) c.look_at = c.announce_at = 0;
}

void PortShare::Leave() {
  for (Joined& joined : joined_) {
    if (joined.seat == nullptr) continue;
    // Only what is still one's own: the seat may have an heir.
    if (joined.seat->owner.load(std::memory_order_relaxed) == owner_.engine) {
      for (std::atomic<uint64_t>& until : joined.seat->until) until.store(0, std::memory_order_relaxed);
      uint64_t mine = owner_.engine;
      joined.seat->owner.compare_exchange_strong(mine, 0, std::memory_order_acq_rel);
    }
  }
  joined_ = {};
  joined_count_ = 0;
  for (Class& c : classes_) {
    c.look_at = ~uint64_t{0};
    c.allowance = kUnlimited;
  }
}

void PortShare::WriteBoards(uint32_t service_class, uint64_t now) noexcept {
  Class& c = classes_[service_class];
  // Half a hold: the words on the board are never older than that while the class goes on.
  c.announce_at = now + settings_.hold / 2;
  const uint64_t until = now + settings_.hold;
  for (uint32_t i = 0; i < joined_count_; ++i) {
    Joined& joined = joined_[i];
    if (c.discipline == Discipline::kStrict)
      joined.board->strict_until.store(until, std::memory_order_relaxed);
    // The seat may have been taken while nothing was posted here for long.
    if (joined.seat == nullptr || joined.seat->owner.load(std::memory_order_relaxed) != owner_.engine)
      joined.seat = TakeSeat(*joined.board, now);
    if (joined.seat == nullptr) continue;
    joined.seat->seen.store(now, std::memory_order_relaxed);
    joined.seat->until[service_class].store(until, std::memory_order_relaxed);
  }
}

bool PortShare::StrictActive(uint64_t now) const {
  return std::any_of(joined_.begin(), joined_.begin() + joined_count_, [&](const Joined& joined) {
    return Live(joined.board->strict_until.load(std::memory_order_relaxed), now);
  });
}

void PortShare::Look(uint32_t service_class, uint64_t now) noexcept {
  Class& c = classes_[service_class];
  if (now >= c.announce_at) WriteBoards(service_class, now);
  if (c.discipline == Discipline::kStrict) {
    c.look_at = c.announce_at;
    return;
  }
  Refresh(c, now);
  c.look_at = now + settings_.hold / kLooksPerHold;
}

void PortShare::Refresh(Class& c, uint64_t now) noexcept {
  constexpr uint64_t background = ClassKey("background");
  const uint64_t own_share = shares_[static_cast<size_t>(&c - classes_.data())];
  Rivals rivals;
  uint64_t engines = 1;  // of this class
  for (uint32_t b = 0; b < joined_count_; ++b) {
    const ActivityBoard& board = *joined_[b].board;
    uint64_t here = 1;
    const uint32_t seats = std::min(board.seats_used.load(std::memory_order_acquire), kBoardSeats);
    for (uint32_t i = 0; i < seats; ++i) {
      const ActivityBoard::Seat& seat = board.seats[i];
      if (seat.owner.load(std::memory_order_relaxed) == 0) continue;
      for (size_t k = 0; k < kMaxServiceClasses; ++k) {
        if (!Live(seat.until[k].load(std::memory_order_relaxed), now)) continue;
        const bool own = &seat == joined_[b].seat;
        const uint64_t share = own ? shares_[k] : seat.share[k].load(std::memory_order_relaxed);
        if (share == 0) continue;
        if (KeyOf(share) == KeyOf(own_share)) {
          here += !own;
        } else if (KeyOf(share) != background) {  // background is no rival of the others: it yields to them
          rivals.Add(share);
        }
      }
    }
    engines = std::max(engines, here);
  }
  if (!StrictActive(now) && !rivals.any()) {
    c.allowance = kUnlimited;
  } else if (c.discipline == Discipline::kBackground) {
    c.allowance = 0;  // one piece at a time
    c.ticks_per_byte =
        static_cast<double>(engines) / std::max(1e-12, settings_.bytes_per_tick * settings_.background_floor);
  } else {
    c.allowance = settings_.budget_bytes * c.weight / (c.weight + rivals.weight()) / engines;
  }
}

uint32_t PortShare::AdmitPiece(Class& c, uint32_t rest, uint64_t now) noexcept {
  const uint32_t piece = std::min(rest, settings_.piece_bytes);
  if (c.discipline != Discipline::kBackground)
    return c.outstanding == 0 || c.outstanding + piece <= c.allowance ? piece : 0;
  if (c.outstanding != 0 || now < c.next_at) return 0;
  // Looked at late, the next one comes as much earlier.
  const auto cost = static_cast<uint64_t>(piece * c.ticks_per_byte);
  c.next_at = std::max(c.next_at, now - std::min(now, cost)) + cost;
  return piece;
}

}  // namespace sluice
