// Connections and their requests: what Isend, Irecv, Iflush and Test work on. Everything is preallocated when
// the connection opens; steady state writes into it and allocates nothing.
//
// Threads: guarded by the engine's lock, except `error`, which any thread may read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "plugin/classify/classifier.h"
#include "plugin/net.h"
#include "plugin/transport/memory_handle.h"
#include "plugin/transport/wire.h"
#include "tuner/policy.h"

namespace sluice {

class Engine;
struct ListenState;
struct InPath;
struct OutPath;
struct Connection;

enum class RequestKind : uint8_t { kSend, kReceive, kFlush };

struct RequestBase : Request {
  Engine* engine = nullptr;
  Connection* connection = nullptr;
  RequestKind kind = RequestKind::kSend;
  bool open = false;  // handed out, not yet reported done
  bool done = false;
};

// One message on its way out.
struct alignas(64) SendRequest : RequestBase {
  uint16_t chunks = 0;  // of the whole message
  uint16_t chunks_posted = 0;
  uint16_t chunks_pending = 0;  // posted, no completion yet
  uint8_t slot_sub = 0;         // index in the record rings
  uint8_t sub = 0;
  uint8_t service_class = 0;
  bool waiting = false;            // in the engine's list
  uint32_t piece_bytes = 0;        // of its pieces, if it goes out in some: a multiple of 128, all alike
  uint32_t outstanding_bytes = 0;  // posted, not completed; valid until done
  uint32_t chunk_posted = 0;       // bytes of the current chunk, when it goes out in pieces
  uint32_t chunk_queue = 0;        // and the queue that it keeps
  uint32_t chunk_bytes = 0;
  uint32_t bytes = 0;
  uint32_t next_pair = 0;
  uint64_t group = 0;
  uint64_t data = 0;
  uint64_t remote_address = 0;
  MemoryHandle* memory = nullptr;
  std::array<uint32_t, kMaxMergedPorts> rkeys{};
  SendRequest* next = nullptr;
  SendRequest* previous = nullptr;
};

// One buffer of a posted group.
struct RecvSub {
  uint32_t bytes = 0;
  uint32_t counted = 0;   // immediates seen
  uint32_t expected = 0;  // immediates of the whole message; 0: not known yet
  uint16_t granted = 0;   // immediates promised: receive entries reserved on every port
  bool done = false;
  MemoryHandle* memory = nullptr;
  std::array<uint16_t, kMaxMergedPorts> arrived{};  // by port
};

struct alignas(64) RecvGroup : RequestBase {
  uint8_t n = 0;
  uint8_t remaining = 0;  // subs not done
  uint8_t slot = 0;
  bool waiting = false;  // in the engine's list: CTS not written yet
  uint8_t epoch = 0;     // (group >> 5) mod 64
  uint32_t seq = 0;
  uint32_t least_chunks = 0;          // receive entries without which the group cannot be granted
  uint32_t wanted_chunks = 0;         // and with which it stripes as it should
  CtsEntry* entries = nullptr;        // of this slot, in the staging ring
  const Record* records = nullptr;    // of this slot
  uint64_t remote_entries = 0;        // of this slot, in the sender's ring
  MessageCounter* counter = nullptr;  // Claim::counter of its operation, which is in entries[].op_hint
  RecvGroup* next = nullptr;
  RecvGroup* previous = nullptr;
  std::array<RecvSub, kMaxGroup> subs;
};

struct alignas(64) FlushRequest : RequestBase {
  uint32_t pending = 0;  // reads on the wire, one per port
};

struct Connection {
  virtual ~Connection() = default;

  Engine* engine = nullptr;
  // Null while usable; afterwards what every call reports: `failure`.
  std::atomic<const Status*> error{nullptr};
  Status failure;  // written once, before `error`
  uint32_t open_requests = 0;
  std::atomic<bool> closed{false};  // by NCCL; written under the engine's lock
  bool close_done = false;          // event thread: and the event thread has dealt with it
  bool peer_closed = false;         // CLOSE seen
  uint16_t index = 0;               // chosen by R
  // Service thread.
  RegistrationPattern registrations;
  MemoryHandle* first_memory = nullptr;  // registered first; null once deregistered
  uint32_t max_recvs = 1;

  // First cause wins. Under the engine's lock.
  void Fail(const Status& cause) {
    if (error.load(std::memory_order_relaxed) != nullptr) return;
    failure = cause;
    error.store(&failure, std::memory_order_release);
  }
};

struct SendConnection final : Connection, SendComm {
  OutPath* path = nullptr;
  uint32_t id = 0;  // in OPEN and CONN

  uint64_t group = 0;              // head: the next group to match
  uint32_t seq = 1;                // SequenceOf(group)
  uint32_t matched_subs = 0;       // of the head group, bit set
  const CtsEntry* head = nullptr;  // its entries in cts_ring

  CtsEntry* cts_ring = nullptr;  // kSlots x max_recvs, written by R
  Record* records = nullptr;     // kSlots x max_recvs, source of record writes
  std::array<uint32_t, kMaxMergedPorts> table_lkeys{};
  uint64_t remote_records = 0;
  std::array<uint32_t, kMaxMergedPorts> remote_record_rkeys{};
  void* table = nullptr;  // TablePool block behind both rings

  std::unique_ptr<SendRequest[]> requests;  // kSlots x max_recvs
};

struct RecvConnection final : Connection, RecvComm {
  InPath* path = nullptr;
  ListenState* listener = nullptr;  // until accepted
  uint32_t sender_connection = 0;
  uint32_t control_pair = 0;

  uint64_t group = 0;     // next group to post
  uint32_t seq = 1;       // SequenceOf(group)
  uint32_t cts_lkey = 0;  // of the staging ring on the control pair's port
  uint32_t cts_rkey = 0;  // of the sender's ring, likewise

  // TablePool block: kSlots x max_recvs CTS entries (source of writes), as many records (written by S).
  void* table = nullptr;

  std::unique_ptr<RecvGroup[]> groups;      // kSlots
  std::unique_ptr<FlushRequest[]> flushes;  // kSlots
};

}  // namespace sluice
