// Posting of messages and clear-to-send entries, as far as queues have room.
//
// Threads: under the engine's lock.
#pragma once

#include "plugin/transport/connection.h"

namespace sluice {

// Posts the next chunks of a message. True when nothing is left to post (all posted, or the path failed).
bool PostChunks(SendRequest& request) noexcept;

enum class CtsOutcome : uint8_t {
  kDone,        // written, or the path failed
  kQueueFull,   // this control queue, or its completion queue: others may have room
  kNoReceives,  // receive entries are short for everybody
};

// Reserves receive entries and writes the CTS entries of a group.
CtsOutcome PostCts(RecvGroup& group) noexcept;

}  // namespace sluice
