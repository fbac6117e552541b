// What the library in a program and the fabric process say to each other. Three channels:
//
//   socket    SOCK_SEQPACKET, abstract name from user and instance: Hello and Welcome with descriptors, and
//   one
//             line of text for errors and for the introspection tool. Its end is how each side sees the other
//             die.
//   requests  ring, library to fabric: verbs calls and posted work.
//   commands  ring, fabric to library: copies, completions, events, answers to calls, executed in order.
//
// Both sides come from one build: structures are plain and need no conversion; kProtocolVersion guards it.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>

#include "verbs/soft/ipc/ring.h"

namespace sluice::soft {

inline constexpr uint64_t kProtocolMagic = 0x314349554c53ull;  // "SLUIC1"
inline constexpr uint32_t kProtocolVersion = 1;

inline constexpr uint64_t kRequestRingBytes = 512 * 1024;
inline constexpr uint64_t kCommandRingBytes = 512 * 1024;
inline constexpr uint32_t kMaxCqSlots = 65536;
inline constexpr uint64_t kPoolBytes = 64ull * 1024 * 1024;

// A clock that costs nothing: cycles on x86, the counter of virtual time elsewhere.
inline uint64_t CycleCount() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return 0;
#endif
}

// Start of the memory that one session shares. The library makes it, so that its limits are the program's
// own.
struct SessionHeader {
  uint64_t magic;
  RingHeader requests;
  RingHeader commands;
  // Set by the fabric process while it starves for executed commands (payload pool or ring full): the library
  // wakes it after every batch, not only after copies that it waits for.
  alignas(64) std::atomic<uint32_t> fabric_starves;
  // CycleCount() when a polling thread last looked at the command ring. A thread that polls executes commands
  // itself, so the service thread need not be woken at once.
  alignas(64) std::atomic<uint64_t> last_poll_cycles;
  // Completions taken from the completion queue in each slot since its creation.
  alignas(64) std::atomic<uint64_t> completions_taken[kMaxCqSlots];
};
inline constexpr uint64_t kRequestRingOffset = (sizeof(SessionHeader) + 4095) & ~4095ull;
inline constexpr uint64_t kCommandRingOffset = kRequestRingOffset + kRequestRingBytes;
inline constexpr uint64_t kSessionBytes = kCommandRingOffset + kCommandRingBytes;

// ---- socket messages

enum class SocketMessage : uint32_t { kHello = 1, kWelcome, kError, kControl, kControlReply };

inline constexpr size_t kMaxNameBytes = 64;
inline constexpr size_t kMaxTextBytes = 1024;
inline constexpr uint32_t kMaxDevices = 64;

// With descriptors: session memory, eventfd that wakes the library.
struct HelloMessage {
  SocketMessage type;
  uint32_t version;
  uint64_t magic;
  char host[kMaxNameBytes];  // empty: any free host
  bool names_topology;       // the two below are set
  uint64_t topology_hash;
  char topology_name[256];  // for messages
};

struct DeviceDescription {
  char name[kMaxNameBytes];
  uint64_t node_guid;  // host byte order
  uint32_t vendor_id;
  uint32_t device_id;
  uint32_t port_count;
  uint32_t max_inline;
};

// With descriptors: payload pool, eventfd that wakes the fabric process.
struct WelcomeMessage {
  SocketMessage type;
  uint32_t host;
  char host_name[kMaxNameBytes];
  char sysfs_root[256];  // stands for /sys: class/infiniband below it
  int32_t fabric_pid;
  uint32_t device_count;
  DeviceDescription devices[kMaxDevices];
};

// kError, kControl, kControlReply.
struct TextMessage {
  SocketMessage type;
  int32_t error;  // errno for kError
  char text[kMaxTextBytes];
};

// ---- requests

enum RequestType : uint16_t {
  kRequestCall = 1,
  kRequestPostSend,
  kRequestPostRecv,
  kRequestPostSrqRecv,
};

enum class Call : uint32_t {
  kQueryDevice = 1,
  kQueryPort,
  kQueryGid,
  kQueryPkey,
  kModelTime,
  kAllocPd,
  kDeallocPd,
  kRegMr,
  kDeregMr,
  kCreateCq,
  kResizeCq,
  kDestroyCq,
  kCreateSrq,
  kModifySrq,
  kQuerySrq,
  kDestroySrq,
  kCreateQp,
  kModifyQp,
  kQueryQp,
  kDestroyQp,
};

