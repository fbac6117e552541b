#include "verbs/soft/virtual/reference_pool.h"

#include <bit>
#include <cstring>

namespace sluice::soft {
namespace {

// Copying less costs no more than it saves.
constexpr uint32_t kMinReferenceBytes = 512;
constexpr uint32_t kSmallestRoomBits = 6;

}  // namespace

ReferencePool::~ReferencePool() {
  for (auto& list : free_) {
    for (OwnedPayload* payload : list) delete payload;
  }
}

Payload* ReferencePool::Take(uint32_t bytes, bool may_refer) {
  const int size_class =
      bytes <= 1u << kSmallestRoomBits ? 0 : static_cast<int>(std::bit_width(bytes - 1) - kSmallestRoomBits);
  OwnedPayload* payload;
  if (free_[size_class].empty()) {
    payload = new OwnedPayload;
    // Not initialised: room that is never used takes no memory.
    payload->room.reset(new std::byte[size_t{1} << (static_cast<uint32_t>(size_class) + kSmallestRoomBits)]);
    payload->size_class = size_class;
    payload->pool = this;
  } else {
    payload = free_[size_class].back();
    free_[size_class].pop_back();
  }
  payload->data = payload->room.get();
  payload->size_bytes = bytes;
  payload->may_refer = may_refer;
  return payload;
}

void ReferencePool::Release(Payload* payload) {
  auto* owned = static_cast<OwnedPayload*>(payload);
  free_[owned->size_class].push_back(owned);
}

void ReferencePool::Fill(Payload* payload, std::span<const MemoryRange> ranges) {
  const auto* owned = static_cast<OwnedPayload*>(payload);
  if (ranges.size() == 1 && owned->may_refer && ranges[0].length >= kMinReferenceBytes) {
    payload->data = reinterpret_cast<std::byte*>(ranges[0].address);
    return;
  }
  std::byte* to = payload->data;
  for (const MemoryRange& range : ranges) {
    std::memcpy(to, reinterpret_cast<const void*>(range.address), range.length);
    to += range.length;
  }
}

}  // namespace sluice::soft
