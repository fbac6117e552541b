// Memory registrations of one device, shared and counted.
//
//   Result<MemoryRegion*> region = device->memory().Register(buffer, bytes, RegionKind::kData);
//   wr.sg_list->lkey = (*region)->lkey();
//   ...
//   SLUICE_RETURN_IF_ERROR(device->memory().Release(*region));
//
// A range is rounded outwards to pages. A range that lies inside a live registration of the same kind gets
// that one and raises its count; otherwise it is registered. Each successful Register is paired with one
// Release, in any order; the last one deregisters. Partly overlapping ranges are separate registrations.
//
// Thread rule: every method from any thread; a mutex inside, held during the verb. Not for the data path. A
// MemoryRegion is immutable: lkey() and rkey() may be read by any thread between Register and Release.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/status.h"
#include "verbs/errors.h"
#include "verbs/relaxed_ordering.h"

namespace sluice {

// What the memory is used for decides about PCIe relaxed ordering.
enum class RegionKind : uint8_t {
  kData,    // payload whose arrival a completion announces: relaxed ordering allowed
  kPolled,  // memory that the CPU polls (CTS entries, records, grants): never relaxed ordering
};

// The verbs that a MemoryCache needs. A null ibv_mr means failure, with errno set.
class Registrar {
 public:
  virtual ~Registrar() = default;
  virtual ibv_mr* RegisterHost(void* address, size_t length, int access) = 0;
  virtual ibv_mr* RegisterDmaBuf(uint64_t offset, size_t length, uint64_t iova, int fd, int access) = 0;
  virtual int Deregister(ibv_mr* region) = 0;  // 0 or an errno
};

// The registrar over libibverbs. `pd` must outlive it.
std::unique_ptr<Registrar> MakeVerbsRegistrar(ibv_pd* pd);

// One underlying registration. Owned by its cache.
class MemoryRegion {
 public:
  uint32_t lkey() const { return mr_->lkey; }
  uint32_t rkey() const { return mr_->rkey; }
  uint64_t address() const { return address_; }  // page aligned; also the I/O virtual address
  size_t length() const { return length_; }      // whole pages
  RegionKind kind() const { return kind_; }
  bool relaxed_ordering() const { return relaxed_; }
  bool dma_buf() const { return dma_buf_; }

 private:
  friend class MemoryCache;
  ibv_mr* mr_ = nullptr;
  uint64_t address_ = 0;
  size_t length_ = 0;
  RegionKind kind_ = RegionKind::kData;
  bool relaxed_ = false;
  bool dma_buf_ = false;
  uint64_t references_ = 0;
};

struct MemoryCacheOptions {
  std::string device_name{};  // for messages
  RelaxedOrdering relaxed_ordering = RelaxedOrdering::kAuto;
  size_t page_bytes = 0;  // 0: the page size of this host
  WarningSink warn{};
};

class MemoryCache {
 public:
  MemoryCache(std::unique_ptr<Registrar> registrar, MemoryCacheOptions options);
  MemoryCache(const MemoryCache&) = delete;
  MemoryCache& operator=(const MemoryCache&) = delete;
  // Deregisters what is left, for a process that ends with registrations open.
  ~MemoryCache();

  // Local write, remote write and remote read access. Errors: kInvalidArgument for null, zero bytes or a
  // range that wraps; kSystem with range, device, errno and remedy (ENOMEM names the memory lock limit).
  Result<MemoryRegion*> Register(void* address, size_t length, RegionKind kind);

  // [iova, iova + length) is backed by the DMA-BUF `fd` from `offset` on; the caller keeps ownership of fd
  // and may close it. When the kernel, driver or exporter cannot do it (EOPNOTSUPP, EPROTONOSUPPORT, EINVAL,
  // 524) the same range is registered as plain memory, which works where a peer-memory module is loaded; if
  // that fails too, the error names both.
  Result<MemoryRegion*> RegisterDmaBuf(uint64_t offset, size_t length, uint64_t iova, int fd);

  // kInternal for a region that this cache does not hold.
  Status Release(MemoryRegion* region);

  // Whether to announce DMA-BUF: false when the probe (once, on first call) or a later registration says that
  // it cannot work.
  bool SupportsDmaBuf();
  // Whether kData regions are registered with relaxed ordering: the policy, until the device refuses the
  // flag.
  bool UsesRelaxedOrdering() const;

  size_t region_count() const;       // underlying registrations
  uint64_t reference_count() const;  // Register calls not yet released

 private:
  struct Key {
    RegionKind kind = RegionKind::kData;
    bool dma_buf = false;
    auto operator<=>(const Key&) const = default;
  };
  struct Range {
    uint64_t address = 0;
    size_t length = 0;
    Key key;
    uint64_t offset = 0;  // of the DMA-BUF
    int fd = -1;
  };

  // The live region of range.key that covers the range, with one more reference; null when there is none.
  MemoryRegion* ShareLocked(const Range& range);
  // Shares or registers; on failure null, with the errno in *error.
  MemoryRegion* AcquireLocked(const Range& range, int* error);
  ibv_mr* RegisterLocked(const Range& range, bool* relaxed, int* error);
  ibv_mr* CallRegistrar(const Range& range, int access, int* error);
  bool ProbeDmaBufLocked();

  const std::unique_ptr<Registrar> registrar_;
  const MemoryCacheOptions options_;
  const size_t page_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<const MemoryRegion*, std::unique_ptr<MemoryRegion>> regions_;
  std::map<Key, std::multimap<uint64_t, MemoryRegion*>> by_address_;
  bool relaxed_ordering_;
  enum class Support : uint8_t { kUnknown, kYes, kNo } dma_buf_ = Support::kUnknown;
};

}  // namespace sluice
