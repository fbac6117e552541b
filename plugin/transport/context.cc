// NetContext and the comms' control calls: Listen, Connect, Accept, memory, Close, Finalize.
#include <arpa/inet.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "plugin/classify/communicator.h"
#include "plugin/lanes.h"
#include "plugin/log.h"
#include "plugin/transport/control.h"
#include "plugin/transport/device_events.h"
#include "plugin/transport/devices.h"
#include "plugin/transport/teardown.h"

namespace sluice {
namespace {

constexpr uint64_t kSharedContext = 0;

struct ContextState final : NetContext {
  CommConfig config;
  CommunicatorState* communicator = nullptr;
  bool global = false;
  std::atomic<bool> finalized{false};
  std::mutex mutex;
  std::map<std::pair<int, pid_t>, Engine*>
      engines;                        // under mutex; by device and the thread that listens or connects
  std::deque<Status> errors;          // under mutex; what Attempt::error points to
  std::deque<ListenState> listeners;  // under mutex; never shrinks, a closed one answers with an error

  const Status* Keep(Status error) {
    std::lock_guard lock(mutex);
    return &errors.emplace_back(std::move(error));
  }
};

// Attempts by the number that Connect leaves in the handle.
struct Attempts {
  std::mutex mutex;
  std::map<uint32_t, AttemptPtr> by_id;
  uint32_t next = 1;
};

Attempts& AllAttempts() {
  static auto* const attempts = new Attempts;
  return *attempts;
}

// The engine of (device, calling thread), with one more user.
Result<Engine*> UseEngine(ContextState& context, int device) {
  const Result<Params>& params = GetParams();
  if (!params.ok()) return params.status();
  const std::pair key(device, static_cast<pid_t>(syscall(SYS_gettid)));
  std::lock_guard lock(context.mutex);
  if (context.finalized.load()) return InvalidUsage("call after finalize");
  if (const auto found = context.engines.find(key); found != context.engines.end()) {
    found->second->users.fetch_add(1);
    return found->second;
  }
  Result<Engine*> engine = Engine::Create(device, *params, context.config);
  if (!engine.ok()) return engine.status();
  (*engine)->users.store(1);
  (*engine)->classifier.Open(*context.communicator, (*engine)->lock, (*engine)->Describe(), (*engine)->uid);
  for (const std::shared_ptr<DeviceContext>& opened : (*engine)->devices) {
    SLUICE_RETURN_IF_ERROR(WatchDevice((*engine)->loop, opened, params->ib_return_async_events));
  }
  if (context.global) {
    ContextState* owner = &context;
    (*engine)->retire = [owner, key](Engine& idle) {
      {
        // Whoever holds the mutex may be waiting for this thread: come back instead of waiting.
        std::unique_lock retire_lock(owner->mutex, std::try_to_lock);
        if (!retire_lock) {
          Engine* later = &idle;
          later->loop.Post([later] { later->retire(*later); });
          return;
        }
        const auto found = owner->engines.find(key);
        if (found == owner->engines.end() || found->second != &idle || idle.users.load() != 0) return;
        owner->engines.erase(found);
      }
      RemoveDeviceUser(idle);
      FinalizeEngine(idle, InvalidUsage("the last connection of this device was closed"));
    };
  }
  context.engines[key] = *engine;
  RegisterEngine(*engine);
  Engine* added = *engine;
  added->loop.Post([added] { AddDeviceUser(*added); });
  return engine;
}

ContextState& StateOf(NetContext* context) {
  return *static_cast<ContextState*>(context);
}

// By the order of a connection's registrations.
void ClassifyMemory(Connection& connection, MemoryHandle& memory, size_t bytes) {
  bool earlier = false;
  memory.SetHint(connection.registrations.Register(bytes, &earlier));
  if (earlier && connection.first_memory != nullptr) {
    connection.first_memory->SetHint(
        {connection.registrations.kind(), connection.first_memory->hint().protocol()});
  }
  if (connection.first_memory == nullptr) connection.first_memory = &memory;
}

template <typename Comm>
Result<MemoryHandle*> RegisterFor(Comm& connection, void* data, size_t bytes, MemoryKind kind,
                                  uint64_t offset, int fd) {
  if (const Status* error = connection.error.load(std::memory_order_acquire)) return *error;
  Result<std::unique_ptr<MemoryHandle>> handle =
      MemoryHandle::Register(connection.engine->devices, data, bytes, RegionKind::kData, kind, offset, fd);
  if (!handle.ok()) return handle.status();
  ClassifyMemory(connection, **handle, bytes);
  return handle->release();
}

template <typename Comm>
Status DeregisterFor(Comm& connection, MemoryHandle* memory) {
  if (memory == nullptr) return InvalidArgument("deregMr without a handle");
  QuiesceMemory(connection, *memory);
  if (connection.first_memory == memory) connection.first_memory = nullptr;
  const Status status = memory->Release();
  delete memory;
  return status;
}

}  // namespace

Result<NetContext*> NetContext::Create(uint64_t comm_id, const CommConfig& config, DebugLogger logger) {
  SetLogger(logger);
  Result<DeviceTable*> table = DeviceTable::Get();
  if (!table.ok()) return table.status();
  const Result<Params>& params = GetParams();
  const Result<std::shared_ptr<const Policy>>& policy = GetPolicy();
  if (!policy.ok()) return policy.status();
  for (const bool infiniband : {true, false}) {
    const auto lanes = ResolveLanes(*params, **policy, config.traffic_class, infiniband);
    const bool present = (*table)->Has(infiniband ? LinkLayer::kInfiniBand : LinkLayer::kEthernet);
    if (present && !lanes.ok()) return lanes.status();
  }
  // Contexts stay reachable to the end of the process: a late call finds a finalized one.
  static std::mutex mutex;
  static auto* const contexts = new std::deque<ContextState>;
  std::lock_guard lock(mutex);
  ContextState& context = contexts->emplace_back();
  context.config = config;
  // v7 to v10 share one context, with number 0, and tell nothing of communicators.
  context.global = comm_id == kSharedContext;
  Communicator known;
  known.hash = comm_id;
  known.traffic_class = config.traffic_class;
  context.communicator =
      context.global ? &CommunicatorState::MakeShared() : &CommunicatorState::Join(PluginHalf::kNet, known);
  return static_cast<NetContext*>(&context);
}

Result<NetContext*> NetContext::Global(DebugLogger logger) {
  static std::mutex mutex;
  static NetContext* global = nullptr;
  std::lock_guard lock(mutex);
  SetLogger(logger);
  if (global == nullptr) {
    Result<NetContext*> created = Create(kSharedContext, CommConfig{}, logger);
    if (!created.ok()) return created.status();
    global = *created;
  }
  return global;
}

void NetContext::SetAskProfiler(AskProfiler ask) {
  SetAskNccl(ask);
}

Result<ListenComm*> NetContext::Listen(int device, ConnectionHandle* handle) {
  ContextState& context = StateOf(this);
  Result<Engine*> used = UseEngine(context, device);
  if (!used.ok()) return used.status();
  Engine& engine = **used;
  Result<SocketAddress> address = EnsureServer(engine.params);
  Secret secret;
  if (address.ok() && getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    address = SystemError("no random bytes for the secret of a listener", errno);
  }
  if (!address.ok()) {
    engine.loop.Post([&engine] { DropUser(engine); });
    return address.status();
  }
  static std::atomic<uint32_t> next_listener{1};
  ListenState* listener = nullptr;
  {
    std::lock_guard lock(context.mutex);
    listener = &context.listeners.emplace_back(engine, next_listener.fetch_add(1), secret);
  }
  engine.loop.Run([&] { engine.listeners[listener->id] = listener; });

  ListenHandle out{};
  out.magic = kHandleMagic;
  out.version = kProtocolVersion;
  out.family = address->storage.ss_family;
  out.engine_uid = engine.uid;
  out.listen_id = listener->id;
  out.link_layer = static_cast<uint8_t>(engine.infiniband ? LinkLayer::kInfiniBand : LinkLayer::kEthernet);
  out.secret = secret;
  if (out.family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address->storage);
    out.port = ntohs(v4->sin_port);
    memcpy(out.address.data(), &v4->sin_addr, 4);
  } else {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address->storage);
    out.port = ntohs(v6->sin6_port);
    out.scope_id = v6->sin6_scope_id;
    memcpy(out.address.data(), &v6->sin6_addr, 16);
  }
  handle->fill(std::byte{0});
  memcpy(handle->data(), &out, sizeof(out));
  return static_cast<ListenComm*>(listener);
}

