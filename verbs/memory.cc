#include "verbs/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace sluice {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
constexpr int kKernelNotSupported = 524;  // ENOTSUPP, kernel internal, yet some drivers let it out

// What kernels, drivers and exporters answer when they cannot do DMA-BUF.
bool IsUnsupported(int error) {
  return error == EOPNOTSUPP || error == EPROTONOSUPPORT || error == EINVAL || error == ENOSYS ||
         error == kKernelNotSupported;
}

class VerbsRegistrar : public Registrar {
 public:
  explicit VerbsRegistrar(ibv_pd* pd) : pd_(pd) {}

  ibv_mr* RegisterHost(void* address, size_t length, int access) override {
    // The parentheses call the functions themselves instead of the macro that picks one at compile time.
    if ((access & IBV_ACCESS_OPTIONAL_RANGE) == 0) return (ibv_reg_mr)(pd_, address, length, access);
    const auto iova = reinterpret_cast<uint64_t>(address);
    return ibv_reg_mr_iova2(pd_, address, length, iova, static_cast<unsigned>(access));
  }

  ibv_mr* RegisterDmaBuf(uint64_t offset, size_t length, uint64_t iova, int fd, int access) override {
    return ibv_reg_dmabuf_mr(pd_, offset, length, iova, fd, access);
  }

  int Deregister(ibv_mr* region) override {
    const int result = ibv_dereg_mr(region);
    return result == 0 ? 0 : ErrnoOf(result);
  }

 private:
  ibv_pd* const pd_;
};

// With fork support, a range that is not mapped also comes back as ENOMEM, from madvise. EFAULT says what it
// is.
int RegistrationErrno(uint64_t address, size_t length, size_t page_bytes, int error) {
  if (error != ENOMEM) return error;
  const auto mapped = [](uint64_t page) {
    unsigned char resident = 0;
    return mincore(reinterpret_cast<void*>(page), 1, &resident) == 0 || errno != ENOMEM;
  };
  return mapped(address) && mapped(address + length - page_bytes) ? ENOMEM : EFAULT;
}

std::string DescribeRange(std::string_view verb, uint64_t address, size_t length, std::string_view device) {
  char hex[32];
  std::snprintf(hex, sizeof(hex), "0x%llx", static_cast<unsigned long long>(address));
  std::string text(verb);
  return text.append(" of ")
      .append(FormatBytes(length))
      .append(" at ")
      .append(hex)
      .append(" on ")
      .append(device);
}

}  // namespace

std::unique_ptr<Registrar> MakeVerbsRegistrar(ibv_pd* pd) {
  return std::make_unique<VerbsRegistrar>(pd);
}

MemoryCache::MemoryCache(std::unique_ptr<Registrar> registrar, MemoryCacheOptions options)
    : registrar_(std::move(registrar)),
      options_(std::move(options)),
      page_bytes_(options_.page_bytes != 0 ? options_.page_bytes
                                           : static_cast<size_t>(sysconf(_SC_PAGESIZE))),
      relaxed_ordering_(options_.relaxed_ordering != RelaxedOrdering::kOff) {}

MemoryCache::~MemoryCache() {
  for (const auto& [pointer, region] : regions_) (void)registrar_->Deregister(region->mr_);
}

Result<MemoryRegion*> MemoryCache::Register(void* address, size_t length, RegionKind kind) {
  const auto first = reinterpret_cast<uint64_t>(address);
  const uint64_t start = first - first % page_bytes_;
  uint64_t end = 0;
  if (address == nullptr || length == 0 || __builtin_add_overflow(first, length, &end) ||
      __builtin_add_overflow(end, page_bytes_ - 1, &end)) {
    return InvalidArgument(DescribeRange("registration", first, length, options_.device_name) +
                           ": not a memory range; pass an address and a positive size");
  }
  end -= end % page_bytes_;
  const Range range{.address = start, .length = end - start, .key = {kind, false}};
  const std::lock_guard<std::mutex> lock(mutex_);
  int error = 0;
  if (MemoryRegion* region = AcquireLocked(range, &error)) return region;
  return VerbError(DescribeRange("ibv_reg_mr", range.address, range.length, options_.device_name),
                   RegistrationErrno(range.address, range.length, page_bytes_, error));
}

Result<MemoryRegion*> MemoryCache::RegisterDmaBuf(uint64_t offset, size_t length, uint64_t iova, int fd) {
  uint64_t end = 0;
  if (length == 0 || fd < 0 || __builtin_add_overflow(iova, length, &end) ||
      __builtin_add_overflow(end, page_bytes_ - 1, &end)) {
    return InvalidArgument(DescribeRange("DMA-BUF registration", iova, length, options_.device_name) +
                           ", descriptor " + std::to_string(fd) + ": not a range of a DMA-BUF");
  }
  const uint64_t before = iova % page_bytes_;
  const uint64_t host_start = iova - before;
  const uint64_t host_end = end - end % page_bytes_;
  // Bytes before iova are in the buffer only as far as offset reaches.
  const uint64_t back = offset >= before ? before : 0;
  const Range range{.address = iova - back,
                    .length = host_end - (iova - back),
                    .key = {RegionKind::kData, true},
                    .offset = offset - back,
                    .fd = fd};
  const Range plain{
      .address = host_start, .length = host_end - host_start, .key = {RegionKind::kData, false}};

  const std::lock_guard<std::mutex> lock(mutex_);
  int dma_buf_error = EOPNOTSUPP;
  if (dma_buf_ != Support::kNo) {
    if (MemoryRegion* region = AcquireLocked(range, &dma_buf_error)) return region;
    if (!IsUnsupported(dma_buf_error)) {
      return VerbError(DescribeRange("ibv_reg_dmabuf_mr", range.address, range.length, options_.device_name),
                       dma_buf_error);
    }
    // EINVAL can be this one range; the others are about the device.
    if (dma_buf_error != EINVAL) dma_buf_ = Support::kNo;
  }
  int error = 0;
  if (MemoryRegion* region = AcquireLocked(plain, &error)) return region;
  return VerbError(DescribeRange("ibv_reg_mr", plain.address, plain.length, options_.device_name) +
                       " after DMA-BUF registration failed with errno " + std::to_string(dma_buf_error),
                   RegistrationErrno(plain.address, plain.length, page_bytes_, error));
}

