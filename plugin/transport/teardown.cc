#include "plugin/transport/teardown.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "plugin/log.h"
#include "plugin/transport/control.h"
#include "plugin/transport/device_events.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDrainStep{1};
constexpr int kDrainSteps = 100;
constexpr milliseconds kByeTimeout{2000};
// A sender's CLOSE may overtake the completions of its last messages by the time a completion queue entry
// takes.
constexpr milliseconds kPeerClosedGrace{200};

Path& PathOf(Connection& connection) {
  if (auto* send = dynamic_cast<SendConnection*>(&connection)) return *send->path;
  return *static_cast<RecvConnection&>(connection).path;
}

template <typename Visit>
void ForEachOpenRequest(Connection& connection, const Visit& visit) {
  if (auto* send = dynamic_cast<SendConnection*>(&connection)) {
    for (uint32_t i = 0; send->requests != nullptr && i < kSlots * send->max_recvs; ++i) {
      SendRequest& request = send->requests[i];
      if (request.open && !request.done)
        visit(request, [&](const MemoryHandle& memory) { return request.memory == &memory; });
    }
    return;
  }
  auto& receive = static_cast<RecvConnection&>(connection);
  for (uint32_t slot = 0; receive.groups != nullptr && slot < kSlots; ++slot) {
    RecvGroup& group = receive.groups[slot];
    if (!group.open || group.done) continue;
    visit(group, [&](const MemoryHandle& memory) {
      return std::any_of(group.subs.begin(), group.subs.begin() + group.n,
                         [&](const RecvSub& sub) { return sub.memory == &memory; });
    });
  }
}

// What a message that will never complete still counts for.
void GiveBack(Engine& engine, SendRequest& request) {
  engine.share.Completed(request.service_class, std::exchange(request.outstanding_bytes, 0));
}
void GiveBack(Engine&, RecvGroup&) {}

uint32_t Outstanding(const Path& path) {
  uint32_t count = 0;
  if (path.outbound) {
    for (const DataQueue& queue : static_cast<const OutPath&>(path).queues)
      count += queue.depth - queue.free_wrs;
  } else {
    // Grants are signalled in batches: what was posted behind the last signal completes only by flushing.
    for (const ControlQueue& control : static_cast<const InPath&>(path).controls)
      count += control.depth - control.free_wrs;
  }
  return count;
}

void StopQueues(Path& path) {
  for (PortPair& pair : path.pairs) {
    (void)pair.control.ToError();
    for (QueuePair& queue : pair.data) (void)queue.ToError();
  }
}

void ReleaseTable(Engine& engine, void*& table) {
  if (table != nullptr) engine.tables.Return(std::exchange(table, nullptr));
}

// Whether no completion refers to a request of the closed connection any more.
bool Quiet(const SendConnection& connection) {
  if (connection.path->stopped || connection.requests == nullptr) return true;
  return std::all_of(connection.requests.get(), connection.requests.get() + kSlots * connection.max_recvs,
                     [](const SendRequest& request) { return !request.open || request.done; });
}

bool Quiet(const RecvConnection& connection) {
  if (connection.flushes == nullptr) return true;
  return std::all_of(connection.flushes.get(), connection.flushes.get() + kSlots,
                     [](const FlushRequest& flush) { return flush.pending == 0; });
}

template <typename Comm>
void RecycleIfQuiet(Comm& connection) {
  ControlGuard guard(connection.engine->lock);
  if (Quiet(connection)) RecycleRequests(connection);
}

// The rings of a connection may be reused once neither end can write them.
void ReleaseIfDead(SendConnection& connection) {
  if (!connection.close_done || !(connection.peer_closed || connection.path->stopped)) return;
  ReleaseTable(*connection.engine, connection.table);
  RecycleIfQuiet(connection);
}

void ReleaseIfDead(RecvConnection& connection) {
  if (!connection.close_done || !(connection.peer_closed || connection.path->stopped)) return;
  if (connection.table != nullptr) connection.engine->taken_indices.erase(connection.index);
  ReleaseTable(*connection.engine, connection.table);
  RecycleIfQuiet(connection);
}

void FinishEngine(Engine& engine) {
  if (engine.finished) return;
  engine.finished = true;
  engine.out_links.clear();
  engine.in_links.clear();
  std::array<EnginePort, kMaxMergedPorts> ports;
  uint32_t count = 0;
  {
    ControlGuard guard(engine.lock);
    engine.share.Leave();
    ports = engine.TakePorts(&count);
    engine.receivers.reset();
    for (const std::unique_ptr<Connection>& connection : engine.connections) RecycleRequests(*connection);
  }
  for (uint32_t i = 0; i < count; ++i) {
    Status status = ports[i].flush_qp.Close();
    if (status.ok()) status = ports[i].srq.Close();
    if (status.ok()) status = ports[i].cq.Close();
    if (!status.ok())
      SLUICE_INFO(kLogNet, "closing queues of %s: %s", ports[i].port.name.c_str(), status.message().c_str());
    ports[i].flush_memory.reset();
    engine.activity[i].Close();
  }
  engine.tables.Clear();
}