Attempt<SendComm> NetContext::Connect(int device, ConnectionHandle* handle, const CommConfig* config) {
  ContextState& context = StateOf(this);
  auto fail = [&](Status status) { return Attempt<SendComm>::Failed(context.Keep(std::move(status))); };
  if (context.finalized.load(std::memory_order_relaxed)) return fail(InvalidUsage("connect after finalize"));
  ListenHandle target;
  memcpy(&target, handle->data(), sizeof(target));
  Attempts& attempts = AllAttempts();
  if (target.attempt == 0) {
    if (target.magic != kHandleMagic || (target.family != AF_INET && target.family != AF_INET6)) {
      return fail(
          InvalidArgument("the handle was not made by Sluice: every rank must load the same network plugin "
                          "(NCCL_NET_PLUGIN)"));
    }
    if (target.version != kProtocolVersion) {
      return fail(InvalidUsage("the peer's Sluice speaks protocol " + std::to_string(target.version) +
                               ", this one (" SLUICE_VERSION ") speaks " + std::to_string(kProtocolVersion) +
                               "; install the same release on all hosts"));
    }
    Result<Engine*> used = UseEngine(context, device);
    if (!used.ok()) return fail(used.status());
    Engine& engine = **used;
    Result<std::vector<LaneSpec>> lanes = ResolveLanes(
        engine.params, **GetPolicy(),
        config != nullptr ? config->traffic_class : context.config.traffic_class, engine.infiniband);
    const bool layers_differ =
        target.link_layer !=
        static_cast<uint8_t>(engine.infiniband ? LinkLayer::kInfiniBand : LinkLayer::kEthernet);
    if (!lanes.ok() || layers_differ) {
      engine.loop.Post([&engine] { DropUser(engine); });
      if (!lanes.ok()) return fail(lanes.status());
      return fail(InvalidUsage("device " + engine.Describe() + " is " +
                               (engine.infiniband ? "InfiniBand" : "RoCE") + " and the peer's is " +
                               (engine.infiniband ? "RoCE" : "InfiniBand") +
                               "; choose devices of one link layer with NCCL_IB_HCA on every host"));
    }
    auto attempt = std::make_shared<ConnectAttempt>(engine, target, std::move(*lanes));
    {
      std::lock_guard lock(attempts.mutex);
      target.attempt = attempts.next++;
      if (attempts.next == 0) attempts.next = 1;
      attempts.by_id[target.attempt] = attempt;
    }
    memcpy(handle->data(), &target, sizeof(target));
    engine.loop.Post([attempt] { StartConnect(attempt); });
    return Attempt<SendComm>::Again();
  }
  AttemptPtr attempt;
  {
    std::lock_guard lock(attempts.mutex);
    const auto found = attempts.by_id.find(target.attempt);
    if (found == attempts.by_id.end())
      return fail(InvalidArgument("connect with a handle that was used before"));
    attempt = found->second;
    if (!attempt->finished.load(std::memory_order_acquire)) return Attempt<SendComm>::Again();
    attempts.by_id.erase(found);
  }
  if (attempt->connection == nullptr) return fail(attempt->error);
  if (attempt->claimed.exchange(true))
    return fail(InvalidUsage("the connection was ready but not asked for within SLUICE_CONNECT_TIMEOUT_MS"));
  return Attempt<SendComm>::Of(attempt->connection);
}

