// Set-up at the sending side: link, Hello, Path, Open. Event thread.
#include <arpa/inet.h>
#include <limits.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "plugin/log.h"
#include "plugin/transport/control.h"
#include "plugin/transport/devices.h"
#include "plugin/transport/lane_setup.h"
#include "plugin/transport/service_levels.h"
#include "plugin/transport/teardown.h"

namespace sluice {
namespace {

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, HOST_NAME_MAX);
  return std::string(name) + ":" + std::to_string(getpid());
}

SocketAddress AddressOf(const ListenHandle& handle) {
  SocketAddress address;
  if (handle.family == AF_INET) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(handle.port);
    std::copy_n(handle.address.begin(), 4, reinterpret_cast<uint8_t*>(&v4->sin_addr));
    address.length = sizeof(sockaddr_in);
  } else {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(handle.port);
    v6->sin6_scope_id = handle.scope_id;
    std::copy_n(handle.address.begin(), 16, reinterpret_cast<uint8_t*>(&v6->sin6_addr));
    address.length = sizeof(sockaddr_in6);
  }
  return address;
}

uint32_t RandomPsn() {
  uint32_t psn = 0;
  [[maybe_unused]] const ssize_t got = getrandom(&psn, sizeof(psn), 0);
  return psn & 0xffffff;
}

void FailAttempts(std::vector<AttemptPtr> attempts, const Status& cause) {
  for (const AttemptPtr& attempt : attempts) FinishAttempt(attempt, nullptr, cause);
}

void SendOpen(OutLink& link, OutPath& path, const AttemptPtr& attempt) {
  if (attempt->finished.load(std::memory_order_relaxed)) return;
  Engine& engine = link.engine;
  Result<TablePool::Block> block = engine.tables.Take();
  if (!block.ok()) return FinishAttempt(attempt, nullptr, block.status());
  auto owned = std::make_unique<SendConnection>();
  SendConnection& connection = *owned;
  engine.connections.push_back(std::move(owned));
  connection.path = &path;
  connection.id = link.next_connection++;
  connection.max_recvs = static_cast<uint32_t>(engine.params.max_recvs);
  connection.table = block->address;
  connection.cts_ring = static_cast<CtsEntry*>(block->address);
  connection.head = connection.cts_ring;
  connection.records = reinterpret_cast<Record*>(connection.cts_ring + kSlots * connection.max_recvs);
  for (uint32_t i = 0; i < engine.port_count; ++i) connection.table_lkeys[i] = block->memory->lkey(i);
  ResetConnection(connection, engine);

  OpenFrame open;
  open.path = path.id;
  open.sender_connection = connection.id;
  open.listen_id = attempt->handle.listen_id;
  open.secret = attempt->handle.secret;
  open.cts_ring = reinterpret_cast<uint64_t>(connection.cts_ring);
  open.max_recvs = static_cast<uint8_t>(connection.max_recvs);
  for (uint32_t i = 0; i < engine.port_count; ++i) open.rkeys.push_back(block->memory->rkeys()[i]);
  link.opening[connection.id] = {attempt, &connection};
  ++path.open_connections;
  attempt->step = "waiting for the peer to accept (OPEN sent)";
  link.link->Send(FrameType::kOpen, open);
}

// Undoes SendOpen.
void DropOpening(OutLink& link, uint32_t id) {
  const auto found = link.opening.find(id);
  if (found == link.opening.end()) return;
  SendConnection& connection = *found->second.second;
  link.opening.erase(found);
  link.engine.tables.Return(connection.table);
  connection.table = nullptr;
  connection.closed = true;
  connection.Fail(InternalError("connection was never opened"));
  OutPath& path = *connection.path;
  --path.open_connections;
  EndIfUnused(path);
}

void FailPathSetup(OutLink& link, OutPath& path, const Status& cause) {
  {
    ControlGuard guard(link.engine.lock);
    link.engine.FailPath(path, cause);
  }
  FailSetup(path, cause);
}

// The peer has not heard of the path.
void FailBeforePath(OutPath& path, const Status& cause) {
  path.told_by_peer = true;
  FailPathSetup(*path.link, path, cause);
}

