// MemoryCache over a registrar that counts, refuses and remembers (field cases R1, D1, D5).
#include "verbs/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kPage = 4096;
constexpr int kPlainAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

struct Call {
  uint64_t address;
  size_t length;
  int access;
  int fd;  // -1: host memory
  uint64_t offset;
};

// Shared with the test, outlives the cache.
struct Record {
  std::vector<Call> calls;
  int live = 0;
  int deregistered = 0;
  int host_error = 0;
  int relaxed_error = 0;  // for calls with IBV_ACCESS_RELAXED_ORDERING
  int dma_buf_error = 0;
  int probe_error = EBADF;
  int deregister_error = 0;
};

class FakeRegistrar : public Registrar {
 public:
  explicit FakeRegistrar(Record* record) : record_(record) {}

  ibv_mr* RegisterHost(void* address, size_t length, int access) override {
    record_->calls.push_back({reinterpret_cast<uint64_t>(address), length, access, -1, 0});
    return Make(record_->host_error, access);
  }
  ibv_mr* RegisterDmaBuf(uint64_t offset, size_t length, uint64_t iova, int fd, int access) override {
    record_->calls.push_back({iova, length, access, fd, offset});
    if (fd < 0) {
      errno = record_->probe_error;
      return nullptr;
    }
    return Make(record_->dma_buf_error, access);
  }
  int Deregister(ibv_mr* region) override {
    delete region;
    --record_->live;
    ++record_->deregistered;
    return record_->deregister_error;
  }

 private:
  ibv_mr* Make(int error, int access) {
    if (error == 0 && (access & IBV_ACCESS_RELAXED_ORDERING) != 0) error = record_->relaxed_error;
    if (error != 0) {
      errno = error;
      return nullptr;
    }
    auto* region = new ibv_mr{};
    region->lkey = ++next_key_;
    region->rkey = next_key_ + 1000;
    ++record_->live;
    return region;
  }

  Record* const record_;
  uint32_t next_key_ = 0;
};

class MemoryCacheTest : public ::testing::Test {
 protected:
  std::unique_ptr<MemoryCache> MakeCache(RelaxedOrdering ordering = RelaxedOrdering::kAuto) {
    return std::make_unique<MemoryCache>(
        std::make_unique<FakeRegistrar>(&record_),
        MemoryCacheOptions{.device_name = "mlx5_0",
                           .relaxed_ordering = ordering,
                           .page_bytes = kPage,
                           .warn = [this](const std::string& line) { warnings_.push_back(line); }});
  }
  static void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

  Record record_;
  std::vector<std::string> warnings_;
};

TEST_F(MemoryCacheTest, RoundsOutwardsToPages) {
  const auto cache = MakeCache();
  Result<MemoryRegion*> region = cache->Register(At(0x10010), kPage, RegionKind::kData);
  ASSERT_TRUE(region.ok()) << region.status().message();
  EXPECT_EQ((*region)->address(), 0x10000U);
  EXPECT_EQ((*region)->length(), 2 * kPage);
  ASSERT_EQ(record_.calls.size(), 1U);
  EXPECT_EQ(record_.calls[0].address, 0x10000U);
  EXPECT_EQ(record_.calls[0].length, 2 * kPage);
  EXPECT_EQ((*region)->lkey(), 1U);
  EXPECT_EQ((*region)->rkey(), 1001U);
  ASSERT_TRUE(cache->Release(*region).ok());
}

TEST_F(MemoryCacheTest, RepeatsAndPartsShareOneRegistrationInAnyReleaseOrder) {
  const auto cache = MakeCache();
  MemoryRegion* whole = *cache->Register(At(0x10000), 8 * kPage, RegionKind::kData);
  MemoryRegion* again = *cache->Register(At(0x10000), 8 * kPage, RegionKind::kData);
  MemoryRegion* part = *cache->Register(At(0x12345), 100, RegionKind::kData);
  MemoryRegion* tail = *cache->Register(At(0x17fff), 1, RegionKind::kData);
  EXPECT_EQ(whole, again);
  EXPECT_EQ(whole, part);
  EXPECT_EQ(whole, tail);
  EXPECT_EQ(record_.calls.size(), 1U);
  EXPECT_EQ(cache->region_count(), 1U);
  EXPECT_EQ(cache->reference_count(), 4U);
  ASSERT_TRUE(cache->Release(whole).ok());
  ASSERT_TRUE(cache->Release(tail).ok());
  ASSERT_TRUE(cache->Release(again).ok());
  EXPECT_EQ(record_.live, 1);
  ASSERT_TRUE(cache->Release(part).ok());
  EXPECT_EQ(record_.live, 0);
  EXPECT_EQ(cache->region_count(), 0U);
  // The range is registered afresh afterwards.
  MemoryRegion* fresh = *cache->Register(At(0x10000), kPage, RegionKind::kData);
  EXPECT_EQ(record_.calls.size(), 2U);
  ASSERT_TRUE(cache->Release(fresh).ok());
}

