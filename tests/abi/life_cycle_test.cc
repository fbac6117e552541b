// The plugin from the first init to the last finalize, loaded as NCCL loads it, over the software fabric.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "plugin/abi/nccl_net.h"
#include "plugin/abi/nccl_profiler.h"
#include "plugin/abi/nccl_tuner.h"

namespace sluice {
namespace {

using nccl::kSuccess;
using nccl::NetV12;
using nccl::NetV8;

constexpr auto kPatience = std::chrono::seconds(30);

// A fabric of our own, so that nothing else that runs here meets it.
class FabricEnvironment : public testing::Environment {
 public:
  void SetUp() override { setenv("SLUICE_FABRIC", ("abi-" + std::to_string(getpid())).c_str(), 1); }
};
const auto* const kFabric = testing::AddGlobalTestEnvironment(new FabricEnvironment);

class Library {
 public:
  Library() {
    const std::filesystem::path path =
        std::filesystem::path(std::getenv("SLUICE_BUILD_DIR")) / "lib/libnccl-net-sluice.so";
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library_, nullptr) << dlerror();
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() { EXPECT_EQ(dlclose(library_), 0); }

  template <typename Table>
  const Table& Get(const char* symbol) const {
    const void* const table = dlsym(library_, symbol);
    EXPECT_NE(table, nullptr) << symbol;
    return *static_cast<const Table*>(table);
  }
  const NetV12& v12() const { return Get<NetV12>("ncclNetPlugin_v12"); }

 private:
  void* library_ = nullptr;
};

int DeviceCount(const NetV12& net) {
  int count = 0;
  EXPECT_EQ(net.devices(&count), kSuccess);
  EXPECT_GT(count, 0) << "no device: is LD_LIBRARY_PATH the directory of the software fabric?";
  return count;
}

void* Init(const NetV12& net, uint64_t id) {
  void* ctx = nullptr;
  nccl::NetCommConfig config{nccl::kTrafficClassUndefined};
  EXPECT_EQ(net.init(&ctx, id, &config, nullptr, nullptr), kSuccess);
  EXPECT_NE(ctx, nullptr);
  return ctx;
}

// True once `step` has returned true; false when patience is over.
template <typename Step>
bool Until(Step step) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!step()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

// One connection from `from` to `to`, both contexts of this process.
struct Pair {
  const NetV12& net;
  void* send = nullptr;
  void* recv = nullptr;

