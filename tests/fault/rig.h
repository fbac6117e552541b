// Tests of the plugin's ends and failures: the built library through its NET v12 table, over the software
// fabric.
//
//   FAULT_ROLE(Opens) { void* ctx = Init(); Wire wire = Connect(ctx, ctx); ... EXPECT_EQ(...); }
//   TEST_F(FaultTest, Opens) { RunRole("Opens", {{"SLUICE_MAX_RECVS", "8"}}); }
//
// The plugin reads its environment once per process and keeps its devices to the end of it; so each test is a
// role, run by this program again in a process of its own, and the fixture checks that nothing of the fabric
// stays behind. Expectations that a role does not meet fail the test.
//
// Threads: a role may call from several; Lines and the counters are for any thread.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "plugin/abi/nccl_net.h"
#include "tests/fabric/soft_pair.h"
#include "tests/fault/verbs_census.h"

namespace sluice::fault {

#define FAULT_ROLE(name) SOFT_ROLE(name)

using nccl::kSuccess;
using nccl::NcclResult;
using soft::Peer;
using soft::StartPeer;
using soft::Variables;

// Far above what anything takes on a busy machine: a wait that ends by it is a hang.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr auto kPatience = std::chrono::seconds(300);
#else
inline constexpr auto kPatience = std::chrono::seconds(60);
#endif

class FaultTest : public soft::SoftFabricTest {
 protected:
  void SetUp() override;
  // Runs a role to its end.
  void RunRole(const std::string& role, const Variables& variables = {});
};

const nccl::NetV12& Net();
// Table of an older version: Table<nccl::NetV8>("ncclNetPlugin_v8").
const void* Symbol(const char* name);
template <typename T>
const T& Table(const char* name) {
  return *static_cast<const T*>(Symbol(name));
}

void* Init(int traffic_class = nccl::kTrafficClassUndefined);

// Lines that the plugin logged, warnings and information alike; those that contain `part`.
std::vector<std::string> Lines(const std::string& part = "");
void ForgetLines();
void Log(int level, unsigned long flags, const char* file, int line, const char* format, ...);

// True once `step` returned true; false, and a failure of the test, when patience is over.
bool Until(const std::function<bool()>& step, const char* what = "a condition");

struct Handle {
  alignas(8) std::array<std::byte, nccl::kNetHandleBytes> bytes{};
  void* data() { return bytes.data(); }
};
void* Listen(void* ctx, Handle* handle, int device = 0);

// A connection with both ends in this process.
struct Wire {
  void* send = nullptr;
  void* recv = nullptr;
};
Wire Connect(void* from, void* to, int from_device = 0, int to_device = 0);
// Connects until both ends are there or one call fails; what that call answered.
NcclResult TryConnect(void* from, void* to, Wire* wire, int from_device = 0, int to_device = 0);
void Close(const Wire& wire);

// Registered memory; released by Deregister or the destructor.
class Buffer {
 public:
  Buffer() = default;
  // `outcome`: what regMr answered; null when it must succeed.
  Buffer(void* comm, size_t bytes, unsigned seed = 0, NcclResult* outcome = nullptr);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { Deregister(); }
  NcclResult Deregister();

  unsigned char* data() { return data_.data(); }
  size_t size() const { return data_.size(); }
  void* handle() const { return handle_; }

 private:
  void* comm_ = nullptr;
  void* handle_ = nullptr;
  std::vector<unsigned char> data_;
};

// One call each; null in *request: not now.
NcclResult Isend(void* comm, Buffer& buffer, size_t bytes, int tag, void** request);
NcclResult Irecv(void* comm, Buffer& buffer, size_t bytes, int tag, void** request);

// One message of `bytes`, checked byte by byte.
void Transfer(const Wire& wire, size_t bytes, int tag = 0);

// The error that a receiver or sender meets when it goes on: calls until one fails. kSuccess: none within
// patience.
NcclResult FirstErrorOfReceiver(void* recv, Buffer& buffer);
NcclResult FirstErrorOfSender(void* send, Buffer& buffer);

// What a process holds. Devices, the event thread and the set-up listener stay for the life of a process:
// take the start after one communicator has come and gone.
struct Holdings {
  int descriptors = 0;
  Census objects;
  bool operator==(const Holdings&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Holdings& holdings);
Holdings Held();
Holdings HeldAfterWarmUp();
// Waits until this process holds `start` again.
void ExpectBackTo(const Holdings& start, const std::string& what);

}  // namespace sluice::fault