MemoryRegion* MemoryCache::ShareLocked(const Range& range) {
  const auto ranges = by_address_.find(range.key);
  if (ranges == by_address_.end()) return nullptr;
  auto candidate = ranges->second.upper_bound(range.address);
  while (candidate != ranges->second.begin()) {
    --candidate;
    MemoryRegion* region = candidate->second;
    if (range.address + range.length <= region->address_ + region->length_) {
      ++region->references_;
      return region;
    }
  }
  return nullptr;
}

MemoryRegion* MemoryCache::AcquireLocked(const Range& range, int* error) {
  if (MemoryRegion* shared = ShareLocked(range)) return shared;
  bool relaxed = false;
  ibv_mr* mr = RegisterLocked(range, &relaxed, error);
  if (mr == nullptr) return nullptr;
  auto region = std::make_unique<MemoryRegion>();
  region->mr_ = mr;
  region->address_ = range.address;
  region->length_ = range.length;
  region->kind_ = range.key.kind;
  region->relaxed_ = relaxed;
  region->dma_buf_ = range.key.dma_buf;
  region->references_ = 1;
  MemoryRegion* result = region.get();
  by_address_[range.key].emplace(range.address, result);
  regions_.emplace(result, std::move(region));
  return result;
}

ibv_mr* MemoryCache::RegisterLocked(const Range& range, bool* relaxed, int* error) {
  *relaxed = relaxed_ordering_ && range.key.kind == RegionKind::kData;
  if (*relaxed) {
    ibv_mr* mr = CallRegistrar(range, kAccess | IBV_ACCESS_RELAXED_ORDERING, error);
    if (mr != nullptr || !IsUnsupported(*error)) return mr;
    *relaxed = false;
    const int refusal = *error;
    mr = CallRegistrar(range, kAccess, error);
    if (mr == nullptr) return nullptr;
    // Only a registration that works without the flag shows that the flag was the reason.
    relaxed_ordering_ = false;
    if (options_.relaxed_ordering == RelaxedOrdering::kOn && options_.warn) {
      options_.warn(options_.device_name + " refuses relaxed ordering (errno " + std::to_string(refusal) +
                    "); registering memory without it");
    }
    return mr;
  }
  return CallRegistrar(range, kAccess, error);
}

ibv_mr* MemoryCache::CallRegistrar(const Range& range, int access, int* error) {
  errno = 0;
  ibv_mr* mr = range.key.dma_buf
                   ? registrar_->RegisterDmaBuf(range.offset, range.length, range.address, range.fd, access)
                   : registrar_->RegisterHost(reinterpret_cast<void*>(range.address), range.length, access);
  if (mr == nullptr) *error = errno != 0 ? errno : EIO;
  return mr;
}

Status MemoryCache::Release(MemoryRegion* region) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto owned = regions_.find(region);
  if (owned == regions_.end()) {
    return InternalError("release of a memory region that " + options_.device_name +
                         " does not hold; it was released more often than registered");
  }
  if (--region->references_ > 0) return Status::Ok();
  auto& ranges = by_address_[{region->kind_, region->dma_buf_}];
  auto [first, last] = ranges.equal_range(region->address_);
  while (first != last && first->second != region) ++first;
  if (first != last) ranges.erase(first);
  const std::unique_ptr<MemoryRegion> last_reference = std::move(owned->second);
  regions_.erase(owned);
  const int error = registrar_->Deregister(last_reference->mr_);
  if (error == 0) return Status::Ok();
  return VerbError(
      DescribeRange("ibv_dereg_mr", last_reference->address_, last_reference->length_, options_.device_name),
      error);
}

bool MemoryCache::ProbeDmaBufLocked() {
  // No such descriptor: a stack that knows DMA-BUF says EBADF, one that does not fails before it looks.
  int error = 0;
  const Range nothing{.length = page_bytes_, .key = {RegionKind::kData, true}};
  ibv_mr* mr = CallRegistrar(nothing, kAccess, &error);
  if (mr == nullptr) return error == EBADF;
  (void)registrar_->Deregister(mr);
  return false;
}

bool MemoryCache::SupportsDmaBuf() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (dma_buf_ == Support::kUnknown) dma_buf_ = ProbeDmaBufLocked() ? Support::kYes : Support::kNo;
  return dma_buf_ == Support::kYes;
}

bool MemoryCache::UsesRelaxedOrdering() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return relaxed_ordering_;
}

size_t MemoryCache::region_count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return regions_.size();
}

uint64_t MemoryCache::reference_count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t count = 0;
  for (const auto& [pointer, region] : regions_) count += region->references_;
  return count;
}

}  // namespace sluice