TEST_F(MemoryCacheTest, PartlyOverlappingRangesAreSeparate) {
  const auto cache = MakeCache();
  MemoryRegion* first = *cache->Register(At(0x10000), 4 * kPage, RegionKind::kData);
  MemoryRegion* second = *cache->Register(At(0x12000), 4 * kPage, RegionKind::kData);
  EXPECT_NE(first, second);
  EXPECT_EQ(record_.live, 2);
  // Inside both: one of them; inside the second only: the second.
  MemoryRegion* common = *cache->Register(At(0x13000), kPage, RegionKind::kData);
  EXPECT_TRUE(common == first || common == second);
  EXPECT_EQ(*cache->Register(At(0x14000), 2 * kPage, RegionKind::kData), second);
  EXPECT_EQ(record_.live, 2);
  for (MemoryRegion* region : {first, common, second, second}) ASSERT_TRUE(cache->Release(region).ok());
  EXPECT_EQ(record_.live, 0);
}

TEST_F(MemoryCacheTest, ASmallRangeFindsTheLargeOneBehindASmallerStart) {
  const auto cache = MakeCache();
  MemoryRegion* small = *cache->Register(At(0x10000), kPage, RegionKind::kData);
  MemoryRegion* large = *cache->Register(At(0x10000), 16 * kPage, RegionKind::kData);
  MemoryRegion* middle = *cache->Register(At(0x14000), kPage, RegionKind::kData);
  EXPECT_NE(small, large);
  EXPECT_EQ(middle, large);
  ASSERT_TRUE(cache->Release(large).ok());
  EXPECT_EQ(record_.live, 2);
  EXPECT_EQ(*cache->Register(At(0x15000), kPage, RegionKind::kData), large);
  for (MemoryRegion* region : {small, large, large}) ASSERT_TRUE(cache->Release(region).ok());
  EXPECT_EQ(record_.live, 0);
}

TEST_F(MemoryCacheTest, PolledMemoryNeverGetsRelaxedOrderingAndSharesNothingWithData) {
  const auto cache = MakeCache(RelaxedOrdering::kOn);
  MemoryRegion* data = *cache->Register(At(0x10000), kPage, RegionKind::kData);
  MemoryRegion* polled = *cache->Register(At(0x10000), kPage, RegionKind::kPolled);
  EXPECT_NE(data, polled);
  EXPECT_TRUE(data->relaxed_ordering());
  EXPECT_FALSE(polled->relaxed_ordering());
  ASSERT_EQ(record_.calls.size(), 2U);
  EXPECT_EQ(record_.calls[0].access, kPlainAccess | IBV_ACCESS_RELAXED_ORDERING);
  EXPECT_EQ(record_.calls[1].access, kPlainAccess);
  ASSERT_TRUE(cache->Release(data).ok());
  ASSERT_TRUE(cache->Release(polled).ok());
}

TEST_F(MemoryCacheTest, RelaxedOrderingOffIsNeverAsked) {
  const auto cache = MakeCache(RelaxedOrdering::kOff);
  MemoryRegion* data = *cache->Register(At(0x10000), kPage, RegionKind::kData);
  EXPECT_FALSE(cache->UsesRelaxedOrdering());
  EXPECT_EQ(record_.calls[0].access, kPlainAccess);
  ASSERT_TRUE(cache->Release(data).ok());
}

