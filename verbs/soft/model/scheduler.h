// The one queue of future events. Events run in the order of their time; at equal times in the order in which
// they were scheduled, so a run depends on nothing but its input.
//
// Most events lie within some microseconds: those wait in a wheel of short intervals, unsorted, and an
// interval is sorted when its time comes. That touches memory in sequence where a heap of a hundred thousand
// events misses the cache at every level, and it tells which targets are next, so that they are in the cache
// in time. What lies beyond the wheel, timers, waits in a heap.
//
// Thread rule: single threaded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "verbs/soft/model/clock.h"

namespace sluice::soft {

class EventTarget {
 public:
  // `kind` and `argument` are what was given to At().
  virtual void OnEvent(uint32_t kind, uint64_t argument) = 0;
  // An event is some events away: what OnEvent will read may be fetched into the cache.
  virtual void Prefetch() const {}

 protected:
  ~EventTarget() = default;
};

class Scheduler {
 public:
  Picos Now() const { return now_; }
  Picos NextTime() const;
  uint64_t events() const { return events_; }

  // `target` must live until the event ran: targets live as long as the fabric, shorter-lived things are
  // named by `argument` and looked up. A time in the past means now.
  void At(Picos at, EventTarget* target, uint32_t kind, uint64_t argument = 0);

  // Runs at most `max_events` of those up to `until`. True when none of them is left; then the time is at
  // least `until`.
  bool Run(Picos until, uint64_t max_events);

 private:
  struct Entry {
    Picos at;
    uint64_t sequence;
    EventTarget* target;
    uint64_t argument;
    uint32_t kind;

    bool Before(const Entry& other) const {
      return at != other.at ? at < other.at : sequence < other.sequence;
    }
  };
  // A heap of four children per node: half as deep as a binary one, and siblings share cache lines.
  struct Heap {
    std::vector<Entry> entries;
    bool empty() const { return entries.empty(); }
    const Entry& front() const { return entries.front(); }
    void Push(const Entry& entry);
    void Pop();
  };
  // Part of the unsorted list of an interval.
  struct Chunk {
    static constexpr uint32_t kEntries = 31;
    Chunk* next = nullptr;
    uint32_t count = 0;
    std::array<Entry, kEntries> entries;
  };
  static constexpr int kIntervalBits = 13;  // 8.2 ns
  static constexpr uint64_t kIntervals = 8192;
  static uint64_t IntervalOf(Picos at) { return static_cast<uint64_t>(at) >> kIntervalBits; }

  // The earliest event is in sorted_ or late_, if there is any. Changes where events wait, not which.
  bool Ready() const;
  bool Open() const;
  // Back to the interval of now; the wheel is empty.
  void Rewind();
  void Put(uint64_t interval, const Entry& entry);
  bool NextInterval(uint64_t* interval) const;
  const Entry& Earliest() const;

  mutable std::vector<Entry> sorted_;  // of the interval current_, from next_ on
  mutable size_t next_ = 0;
  mutable Heap late_;  // scheduled for the interval when it was sorted already
  mutable uint64_t current_ = 0;
  mutable std::vector<Chunk*> wheel_ = std::vector<Chunk*>(kIntervals);
  mutable std::array<uint64_t, kIntervals / 64> occupied_{};  // a bit per interval
  mutable uint64_t in_wheel_ = 0;                             // intervals
  mutable Heap far_;
  mutable Chunk* free_ = nullptr;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  Picos now_ = 0;
  uint64_t sequence_ = 0;
  uint64_t events_ = 0;
};

}  // namespace sluice::soft