void FinishIfIdle(Engine& engine) {
  if (!engine.finalizing || engine.finished) return;
  const bool all_stopped =
      std::all_of(engine.paths.begin(), engine.paths.end(),
                  [](const std::unique_ptr<Path>& path) { return path->stopped || path->pairs.empty(); });
  // Links may be on the stack.
  if (all_stopped) engine.loop.Post([&engine] { FinishEngine(engine); });
}

void FinishStop(Path& path) {
  Engine& engine = path.engine;
  std::vector<PortPair> pairs;
  {
    ControlGuard guard(engine.lock);
    std::erase(engine.live_paths, &path);
    pairs = std::move(path.pairs);
    path.pairs.clear();
    if (path.outbound) {
      for (DataQueue& queue : static_cast<OutPath&>(path).queues) {
        queue.port->cq_credits += queue.depth - queue.free_wrs;
        queue.free_wrs = queue.depth = 0;
      }
      for (SendConnection* connection : static_cast<OutPath&>(path).connections) {
        ForEachOpenRequest(*connection, [&](auto& request, const auto&) { GiveBack(engine, request); });
      }
    } else {
      for (ControlQueue& control : static_cast<InPath&>(path).controls) {
        control.port->cq_credits += control.depth - control.free_wrs;
        control.free_wrs = control.depth = 0;
      }
    }
  }
  pairs.clear();
  path.stopped = true;
  for (const std::unique_ptr<Connection>& owned : engine.connections) {
    if (auto* send = dynamic_cast<SendConnection*>(owned.get()); send != nullptr && send->path == &path)
      ReleaseIfDead(*send);
    if (auto* receive = dynamic_cast<RecvConnection*>(owned.get());
        receive != nullptr && receive->path == &path)
      ReleaseIfDead(*receive);
  }
  if (path.outbound) {
    auto& out = static_cast<OutPath&>(path);
    if (out.link != nullptr) {
      out.link->paths_by_id.erase(out.id);
      out.link->base_psn.erase(&out);
      std::erase_if(out.link->paths, [&](const auto& entry) { return entry.second == &out; });
    }
    out.link = nullptr;
  } else {
    auto& in = static_cast<InPath&>(path);
    if (in.link != nullptr) {
      in.link->paths.erase(in.id);
      if (in.closing) in.link->link->Send(FrameType::kByeOk, PathIdFrame{in.id});
    }
    in.link = nullptr;
  }
  FinishIfIdle(engine);
}

void DrainStep(Path& path, int steps_left) {
  bool drained = false;
  {
    ControlGuard guard(path.engine.lock);
    path.engine.Poll();
    drained = Outstanding(path) == 0;
  }
  if (drained || steps_left == 0) return FinishStop(path);
  path.engine.loop.After(kDrainStep, [&path, steps_left] { DrainStep(path, steps_left - 1); });
}

void OnClosed(SendConnection& connection) {
  connection.close_done = true;
  Engine& engine = *connection.engine;
  OutPath& path = *connection.path;
  {
    ControlGuard guard(engine.lock);
    std::erase(path.connections, &connection);
  }
  --path.open_connections;
  if (path.link != nullptr && !path.failed)
    path.link->link->Send(FrameType::kClose, CloseFrame{path.id, connection.index, 1});
  ReleaseIfDead(connection);
  EndIfUnused(path);
  DropUser(engine);
}

void OnClosed(RecvConnection& connection) {
  connection.close_done = true;
  Engine& engine = *connection.engine;
  InPath& path = *connection.path;
  {
    ControlGuard guard(engine.lock);
    std::erase(path.connections, &connection);
    if (engine.receivers != nullptr && engine.receivers[connection.index] == &connection)
      engine.receivers[connection.index] = nullptr;
  }
  --path.open_connections;
  if (path.link != nullptr && !path.failed)
    path.link->link->Send(FrameType::kClose, CloseFrame{path.id, connection.index, 0});
  ReleaseIfDead(connection);
  if (path.open_connections == 0 && (path.closing || path.failed || path.link == nullptr)) StopPath(path);
  DropUser(engine);
}

}  // namespace

void NotifyPathFailed(Path& path) {
  path.engine.loop.Post([&path] {
    if (path.stopping) return;
    Status cause;
    {
      ControlGuard guard(path.engine.lock);
      cause = path.failure;
    }
    StopQueues(path);
    SLUICE_INFO(kLogNet, "path %s %s failed: %s", path.outbound ? "to" : "from", path.peer.c_str(),
                cause.message().c_str());
    const TextFrame abort{path.id, cause.message().substr(0, 1000)};
    if (path.outbound) {
      auto& out = static_cast<OutPath&>(path);
      if (out.link != nullptr && !out.told_by_peer) out.link->link->Send(FrameType::kAbort, abort);
      FailSetup(out, cause);
    } else {
      auto& in = static_cast<InPath&>(path);
      if (in.link != nullptr && !in.told_by_peer) in.link->link->Send(FrameType::kAbort, abort);
    }
    if (path.open_connections == 0) StopPath(path);
  });
}