// Queue pairs, and PATH for them.
void SendPath(OutPath& path, const std::vector<PortMatch>& matched, const std::vector<LaneSpec>& lanes,
              const PairLevels& levels) {
  OutLink& link = *path.link;
  Engine& engine = path.engine;
  for (const auto& [sender_port, receiver_port] : matched) {
    PortPair& pair = path.pairs.emplace_back();
    pair.sender_port = sender_port;
    pair.receiver_port = receiver_port;
    if (!levels.empty()) pair.levels = levels[path.pairs.size() - 1];
  }
  if (Status status = CreateQueues(path, lanes); !status.ok()) {
    path.pairs.clear();
    return FailBeforePath(path, status);
  }
  PathFrame frame = AskFor(path);
  frame.base_psn = RandomPsn();
  {
    ControlGuard guard(engine.lock);
    engine.live_paths.push_back(&path);
  }
  link.base_psn[&path] = frame.base_psn;
  for (const AttemptPtr& attempt : link.waiting_path[&path])
    attempt->step = "exchanging queue pairs (PATH sent)";
  link.link->Send(FrameType::kPath, frame);
}

void StartPath(OutLink& link, const PathKey& key, const AttemptPtr& attempt) {
  Engine& engine = link.engine;
  attempt->step = "creating queue pairs";
  std::vector<PortAddress> own;
  for (uint32_t i = 0; i < engine.port_count; ++i) {
    if (Status status = RefreshPort(engine.ports[i], engine.params); !status.ok())
      return FinishAttempt(attempt, nullptr, status);
    own.push_back(engine.AddressOf(i));
  }
  auto matched = MatchPorts(own, link.peer.ports);
  if (!matched.ok()) return FinishAttempt(attempt, nullptr, matched.status());

  auto owned = std::make_unique<OutPath>(engine);
  OutPath& path = *owned;
  engine.paths.push_back(std::move(owned));
  path.outbound = true;
  path.link = &link;
  path.id = link.next_path++;
  path.peer = link.peer.host;
  link.paths[key] = &path;
  link.paths_by_id[path.id] = &path;
  link.waiting_path[&path].push_back(attempt);
  std::vector<LaneSpec> lanes = attempt->lanes;
  OrderLanes(lanes);
  if (!engine.params.sl_from_path) return SendPath(path, *matched, lanes, {});
  if (!engine.infiniband) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) {
      SLUICE_INFO(kLogNet, "SLUICE_SL_SOURCE=path has no effect on RoCE: %s has no subnet administrator",
                  engine.Describe().c_str());
    }
    return SendPath(path, *matched, lanes, {});
  }
  attempt->step = "asking the subnet administrator for service levels (SLUICE_SL_SOURCE=path)";
  // Paths live to the end of the process.
  AskServiceLevels(engine, path.peer, link.peer.ports, *matched, std::move(lanes),
                   [&path, pairs = *matched](const Status& status, const std::vector<LaneSpec>& resolved,
                                             const PairLevels& levels) {
                     if (path.failed || path.stopping || path.link == nullptr) return;
                     if (!status.ok()) return FailBeforePath(path, status);
                     SendPath(path, pairs, resolved, levels);
                   });
}

void EnsurePath(OutLink& link, const AttemptPtr& attempt) {
  if (attempt->finished.load(std::memory_order_relaxed)) return;
  PathKey key;
  for (const LaneSpec& lane : attempt->lanes) key.emplace_back(lane.sl, lane.traffic_class);
  const auto found = link.paths.find(key);
  if (found != link.paths.end() && !found->second->failed && !found->second->closing) {
    OutPath& path = *found->second;
    if (path.usable) return SendOpen(link, path, attempt);
    attempt->step = "exchanging queue pairs (another connection started it)";
    link.waiting_path[&path].push_back(attempt);
    return;
  }
  StartPath(link, key, attempt);
}