  Pair(const NetV12& table, void* from, void* to) : net(table) {
    alignas(8) std::array<std::byte, nccl::kNetHandleBytes> handle{};
    void* listen = nullptr;
    EXPECT_EQ(net.listen(to, 0, handle.data(), &listen), kSuccess);
    EXPECT_TRUE(Until([&] {
      if (send == nullptr) {
        EXPECT_EQ(net.connect(from, 0, handle.data(), &send, nullptr), kSuccess);
      }
      if (recv == nullptr) {
        EXPECT_EQ(net.accept(listen, &recv, nullptr), kSuccess);
      }
      return (send != nullptr && recv != nullptr) || testing::Test::HasFailure();
    }));
    EXPECT_EQ(net.closeListen(listen), kSuccess);
  }
  ~Pair() {
    EXPECT_EQ(net.closeSend(send), kSuccess);
    EXPECT_EQ(net.closeRecv(recv), kSuccess);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  void Transfer(size_t bytes) {
    // Longer than the message, as NCCL's buffers are; of an empty message there is still memory to register.
    std::vector<unsigned char> from(bytes + 16), to(bytes + 16);
    std::iota(from.begin(), from.end(), static_cast<unsigned char>(bytes));
    void* from_handle = nullptr;
    void* to_handle = nullptr;
    ASSERT_EQ(net.regMr(send, from.data(), from.size(), nccl::kPtrHost, &from_handle), kSuccess);
    ASSERT_EQ(net.regMr(recv, to.data(), to.size(), nccl::kPtrHost, &to_handle), kSuccess);
    void* buffer = to.data();
    size_t capacity = to.size();
    int tag = 3;
    void* receiving = nullptr;
    void* sending = nullptr;
    int received = 0;
    int sent = 0;
    int sizes[8] = {};
    EXPECT_TRUE(Until([&] {
      if (receiving == nullptr) {
        EXPECT_EQ(net.irecv(recv, 1, &buffer, &capacity, &tag, &to_handle, nullptr, &receiving), kSuccess);
      } else if (received == 0) {
        EXPECT_EQ(net.test(receiving, &received, sizes), kSuccess);
      }
      if (sending == nullptr) {
        EXPECT_EQ(net.isend(send, from.data(), bytes, tag, from_handle, nullptr, &sending), kSuccess);
      } else if (sent == 0) {
        EXPECT_EQ(net.test(sending, &sent, nullptr), kSuccess);
      }
      return (received != 0 && sent != 0) || testing::Test::HasFailure();
    }));
    EXPECT_EQ(sizes[0], static_cast<int>(bytes));
    EXPECT_TRUE(std::equal(from.begin(), from.begin() + static_cast<ptrdiff_t>(bytes), to.begin()));
    EXPECT_TRUE(std::all_of(to.begin() + static_cast<ptrdiff_t>(bytes), to.end(),
                            [](unsigned char c) { return c == 0; }));
    EXPECT_EQ(net.deregMr(send, from_handle), kSuccess);
    EXPECT_EQ(net.deregMr(recv, to_handle), kSuccess);
  }
};

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(LifeCycleTest, HundredCommunicatorsOneAfterTheOther) {
  const Library library;
  const NetV12& net = library.v12();
  size_t descriptors = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    void* const ctx = Init(net, i);
    ASSERT_GT(DeviceCount(net), 0);
    ASSERT_EQ(net.finalize(ctx), kSuccess);
    // The first round opens the devices for the life of the process.
    if (i == 0) descriptors = OpenDescriptors();
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

TEST(LifeCycleTest, ConnectionsOfManyCommunicators) {
  const Library library;
  const NetV12& net = library.v12();
  for (uint64_t i = 0; i < 10; ++i) {
    void* const sender = Init(net, i);
    void* const receiver = Init(net, i);
    ASSERT_GT(DeviceCount(net), 0);
    {
      Pair pair(net, sender, receiver);
      ASSERT_FALSE(HasFailure());
      for (const size_t bytes : {size_t{0}, size_t{8}, size_t{65536}, size_t{1} << 20}) pair.Transfer(bytes);
    }
    EXPECT_EQ(net.finalize(sender), kSuccess);
    EXPECT_EQ(net.finalize(receiver), kSuccess);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(LifeCycleTest, OneCommunicatorEndsWhileAnotherWorks) {
  const Library library;
  const NetV12& net = library.v12();
  void* const staying = Init(net, 1);
  void* const leaving = Init(net, 2);
  ASSERT_GT(DeviceCount(net), 0);
  {
    Pair pair(net, staying, staying);  // an engine may connect to itself
    ASSERT_FALSE(HasFailure());
    pair.Transfer(1000);
    { Pair other(net, leaving, staying); }
    EXPECT_EQ(net.finalize(leaving), kSuccess);
    pair.Transfer(100000);
    void* const later = Init(net, 3);
    Pair third(net, later, staying);
    third.Transfer(10);
  }
  EXPECT_EQ(net.finalize(staying), kSuccess);
}

TEST(LifeCycleTest, CallsAfterFinalizeAreErrors) {
  const Library library;
  const NetV12& net = library.v12();
  void* const ctx = Init(net, 1);
  ASSERT_GT(DeviceCount(net), 0);
  alignas(8) std::array<std::byte, nccl::kNetHandleBytes> handle{};
  void* listen = nullptr;
  ASSERT_EQ(net.listen(ctx, 0, handle.data(), &listen), kSuccess);
  EXPECT_EQ(net.closeListen(listen), kSuccess);
  ASSERT_EQ(net.finalize(ctx), kSuccess);
  void* comm = &listen;
  nccl::NetAttr attributes{};
  EXPECT_EQ(net.listen(ctx, 0, handle.data(), &comm), nccl::kInvalidUsage);
  EXPECT_EQ(comm, nullptr);
  comm = &listen;
  EXPECT_EQ(net.connect(ctx, 0, handle.data(), &comm, nullptr), nccl::kInvalidUsage);
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(net.setNetAttr(ctx, &attributes), nccl::kInvalidUsage);
  EXPECT_EQ(net.finalize(ctx), nccl::kInvalidUsage);
  // And the next communicator does not care.
  void* const next = Init(net, 2);
  EXPECT_EQ(net.finalize(next), kSuccess);
}

TEST(LifeCycleTest, ClosedAndOpenedAgain) {
  for (int i = 0; i < 5; ++i) {
    const Library library;
    const NetV12& net = library.v12();
    void* const ctx = Init(net, 1);
    ASSERT_GT(DeviceCount(net), 0);
    {
      Pair pair(net, ctx, ctx);
      ASSERT_FALSE(HasFailure());
      pair.Transfer(4096);
    }
    EXPECT_EQ(net.finalize(ctx), kSuccess);
  }
}

// Before v11 there is no finalize: NCCL may call init again when all communicators are gone.
TEST(LifeCycleTest, GlobalInitMayBeRepeated) {
  const Library library;
  const NetV8& net = library.Get<NetV8>("ncclNetPlugin_v8");
  for (int i = 0; i < 100; ++i) ASSERT_EQ(net.init(nullptr), kSuccess);
  alignas(8) std::array<std::byte, nccl::kNetHandleBytes> handle{};
  void* listen = nullptr;
  ASSERT_EQ(net.listen(0, handle.data(), &listen), kSuccess);
  EXPECT_EQ(net.closeListen(listen), kSuccess);
}

TEST(LifeCycleTest, BadDeviceNumbers) {
  const Library library;
  const NetV12& net = library.v12();
  void* const ctx = Init(net, 1);
  const int count = DeviceCount(net);
  nccl::NetPropertiesV12 properties;
  alignas(8) std::array<std::byte, nccl::kNetHandleBytes> handle{};
  for (const int bad : {-1, count, 1 << 30}) {
    void* comm = &properties;
    EXPECT_NE(net.getProperties(bad, &properties), kSuccess);
    EXPECT_NE(net.listen(ctx, bad, handle.data(), &comm), kSuccess);
    EXPECT_EQ(comm, nullptr);
  }
  EXPECT_EQ(net.finalize(ctx), kSuccess);
}

// In NCCL's order: NET, profiler, tuner of each communicator; the mask is one word for all.
TEST(LifeCycleTest, ThreeHalvesOfSeveralCommunicators) {
  const Library library;
  const NetV12& net = library.v12();
  const auto& profiler = library.Get<nccl::ProfilerV6>("ncclProfiler_v6");
  const auto& tuner = library.Get<nccl::TunerV6>("ncclTunerPlugin_v6");
  int mask = 0;
  for (int round = 0; round < 2; ++round) {
    struct {
      void* net = nullptr;
      void* profiler = nullptr;
      void* tuner = nullptr;
    } communicators[3];
    for (uint64_t i = 0; i < 3; ++i) {
      auto& c = communicators[i];
      c.net = Init(net, 100 + i);
      ASSERT_EQ(profiler.init(&c.profiler, 100 + i, &mask, i == 0 ? nullptr : "name", 2, 4,
                              static_cast<int>(i), nullptr),
                kSuccess);
      ASSERT_NE(c.profiler, nullptr);
      EXPECT_NE(mask & static_cast<int>(nccl::kProfileProxyStep), 0);
      EXPECT_EQ(mask & static_cast<int>(nccl::kProfileKernelCh | nccl::kProfileKernelLaunch), 0);
      nccl::TunerNvlDomainInfo domains{1, 1, 1};
      nccl::TunerConstants constants{};
      ASSERT_EQ(tuner.init(&c.tuner, 100 + i, 4, 2, nullptr, &domains, &constants), kSuccess);
      nccl::ProfilerEventDescrV6 descr{};
      descr.type = nccl::kProfileColl;
      descr.coll.func = "AllReduce";
      descr.coll.algo = "RING";
      descr.coll.proto = "SIMPLE";
      descr.coll.datatype = "ncclFloat32";
      void* task = nullptr;
      EXPECT_EQ(profiler.startEvent(c.profiler, &task, &descr), kSuccess);
      EXPECT_NE(task, nullptr);
      EXPECT_EQ(profiler.stopEvent(task), kSuccess);
    }
    for (auto& c : communicators) {
      EXPECT_EQ(tuner.finalize(c.tuner), kSuccess);
      EXPECT_EQ(profiler.finalize(c.profiler), kSuccess);
      EXPECT_EQ(net.finalize(c.net), kSuccess);
      void* event = nullptr;
      nccl::ProfilerEventDescrV6 late{};
      late.type = nccl::kProfileColl;
      EXPECT_EQ(profiler.startEvent(c.profiler, &event, &late), kSuccess);  // after finalize
      EXPECT_EQ(event, nullptr);
    }
  }
}

}  // namespace
}  // namespace sluice
