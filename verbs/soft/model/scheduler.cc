#include "verbs/soft/model/scheduler.h"

#include <algorithm>
#include <cstddef>

namespace sluice::soft {

void Scheduler::At(Picos at, EventTarget* target, uint32_t kind, uint64_t argument) {
  const Entry entry{std::max(at, now_), sequence_++, target, argument, kind};
  size_t hole = heap_.size();
  heap_.push_back(entry);
  while (hole > 0) {
    const size_t parent = (hole - 1) / 4;
    if (!entry.Before(heap_[parent])) break;
    heap_[hole] = heap_[parent];
    hole = parent;
  }
  heap_[hole] = entry;
}

void Scheduler::Pop() {
  const Entry last = heap_.back();
  heap_.pop_back();
  const size_t size = heap_.size();
  if (size == 0) return;
  size_t hole = 0;
  for (;;) {
    const size_t first = hole * 4 + 1;
    if (first >= size) break;
    size_t least = first;
    const size_t end = std::min(first + 4, size);
    for (size_t child = first + 1; child < end; ++child) {
      if (heap_[child].Before(heap_[least])) least = child;
    }
    if (!heap_[least].Before(last)) break;
    heap_[hole] = heap_[least];
    hole = least;
  }
  heap_[hole] = last;
}

bool Scheduler::Run(Picos until, uint64_t max_events) {
  while (!heap_.empty() && heap_.front().at <= until) {
    if (max_events == 0) return false;
    --max_events;
    const Entry entry = heap_.front();
    Pop();
    now_ = entry.at;
    ++events_;
    entry.target->OnEvent(entry.kind, entry.argument);
  }
  now_ = std::max(now_, until);
  return true;
}

}  // namespace sluice::soft