Status NetContext::SetNetAttributes(const NetAttributes& attributes) {
  ContextState& context = StateOf(this);
  if (context.finalized.load(std::memory_order_relaxed)) return InvalidUsage("setNetAttr after finalize");
  Announce(*context.communicator, attributes);
  return Status::Ok();
}

Status NetContext::Finalize() {
  ContextState& context = StateOf(this);
  std::map<std::pair<int, pid_t>, Engine*> engines;
  {
    std::lock_guard lock(context.mutex);
    if (context.finalized.exchange(true)) return InvalidUsage("finalize was called before");
    context.communicator->Leave(PluginHalf::kNet);
    engines.swap(context.engines);
  }
  for (const auto& [key, engine] : engines) {
    Engine* ended = engine;
    SLUICE_INFO(kLogNet, "%s", ended->classifier.Summary().c_str());
    // From the return on, every call on this context's objects reports an error; queue pairs end behind it.
    ended->loop.Run([ended] { FinalizeEngine(*ended, InvalidUsage("the communicator was finalized")); });
  }
  return Status::Ok();
}

Attempt<RecvComm> ListenComm::Accept() {
  auto& listener = *static_cast<ListenState*>(this);
  if (listener.ready_count.load(std::memory_order_acquire) == 0) {
    if (const Status* error = listener.error.load(std::memory_order_acquire))
      return Attempt<RecvComm>::Failed(error);
    return Attempt<RecvComm>::Again();
  }
  std::lock_guard lock(listener.mutex);
  if (listener.ready.empty()) return Attempt<RecvComm>::Again();
  RecvConnection* connection = listener.ready.front();
  listener.ready.pop_front();
  listener.ready_count.fetch_sub(1, std::memory_order_relaxed);
  return Attempt<RecvComm>::Of(connection);
}

