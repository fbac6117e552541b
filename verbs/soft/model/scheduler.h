// The one queue of future events. Events run in the order of their time; at equal times in the order in which
// they were scheduled, so a run depends on nothing but its input.
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <vector>

#include "verbs/soft/model/clock.h"

namespace sluice::soft {

class EventTarget {
 public:
  // `kind` and `argument` are what was given to At().
  virtual void OnEvent(uint32_t kind, uint64_t argument) = 0;

 protected:
  ~EventTarget() = default;
};

class Scheduler {
 public:
  Picos Now() const { return now_; }
  Picos NextTime() const { return heap_.empty() ? kNever : heap_.front().at; }
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
  void Pop();

  // A heap of four children per node: half as deep as a binary one, and siblings share cache lines.
  std::vector<Entry> heap_;
  Picos now_ = 0;
  uint64_t sequence_ = 0;
  uint64_t events_ = 0;
};

}  // namespace sluice::soft