// One structure in and out serves every call; each call documents the members it uses beside its dispatch.
struct CallArguments {
  uint32_t id = 0;      // object: PD, CQ, SRQ, QP number, key; out: the new object
  uint32_t port = 0;    // port number; RegMr: access flags
  uint32_t index = 0;   // GID or P_Key index, attribute mask, CQ slot
  uint32_t number = 0;  // CQ entries; out: real depth, P_Key, GID type, ...
  uint64_t address = 0, length = 0, iova = 0;
  uint64_t cookie = 0;  // the library's object, returned with its completions
  union {
    ibv_device_attr device;
    ibv_port_attr port_attr;
    ibv_gid gid;
    ibv_srq_attr srq;
    ibv_qp_attr qp;
    struct {
      ibv_qp_cap cap;
      uint32_t type, pd, send_cq, recv_cq, srq;
      bool sq_sig_all;
    } qp_init;
    uint64_t value = 0;
  };
};

struct CallRequest {
  RecordHeader header;
  Call call;
  uint32_t nic;
  uint64_t cookie;  // returned in the answer
  CallArguments arguments;
};

// `header.count` elements follow: scatter/gather elements, or inline bytes when `inline_bytes` is not zero.
struct PostSendRequest {
  RecordHeader header;
  uint32_t nic;
  uint32_t qp_num;
  uint64_t wr_id;
  uint32_t opcode;
  uint32_t flags;
  uint32_t imm_data;
  uint32_t rkey;
  uint64_t remote_address;
  uint64_t compare_or_add;
  uint64_t swap;
  uint32_t inline_bytes;
  uint32_t reserved;
};

struct PostRecvRequest {
  RecordHeader header;
  uint32_t nic;
  uint32_t id;  // queue pair number or SrqId
  uint64_t wr_id;
};

// The wr_id that travels names the library's queue and the place of the entry in it.
enum class QueueKind : uint64_t { kSend = 0, kRecv = 1, kSharedRecv = 2 };
inline uint64_t PackWrId(QueueKind kind, uint32_t handle, uint32_t index) {
  return static_cast<uint64_t>(kind) << 62 | static_cast<uint64_t>(handle & 0x3fffffffu) << 32 | index;
}
inline QueueKind WrIdKind(uint64_t wr_id) {
  return static_cast<QueueKind>(wr_id >> 62);
}
inline uint32_t WrIdHandle(uint64_t wr_id) {
  return static_cast<uint32_t>(wr_id >> 32) & 0x3fffffffu;
}
inline uint32_t WrIdIndex(uint64_t wr_id) {
  return static_cast<uint32_t>(wr_id);
}

// ---- commands

enum CommandType : uint16_t {
  kCommandGather = 1,
  kCommandScatter,
  kCommandAtomic,
  kCommandCompletion,
  kCommandEvent,
  kCommandAnswer,
};

// `header.count` ranges follow; their bytes go one after the other to the pool.
struct GatherCommand {
  RecordHeader header;
  uint64_t pool_offset;
  struct Range {
    uint64_t address;
    uint64_t length;
  };
};

struct ScatterCommand {
  RecordHeader header;
  uint64_t address;
  uint64_t pool_offset;
  uint64_t length;
};

struct AtomicCommand {
  RecordHeader header;
  uint64_t address;
  uint64_t compare_or_add;
  uint64_t swap;
  uint64_t before;  // written by the library when it executes the command
  uint32_t is_compare_swap;
};

struct CompletionCommand {
  RecordHeader header;
  uint64_t cq_cookie;
  uint64_t wr_id;  // PackWrId
  int64_t timestamp_ps;
  uint32_t status;
  uint32_t opcode;
  uint32_t vendor_err;
  uint32_t qp_num;
  uint32_t byte_len;
  uint32_t imm_data;
  uint32_t src_qp;
  uint32_t wc_flags;
  uint16_t slid;
  uint8_t sl;
  bool full;
  bool solicited;
};

struct EventCommand {
  RecordHeader header;
  uint32_t type;
  uint32_t nic;
  uint64_t
      element;  // queue pair, completion queue or shared receive queue: the library's cookie; or port number
};

struct AnswerCommand {
  RecordHeader header;
  int32_t result;
  uint64_t cookie;
  CallArguments arguments;
};

}  // namespace sluice::soft
