// Payloads for a fabric in one address space: they have room of their own, but may point into the sender's
// memory instead, so that the bytes of a large message are copied once, from there to the receiver.
//
// That is right because a sender leaves its memory alone until its work request completes, and it completes
// after the receiver has the bytes. Responses to READs have no such promise and are always copied.
//
// Thread rule: the thread that drives the Fabric.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "verbs/soft/model/memory.h"

namespace sluice::soft {

class ReferencePool final : public PayloadPool {
 public:
  ReferencePool() = default;
  ~ReferencePool() override;
  ReferencePool(const ReferencePool&) = delete;
  ReferencePool& operator=(const ReferencePool&) = delete;

  Payload* Acquire(uint32_t bytes) override { return Take(bytes, true); }
  Payload* AcquireUrgent(uint32_t bytes) override { return Take(bytes, false); }
  void Release(Payload* payload) override;

  // Makes `payload` show the bytes of `ranges`.
  static void Fill(Payload* payload, std::span<const MemoryRange> ranges);

 private:
  struct OwnedPayload : Payload {
    std::unique_ptr<std::byte[]> room;
    int size_class = 0;
    bool may_refer = false;
  };
  static constexpr int kSizeClasses = 11;  // 64 B, 128 B, ... 64 KiB

  Payload* Take(uint32_t bytes, bool may_refer);

  std::vector<OwnedPayload*> free_[kSizeClasses];
};

}  // namespace sluice::soft
