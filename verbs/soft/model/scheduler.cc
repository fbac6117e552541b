#include "verbs/soft/model/scheduler.h"

#include <algorithm>
#include <bit>

namespace sluice::soft {
namespace {

// How far ahead targets, and what they read, are fetched.
constexpr size_t kFetchTarget = 6;
constexpr size_t kFetchData = 3;

}  // namespace

void Scheduler::Heap::Push(const Entry& entry) {
  size_t hole = entries.size();
  entries.push_back(entry);
  while (hole > 0) {
    const size_t parent = (hole - 1) / 4;
    if (!entry.Before(entries[parent])) break;
    entries[hole] = entries[parent];
    hole = parent;
  }
  entries[hole] = entry;
}

void Scheduler::Heap::Pop() {
  const Entry last = entries.back();
  entries.pop_back();
  const size_t size = entries.size();
  if (size == 0) return;
  size_t hole = 0;
  for (;;) {
    const size_t first = hole * 4 + 1;
    if (first >= size) break;
    size_t least = first;
    const size_t end = std::min(first + 4, size);
    for (size_t child = first + 1; child < end; ++child) {
      if (entries[child].Before(entries[least])) least = child;
    }
    if (!entries[least].Before(last)) break;
    entries[hole] = entries[least];
    hole = least;
  }
  entries[hole] = last;
}

void Scheduler::At(Picos at, EventTarget* target, uint32_t kind, uint64_t argument) {
  const Entry entry{std::max(at, now_), sequence_++, target, argument, kind};
  const uint64_t interval = IntervalOf(entry.at);
  // Somebody looked for the next event and found it far away.
  if (interval < current_ && in_wheel_ == 0 && next_ < sorted_.size()) Rewind();
  if (interval <= current_) {
    late_.Push(entry);
  } else if (interval - current_ < kIntervals) {
    Put(interval, entry);
  } else {
    far_.Push(entry);
  }
}

void Scheduler::Rewind() {
  for (; next_ < sorted_.size(); ++next_) far_.Push(sorted_[next_]);
  current_ = IntervalOf(now_);
}

void Scheduler::Put(uint64_t interval, const Entry& entry) {
  Chunk*& head = wheel_[interval % kIntervals];
  if (head == nullptr || head->count == Chunk::kEntries) {
    if (free_ == nullptr) {
      chunks_.push_back(std::make_unique<Chunk>());
      free_ = chunks_.back().get();
    }
    Chunk* chunk = free_;
    free_ = chunk->next;
    if (head == nullptr) {
      occupied_[interval % kIntervals / 64] |= uint64_t{1} << interval % 64;
      ++in_wheel_;
    }
    chunk->next = head;
    chunk->count = 0;
    head = chunk;
  }
  head->entries[head->count++] = entry;
}

bool Scheduler::NextInterval(uint64_t* interval) const {
  if (in_wheel_ == 0) return false;
  // All that is in the wheel lies within one turn behind current_.
  const uint64_t start = current_ + 1;
  uint64_t word = start % kIntervals / 64;
  uint64_t bits = occupied_[word] & (UINT64_MAX << start % 64);
  for (uint64_t base = start - start % 64;; base += 64) {
    if (bits != 0) {
      *interval = base + static_cast<uint64_t>(std::countr_zero(bits));
      return true;
    }
    word = word + 1 < occupied_.size() ? word + 1 : 0;
    bits = occupied_[word];
  }
}

bool Scheduler::Open() const {
  uint64_t interval = UINT64_MAX;
  const bool from_wheel = NextInterval(&interval);
  if (!from_wheel && far_.empty()) return false;
  if (!far_.empty()) interval = std::min(interval, IntervalOf(far_.front().at));
  current_ = interval;
  sorted_.clear();
  next_ = 0;
  Chunk*& head = wheel_[interval % kIntervals];
  if (head != nullptr) {
    occupied_[interval % kIntervals / 64] &= ~(uint64_t{1} << interval % 64);
    --in_wheel_;
  }
  while (head != nullptr) {
    Chunk* chunk = head;
    sorted_.insert(sorted_.end(), chunk->entries.begin(), chunk->entries.begin() + chunk->count);
    head = chunk->next;
    chunk->next = free_;
    free_ = chunk;
  }
  while (!far_.empty() && IntervalOf(far_.front().at) == interval) {
    sorted_.push_back(far_.front());
    far_.Pop();
  }
  std::sort(sorted_.begin(), sorted_.end(), [](const Entry& a, const Entry& b) { return a.Before(b); });
  return true;
}

bool Scheduler::Ready() const {
  return next_ < sorted_.size() || !late_.empty() || Open();
}

const Scheduler::Entry& Scheduler::Earliest() const {
  if (late_.empty()) return sorted_[next_];
  if (next_ == sorted_.size() || late_.front().Before(sorted_[next_])) return late_.front();
  return sorted_[next_];
}

Picos Scheduler::NextTime() const {
  return Ready() ? Earliest().at : kNever;
}

bool Scheduler::Run(Picos until, uint64_t max_events) {
  while (Ready()) {
    const Entry entry = Earliest();
    if (entry.at > until) break;
    if (max_events == 0) return false;
    --max_events;
    if (next_ < sorted_.size() && sorted_[next_].sequence == entry.sequence) {
      ++next_;
      const size_t left = sorted_.size() - next_;
      if (left > kFetchTarget) {
        const auto* bytes = reinterpret_cast<const char*>(sorted_[next_ + kFetchTarget].target);
        __builtin_prefetch(bytes);
        __builtin_prefetch(bytes + 64);
      }
      if (left > kFetchData) sorted_[next_ + kFetchData].target->Prefetch();
    } else {
      late_.Pop();
    }
    now_ = entry.at;
    ++events_;
    entry.target->OnEvent(entry.kind, entry.argument);
  }
  now_ = std::max(now_, until);
  return true;
}

}  // namespace sluice::soft