Status OnPathOk(OutLink& link, const PathFrame& frame) {
  const auto found = link.paths_by_id.find(frame.path);
  if (found == link.paths_by_id.end()) return Status::Ok();  // failed meanwhile
  OutPath& path = *found->second;
  if (path.usable || path.failed) return Status::Ok();
  Engine& engine = link.engine;
  if (!ApplyRefusals(path, frame))
    return RemoteError(
        "link to " + path.peer +
        ": PATH_OK does not match PATH; Sluice releases differ, install the same on all hosts");
  path.max_message_bytes = frame.max_message_bytes;
  path.stripe_above_bytes = frame.stripe_above_bytes;
  Status status;
  for (uint32_t i = 0; status.ok() && i < path.pairs.size(); ++i) {
    status = ConnectPair(engine, path, path.pairs[i], i, frame.pairs[i],
                         link.peer.ports[path.pairs[i].receiver_port], link.base_psn[&path], frame.base_psn);
  }
  if (status.ok() && (path.max_message_bytes == 0 || path.stripe_above_bytes == 0))
    status = RemoteError("link to " + path.peer + ": PATH_OK has no sizes");
  if (!status.ok()) {
    FailPathSetup(link, path, status);
    return Status::Ok();
  }
  {
    ControlGuard guard(engine.lock);
    PublishQueues(path);
  }
  link.link->Send(FrameType::kPathUp, PathIdFrame{path.id});
  LogPath(path, link.peer.ports);
  std::vector<AttemptPtr> attempts = std::move(link.waiting_path[&path]);
  link.waiting_path.erase(&path);
  for (const AttemptPtr& attempt : attempts) SendOpen(link, path, attempt);
  EndIfUnused(path);  // all of them took too long
  return Status::Ok();
}

Status OnConn(OutLink& link, const ConnFrame& frame) {
  const auto found = link.opening.find(frame.sender_connection);
  if (found == link.opening.end()) return Status::Ok();
  const AttemptPtr attempt = found->second.first;
  SendConnection& connection = *found->second.second;
  Engine& engine = link.engine;
  OutPath& path = *connection.path;
  if (frame.max_recvs != connection.max_recvs || frame.rkeys.size() != link.peer.ports.size()) {
    const Status mismatch = InvalidUsage("SLUICE_MAX_RECVS is " + std::to_string(connection.max_recvs) +
                                         " here and " + std::to_string(frame.max_recvs) + " on " + path.peer +
                                         "; set the same value on every rank");
    DropOpening(link, frame.sender_connection);
    FinishAttempt(attempt, nullptr, mismatch);
    return Status::Ok();
  }
  link.opening.erase(found);
  {
    ControlGuard guard(engine.lock);
    connection.index = frame.index;
    connection.remote_records = frame.record_ring;
    std::copy_n(frame.rkeys.begin(), std::min<size_t>(frame.rkeys.size(), kMaxMergedPorts),
                connection.remote_record_rkeys.begin());
    path.connections.push_back(&connection);
    if (path.failed) connection.Fail(path.failure);
  }
  FinishAttempt(attempt, &connection, Status::Ok());
  return Status::Ok();
}

Status BadFrame(const OutLink& link, const char* name) {
  return RemoteError("link to " + link.link->peer() + ": malformed " + name +
                     " frame; Sluice releases differ, install the same on all hosts");
}

Status OnFrame(OutLink& link, FrameType type, std::span<const std::byte> payload) {
  Engine& engine = link.engine;
  switch (type) {
    case FrameType::kHelloOk: {
      const auto frame = Decode<HelloOkFrame>(payload);
      if (!frame || link.state != OutLink::State::kHello || frame->ports.empty() ||
          frame->ports.size() > kMaxMergedPorts)
        return BadFrame(link, "HELLO_OK");
      link.peer = *frame;
      link.state = OutLink::State::kReady;
      std::vector<AttemptPtr> attempts = std::move(link.waiting);
      link.waiting.clear();
      for (const AttemptPtr& attempt : attempts) EnsurePath(link, attempt);
      return Status::Ok();
    }
    case FrameType::kReject: {
      const auto frame = Decode<TextFrame>(payload);
      return RemoteError("the peer " + link.link->peer() +
                         " refused the link: " + (frame ? frame->text : "no reason given"));
    }
    case FrameType::kPathOk: {
      const auto frame = Decode<PathFrame>(payload);
      return frame ? OnPathOk(link, *frame) : BadFrame(link, "PATH_OK");
    }
    case FrameType::kPathFail:
    case FrameType::kAbort: {
      const auto frame = Decode<TextFrame>(payload);
      if (!frame) return BadFrame(link, "ABORT");
      const auto found = link.paths_by_id.find(frame->id);
      if (found == link.paths_by_id.end()) return Status::Ok();
      OutPath& path = *found->second;
      const Status cause = RemoteError("the peer " + path.peer + " reports: " + frame->text);
      path.told_by_peer = true;
      FailPathSetup(link, path, cause);
      return Status::Ok();
    }
    case FrameType::kConn: {
      const auto frame = Decode<ConnFrame>(payload);
      return frame ? OnConn(link, *frame) : BadFrame(link, "CONN");
    }
    case FrameType::kOpenFail: {
      const auto frame = Decode<TextFrame>(payload);
      if (!frame) return BadFrame(link, "OPEN_FAIL");
      const auto found = link.opening.find(frame->id);
      if (found == link.opening.end()) return Status::Ok();
      const AttemptPtr attempt = found->second.first;
      DropOpening(link, frame->id);
      FinishAttempt(attempt, nullptr,
                    RemoteError("the peer " + link.peer.host + " refused the connection: " + frame->text));
      return Status::Ok();
    }
    case FrameType::kClose: {
      const auto frame = Decode<CloseFrame>(payload);
      if (!frame) return BadFrame(link, "CLOSE");
      for (const std::unique_ptr<Connection>& owned : engine.connections) {
        auto* connection = dynamic_cast<SendConnection*>(owned.get());
        if (connection != nullptr && connection->path->link == &link && connection->path->id == frame->path &&
            connection->index == frame->index && connection->table != nullptr && !connection->peer_closed) {
          OnPeerClosed(*connection);
          break;
        }
      }
      return Status::Ok();
    }
    case FrameType::kByeOk: {
      const auto frame = Decode<PathIdFrame>(payload);
      if (!frame) return BadFrame(link, "BYE_OK");
      const auto found = link.paths_by_id.find(frame->path);
      if (found != link.paths_by_id.end()) OnByeOk(*found->second);
      return Status::Ok();
    }
    default:
      return RemoteError("link to " + link.link->peer() + ": unexpected frame type " +
                         std::to_string(static_cast<int>(type)) +
                         "; Sluice releases differ, install the same on all hosts");
  }
}

