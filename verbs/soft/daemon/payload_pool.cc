#include "verbs/soft/daemon/payload_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>

#include "verbs/soft/ipc/memory_remedy.h"
#include "verbs/soft/ipc/protocol.h"

namespace sluice::soft {

SharedPayloadPool::~SharedPayloadPool() {
  if (bytes_ != nullptr) munmap(bytes_, kPoolBytes);
}

Status SharedPayloadPool::Open() {
  memory_.reset(memfd_create("sluice-payload", MFD_CLOEXEC));
  if (!memory_.valid()) {
    return SystemError("fabric process: no shared memory for payload", errno, MemoryRemedy(errno));
  }
  if (ftruncate(memory_.get(), static_cast<off_t>(kPoolBytes)) != 0) {
    return SystemError("fabric process: cannot make " + std::to_string(kPoolBytes >> 20) +
                           " MiB of shared memory for payload",
                       errno, MemoryRemedy(errno));
  }
  void* memory = mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  if (memory == MAP_FAILED) {
    return SystemError("fabric process: cannot map the payload pool", errno, MemoryRemedy(errno));
  }
  bytes_ = static_cast<std::byte*>(memory);
  blocks_.resize(kPoolBytes / kBlockBytes);
  if (!ReserveMore()) {
    return SystemError("fabric process: no memory for the payload pool", reserve_error_,
                       MemoryRemedy(reserve_error_));
  }
  return Status::Ok();
}

bool SharedPayloadPool::ReserveMore() {
  if (reserved_blocks_ == blocks_.size()) return false;
  // Memory is taken here, where failure can be handled, and not at a first touch, where it kills.
  const int error = posix_fallocate(memory_.get(), static_cast<off_t>(reserved_blocks_ * kBlockBytes),
                                    static_cast<off_t>(kReserveBlocks * kBlockBytes));
  if (error != 0) {
    reserve_error_ = error;
    return false;
  }
  for (uint64_t i = kReserveBlocks; i-- > 0;)
    free_blocks_.push_back(static_cast<uint32_t>(reserved_blocks_ + i));
  reserved_blocks_ += kReserveBlocks;
  return true;
}

void SharedPayloadPool::AddPartial(uint32_t block) {
  auto& list = partial_[blocks_[block].size_class];
  blocks_[block].place = static_cast<uint32_t>(list.size());
  list.push_back(block);
}

void SharedPayloadPool::RemovePartial(uint32_t block) {
  auto& list = partial_[blocks_[block].size_class];
  const uint32_t place = blocks_[block].place;
  list[place] = list.back();
  blocks_[list[place]].place = place;
  list.pop_back();
}

Payload* SharedPayloadPool::Acquire(uint32_t bytes) {
  const uint32_t shift = std::max(kMinShift, static_cast<uint32_t>(std::bit_width(bytes - 1)));
  const uint32_t size_class = shift - kMinShift;
  auto& partial = partial_[size_class];
  if (partial.empty()) {
    if (free_blocks_.empty() && !ReserveMore()) {
      starved_ = true;
      return nullptr;
    }
    const uint32_t fresh = free_blocks_.back();
    free_blocks_.pop_back();
    Block& block = blocks_[fresh];
    block.size_class = size_class;
    block.live = 0;
    block.free_slots.clear();
    for (uint32_t slot = static_cast<uint32_t>(kBlockBytes >> shift); slot-- > 0;) {
      block.free_slots.push_back(static_cast<uint16_t>(slot));
    }
    AddPartial(fresh);
  }
  const uint32_t index = partial.back();
  Block& block = blocks_[index];
  const uint64_t offset = index * kBlockBytes + (static_cast<uint64_t>(block.free_slots.back()) << shift);
  block.free_slots.pop_back();
  ++block.live;
  if (block.free_slots.empty()) RemovePartial(index);
  Payload* payload = nullptr;
  if (free_payloads_.empty()) {
    payload = &payloads_.emplace_back();
  } else {
    payload = free_payloads_.back();
    free_payloads_.pop_back();
  }
  payload->data = bytes_ + offset;
  payload->size_bytes = bytes;
  payload->references = 0;
  payload->pool = this;
  payload->tag = offset;
  in_use_bytes_ += 1ull << shift;
  return payload;
}

void SharedPayloadPool::Release(Payload* payload) {
  const auto index = static_cast<uint32_t>(payload->tag / kBlockBytes);
  Block& block = blocks_[index];
  const uint32_t shift = block.size_class + kMinShift;
  block.free_slots.push_back(static_cast<uint16_t>((payload->tag % kBlockBytes) >> shift));
  in_use_bytes_ -= 1ull << shift;
  if (block.free_slots.size() == 1) AddPartial(index);
  if (--block.live == 0) {
    RemovePartial(index);
    free_blocks_.push_back(index);
  }
  free_payloads_.push_back(payload);
}

bool SharedPayloadPool::TakeStarved() {
  const bool starved = starved_;
  starved_ = false;
  return starved;
}

}  // namespace sluice::soft
