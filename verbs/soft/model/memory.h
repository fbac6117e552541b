// The seam between the model and the memory of the processes that use it. In real time that memory belongs to
// other processes and the daemon implements ProcessMemory by messages to them; tests and virtual time use
// DirectMemory (direct_memory.h), which copies at once.
//
// Implementations may call Fabric::DmaDone from inside a call, and nothing else of the model.
//
// Order contract: for one process, everything takes effect in the order of the calls. A completion pushed
// after a scatter is visible after the data; a gather reads what earlier scatters wrote.
//
// Thread rule: the model calls from the thread that drives the Fabric; implementations answer on the same
// thread.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "verbs/soft/model/clock.h"

namespace sluice::soft {

class PayloadPool;

// A buffer with message bytes, shared by the packets that carry parts of it.
struct Payload {
  std::byte* data = nullptr;
  uint32_t size_bytes = 0;  // as asked for in Acquire
  uint32_t references = 0;  // managed by PayloadRef; Acquire returns 0
  PayloadPool* pool = nullptr;
  uint64_t tag = 0;  // for the pool: offset in shared memory and the like
};

// Where payload buffers come from. The daemon keeps them in memory that it shares with the processes.
class PayloadPool {
 public:
  virtual ~PayloadPool() = default;
  // At least `bytes` (never 0, at most kMaxPayloadBytes). nullptr: none free now; the model asks again every
  // microsecond of model time and keeps the work waiting.
  virtual Payload* Acquire(uint32_t bytes) = 0;
  // For responses to READs and atomics. Requests may wait for responses while they hold buffers, so a pool
  // with a limit must keep some room (a quarter, and at least kMaxPayloadBytes) that Acquire does not give
  // away: responses never wait for anything but a host and the wire, and with that room waiting always ends.
  virtual Payload* AcquireUrgent(uint32_t bytes) { return Acquire(bytes); }
  virtual void Release(Payload* payload) = 0;
};

inline constexpr uint32_t kMaxPayloadBytes = 64 * 1024;

class PayloadRef {
 public:
  PayloadRef() = default;
  explicit PayloadRef(Payload* payload) : payload_(payload) {
    if (payload_ != nullptr) ++payload_->references;
  }
  PayloadRef(const PayloadRef& other) : PayloadRef(other.payload_) {}
  PayloadRef(PayloadRef&& other) noexcept : payload_(std::exchange(other.payload_, nullptr)) {}
  PayloadRef& operator=(PayloadRef other) noexcept {
    std::swap(payload_, other.payload_);
    return *this;
  }
  ~PayloadRef() {
    if (payload_ != nullptr && --payload_->references == 0) payload_->pool->Release(payload_);
  }
  Payload* get() const { return payload_; }
  Payload* operator->() const { return payload_; }
  explicit operator bool() const { return payload_ != nullptr; }

 private:
  Payload* payload_ = nullptr;
};

struct MemoryRange {
  uint64_t address;
  uint32_t length;
};

// Names one outstanding gather or atomic; answered through Fabric::DmaDone. Never 0, never reused. A late
// answer (the queue pair or the process is gone) is ignored.
using DmaId = uint64_t;
using CqId = uint32_t;
using SrqId = uint32_t;
using PdId = uint32_t;

// What a completion queue receives. When `status` is not success, only wr_id, status, qp_num and vendor_err
// are defined (`full` is false); everything else is zero here and may be poisoned for the program.
struct Completion {
  uint64_t wr_id = 0;
  Picos timestamp = 0;  // model time at which the NIC wrote the entry
  ibv_wc_status status = IBV_WC_SUCCESS;
  ibv_wc_opcode opcode = IBV_WC_SEND;
  uint32_t vendor_err = 0;
  uint32_t qp_num = 0;
  uint32_t byte_len = 0;  // valid for receives, READs and atomics
  uint32_t imm_data =
      0;  // network byte order; valid with IBV_WC_WITH_IMM in wc_flags. Invalidated rkey with WITH_INV
  uint32_t src_qp = 0;  // 0 on RC, as real devices report
  uint32_t wc_flags = 0;
  uint16_t slid = 0;
  uint8_t sl = 0;
  bool full = true;        // false: an error, see above
  bool solicited = false;  // wakes a channel armed for solicited events (errors always do)
};

struct AsyncEvent {
  ibv_event_type type = IBV_EVENT_DEVICE_FATAL;
  uint32_t nic = 0;  // index in the host
  // Queue pair number, CqId, SrqId or port number (from 1), as `type` demands; 0 for device events.
  uint32_t element = 0;
};

enum class AtomicOp : uint8_t { kCompareSwap, kFetchAdd };

class ProcessMemory {
 public:
  virtual ~ProcessMemory() = default;

  // Copies `ranges` one after the other to `into->data`, then Fabric::DmaDone(id, ok, 0), possibly before
  // returning. `ranges` is valid during the call only; `into` must be kept (PayloadRef) until DmaDone.
  virtual void Gather(DmaId id, std::span<const MemoryRange> ranges, const PayloadRef& into) = 0;
  // Copies `length` bytes at `from->data + offset` to `address`, by ascending aligned stores. No answer.
  // Consecutive packets of a message give consecutive calls with adjoining source and destination wherever
  // possible.
  virtual void Scatter(uint64_t address, const PayloadRef& from, uint32_t offset, uint32_t length) = 0;
  // Executes on the aligned 8 bytes at `address`, then Fabric::DmaDone(id, ok, the value before).
  virtual void Atomic(DmaId id, AtomicOp op, uint64_t address, uint64_t compare_or_add, uint64_t swap) = 0;
  virtual void PushCompletion(CqId cq, const Completion& completion) = 0;
  virtual void PushAsyncEvent(const AsyncEvent& event) = 0;
  // Completions of `cq` that the process has taken since its creation. Asked only when the queue looks full.
  virtual uint64_t CompletionsTaken(CqId cq) = 0;
};

}  // namespace sluice::soft
