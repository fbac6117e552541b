// A packet in flight, and the pool it comes from. A packet refers to message bytes, it never holds them.
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/memory.h"

namespace sluice::soft {

// Lanes of a link: virtual lanes (InfiniBand) or priorities (Ethernet). VL15, for management, carries no data
// and is not one of them.
inline constexpr uint32_t kLanes = 8;

enum class PacketKind : uint8_t {
  kSend,
  kWrite,
  kReadRequest,
  kAtomicRequest,
  kReadResponse,
  kAtomicResponse,
  kAck,       // also NAK and RNR NAK, by `syndrome`
  kCnp,       // congestion notification (RoCE v2): an ECN mark seen by the receiver, back to the sender
  kPfcPause,  // between neighbours only: see pfc.h
  // Ultra Ethernet, for the yardstick transports only. A trimmed packet is kUecData with Packet::trimmed.
  kUecData,
  kUecAck,
  kUecNack,
  kUecPull,  // credit of the receiver
};

// Flags of Packet::flags.
inline constexpr uint8_t kFirstPacket = 1;
inline constexpr uint8_t kLastPacket = 2;
inline constexpr uint8_t kWithImmediate = 4;
inline constexpr uint8_t kAckRequested = 8;
inline constexpr uint8_t kSolicited = 16;
inline constexpr uint8_t kWithInvalidate = 32;

// Packet::ecn, the two bits of the IP header.
inline constexpr uint8_t kEcnNotCapable = 0;
inline constexpr uint8_t kEcnCapable = 2;
inline constexpr uint8_t kEcnCongestion = 3;

enum class Syndrome : uint8_t {
  kAck,
  kRnrNak,
  kSequenceError,
  kInvalidRequest,
  kRemoteAccessError,
  kRemoteOperationalError,
};

// The first cache line is all that links and switches touch; the second belongs to the transport.
struct alignas(64) Packet {
  Packet* next = nullptr;    // in the one queue or wire that holds it
  Picos arrival = 0;         // at the far end of the link it is on
  uint32_t wire_bytes = 0;   // headers, payload, preamble and gap
  uint32_t source = 0;       // endpoint, see Network
  uint32_t destination = 0;  // endpoint
  uint32_t flow = 0;         // hash of the 5-tuple, see routing.h; a spraying transport changes it per packet
  uint32_t destination_qp = 0;  // queue pair or flow number at the destination
  uint32_t psn = 0;             // 24 bits, as on the wire
  uint32_t payload_bytes = 0;
  uint16_t ingress = 0;  // port of the switch it is in
  PacketKind kind = PacketKind::kSend;
  uint8_t flags = 0;
  uint8_t lane = 0;  // VL or priority, below kLanes
  uint8_t ecn = kEcnNotCapable;
  bool trimmed = false;    // a switch cut the payload
  bool corrupted = false;  // the receiver will drop it
  uint8_t sl = 0;
  uint8_t traffic_class = 0;
  uint8_t hops = 0;     // switches passed
  uint16_t egress = 0;  // port of the switch it will leave by, while it is still arriving

  alignas(64) PayloadRef payload;
  uint32_t payload_offset = 0;
  uint32_t imm_data = 0;
  uint32_t rkey = 0;
  Syndrome syndrome = Syndrome::kAck;
  uint8_t rnr_timer = 0;
  bool compare_swap = false;
  // Of the request, or anything a transport of the model alone wants to carry.
  uint64_t remote_address = 0;
  uint64_t length = 0;  // of the whole message (RETH)
  uint64_t compare_or_add =
      0;  // atomic response: the value before; write: where in the message the data goes
  uint64_t swap = 0;
};
static_assert(sizeof(Packet) == 128);

class PacketPool {
 public:
  Packet* New() {
    if (free_ == nullptr) Grow();
    Packet* packet = free_;
    free_ = packet->next;
    *packet = Packet{};
    return packet;
  }
  void Delete(Packet* packet) {
    packet->payload = PayloadRef();
    packet->next = free_;
    free_ = packet;
  }

 private:
  static constexpr int kSlab = 256;
  void Grow() {
    slabs_.push_back(std::make_unique<Packet[]>(kSlab));
    for (int i = 0; i < kSlab; ++i) {
      slabs_.back()[i].next = free_;
      free_ = &slabs_.back()[i];
    }
  }
  std::vector<std::unique_ptr<Packet[]>> slabs_;
  Packet* free_ = nullptr;
};

// First in, first out, through Packet::next.
class PacketQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  Packet* front() const { return head_; }
  Packet* back() const { return tail_; }
  void Push(Packet* packet) {
    packet->next = nullptr;
    if (head_ == nullptr) {
      head_ = packet;
    } else {
      tail_->next = packet;
    }
    tail_ = packet;
  }
  Packet* Pop() {
    Packet* packet = head_;
    head_ = packet->next;
    return packet;
  }

 private:
  Packet* head_ = nullptr;
  Packet* tail_ = nullptr;
};

// InfiniBand counts buffers in blocks; a packet takes whole ones.
inline constexpr uint32_t kCreditBytes = 64;
inline uint32_t CreditsOf(uint32_t wire_bytes) {
  return (wire_bytes + kCreditBytes - 1) / kCreditBytes;
}
// Of the packets of a lane in a queue.
inline uint32_t BlocksOf(const PacketQueue& queue, uint32_t lane) {
  uint32_t blocks = 0;
  for (const Packet* packet = queue.front(); packet != nullptr; packet = packet->next) {
    if (packet->lane == lane) blocks += CreditsOf(packet->wire_bytes);
  }
  return blocks;
}

}  // namespace sluice::soft