Status CloseConnection(Connection& connection) {
  Engine& engine = *connection.engine;
  {
    ControlGuard guard(engine.lock);
    if (connection.closed) return InvalidUsage("the connection was closed before");
    connection.closed = true;
    if (engine.port_count != 0) engine.Poll();
    uint32_t busy = 0;
    ForEachOpenRequest(connection, [&](auto& request, const auto&) {
      engine.Remove(&request);
      ++busy;
    });
    Path& path = PathOf(connection);
    if (busy != 0 && !path.failed) {
      engine.FailPath(path, RemoteError("a connection was closed with " + std::to_string(busy) +
                                        " requests open: the communicator was aborted there"));
    }
    connection.Fail(InvalidUsage("the connection is closed"));
  }
  engine.loop.Post([&connection] {
    if (auto* send = dynamic_cast<SendConnection*>(&connection)) {
      OnClosed(*send);
    } else {
      OnClosed(static_cast<RecvConnection&>(connection));
    }
  });
  return Status::Ok();
}

void QuiesceMemory(Connection& connection, const MemoryHandle& memory) {
  Engine& engine = *connection.engine;
  Path& path = PathOf(connection);
  const auto deadline = std::chrono::steady_clock::now() + kDrainStep * kDrainSteps;
  bool stopped = false;
  for (;;) {
    bool busy = false;
    {
      ControlGuard guard(engine.lock);
      if (engine.port_count == 0) return;
      engine.Poll();
      ForEachOpenRequest(connection, [&](auto& request, const auto& uses) {
        if (!uses(memory)) return;
        if constexpr (std::is_same_v<std::decay_t<decltype(request)>, SendRequest>) {
          busy |= request.chunks_pending != 0 || !path.failed;
        } else {
          busy |= !stopped;
        }
      });
      if (!busy) return;
      engine.FailPath(
          path,
          RemoteError("memory was deregistered while a request used it: the communicator was aborted there"));
    }
    if (!stopped) {
      // From here on the peer's writes are refused and our own work is flushed.
      engine.loop.Run([&path] { StopQueues(path); });
      stopped = true;
    } else if (std::chrono::steady_clock::now() > deadline) {
      return;
    } else {
      usleep(200);
    }
  }
}

void StopPath(Path& path) {
  if (path.stopping) return;
  path.stopping = true;
  if (path.timer != 0) path.engine.loop.Cancel(path.timer);
  path.timer = 0;
  {
    ControlGuard guard(path.engine.lock);
    if (!path.failed) {
      path.failed = true;
      path.failure = InvalidUsage("the path was closed");
    }
  }
  StopQueues(path);
  DrainStep(path, kDrainSteps);
}

void EndIfUnused(OutPath& path) {
  if (path.open_connections != 0 || path.stopping || path.closing) return;
  if (path.link == nullptr || path.failed) return StopPath(path);
  path.closing = true;
  path.link->link->Send(FrameType::kBye, PathIdFrame{path.id});
  path.timer = path.engine.loop.After(kByeTimeout, [&path] {
    path.timer = 0;
    StopPath(path);
  });
}

void OnPeerClosed(SendConnection& connection) {
  {
    ControlGuard guard(connection.engine->lock);
    connection.peer_closed = true;
  }
  ReleaseIfDead(connection);
}

void OnPeerClosed(RecvConnection& connection) {
  {
    ControlGuard guard(connection.engine->lock);
    connection.peer_closed = true;
  }
  ReleaseIfDead(connection);
  if (connection.closed) return;
  connection.engine->loop.After(kPeerClosedGrace, [&connection] {
    ControlGuard guard(connection.engine->lock);
    if (connection.closed) return;
    connection.engine->Poll();
    connection.Fail(RemoteError("the sender " + connection.path->peer +
                                " closed the connection; see the log of that host for the cause"));
  });
}

void OnBye(InPath& path) {
  path.closing = true;
  if (path.open_connections == 0) StopPath(path);
}

void OnByeOk(OutPath& path) {
  if (path.closing) StopPath(path);
}

void FinalizeEngine(Engine& engine, const Status& reason) {
  if (engine.finalizing) return;
  engine.finalizing = true;
  UnregisterEngine(engine.uid);
  RemoveDeviceUser(engine);
  for (auto& [uid, link] : engine.out_links) FailSetup(*link, reason);
  for (auto& [id, listener] : engine.listeners) CloseListener(*listener, reason);
  engine.listeners.clear();
  for (const std::unique_ptr<Connection>& connection : engine.connections) {
    if (!connection->closed) (void)CloseConnection(*connection);
  }
  // The tasks that CloseConnection posted come first; then paths that never had a connection, or whose sender
  // lives on.
  engine.loop.Post([&engine] {
    for (const std::unique_ptr<Path>& path : engine.paths) {
      if (path->stopping || path->stopped || path->open_connections != 0) continue;
      if (path->outbound) {
        if (!path->closing) StopPath(*path);
      } else if (path->timer == 0) {
        Path* waiting = path.get();
        waiting->timer = engine.loop.After(kByeTimeout, [waiting] {
          waiting->timer = 0;
          StopPath(*waiting);
        });
      }
    }
    FinishIfIdle(engine);
  });
}

}  // namespace sluice