void StartHello(OutLink& link) {
  Engine& engine = link.engine;
  link.link = std::make_unique<Link>(engine.loop, std::move(link.connecting), link.address.ToString());
  OutLink* self = &link;
  const Status started = link.link->Start(
      [self](FrameType type, std::span<const std::byte> payload) { return OnFrame(*self, type, payload); },
      [self](const Status& cause) { OnOutLinkLost(*self, cause); });
  if (!started.ok()) return OnOutLinkLost(link, started);
  HelloFrame hello;
  hello.min_version = hello.max_version = kProtocolVersion;
  hello.sender_uid = engine.uid;
  hello.receiver_uid = link.peer_uid;
  hello.listen_id = link.listen_id;
  hello.secret = link.secret;
  hello.library = SLUICE_VERSION;
  hello.host = HostName();
  for (uint32_t i = 0; i < engine.port_count; ++i) hello.ports.push_back(engine.AddressOf(i));
  link.state = OutLink::State::kHello;
  for (const AttemptPtr& attempt : link.waiting) attempt->step = "introducing itself (HELLO sent)";
  link.link->Send(FrameType::kHello, hello);
}

void OpenLink(OutLink& link) {
  Engine& engine = link.engine;
  Result<Socket> socket = StartConnect(link.address);
  if (!socket.ok()) return OnOutLinkLost(link, socket.status());
  link.connecting = std::move(*socket);
  OutLink* self = &link;
  const int fd = link.connecting.fd();
  const Status watched = engine.loop.Watch(fd, EPOLLOUT, [self, fd](uint32_t) {
    OutLink& connected = *self;
    connected.engine.loop.Unwatch(fd);
    const Status outcome = ConnectOutcome(connected.connecting, connected.address);
    if (!outcome.ok()) {
      connected.connecting = Socket();
      return OnOutLinkLost(connected, outcome);
    }
    StartHello(connected);
  });
  if (!watched.ok()) OnOutLinkLost(link, watched);
}

}  // namespace

void StartConnect(const AttemptPtr& attempt) {
  Engine& engine = attempt->engine;
  if (engine.finalizing) return FinishAttempt(attempt, nullptr, InvalidUsage("connect after finalize"));
  attempt->deadline =
      engine.loop.After(std::chrono::milliseconds(engine.params.connect_timeout_ms), [attempt] {
        attempt->deadline = 0;
        FinishAttempt(
            attempt, nullptr,
            RemoteError("connecting to " + AddressOf(attempt->handle).ToString() + " took longer than " +
                        std::to_string(attempt->engine.params.connect_timeout_ms) +
                        " ms (SLUICE_CONNECT_TIMEOUT_MS); it stopped at: " + attempt->step));
      });
  std::unique_ptr<OutLink>& slot = engine.out_links[attempt->handle.engine_uid];
  if (slot == nullptr) {
    slot = std::make_unique<OutLink>(engine);
    slot->peer_uid = attempt->handle.engine_uid;
    slot->address = AddressOf(attempt->handle);
    slot->secret = attempt->handle.secret;
    slot->listen_id = attempt->handle.listen_id;
    attempt->step = "connecting the TCP link";
    slot->waiting.push_back(attempt);
    return OpenLink(*slot);
  }
  if (slot->state == OutLink::State::kReady) return EnsurePath(*slot, attempt);
  attempt->step = "waiting for the link that another connection opened";
  slot->waiting.push_back(attempt);
}