TEST_F(MemoryCacheTest, ADeviceThatRefusesRelaxedOrderingIsAskedOnce) {
  record_.relaxed_error = EOPNOTSUPP;
  const auto cache = MakeCache(RelaxedOrdering::kAuto);
  MemoryRegion* first = *cache->Register(At(0x10000), kPage, RegionKind::kData);
  MemoryRegion* second = *cache->Register(At(0x20000), kPage, RegionKind::kData);
  EXPECT_FALSE(first->relaxed_ordering());
  EXPECT_FALSE(cache->UsesRelaxedOrdering());
  EXPECT_EQ(record_.calls.size(), 3U);  // asked, without, without
  EXPECT_THAT(warnings_, IsEmpty());
  ASSERT_TRUE(cache->Release(first).ok());
  ASSERT_TRUE(cache->Release(second).ok());
}

TEST_F(MemoryCacheTest, ForcedRelaxedOrderingThatIsRefusedIsWarnedAboutOnce) {
  record_.relaxed_error = EINVAL;
  const auto cache = MakeCache(RelaxedOrdering::kOn);
  MemoryRegion* first = *cache->Register(At(0x10000), kPage, RegionKind::kData);
  MemoryRegion* second = *cache->Register(At(0x20000), kPage, RegionKind::kData);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("mlx5_0"), HasSubstr("relaxed ordering"))));
  ASSERT_TRUE(cache->Release(first).ok());
  ASSERT_TRUE(cache->Release(second).ok());
}

TEST_F(MemoryCacheTest, AFailureOfAnotherKindDoesNotTurnRelaxedOrderingOff) {
  record_.host_error = EINVAL;
  const auto cache = MakeCache(RelaxedOrdering::kAuto);
  EXPECT_FALSE(cache->Register(At(0x10000), kPage, RegionKind::kData).ok());
  EXPECT_TRUE(cache->UsesRelaxedOrdering());
  record_.host_error = ENOMEM;
  record_.calls.clear();
  EXPECT_FALSE(cache->Register(At(0x10000), kPage, RegionKind::kData).ok());
  EXPECT_EQ(record_.calls.size(), 1U);
}

