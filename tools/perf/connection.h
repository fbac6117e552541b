// Connections between ranks, and the words that a rank's GPU thread and progress thread share for each of
// them.
//
// A connection has kSteps slots. The producer of data moves `tail` (steps that are there), its consumer moves
// `head` (steps that are free again). Sending: the GPU thread fills a slot and moves tail, the progress
// thread sends it and moves head. Receiving: the progress thread moves tail when a message has landed, the
// GPU thread moves head when it has read it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tools/perf/net_plugin.h"
#include "tools/perf/schedule.h"

namespace sluice::perf {

// Wakes the GPU thread. Ring after the change, from any thread; Prepare before looking for work.
class Doorbell {
 public:
  int Prepare() const { return rung_.load(std::memory_order_acquire); }
  void WaitSince(int seen) const { rung_.wait(seen, std::memory_order_acquire); }
  void Ring() {
    rung_.fetch_add(1, std::memory_order_release);
    rung_.notify_all();
  }

 private:
  std::atomic<int> rung_{0};
};

// Page-aligned zeroed memory.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(size_t bytes);
  PageBuffer(PageBuffer&& other) noexcept;
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  ~PageBuffer();
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A user's buffer as one connection sees it.
struct UserMemory {
  const std::byte* begin = nullptr;
  size_t bytes = 0;
  void* mhandle = nullptr;
};

struct Connection {
  Edge edge;
  int device = 0;
  bool shared = false;  // point-to-point: Simple slots lie in the communicator's shared buffer
  void* comm = nullptr;
  bool owns_comm =
      true;  // false: another channel's connection to the same peer brought it along (grouped receives)
  int tag = 0;

  PageBuffer memory;
  std::array<std::byte*, kProtocols> buffers{};
  std::array<void*, kProtocols> mhandles{};
  std::vector<UserMemory> user;  // registered by the user

  struct Slot {
    std::atomic<int64_t> size{-1};  // wire bytes; -1: empty
    std::byte* address = nullptr;   // published by size (sending) or tail (receiving)
  };
  std::array<Slot, kSteps> slots;
  alignas(64) std::atomic<int64_t> tail{0};
  alignas(64) std::atomic<int64_t> head{0};
  alignas(64) std::atomic<uint64_t> opened{
      0};                     // receiving into user memory: the last operation whose buffers may be written
  int64_t gpu_step = 0;       // GPU thread only
  int64_t progress_step = 0;  // progress thread only
  // Receiving, GPU thread only: payload that the GPU has taken, and when it last finished a strand.
  uint64_t taken_bytes = 0;
  int64_t taken_all_ns = 0;

  Handle handle{};         // sending: where to connect to
  void* listen = nullptr;  // receiving: until accepted
};

using Connections = std::vector<std::unique_ptr<Connection>>;

}  // namespace sluice::perf