void FinishAttempt(const AttemptPtr& attempt, SendConnection* connection, const Status& error) {
  if (attempt->finished.load(std::memory_order_relaxed)) {
    // The deadline was faster, and dropped the attempt's user: nobody will claim this connection, whose close
    // drops one more.
    if (connection != nullptr) {
      attempt->engine.users.fetch_add(1);
      (void)CloseConnection(*connection);
    }
    return;
  }
  EventLoop& loop = attempt->engine.loop;
  if (attempt->deadline != 0) loop.Cancel(attempt->deadline);
  attempt->deadline = 0;
  attempt->connection = connection;
  attempt->error = error;
  attempt->finished.store(true, std::memory_order_release);
  if (connection == nullptr) return DropUser(attempt->engine);
  // NCCL drops half-open connections without a close.
  loop.After(std::chrono::milliseconds(attempt->engine.params.connect_timeout_ms), [attempt] {
    if (!attempt->claimed.exchange(true)) (void)CloseConnection(*attempt->connection);
  });
}

void FailSetup(OutPath& path, const Status& cause) {
  if (path.link == nullptr) return;
  OutLink& link = *path.link;
  std::vector<AttemptPtr> attempts;
  if (const auto waiting = link.waiting_path.find(&path); waiting != link.waiting_path.end()) {
    attempts = std::move(waiting->second);
    link.waiting_path.erase(waiting);
  }
  std::vector<uint32_t> opening;
  for (const auto& [id, entry] : link.opening) {
    if (entry.second->path != &path) continue;
    opening.push_back(id);
    attempts.push_back(entry.first);
  }
  for (const uint32_t id : opening) DropOpening(link, id);
  FailAttempts(std::move(attempts), cause);
}

void FailSetup(OutLink& link, const Status& cause) {
  std::vector<AttemptPtr> attempts = std::move(link.waiting);
  link.waiting.clear();
  const auto paths = link.paths_by_id;
  for (const auto& [id, path] : paths) FailSetup(*path, cause);
  FailAttempts(std::move(attempts), cause);
}

void DropUser(Engine& engine) {
  if (engine.users.fetch_sub(1) == 1 && engine.retire) engine.retire(engine);
}

void OnOutLinkLost(OutLink& link, const Status& cause) {
  Engine& engine = link.engine;
  if (link.connecting) {
    engine.loop.Unwatch(link.connecting.fd());
    link.connecting = Socket();
  }
  FailSetup(link, cause);
  const auto paths = link.paths_by_id;
  for (const auto& [id, path] : paths) {
    path->link = nullptr;
    {
      ControlGuard guard(engine.lock);
      engine.FailPath(*path, cause);
    }
    if (path->open_connections == 0) StopPath(*path);
  }
  // Destroys the link, whose frame handler may be on the stack: later.
  const uint64_t uid = link.peer_uid;
  auto dead = std::make_shared<std::unique_ptr<OutLink>>(std::move(engine.out_links[uid]));
  engine.out_links.erase(uid);
  engine.loop.Post([dead] {});
}

Status RefreshPort(EnginePort& port, const Params& params) {
  Result<ibv_port_attr> attributes = port.device->QueryPort(port.port.number);
  if (!attributes.ok()) return attributes.status();
  Result<std::vector<GidEntry>> gids = ReadGidTable(*port.device, port.port.number, attributes->gid_tbl_len);
  if (!gids.ok()) return gids.status();
  port.attributes = *attributes;
  if (std::optional<GidEntry> same = FindGid(*gids, port.gid)) {
    port.gid = *same;
    return Status::Ok();
  }
  Result<GidEntry> chosen = ChooseGid(*gids, port.port.link_layer, port.port.name, GidOptionsFrom(params));
  if (!chosen.ok()) return chosen.status();
  port.gid = *chosen;
  return Status::Ok();
}

}  // namespace sluice
