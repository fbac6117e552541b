// What travels between two engines by RDMA: clear-to-send entries, records and immediate data.
//
// All integers are little endian except the immediate data (network order, as verbs wants it). Layouts are
// part of the wire protocol (docs/architecture.md, "Wire protocol"): a change needs a new kProtocolVersion.
#pragma once

#include <endian.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "plugin/net.h"

namespace sluice {

static_assert(std::endian::native == std::endian::little,
              "the wire layouts below are written as they lie in memory");

inline constexpr uint16_t kProtocolVersion = 3;
inline constexpr uint32_t kSlots = kMaxOpenGroups;  // group k uses slot k mod kSlots
inline constexpr uint32_t kChunkAlignBytes = 128;   // LL128 lines stay whole: constraint 9 of the protocol

// Permission to send one message, written by the receiver into the sender's ring: one RDMA write per group.
// Every entry validates itself by `seq`, its last word; the group is complete when all n entries carry the
// same seq.
struct alignas(64) CtsEntry {
  uint64_t address;
  uint32_t capacity_bytes;
  int32_t tag;
  std::array<uint32_t, kMaxMergedPorts> rkeys;  // one per port of the receiver
  uint32_t granted_bytes;
  uint16_t chunks;  // immediates the sender may use for this message
  uint8_t group_size;
  uint8_t sub;
  uint32_t op_hint;  // receiver's idea of the operation (PackOpHint), in a group's first entry; 0: unknown
  uint32_t seq;      // SequenceOf(group)
};
static_assert(sizeof(CtsEntry) == 64 && offsetof(CtsEntry, seq) == 60);

// How many chunks and bytes a message had, written by the sender just before its LAST immediate.
struct Record {
  uint32_t seq;
  uint32_t bytes;
  uint32_t chunks;
  uint32_t reserved;
};
static_assert(sizeof(Record) == 16);

// 0 never is a valid sequence number, so zeroed memory never looks like an entry.
constexpr uint32_t SequenceOf(uint64_t group) {
  return static_cast<uint32_t>(group % 0xffffffffu) + 1;
}

constexpr uint32_t NextSequence(uint32_t seq) {
  return seq == 0xffffffffu ? 1 : seq + 1;
}

enum class ImmKind : uint8_t { kChunk = 0, kLast = 1, kSingle = 2, kControl = 3 };

// Immediate data: kind:2 | epoch:6 | connection:16 | slot:5 | sub:3, most significant first.
struct Immediate {
  ImmKind kind;
  uint8_t epoch;  // (group >> 5) mod 64: an immediate of another round of the slot is a defect, never data
  uint16_t connection;
  uint8_t slot;
  uint8_t sub;

  static constexpr uint32_t Pack(ImmKind kind, uint64_t group, uint16_t connection, uint32_t sub) {
    return static_cast<uint32_t>(kind) << 30 | static_cast<uint32_t>(group >> 5 & 63) << 24 |
           static_cast<uint32_t>(connection) << 8 | static_cast<uint32_t>(group & 31) << 3 | sub;
  }
  static constexpr Immediate Unpack(uint32_t value) {
    return {static_cast<ImmKind>(value >> 30), static_cast<uint8_t>(value >> 24 & 63),
            static_cast<uint16_t>(value >> 8), static_cast<uint8_t>(value >> 3 & 31),
            static_cast<uint8_t>(value & 7)};
  }
};
static_assert(kSlots == 32 && kMaxGroup == 8);

}  // namespace sluice
