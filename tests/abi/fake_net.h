// A typed layer without network under the version tables: records what arrives, answers what the test sets.
//
// Thread rule: one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/net.h"

namespace sluice::fake {

struct Send : SendComm {};
struct Recv : RecvComm {};
struct Listener : ListenComm {};
struct Context : NetContext {};
struct Req : Request {};

// What a call returns next, and what the last call brought.
struct State {
  Status error;  // when not ok, every call fails with it
  bool again = false;
  bool out_of_memory = false;  // set-up calls throw std::bad_alloc
  int device_count = 2;
  NetProperties properties;
  TestOutcome test{false, nullptr};
  std::vector<int> test_sizes;

  // Aligned as heap objects are: the tables keep a tag in the low bits.
  alignas(16) Send send;
  alignas(16) Recv recv;
  alignas(16) Listener listener;
  alignas(16) Context context;
  alignas(16) Context global;
  alignas(16) Req request;
  alignas(16) char memory[16];

  std::string last_call;
  const void* object = nullptr;
  const void* data = nullptr;
  size_t bytes = 0;
  int tag = 0;
  const MemoryHandle* handle = nullptr;
  const void* phandle = nullptr;
  MemoryKind kind = MemoryKind::kHost;
  uint64_t offset = 0;
  int fd = -1;
  int device = -1;
  std::vector<ReceiveBuffer> buffers;
  std::optional<int> traffic_class;
  NetAttributes attributes;
  int* sizes = nullptr;
  std::vector<int> members;
  int max_members = 0;
  int finalized = 0;
};

State& Get();
void Reset();

}  // namespace sluice::fake