Status ListenComm::Close() {
  auto& listener = *static_cast<ListenState*>(this);
  if (listener.error.load(std::memory_order_acquire) != nullptr)
    return *listener.error.load(std::memory_order_acquire);
  Engine& engine = listener.engine;
  engine.loop.Post([&listener, &engine] {
    engine.listeners.erase(listener.id);
    CloseListener(listener, InvalidUsage("the listener is closed"));
  });
  return Status::Ok();
}

Result<MemoryHandle*> SendComm::RegMr(void* data, size_t bytes, MemoryKind kind) {
  return RegisterFor(*static_cast<SendConnection*>(this), data, bytes, kind, 0, -1);
}

Result<MemoryHandle*> SendComm::RegMrDmaBuf(void* data, size_t bytes, MemoryKind kind, uint64_t offset,
                                            int fd) {
  return RegisterFor(*static_cast<SendConnection*>(this), data, bytes, kind, offset, fd);
}

Status SendComm::DeregMr(MemoryHandle* memory) {
  return DeregisterFor(*static_cast<SendConnection*>(this), memory);
}

Status SendComm::Close() {
  return CloseConnection(*static_cast<SendConnection*>(this));
}

Result<MemoryHandle*> RecvComm::RegMr(void* data, size_t bytes, MemoryKind kind) {
  return RegisterFor(*static_cast<RecvConnection*>(this), data, bytes, kind, 0, -1);
}

Result<MemoryHandle*> RecvComm::RegMrDmaBuf(void* data, size_t bytes, MemoryKind kind, uint64_t offset,
                                            int fd) {
  return RegisterFor(*static_cast<RecvConnection*>(this), data, bytes, kind, offset, fd);
}

Status RecvComm::DeregMr(MemoryHandle* memory) {
  return DeregisterFor(*static_cast<RecvConnection*>(this), memory);
}

Status RecvComm::Close() {
  return CloseConnection(*static_cast<RecvConnection*>(this));
}

Result<int> DeviceCount() {
  Result<DeviceTable*> table = DeviceTable::Get();
  if (!table.ok()) return table.status();
  return (*table)->count();
}

Result<NetProperties> DeviceProperties(int device) {
  Result<DeviceTable*> table = DeviceTable::Get();
  if (!table.ok()) return table.status();
  return (*table)->Properties(device);
}

Result<int> MakeVirtualDevice(std::span<const int> members, int max_members) {
  Result<DeviceTable*> table = DeviceTable::Get();
  if (!table.ok()) return table.status();
  return (*table)->MakeVirtual(members, max_members);
}

}  // namespace sluice
