// Set-up at the receiving side: the listener of the process, admission, Path, Open. Event thread.
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "plugin/log.h"
#include "plugin/transport/control.h"
#include "plugin/transport/teardown.h"

namespace sluice {
namespace {

// Strangers that may wait for admission at once; the oldest makes room.
constexpr size_t kMaxStrangers = 128;
constexpr uint64_t kLoggedStrangers = 16;

// A connection that has not yet presented a secret.
struct Stranger {
  std::unique_ptr<Link> link;
  EventLoop::TimerId deadline = 0;
};

struct Server {
  Socket listener;
  SocketAddress address;
  std::map<uint64_t, Stranger> strangers;
  uint64_t next_stranger = 1;
  uint64_t rejected = 0;
  bool exhausted = false;  // out of descriptors since the last link that was accepted
};

std::mutex server_mutex;
Server* server = nullptr;  // made once; contents belong to the event thread

std::mutex engines_mutex;
std::map<uint64_t, Engine*>& Engines() {
  static auto* const engines = new std::map<uint64_t, Engine*>;
  return *engines;
}

bool SameSecret(const Secret& a, const Secret& b) {  // in constant time
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

void DropStranger(EventLoop& loop, uint64_t id, const std::string& reason) {
  const auto found = server->strangers.find(id);
  if (found == server->strangers.end()) return;
  if (found->second.deadline != 0) loop.Cancel(found->second.deadline);
  // A port scan must not fill the log: the first ones, then the 32nd, the 64th, the 128th...
  ++server->rejected;
  if (server->rejected <= kLoggedStrangers || std::has_single_bit(server->rejected)) {
    SLUICE_INFO(kLogNet, "set-up link from %s closed: %s (%llu so far)", found->second.link->peer().c_str(),
                reason.c_str(), static_cast<unsigned long long>(server->rejected));
  }
  found->second.link->Close();
  // Its frame handler may be on the stack.
  auto dead = std::make_shared<std::unique_ptr<Link>>(std::move(found->second.link));
  server->strangers.erase(found);
  loop.Post([dead] {});
}

Status BadFrame(const InLink& link, const char* name) {
  return RemoteError("link from " + link.peer.host + ": malformed " + name +
                     " frame; Sluice releases differ, install the same on all hosts");
}

// The queue pairs of a path that the sender asks for, in the order of its classes. A class for which this device has
// no room is refused (its queue pairs become 0 in path.classes); control and the default class must fit.
Status CreateQueues(InPath& path, const PathFrame& frame) {
  Engine& engine = path.engine;
  for (const PairFrame& theirs : frame.pairs) {
    PortPair& pair = path.pairs.emplace_back();
    pair.sender_port = theirs.sender_port;
    pair.receiver_port = theirs.receiver_port;
    for (size_t i = 0; i < theirs.service_levels.size(); i += 2)
      pair.levels.push_back({theirs.service_levels[i], theirs.service_levels[i + 1]});
    SLUICE_RETURN_IF_ERROR(CreateControl(engine, false, pair));
  }
  path.classes = frame.classes;
  for (size_t i = 0; i < path.classes.size(); ++i) {
    ClassFrame& service_class = path.classes[i];
    const size_t before = path.pairs[0].data.size();
    Status status;
    for (PortPair& pair : path.pairs) {
      if (status.ok()) status = CreateData(engine, false, service_class.queue_pairs, pair);
    }
    if (status.ok()) continue;
    if (i < 2) return status;
    SLUICE_WARN("path from %s: the lane of class %s is refused: %s", path.peer.c_str(),
                service_class.name.c_str(), status.message().c_str());
    service_class.queue_pairs = 0;
    for (PortPair& pair : path.pairs) {
      while (pair.data.size() > before) pair.data.pop_back();
    }
  }
  return Status::Ok();
}

// The sender's numbers of the classes that were not refused.
std::vector<uint32_t> AcceptedNumbers(const PathFrame& frame, const PairFrame& pair,
                                      const std::vector<ClassFrame>& classes) {
  std::vector<uint32_t> numbers;
  size_t next = 0;
  for (size_t i = 0; i < classes.size(); ++i) {
    for (uint32_t j = 0; j < frame.classes[i].queue_pairs; ++j, ++next) {
      if (classes[i].queue_pairs != 0) numbers.push_back(pair.data_qpns[next]);
    }
  }
  return numbers;
}

void OnPath(InLink& link, const PathFrame& frame) {
  Engine& engine = link.engine;
  auto refuse = [&](const Status& cause) {
    SLUICE_WARN("path from %s refused: %s", link.peer.host.c_str(), cause.message().c_str());
    link.link->Send(FrameType::kPathFail, TextFrame{frame.path, cause.message()});
  };
  // Finalize has seen to the paths that there were: what came later would keep its queue pairs.
  if (engine.finalizing) return refuse(InvalidUsage("the communicator was finalized there"));
  for (const ClassFrame& service_class : frame.classes) {
    if (service_class.sl > 15)
      return refuse(
          InvalidArgument("service level " + std::to_string(service_class.sl) + " is out of range 0 to 15"));
  }
  const uint32_t queues = QueueCount(frame.classes);
  bool sound = !frame.pairs.empty() && frame.pairs.size() <= kMaxMergedPorts && frame.classes.size() >= 2 &&
               frame.classes.size() <= kMaxServiceClasses && frame.classes[0].queue_pairs == 0 &&
               frame.classes[1].queue_pairs > 0 && frame.stripes > 0 &&
               frame.max_message_bytes >= kChunkAlignBytes && frame.stripe_above_bytes > 0 &&
               !link.paths.contains(frame.path);
  for (const PairFrame& pair : frame.pairs) {
    sound = sound && pair.sender_port < link.peer.ports.size() && pair.receiver_port < engine.port_count &&
            pair.data_qpns.size() == queues &&
            (pair.service_levels.empty() || pair.service_levels.size() == 2 * frame.classes.size()) &&
            std::all_of(pair.service_levels.begin(), pair.service_levels.end(),
                        [](uint8_t sl) { return sl <= 15; });
  }
  if (!sound) return refuse(RemoteError("the PATH frame is inconsistent"));
  for (uint32_t i = 0; i < engine.port_count; ++i) {
    if (Status status = RefreshPort(engine.ports[i], engine.params); !status.ok()) return refuse(status);
  }

  auto owned = std::make_unique<InPath>(engine);
  InPath& path = *owned;
  path.link = &link;
  path.id = frame.path;
  path.peer = link.peer.host;
  path.stripes = frame.stripes;
  uint32_t port_limit = 0x80000000u;
  for (uint32_t i = 0; i < engine.port_count; ++i)
    port_limit = std::min(port_limit, engine.ports[i].attributes.max_msg_sz);
  path.max_message_bytes =
      std::min(frame.max_message_bytes, port_limit / kChunkAlignBytes * kChunkAlignBytes);
  path.stripe_above_bytes = std::min<uint64_t>(frame.stripe_above_bytes, path.max_message_bytes);
  PathFrame answer = frame;
  [[maybe_unused]] const ssize_t got = getrandom(&answer.base_psn, sizeof(answer.base_psn), 0);
  answer.base_psn &= 0xffffff;
  answer.max_message_bytes = static_cast<uint32_t>(path.max_message_bytes);
  answer.stripe_above_bytes = static_cast<uint32_t>(path.stripe_above_bytes);
  Status status = CreateQueues(path, frame);
  answer.classes = path.classes;
  for (uint32_t i = 0; i < frame.pairs.size() && status.ok(); ++i) {
    PortPair& pair = path.pairs[i];
    PairFrame theirs = frame.pairs[i];
    theirs.data_qpns = AcceptedNumbers(frame, frame.pairs[i], path.classes);
    status = ConnectPair(engine, path, pair, i, theirs, link.peer.ports[theirs.sender_port], answer.base_psn,
                         frame.base_psn);
    PairFrame& numbers = answer.pairs[i];
    numbers.mtu = static_cast<uint8_t>(pair.mtu);
    numbers.control_qpn = pair.control.number();
    numbers.data_qpns.clear();
    for (const QueuePair& queue : pair.data) numbers.data_qpns.push_back(queue.number());
    numbers.ece = {};
    if (engine.params.ib_ece_enable && theirs.ece.vendor_id != 0) {
      Result<ibv_ece> ece = pair.control.QueryEce();  // what remains after both ends' options were combined
      if (ece.ok()) numbers.ece = {ece->vendor_id, ece->options, ece->comp_mask};
    }
  }
  if (!status.ok()) {
    path.pairs.clear();
    return refuse(status);
  }
  path.controls.resize(path.pairs.size());
  for (uint32_t i = 0; i < path.pairs.size(); ++i) {
    ControlQueue& control = path.controls[i];
    const PortPair& pair = path.pairs[i];
    control.qp = pair.control.get();
    control.port = &engine.ports[pair.receiver_port];
    control.depth = control.free_wrs = std::min(kControlQueueDepth, pair.control.caps().max_send_wr);
    control.signal_every = std::clamp(control.depth / 4, 1u, 16u);
    control.max_inline = pair.control.caps().max_inline_data;
    control.Prepare();
  }
  engine.paths.push_back(std::move(owned));
  link.paths[path.id] = &path;
  {
    ControlGuard guard(engine.lock);
    engine.live_paths.push_back(&path);
  }
  link.link->Send(FrameType::kPathOk, answer);
}

// A free index, or empty when all 65536 are taken.
std::optional<uint16_t> TakeIndex(Engine& engine) {
  for (uint32_t tried = 0; tried < Engine::kConnectionIndices; ++tried) {
    const auto candidate = static_cast<uint16_t>(engine.next_index++);
    if (!engine.taken_indices.contains(candidate)) {
      engine.taken_indices.insert(candidate);
      return candidate;
    }
  }
  return std::nullopt;
}

void OnOpen(InLink& link, const OpenFrame& frame) {
  Engine& engine = link.engine;
  auto refuse = [&](const std::string& text) {
    link.link->Send(FrameType::kOpenFail, TextFrame{frame.sender_connection, text});
  };
  const auto listener = engine.listeners.find(frame.listen_id);
  if (listener == engine.listeners.end())
    return refuse("its listener was closed before the connection arrived");
  if (!SameSecret(listener->second->secret, frame.secret)) return refuse("the secret of the handle is wrong");
  const auto found = link.paths.find(frame.path);
  if (found == link.paths.end() || found->second->failed || found->second->closing)
    return refuse("path " + std::to_string(frame.path) + " is gone");
  InPath& path = *found->second;
  const auto max_recvs = static_cast<uint32_t>(engine.params.max_recvs);
  if (frame.max_recvs != max_recvs) {
    return refuse("SLUICE_MAX_RECVS is " + std::to_string(max_recvs) + " there and " +
                  std::to_string(frame.max_recvs) + " here; set the same value on every rank");
  }
  if (frame.rkeys.size() != link.peer.ports.size()) return refuse("the OPEN frame is inconsistent");
  Result<TablePool::Block> block = engine.tables.Take();
  if (!block.ok()) return refuse(block.status().message());
  const std::optional<uint16_t> index = TakeIndex(engine);
  if (!index) {
    engine.tables.Return(block->address);
    return refuse("65536 connections are open on one device");
  }
  auto owned = std::make_unique<RecvConnection>();
  RecvConnection& connection = *owned;
  engine.connections.push_back(std::move(owned));
  connection.path = &path;
  connection.sender_connection = frame.sender_connection;
  connection.index = *index;
  connection.max_recvs = max_recvs;
  connection.control_pair = *index % static_cast<uint32_t>(path.pairs.size());
  connection.table = block->address;
  const PortPair& control_pair = path.pairs[connection.control_pair];
  connection.cts_lkey = block->memory->lkey(control_pair.receiver_port);
  connection.cts_rkey = frame.rkeys[control_pair.sender_port];
  ResetConnection(connection, engine);
  auto* entries = static_cast<CtsEntry*>(block->address);
  auto* records = reinterpret_cast<Record*>(entries + kSlots * max_recvs);
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    RecvGroup& group = connection.groups[slot];
    group.slot = static_cast<uint8_t>(slot);
    group.entries = entries + slot * max_recvs;
    group.records = records + slot * max_recvs;
    group.remote_entries = frame.cts_ring + slot * max_recvs * sizeof(CtsEntry);
  }
  ++path.open_connections;
  engine.users.fetch_add(1);
  {
    ControlGuard guard(engine.lock);
    path.connections.push_back(&connection);
    engine.receivers[connection.index] = &connection;
    if (path.failed) connection.Fail(path.failure);
  }
  ConnFrame answer;
  answer.path = path.id;
  answer.sender_connection = frame.sender_connection;
  answer.index = connection.index;
  answer.max_recvs = frame.max_recvs;
  answer.record_ring = reinterpret_cast<uint64_t>(records);
  for (uint32_t i = 0; i < engine.port_count; ++i) answer.rkeys.push_back(block->memory->rkeys()[i]);
  link.link->Send(FrameType::kConn, answer);
  ListenState& state = *listener->second;
  connection.listener = &state;
  std::lock_guard lock(state.mutex);
  state.ready.push_back(&connection);
  state.ready_count.fetch_add(1, std::memory_order_release);
}

void OnAbort(InLink& link, const TextFrame& frame) {
  const auto found = link.paths.find(frame.id);
  if (found == link.paths.end()) return;
  InPath& path = *found->second;
  path.told_by_peer = true;
  ControlGuard guard(link.engine.lock);
  link.engine.FailPath(path, RemoteError("the peer " + path.peer + " reports: " + frame.text));
}

Status OnFrame(InLink& link, FrameType type, std::span<const std::byte> payload) {
  switch (type) {
    case FrameType::kPath: {
      const auto frame = Decode<PathFrame>(payload);
      if (!frame) return BadFrame(link, "PATH");
      OnPath(link, *frame);
      return Status::Ok();
    }
    case FrameType::kPathUp: {
      const auto frame = Decode<PathIdFrame>(payload);
      if (!frame) return BadFrame(link, "PATH_UP");
      const auto found = link.paths.find(frame->path);
      if (found == link.paths.end()) return Status::Ok();
      {
        ControlGuard guard(link.engine.lock);
        found->second->usable = true;
      }
      LogPath(*found->second, link.peer.ports);
      return Status::Ok();
    }
    case FrameType::kOpen: {
      const auto frame = Decode<OpenFrame>(payload);
      if (!frame) return BadFrame(link, "OPEN");
      OnOpen(link, *frame);
      return Status::Ok();
    }
    case FrameType::kClose: {
      const auto frame = Decode<CloseFrame>(payload);
      if (!frame) return BadFrame(link, "CLOSE");
      const auto found = link.paths.find(frame->path);
      if (found == link.paths.end()) return Status::Ok();
      for (const std::unique_ptr<Connection>& owned : link.engine.connections) {
        auto* connection = dynamic_cast<RecvConnection*>(owned.get());
        if (connection != nullptr && connection->path == found->second && connection->index == frame->index &&
            connection->table != nullptr && !connection->peer_closed) {
          OnPeerClosed(*connection);
          break;
        }
      }
      return Status::Ok();
    }
    case FrameType::kBye: {
      const auto frame = Decode<PathIdFrame>(payload);
      if (!frame) return BadFrame(link, "BYE");
      const auto found = link.paths.find(frame->path);
      if (found != link.paths.end()) OnBye(*found->second);
      return Status::Ok();
    }
    case FrameType::kAbort: {
      const auto frame = Decode<TextFrame>(payload);
      if (!frame) return BadFrame(link, "ABORT");
      OnAbort(link, *frame);
      return Status::Ok();
    }
    default:
      return RemoteError("link from " + link.peer.host + ": unexpected frame type " +
                         std::to_string(static_cast<int>(type)) +
                         "; Sluice releases differ, install the same on all hosts");
  }
}

Status Admit(EventLoop& loop, uint64_t id, FrameType type, std::span<const std::byte> payload) {
  const auto stranger = server->strangers.find(id);
  if (stranger == server->strangers.end()) return Status::Ok();
  const auto hello = type == FrameType::kHello ? Decode<HelloFrame>(payload) : std::nullopt;
  if (!hello || hello->ports.empty() || hello->ports.size() > kMaxMergedPorts) {
    DropStranger(loop, id, "no valid HELLO");
    return Status::Ok();
  }
  Engine* engine = FindEngine(hello->receiver_uid);
  const auto listener = engine == nullptr ? std::map<uint32_t, ListenState*>::iterator()
                                          : engine->listeners.find(hello->listen_id);
  if (engine == nullptr || engine->finalizing || listener == engine->listeners.end() ||
      !SameSecret(listener->second->secret, hello->secret)) {
    const char* reason =
        engine == nullptr || engine->finalizing ? "the engine it asks for has ended" : "wrong or late secret";
    stranger->second.link->Send(FrameType::kReject, TextFrame{0, reason});
    DropStranger(loop, id, reason);
    return Status::Ok();
  }
  if (hello->min_version > kProtocolVersion || hello->max_version < kProtocolVersion) {
    const std::string text = "Sluice " SLUICE_VERSION " there speaks protocol " +
                             std::to_string(kProtocolVersion) + ", Sluice " + hello->library +
                             " here speaks " + std::to_string(hello->min_version) + " to " +
                             std::to_string(hello->max_version) + "; install the same release on all hosts";
    stranger->second.link->Send(FrameType::kReject, TextFrame{0, text});
    DropStranger(loop, id, "protocol versions differ: " + text);
    return Status::Ok();
  }
  if (stranger->second.deadline != 0) loop.Cancel(stranger->second.deadline);
  auto owned = std::make_unique<InLink>(*engine);
  InLink* link = owned.get();
  link->peer = *hello;
  link->link = std::move(stranger->second.link);
  server->strangers.erase(stranger);
  engine->in_links.push_back(std::move(owned));
  link->link->SetHandlers(
      [link](FrameType frame_type, std::span<const std::byte> bytes) {
        return OnFrame(*link, frame_type, bytes);
      },
      [link](const Status& cause) { OnInLinkLost(*link, cause); });
  HelloOkFrame answer;
  answer.version = kProtocolVersion;
  answer.library = SLUICE_VERSION;
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, HOST_NAME_MAX);
  answer.host = std::string(name) + ":" + std::to_string(getpid());
  for (uint32_t i = 0; i < engine->port_count; ++i) answer.ports.push_back(engine->AddressOf(i));
  link->link->Send(FrameType::kHelloOk, answer);
  return Status::Ok();
}

void OnPending(EventLoop& loop, int admit_timeout_ms) {
  for (;;) {
    std::string peer;
    int error = 0;
    Socket accepted = AcceptFrom(server->listener, &peer, &error);
    if (!accepted) {
      if (error == 0) return;
      // Out of descriptors: the pending connection keeps the listener readable, so pause it.
      if (!std::exchange(server->exhausted, true)) {
        SLUICE_WARN("%s", SystemError("cannot accept a set-up link", error,
                                      "raise the limit of open files (ulimit -n)")
                              .message()
                              .c_str());
      }
      loop.Rearm(server->listener.fd(), 0);
      loop.After(std::chrono::milliseconds(200), [&loop] { loop.Rearm(server->listener.fd(), EPOLLIN); });
      return;
    }
    server->exhausted = false;
    if (server->strangers.size() >= kMaxStrangers)
      DropStranger(loop, server->strangers.begin()->first, "too many links wait for admission");
    const uint64_t id = server->next_stranger++;
    Stranger& stranger = server->strangers[id];
    stranger.link = std::make_unique<Link>(loop, std::move(accepted), peer);
    stranger.deadline = loop.After(std::chrono::milliseconds(admit_timeout_ms), [&loop, id] {
      const auto late = server->strangers.find(id);
      if (late != server->strangers.end()) late->second.deadline = 0;
      // This thread may be late itself: what the stranger has sent meanwhile is read before the verdict.
      loop.Post([&loop, id] { DropStranger(loop, id, "no secret in time (SLUICE_ADMIT_TIMEOUT_MS)"); });
    });
    const Status started = stranger.link->Start(
        [&loop, id](FrameType type, std::span<const std::byte> payload) {
          return Admit(loop, id, type, payload);
        },
        [&loop, id](const Status& cause) { DropStranger(loop, id, cause.message()); });
    if (!started.ok()) DropStranger(loop, id, started.message());
  }
}

}  // namespace

