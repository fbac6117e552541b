#include "plugin/transport/table_pool.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>

#include "plugin/transport/wire.h"

namespace sluice {
namespace {

constexpr size_t kPageBytes = 65536;  // covers every page size in use
constexpr size_t kSlabBytes = 256 * 1024;

}  // namespace

size_t TablePool::BlockBytes(uint32_t max_recvs) {
  return kSlots * max_recvs * (sizeof(CtsEntry) + sizeof(Record));
}

void TablePool::Init(std::span<const std::shared_ptr<DeviceContext>> devices, uint32_t max_recvs) {
  devices_.assign(devices.begin(), devices.end());
  block_bytes_ = BlockBytes(max_recvs);
}

Result<TablePool::Block> TablePool::Take() {
  if (free_.empty()) {
    const size_t bytes = std::max(kSlabBytes, (block_bytes_ + kPageBytes - 1) / kPageBytes * kPageBytes);
    auto* memory = static_cast<std::byte*>(aligned_alloc(kPageBytes, bytes));
    if (memory == nullptr)
      return SystemError("no memory for " + std::to_string(bytes) + " bytes of connection tables");
    Slab slab{{memory, [](std::byte* block) { free(block); }}, nullptr};
    Result<std::unique_ptr<MemoryHandle>> registration =
        MemoryHandle::Register(devices_, memory, bytes, RegionKind::kPolled, MemoryKind::kHost);
    if (!registration.ok()) return registration.status();
    slab.registration = std::move(*registration);
    for (size_t offset = 0; offset + block_bytes_ <= bytes; offset += block_bytes_)
      free_.push_back({memory + offset, slab.registration.get()});
    slabs_.push_back(std::move(slab));
  }
  const Block block = free_.back();
  free_.pop_back();
  used_.push_back(block);
  memset(block.address, 0, block_bytes_);
  return block;
}

void TablePool::Return(void* address) {
  const auto found =
      std::find_if(used_.begin(), used_.end(), [&](const Block& block) { return block.address == address; });
  if (found == used_.end()) return;
  free_.push_back(*found);
  *found = used_.back();
  used_.pop_back();
}

void TablePool::Clear() {
  free_.clear();
  used_.clear();
  slabs_.clear();
}

}  // namespace sluice
