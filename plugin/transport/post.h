// Posting of messages and clear-to-send entries, as far as queues have room.
//
// Threads: under the engine's lock.
#pragma once

#include "plugin/transport/connection.h"

namespace sluice {

// Posts the next chunks of a message. True when nothing is left to post (all posted, or the path failed).
bool PostChunks(SendRequest& request) noexcept;

// Reserves receive entries and writes the CTS entries of a group. True when done (written, or the path failed).
bool PostCts(RecvGroup& group) noexcept;

}  // namespace sluice
