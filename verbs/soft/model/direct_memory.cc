#include "verbs/soft/model/direct_memory.h"

#include <atomic>
#include <bit>
#include <cstring>

namespace sluice::soft {
namespace {

int SizeClass(uint32_t bytes) {
  return bytes <= 64 ? 0 : std::bit_width(bytes - 1) - 6;
}

}  // namespace

HeapPayloadPool::~HeapPayloadPool() {
  for (auto& list : free_) {
    for (Payload* payload : list) {
      delete[] payload->data;
      delete payload;
    }
  }
}

Payload* HeapPayloadPool::AcquireBelow(uint32_t bytes, uint64_t limit_bytes) {
  const int size_class = SizeClass(bytes);
  const uint64_t capacity = uint64_t{64} << size_class;
  if (in_use_bytes_ + capacity > limit_bytes) return nullptr;
  in_use_bytes_ += capacity;
  if (in_use_bytes_ > peak_bytes_) peak_bytes_ = in_use_bytes_;
  Payload* payload;
  if (free_[size_class].empty()) {
    payload = new Payload;
    payload->data = new std::byte[capacity];
    payload->pool = this;
    payload->tag = static_cast<uint64_t>(size_class);
  } else {
    payload = free_[size_class].back();
    free_[size_class].pop_back();
  }
  payload->size_bytes = bytes;
  return payload;
}

void HeapPayloadPool::Release(Payload* payload) {
  in_use_bytes_ -= uint64_t{64} << payload->tag;
  free_[payload->tag].push_back(payload);
}

void DirectMemory::Gather(DmaId id, std::span<const MemoryRange> ranges, const PayloadRef& into) {
  std::byte* to = into->data;
  for (const MemoryRange& range : ranges) {
    std::memcpy(to, reinterpret_cast<const void*>(range.address), range.length);
    to += range.length;
  }
  fabric_->DmaDone(id, true, 0);
}

void DirectMemory::Scatter(uint64_t address, const PayloadRef& from, uint32_t offset, uint32_t length) {
  std::memcpy(reinterpret_cast<void*>(address), from->data + offset, length);
}

void DirectMemory::Atomic(DmaId id, AtomicOp op, uint64_t address, uint64_t compare_or_add, uint64_t swap) {
  std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(address));
  uint64_t before = compare_or_add;
  if (op == AtomicOp::kFetchAdd) {
    before = word.fetch_add(compare_or_add);
  } else {
    word.compare_exchange_strong(before, swap);
  }
  fabric_->DmaDone(id, true, before);
}

void DirectMemory::PushCompletion(CqId cq, const Completion& completion) {
  queues_[cq].entries.push_back(completion);
  if (on_completion_) on_completion_(cq);
}

void DirectMemory::PushAsyncEvent(const AsyncEvent& event) {
  events_.push_back(event);
}

uint64_t DirectMemory::CompletionsTaken(CqId cq) {
  return queues_[cq].taken;
}

bool DirectMemory::Poll(CqId cq, Completion* completion) {
  Queue& queue = queues_[cq];
  if (queue.entries.empty()) return false;
  *completion = queue.entries.front();
  queue.entries.pop_front();
  ++queue.taken;
  return true;
}

bool DirectMemory::NextEvent(AsyncEvent* event) {
  if (events_.empty()) return false;
  *event = events_.front();
  events_.pop_front();
  return true;
}

}  // namespace sluice::soft