Result<SocketAddress> EnsureServer(const Params& params) {
  std::lock_guard lock(server_mutex);
  if (server != nullptr) return server->address;
  Result<EventLoop*> loop = EventLoop::Get();
  if (!loop.ok()) return loop.status();
  Result<SocketAddress> interface = ChooseInterface(params);
  if (!interface.ok()) return interface.status();
  auto candidate = std::make_unique<Server>();
  Result<Socket> listener = ListenOn(*interface, &candidate->address);
  if (!listener.ok()) return listener.status();
  candidate->listener = std::move(*listener);
  server = candidate.release();
  Status watched;
  EventLoop* event_loop = *loop;
  const int admit_timeout_ms = params.admit_timeout_ms;
  event_loop->Run([&] {
    watched = event_loop->Watch(server->listener.fd(), EPOLLIN, [event_loop, admit_timeout_ms](uint32_t) {
      OnPending(*event_loop, admit_timeout_ms);
    });
  });
  if (!watched.ok()) {
    delete std::exchange(server, nullptr);
    return watched;
  }
  return server->address;
}

void OnInLinkLost(InLink& link, const Status& cause) {
  Engine& engine = link.engine;
  const auto paths = link.paths;
  for (const auto& [id, path] : paths) {
    path->link = nullptr;
    {
      ControlGuard guard(engine.lock);
      engine.FailPath(*path, cause);
    }
    if (path->open_connections == 0) StopPath(*path);
  }
  const auto found = std::find_if(engine.in_links.begin(), engine.in_links.end(),
                                  [&](const std::unique_ptr<InLink>& owned) { return owned.get() == &link; });
  if (found == engine.in_links.end()) return;
  auto dead = std::make_shared<std::unique_ptr<InLink>>(std::move(*found));
  engine.in_links.erase(found);
  engine.loop.Post([dead] {});
}

void CloseListener(ListenState& listener, const Status& reason) {
  std::deque<RecvConnection*> unclaimed;
  {
    std::lock_guard lock(listener.mutex);
    if (listener.error.load() != nullptr) return;
    listener.failure = reason;
    listener.error.store(&listener.failure, std::memory_order_release);
    unclaimed.swap(listener.ready);
    listener.ready_count.store(0);
  }
  for (RecvConnection* connection : unclaimed) (void)CloseConnection(*connection);
  DropUser(listener.engine);
}

void RegisterEngine(Engine* engine) {
  std::lock_guard lock(engines_mutex);
  Engines()[engine->uid] = engine;
}

void UnregisterEngine(uint64_t uid) {
  std::lock_guard lock(engines_mutex);
  Engines().erase(uid);
}

Engine* FindEngine(uint64_t uid) {
  std::lock_guard lock(engines_mutex);
  const auto found = Engines().find(uid);
  return found == Engines().end() ? nullptr : found->second;
}

}  // namespace sluice
