// A queue whose elements keep an absolute index from push to pop, and whose slots (and the memory their
// members own) are reused. Grows by doubling and never shrinks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sluice::soft {

template <typename T>
class Ring {
 public:
  uint64_t begin() const { return begin_; }  // index of the oldest element
  uint64_t end() const { return end_; }      // one behind the newest
  uint64_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  T& operator[](uint64_t index) { return slots_[index & (slots_.size() - 1)]; }
  const T& operator[](uint64_t index) const { return slots_[index & (slots_.size() - 1)]; }
  T& front() { return (*this)[begin_]; }
  T& back() { return (*this)[end_ - 1]; }

  // The returned slot holds what an earlier element left there: set every member.
  T& PushBack() {
    if (size() == slots_.size()) Grow();
    return (*this)[end_++];
  }
  void PopFront() { ++begin_; }
  void PopBack() { --end_; }
  void Clear() { begin_ = end_; }

 private:
  void Grow() {
    std::vector<T> larger(slots_.empty() ? 4 : slots_.size() * 2);
    for (uint64_t i = begin_; i != end_; ++i) larger[i & (larger.size() - 1)] = std::move((*this)[i]);
    slots_ = std::move(larger);
  }

  std::vector<T> slots_;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

}  // namespace sluice::soft
