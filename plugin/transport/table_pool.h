// Small registered blocks for the rings that a peer writes: CTS rings, records. Registered without relaxed
// ordering, many blocks to a registration. Blocks never move and are never unregistered before the pool ends.
//
// Threads: event thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "plugin/transport/memory_handle.h"

namespace sluice {

class TablePool {
 public:
  struct Block {
    void* address = nullptr;  // zeroed, 64-byte aligned, kBlockBytes(max_recvs) long
    const MemoryHandle* memory = nullptr;
  };

  // Bytes for one connection end that groups up to max_recvs: kSlots x max_recvs entries and records.
  static size_t BlockBytes(uint32_t max_recvs);

  void Init(std::span<const std::shared_ptr<DeviceContext>> devices, uint32_t max_recvs);
  Result<Block> Take();
  void Return(void* address);
  // Releases the registrations; no block may be in use by a peer.
  void Clear();

 private:
  struct Slab {
    std::unique_ptr<std::byte[], void (*)(std::byte*)> memory;
    std::unique_ptr<MemoryHandle> registration;
  };

  std::vector<std::shared_ptr<DeviceContext>> devices_;
  size_t block_bytes_ = 0;
  std::vector<Slab> slabs_;
  std::vector<Block> free_;
  std::vector<Block> used_;
};

}  // namespace sluice