TEST_F(MemoryCacheTest, RefusesWhatIsNoRange) {
  const auto cache = MakeCache();
  EXPECT_EQ(cache->Register(nullptr, kPage, RegionKind::kData).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache->Register(At(0x10000), 0, RegionKind::kData).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache->Register(At(UINT64_MAX - 10), 100, RegionKind::kData).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(cache->Register(At(UINT64_MAX - 10), 5, RegionKind::kData).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(cache->RegisterDmaBuf(0, 0, 0x10000, 3).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache->RegisterDmaBuf(0, kPage, 0x10000, -1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache->RegisterDmaBuf(0, SIZE_MAX, 0x10000, 3).status().code(), Code::kInvalidArgument);
  EXPECT_THAT(record_.calls, IsEmpty());
}

// Whether this process may lock memory without limit; returns what it was.
bool SetIpcLock(bool wanted) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  EXPECT_EQ(syscall(SYS_capget, &header, data), 0);
  const uint32_t bit = 1u << CAP_IPC_LOCK;
  const bool before = (data[0].effective & bit) != 0;
  data[0].effective = wanted ? data[0].effective | (data[0].permitted & bit) : data[0].effective & ~bit;
  EXPECT_EQ(syscall(SYS_capset, &header, data), 0);
  return before;
}

TEST_F(MemoryCacheTest, FailureNamesRangeDeviceAndMemoryLockLimit) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlim_t lowered = std::min<rlim_t>(64 * 1024, before.rlim_max);
  const rlimit limit{lowered, before.rlim_max};
  const bool privileged = SetIpcLock(false);
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  record_.host_error = ENOMEM;
  const auto cache = MakeCache();
  std::vector<char> buffer(4 << 20);
  const Result<MemoryRegion*> region = cache->Register(buffer.data(), buffer.size(), RegionKind::kData);
  SetIpcLock(privileged);
  if (privileged) {
    EXPECT_EQ(MemoryLockLimitBytes(), UINT64_MAX);  // root of a host, not of a container
  }
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  ASSERT_FALSE(region.ok());
  EXPECT_EQ(region.status().code(), Code::kSystem);
  EXPECT_THAT(region.status().message(),
              AllOf(HasSubstr("ibv_reg_mr of 4"), HasSubstr("MiB at 0x"), HasSubstr("on mlx5_0"),
                    HasSubstr("errno 12"), HasSubstr("of this process is " + FormatBytes(lowered)),
                    HasSubstr("ulimit -l unlimited"), HasSubstr("max_mr")));
  EXPECT_EQ(cache->region_count(), 0U);
}

TEST_F(MemoryCacheTest, UnmappedMemoryIsNotBlamedOnTheMemoryLockLimit) {
  void* hole = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  ASSERT_EQ(munmap(hole, 2 * kPage), 0);
  record_.host_error = ENOMEM;
  const auto cache = MakeCache();
  const Result<MemoryRegion*> region = cache->Register(hole, 2 * kPage, RegionKind::kData);
  ASSERT_FALSE(region.ok());
  EXPECT_THAT(region.status().message(), AllOf(HasSubstr("errno 14"), HasSubstr("not mapped")));
}

TEST_F(MemoryCacheTest, ReleaseOfWhatItDoesNotHoldIsAnError) {
  const auto cache = MakeCache();
  MemoryRegion* region = *cache->Register(At(0x10000), kPage, RegionKind::kData);
  ASSERT_TRUE(cache->Release(region).ok());
  const Status again = cache->Release(region);  // the pointer is only compared
  EXPECT_EQ(again.code(), Code::kInternal);
  EXPECT_EQ(cache->Release(nullptr).code(), Code::kInternal);
  EXPECT_EQ(record_.deregistered, 1);
}

TEST_F(MemoryCacheTest, AFailedDeregistrationIsReportedOnceAndForgotten) {
  record_.deregister_error = EBUSY;
  const auto cache = MakeCache();
  MemoryRegion* region = *cache->Register(At(0x10000), kPage, RegionKind::kData);
  EXPECT_EQ(cache->Release(region).code(), Code::kSystem);
  EXPECT_EQ(cache->region_count(), 0U);
}

TEST_F(MemoryCacheTest, DestructionDeregistersWhatIsLeft) {
  {
    const auto cache = MakeCache();
    ASSERT_TRUE(cache->Register(At(0x10000), kPage, RegionKind::kData).ok());
    ASSERT_TRUE(cache->Register(At(0x10000), kPage, RegionKind::kData).ok());
    ASSERT_TRUE(cache->Register(At(0x20000), kPage, RegionKind::kPolled).ok());
  }
  EXPECT_EQ(record_.live, 0);
  EXPECT_EQ(record_.deregistered, 2);
}

TEST_F(MemoryCacheTest, DmaBufKeepsOffsetAndAddressTogether) {
  const auto cache = MakeCache();
  MemoryRegion* aligned = *cache->RegisterDmaBuf(0x3000, 2 * kPage, 0x7000'0000, 5);
  EXPECT_TRUE(aligned->dma_buf());
  EXPECT_EQ(record_.calls[0].offset, 0x3000U);
  EXPECT_EQ(record_.calls[0].address, 0x7000'0000U);
  EXPECT_EQ(record_.calls[0].length, 2 * kPage);
  EXPECT_EQ(record_.calls[0].fd, 5);
  // A start inside a page moves both back by the same amount.
  MemoryRegion* inside = *cache->RegisterDmaBuf(0x5010, 16, 0x7100'0010, 6);
  EXPECT_EQ(record_.calls[1].offset, 0x5000U);
  EXPECT_EQ(record_.calls[1].address, 0x7100'0000U);
  EXPECT_EQ(record_.calls[1].length, kPage);
  // Nothing lies before offset 0.
  MemoryRegion* at_zero = *cache->RegisterDmaBuf(0, 16, 0x7200'0010, 7);
  EXPECT_EQ(record_.calls[2].offset, 0U);
  EXPECT_EQ(record_.calls[2].address, 0x7200'0010U);
  EXPECT_EQ(record_.calls[2].length, kPage - 16);
  // A part of the first shares it; plain memory at the same address does not.
  EXPECT_EQ(*cache->RegisterDmaBuf(0x4000, kPage, 0x7000'1000, 8), aligned);
  MemoryRegion* plain = *cache->Register(At(0x7000'0000), kPage, RegionKind::kData);
  EXPECT_NE(plain, aligned);
  for (MemoryRegion* region : {aligned, aligned, inside, at_zero, plain})
    ASSERT_TRUE(cache->Release(region).ok());
  EXPECT_EQ(record_.live, 0);
}

class DmaBufRefusal : public MemoryCacheTest, public ::testing::WithParamInterface<int> {};

TEST_P(DmaBufRefusal, FallsBackToPlainRegistration) {
  record_.dma_buf_error = GetParam();
  const auto cache = MakeCache();
  Result<MemoryRegion*> region = cache->RegisterDmaBuf(0, 2 * kPage, 0x10000, 5);
  ASSERT_TRUE(region.ok()) << region.status().message();
  EXPECT_FALSE((*region)->dma_buf());
  EXPECT_EQ((*region)->address(), 0x10000U);
  EXPECT_EQ((*region)->length(), 2 * kPage);
  EXPECT_EQ(record_.calls.back().fd, -1);
  // A repeat shares the plain one.
  EXPECT_EQ(*cache->RegisterDmaBuf(0, 2 * kPage, 0x10000, 5), *region);
  EXPECT_EQ(record_.live, 1);
  ASSERT_TRUE(cache->Release(*region).ok());
  ASSERT_TRUE(cache->Release(*region).ok());
  EXPECT_EQ(record_.live, 0);
}

TEST_P(DmaBufRefusal, TheProbeDoesNotAnnounceIt) {
  record_.probe_error = GetParam();
  const auto cache = MakeCache();
  EXPECT_FALSE(cache->SupportsDmaBuf());
  EXPECT_FALSE(cache->SupportsDmaBuf());
  EXPECT_EQ(record_.calls.size(), 1U);  // probed once
  // Registrations of that kind go straight to plain memory.
  record_.calls.clear();
  MemoryRegion* region = *cache->RegisterDmaBuf(0, kPage, 0x10000, 5);
  ASSERT_EQ(record_.calls.size(), 1U);
  EXPECT_EQ(record_.calls[0].fd, -1);
  ASSERT_TRUE(cache->Release(region).ok());
}

TEST_P(DmaBufRefusal, BothErrorsAreNamedWhenPlainMemoryFailsToo) {
  record_.dma_buf_error = GetParam();
  record_.host_error = EFAULT;
  const auto cache = MakeCache();
  const Result<MemoryRegion*> region = cache->RegisterDmaBuf(0, kPage, 0x10000, 5);
  ASSERT_FALSE(region.ok());
  EXPECT_THAT(region.status().message(),
              AllOf(HasSubstr("mlx5_0"),
                    HasSubstr("DMA-BUF registration failed with errno " + std::to_string(GetParam())),
                    HasSubstr("errno 14"), HasSubstr("nvidia_peermem")));
}

INSTANTIATE_TEST_SUITE_P(Errors, DmaBufRefusal,
                         ::testing::Values(EOPNOTSUPP, EPROTONOSUPPORT, EINVAL, 524, ENOSYS));

TEST_F(MemoryCacheTest, DmaBufIsAnnouncedWhenOnlyTheDescriptorWasWrong) {
  const auto cache = MakeCache();
  EXPECT_TRUE(cache->SupportsDmaBuf());
  EXPECT_EQ(record_.live, 0);
}

TEST_F(MemoryCacheTest, ADeviceThatRefusesLaterIsNoLongerAnnounced) {
  const auto cache = MakeCache();
  EXPECT_TRUE(cache->SupportsDmaBuf());
  record_.dma_buf_error = EOPNOTSUPP;
  MemoryRegion* region = *cache->RegisterDmaBuf(0, kPage, 0x10000, 5);
  EXPECT_FALSE(cache->SupportsDmaBuf());
  ASSERT_TRUE(cache->Release(region).ok());
}

TEST_F(MemoryCacheTest, OtherDmaBufErrorsAreNotHidden) {
  record_.dma_buf_error = ENOMEM;
  const auto cache = MakeCache();
  const Result<MemoryRegion*> region = cache->RegisterDmaBuf(0, kPage, 0x10000, 5);
  ASSERT_FALSE(region.ok());
  EXPECT_THAT(region.status().message(), HasSubstr("ibv_reg_dmabuf_mr"));
}

TEST_F(MemoryCacheTest, ThreadsCountTogether) {
  const auto cache = MakeCache();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (int i = 0; i < 500; ++i) {
        const uint64_t start = 0x100000 + static_cast<uint64_t>((i + t) % 7) * kPage;
        Result<MemoryRegion*> region = cache->Register(At(start), 2 * kPage, RegionKind::kData);
        ASSERT_TRUE(region.ok());
        ASSERT_TRUE(cache->Release(*region).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache->region_count(), 0U);
  EXPECT_EQ(cache->reference_count(), 0U);
  EXPECT_EQ(record_.live, 0);
}

}  // namespace
}  // namespace sluice
