// One registration of one buffer on every port of an engine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "plugin/classify/classifier.h"
#include "plugin/net.h"
#include "verbs/device.h"
#include "verbs/memory.h"

namespace sluice {

// Threads: made and released under no lock of ours (the caches lock); keys are read by the data thread.
class MemoryHandle {
 public:
  MemoryHandle() = default;
  MemoryHandle(const MemoryHandle&) = delete;
  MemoryHandle& operator=(const MemoryHandle&) = delete;
  ~MemoryHandle();

  // `devices`: one per port, in port order. dmabuf_fd < 0: plain memory. When one port refuses, what the
  // others registered is released.
  static Result<std::unique_ptr<MemoryHandle>> Register(
      std::span<const std::shared_ptr<DeviceContext>> devices, void* data, size_t bytes,
      RegionKind region_kind, MemoryKind kind, uint64_t dmabuf_offset = 0, int dmabuf_fd = -1);
  // Stands for none where a message has no bytes; registered nowhere.
  static MemoryHandle& None();
  // Reports the first failure; releases everything in any case.
  Status Release();

  uint32_t lkey(size_t port) const { return lkeys_[port]; }
  const std::array<uint32_t, kMaxMergedPorts>& rkeys() const { return rkeys_; }
  MemoryKind kind() const { return kind_; }
  // What the registration tells of the messages from and into it; set before any.
  MemoryHint hint() const { return hint_; }
  void SetHint(MemoryHint hint) { hint_ = hint; }

 private:
  struct Member {
    std::shared_ptr<DeviceContext> device;
    MemoryRegion* region = nullptr;
  };

  std::array<uint32_t, kMaxMergedPorts> lkeys_{};
  std::array<uint32_t, kMaxMergedPorts> rkeys_{};
  std::array<Member, kMaxMergedPorts> members_;
  size_t count_ = 0;
  MemoryKind kind_ = MemoryKind::kHost;
  MemoryHint hint_;
};

}  // namespace sluice
