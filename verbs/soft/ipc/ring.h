// A one-directional byte ring in memory that two processes share: one producer, one consumer, records of
// variable size. Positions only grow; a record never wraps, a pad record fills the end of the ring instead.
//
//   RingProducer out(&header, bytes, size);          RingConsumer in(&header, bytes, size);
//   if (void* r = out.Reserve(kType, size)) { ... }  while (RecordHeader* r = in.Front()) { ...; in.Pop(); }
//   out.Publish();                                   in.PublishHead();
//
// The consumer's published head tells the producer which records have been executed, so most commands need no
// answer. Thread rule: one thread at a time on each end; the owners of the two ends lock for that.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sluice::soft {

struct RingHeader {
  alignas(64) std::atomic<uint64_t> tail;
  alignas(64) std::atomic<uint64_t> head;
  // Not zero: the consumer sleeps or is about to, and wants a wake-up after the next Publish.
  alignas(64) std::atomic<uint32_t> consumer_sleeps;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

inline constexpr uint32_t kRecordAlign = 16;
inline constexpr uint16_t kPadRecord = 0;

struct RecordHeader {
  uint32_t size_bytes;  // with this header; multiple of kRecordAlign
  uint16_t type;
  uint16_t count;  // of what follows the fixed part, as the type says
};

inline constexpr uint32_t RoundRecord(size_t bytes) {
  return static_cast<uint32_t>((bytes + kRecordAlign - 1) & ~static_cast<size_t>(kRecordAlign - 1));
}

class RingProducer {
 public:
  RingProducer() = default;
  RingProducer(RingHeader* header, std::byte* bytes, uint64_t size)
      : header_(header), bytes_(bytes), size_(size) {}

  // Space for one record of `bytes`, or nullptr when the ring is too full for it. Not visible before Publish.
  // Without `refresh` only space that an earlier Refresh saw is used again: until then executed records stay
  // readable.
  RecordHeader* Reserve(uint16_t type, size_t bytes, bool refresh = true) {
    const uint32_t need = RoundRecord(bytes);
    const uint64_t offset = tail_ & (size_ - 1);
    const uint64_t to_end = size_ - offset;
    const uint64_t total = need <= to_end ? need : to_end + need;
    if (tail_ + total - head_seen_ > size_) {
      if (!refresh) return nullptr;
      Refresh();
      if (tail_ + total - head_seen_ > size_) return nullptr;
    }
    if (need > to_end) {
      auto* pad = reinterpret_cast<RecordHeader*>(bytes_ + offset);
      pad->size_bytes = static_cast<uint32_t>(to_end);
      pad->type = kPadRecord;
      tail_ += to_end;
    }
    auto* record = reinterpret_cast<RecordHeader*>(bytes_ + (tail_ & (size_ - 1)));
    record->size_bytes = need;
    record->type = type;
    record->count = 0;
    tail_ += need;
    return record;
  }
  // Returns true when the consumer has to be woken.
  bool Publish() {
    header_->tail.store(tail_, std::memory_order_seq_cst);
    return header_->consumer_sleeps.load(std::memory_order_seq_cst) != 0;
  }
  uint64_t tail() const { return tail_; }
  bool unpublished() const { return header_->tail.load(std::memory_order_relaxed) != tail_; }
  uint64_t consumer_position() const { return header_->head.load(std::memory_order_seq_cst); }
  // The consumer's position: everything below is executed, and its space may be used again.
  uint64_t Refresh() { return head_seen_ = header_->head.load(std::memory_order_acquire); }

 private:
  RingHeader* header_ = nullptr;
  std::byte* bytes_ = nullptr;
  uint64_t size_ = 0;  // power of two
  uint64_t tail_ = 0;
  uint64_t head_seen_ = 0;
};

class RingConsumer {
 public:
  RingConsumer() = default;
  RingConsumer(RingHeader* header, std::byte* bytes, uint64_t size)
      : header_(header), bytes_(bytes), size_(size) {}

  bool Empty() const { return header_->tail.load(std::memory_order_seq_cst) == head_; }
  // The oldest record that is not popped, or nullptr. A record with an impossible size is reported as nullptr
  // with broken() set: the other side has scribbled over the ring.
  RecordHeader* Front() {
    for (;;) {
      if (tail_seen_ == head_) {
        tail_seen_ = header_->tail.load(std::memory_order_acquire);
        if (tail_seen_ == head_) return nullptr;
      }
      auto* record = reinterpret_cast<RecordHeader*>(bytes_ + (head_ & (size_ - 1)));
      const uint32_t size = record->size_bytes;
      if (size < kRecordAlign || size % kRecordAlign != 0 || size > size_ - (head_ & (size_ - 1)) ||
          size > tail_seen_ - head_) {
        broken_ = true;
        return nullptr;
      }
      if (record->type != kPadRecord) {
        front_bytes_ = size;
        return record;
      }
      head_ += size;
    }
  }
  void Pop() { head_ += front_bytes_; }
  void PublishHead() { header_->head.store(head_, std::memory_order_release); }
  // In one order with what both sides say about sleeping.
  void PublishHeadInOrder() { header_->head.store(head_, std::memory_order_seq_cst); }
  void SetSleeps(bool sleeps) { header_->consumer_sleeps.store(sleeps ? 1 : 0, std::memory_order_seq_cst); }
  bool broken() const { return broken_; }

 private:
  RingHeader* header_ = nullptr;
  std::byte* bytes_ = nullptr;
  uint64_t size_ = 0;
  uint64_t head_ = 0;
  uint64_t tail_seen_ = 0;
  uint32_t front_bytes_ = 0;
  bool broken_ = false;
};

}  // namespace sluice::soft
