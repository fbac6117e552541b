#include "plugin/transport/memory_handle.h"

namespace sluice {

MemoryHandle& MemoryHandle::None() {
  static auto* const none = new MemoryHandle;
  return *none;
}

MemoryHandle::~MemoryHandle() {
  (void)Release();
}

Result<std::unique_ptr<MemoryHandle>> MemoryHandle::Register(
    std::span<const std::shared_ptr<DeviceContext>> devices, void* data, size_t bytes, RegionKind region_kind,
    MemoryKind kind, uint64_t dmabuf_offset, int dmabuf_fd) {
  auto handle = std::make_unique<MemoryHandle>();
  handle->kind_ = kind;
  for (const std::shared_ptr<DeviceContext>& device : devices) {
    MemoryCache& cache = device->memory();
    Result<MemoryRegion*> region =
        dmabuf_fd >= 0
            ? cache.RegisterDmaBuf(dmabuf_offset, bytes, reinterpret_cast<uint64_t>(data), dmabuf_fd)
            : cache.Register(data, bytes, region_kind);
    if (!region.ok()) return region.status();  // the destructor releases the others
    const size_t port = handle->count_++;
    handle->members_[port] = {device, *region};
    handle->lkeys_[port] = (*region)->lkey();
    handle->rkeys_[port] = (*region)->rkey();
  }
  return handle;
}

Status MemoryHandle::Release() {
  Status first;
  for (size_t port = 0; port < count_; ++port) {
    Member& member = members_[port];
    if (member.region == nullptr) continue;
    Status status = member.device->memory().Release(member.region);
    member = {};
    if (first.ok()) first = status;
  }
  count_ = 0;
  return first;
}

}  // namespace sluice
