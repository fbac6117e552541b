// Payload buffers in memory that every process of the fabric maps: one process captures bytes into it,
// another places them from it. Buffers have sizes of powers of two from 64 B to 64 KiB, cut from blocks of 64
// KiB; the buffer freed last is used first, while it is warm in the cache.
//
// Memory is reserved piece by piece as it is needed; when the machine has none left the pool stays smaller
// and work waits.
//
// Thread rule: the thread that drives the Fabric.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/status.h"
#include "verbs/soft/ipc/socket.h"
#include "verbs/soft/model/memory.h"

namespace sluice::soft {

class SharedPayloadPool : public PayloadPool {
 public:
  SharedPayloadPool() = default;
  ~SharedPayloadPool() override;
  SharedPayloadPool(const SharedPayloadPool&) = delete;
  SharedPayloadPool& operator=(const SharedPayloadPool&) = delete;

  Status Open();
  int fd() const { return memory_.get(); }

  Payload* Acquire(uint32_t bytes) override;
  void Release(Payload* payload) override;

  uint64_t bytes_in_use() const { return in_use_bytes_; }
  uint64_t bytes_reserved() const { return reserved_blocks_ * kBlockBytes; }
  // An Acquire has failed since the last call.
  bool TakeStarved();

 private:
  static constexpr uint64_t kBlockBytes = kMaxPayloadBytes;
  static constexpr uint32_t kMinShift = 6, kClasses = 11;
  static constexpr uint64_t kReserveBlocks = 64;
  struct Block {
    uint32_t size_class = 0;
    uint32_t live = 0;
    uint32_t place = 0;  // in partial_ of its class, while it has free slots
    std::vector<uint16_t> free_slots;
  };
  bool ReserveMore();
  void AddPartial(uint32_t block);
  void RemovePartial(uint32_t block);

  UniqueFd memory_;
  std::byte* bytes_ = nullptr;
  std::vector<Block> blocks_;
  std::vector<uint32_t> free_blocks_;
  std::vector<uint32_t> partial_[kClasses];  // blocks with free slots
  std::deque<Payload> payloads_;
  std::vector<Payload*> free_payloads_;
  uint64_t reserved_blocks_ = 0;
  uint64_t in_use_bytes_ = 0;
  int reserve_error_ = 0;
  bool starved_ = false;
};

}  // namespace sluice::soft
