// Steady state makes no system call: the data thread's calls are caught by the kernel's syscall user dispatch
// while messages go back and forth over a verbs library that completes at once (tests/overhead/nullverbs).
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/prctl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "plugin/abi/nccl_net.h"

namespace sluice {
namespace {

using nccl::kSuccess;
using nccl::NetV12;

// What the kernel looks at: block raises SIGSYS instead of the call.
volatile char selector = SYSCALL_DISPATCH_FILTER_ALLOW;
volatile int caught = -1;  // number of the last call that was caught

void OnSystemCall(int, siginfo_t* info, void*) {
  selector = SYSCALL_DISPATCH_FILTER_ALLOW;  // from here on, the return from this handler included
  caught = info->si_syscall;
}

// Runs `work`; the number of the first system call in it, or -1.
template <typename Work>
int FirstSystemCall(const Work& work) {
  caught = -1;
  selector = SYSCALL_DISPATCH_FILTER_BLOCK;
  work();
  selector = SYSCALL_DISPATCH_FILTER_ALLOW;
  return caught;
}

class SyscallsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    struct sigaction action = {};
    action.sa_sigaction = OnSystemCall;
    action.sa_flags = SA_SIGINFO;
    ASSERT_EQ(sigaction(SIGSYS, &action, nullptr), 0);
    ASSERT_EQ(prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector), 0)
        << "this kernel has no syscall user dispatch (Linux 5.11)";
    const std::string path = std::string(getenv("SLUICE_BUILD_DIR")) + "/lib/libnccl-net-sluice.so";
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    net_ = static_cast<const NetV12*>(dlsym(library, "ncclNetPlugin_v12"));
    ASSERT_NE(net_, nullptr);
  }

  void SetUp() override {
    nccl::NetCommConfig config{nccl::kTrafficClassUndefined};
    int count = 0;
    ASSERT_EQ(net_->init(&from_, 1, &config, nullptr, nullptr), kSuccess);
    ASSERT_EQ(net_->init(&to_, 1, &config, nullptr, nullptr), kSuccess);
    ASSERT_EQ(net_->devices(&count), kSuccess);
    ASSERT_GT(count, 0);
    alignas(8) std::array<std::byte, nccl::kNetHandleBytes> handle{};
    void* listen = nullptr;
    ASSERT_EQ(net_->listen(to_, 0, handle.data(), &listen), kSuccess);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while ((send_ == nullptr || recv_ == nullptr) && std::chrono::steady_clock::now() < deadline) {
      if (send_ == nullptr) {
        ASSERT_EQ(net_->connect(from_, 0, handle.data(), &send_, nullptr), kSuccess);
      }
      if (recv_ == nullptr) {
        ASSERT_EQ(net_->accept(listen, &recv_, nullptr), kSuccess);
      }
    }
    ASSERT_EQ(net_->closeListen(listen), kSuccess);
    ASSERT_EQ(net_->regMr(send_, source_.data(), source_.size(), nccl::kPtrHost, &source_handle_), kSuccess);
    ASSERT_EQ(net_->regMr(recv_, target_.data(), target_.size(), nccl::kPtrHost, &target_handle_), kSuccess);
  }

  void TearDown() override {
    EXPECT_EQ(net_->deregMr(send_, source_handle_), kSuccess);
    EXPECT_EQ(net_->deregMr(recv_, target_handle_), kSuccess);
    EXPECT_EQ(net_->closeSend(send_), kSuccess);
    EXPECT_EQ(net_->closeRecv(recv_), kSuccess);
    EXPECT_EQ(net_->finalize(from_), kSuccess);
    EXPECT_EQ(net_->finalize(to_), kSuccess);
  }

  // One message through both ends, with a refused isend and an empty test. False: a call failed.
  bool OneMessage(size_t bytes) {
    void* receiving = nullptr;
    void* sending = nullptr;
    void* data = target_.data();
    size_t capacity = bytes;
    int tag = 1, received = 0, sent = 0, size = 0;
    nccl::NetAttr attributes{};
    bool good = net_->setNetAttr(from_, &attributes) == kSuccess;
    good &= net_->isend(send_, source_.data(), bytes, tag, source_handle_, nullptr, &sending) == kSuccess;
    good &= sending == nullptr;
    good &= net_->irecv(recv_, 1, &data, &capacity, &tag, &target_handle_, nullptr, &receiving) == kSuccess;
    good &= receiving != nullptr;
    if (!good) return false;
    good &= net_->test(receiving, &received, &size) == kSuccess;
    good &= received == 0;
    for (int tries = 0; good && sending == nullptr && tries < 1000; ++tries) {
      good &= net_->isend(send_, source_.data(), bytes, tag, source_handle_, nullptr, &sending) == kSuccess;
    }
    for (int tries = 0; good && (received == 0 || sent == 0) && tries < 1000; ++tries) {
      if (received == 0) good &= net_->test(receiving, &received, &size) == kSuccess;
      if (sent == 0) good &= net_->test(sending, &sent, nullptr) == kSuccess;
    }
    return good && received == 1 && sent == 1 && size == static_cast<int>(bytes);
  }

  static inline const NetV12* net_ = nullptr;
  void* from_ = nullptr;
  void* to_ = nullptr;
  void* send_ = nullptr;
  void* recv_ = nullptr;
  void* source_handle_ = nullptr;
  void* target_handle_ = nullptr;
  std::vector<unsigned char> source_ = std::vector<unsigned char>(2 << 20, 7);
  std::vector<unsigned char> target_ = std::vector<unsigned char>(2 << 20);
};

TEST_F(SyscallsTest, TheTrapWorks) {
  EXPECT_EQ(FirstSystemCall([] { (void)getppid(); }), SYS_getppid);
  EXPECT_EQ(FirstSystemCall([] {}), -1);
}

TEST_F(SyscallsTest, SteadyStateMakesNone) {
  // Past one round of every ring, so that all memory has been touched and the engine has settled.
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(OneMessage(8));
  for (const size_t bytes : {size_t{0}, size_t{8}, size_t{65536}, size_t{1} << 20, size_t{2} << 20}) {
    for (int i = 0; i < 500; ++i) {
      bool good = false;
      const int call = FirstSystemCall([&] { good = OneMessage(bytes); });
      ASSERT_EQ(call, -1) << "system call in message " << i << " of " << bytes << " bytes";
      ASSERT_TRUE(good);
    }
  }
}

}  // namespace
}  // namespace sluice
