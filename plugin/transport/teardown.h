// The ways down: a path that failed, a connection that NCCL closes, an engine that finalize hands over.
// Bounded, whatever the peer does: queue pairs are drained for 100 ms, a peer is waited for 2 s.
#pragma once

#include "base/status.h"

namespace sluice {

class Engine;
struct Connection;
struct InPath;
struct OutPath;
struct Path;
struct RecvConnection;
struct SendConnection;

// Any thread, any guard: the event thread will tell the peer and stop the queue pairs.
void NotifyPathFailed(Path& path);

// Service thread. Marks the connection closed, fails its path when requests are open, hands the rest to the
// event thread.
Status CloseConnection(Connection& connection);

// Service thread: afterwards no request of this connection touches `memory` any more. Waits at most 100 ms,
// and only when a request is open.
void QuiesceMemory(Connection& connection, const class MemoryHandle& memory);

// Event thread.
void StopPath(Path& path);                      // queue pairs to ERR, drain, destroy
void EndIfUnused(OutPath& path);                // BYE once the last connection is gone, or never came
void OnPeerClosed(SendConnection& connection);  // CLOSE by R
void OnPeerClosed(RecvConnection& connection);  // CLOSE by S
void OnBye(InPath& path);
void OnByeOk(OutPath& path);
void FinalizeEngine(Engine& engine, const Status& reason);

}  // namespace sluice
