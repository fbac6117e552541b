// The control plane: links, set-up state machines, listeners. Every function and structure here belongs to
// the event thread unless it says otherwise; what the data path must see is published under the engine's
// lock.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plugin/lanes.h"
#include "plugin/transport/engine.h"
#include "plugin/transport/link.h"
#include "plugin/transport/path.h"

namespace sluice {

// One connect(): made by the service thread, worked on by the event thread, polled by the service thread.
struct ConnectAttempt {
  ConnectAttempt(Engine& owner, const ListenHandle& target, std::vector<LaneSpec> chosen)
      : engine(owner), handle(target), lanes(std::move(chosen)) {}

  Engine& engine;
  const ListenHandle handle;
  const std::vector<LaneSpec> lanes;

  // Any thread: pending until `finished`; then exactly one of connection and error is set.
  std::atomic<bool> finished{false};
  SendConnection* connection = nullptr;
  Status error;
  std::atomic<bool> claimed{false};  // by Connect, or by the deadline that reclaims it

  // Event thread.
  const char* step = "waiting for the event thread";
  EventLoop::TimerId deadline = 0;
};
using AttemptPtr = std::shared_ptr<ConnectAttempt>;

// A listener as NCCL holds it. Ready connections are handed from the event thread to Accept.
struct ListenState final : ListenComm {
  ListenState(Engine& owner, uint32_t listener_id, const Secret& listener_secret)
      : engine(owner), id(listener_id), secret(listener_secret) {}

  Engine& engine;
  const uint32_t id;
  const Secret secret;
  std::atomic<uint32_t> ready_count{0};
  std::mutex mutex;
  std::deque<RecvConnection*> ready;          // under mutex
  std::atomic<const Status*> error{nullptr};  // closed or finalized
  Status failure;
};

// Values that tell paths to one peer apart.
struct PathKey {
  int sl;
  int tc;
  int control_tc;
  int queue_pairs;
  auto operator<=>(const PathKey&) const = default;
};

// S's end of a link, with the paths to that peer.
struct OutLink {
  explicit OutLink(Engine& owner) : engine(owner) {}

  enum class State : uint8_t { kConnecting, kHello, kReady };
  Engine& engine;
  uint64_t peer_uid = 0;
  SocketAddress address;
  Secret secret{};
  uint32_t listen_id = 0;
  State state = State::kConnecting;
  Socket connecting;
  std::unique_ptr<Link> link;
  HelloOkFrame peer;
  std::vector<AttemptPtr> waiting;                                     // for HelloOk
  std::map<PathKey, OutPath*> paths;                                   // newest per key
  std::map<uint32_t, OutPath*> paths_by_id;                            // all that have queue pairs
  std::map<OutPath*, std::vector<AttemptPtr>> waiting_path;            // for PathOk
  std::map<uint32_t, std::pair<AttemptPtr, SendConnection*>> opening;  // for Conn, by sender_connection
  std::map<OutPath*, uint32_t> base_psn;
  uint32_t next_path = 1;
  uint32_t next_connection = 1;
};

// R's end of a link.
struct InLink {
  explicit InLink(Engine& owner) : engine(owner) {}

  Engine& engine;
  std::unique_ptr<Link> link;
  HelloFrame peer;
  std::map<uint32_t, InPath*> paths;
};

// Set-up at S.
void StartConnect(const AttemptPtr& attempt);
void FinishAttempt(const AttemptPtr& attempt, SendConnection* connection, const Status& error);
void OnOutLinkLost(OutLink& link, const Status& cause);
// Fails the attempts that wait for this path, or for anything on this link.
void FailSetup(OutPath& path, const Status& cause);
void FailSetup(OutLink& link, const Status& cause);
// One listener, attempt or connection less.
void DropUser(Engine& engine);

// Set-up at R. EnsureServer may be called by any thread but the event thread; the address serves all engines.
Result<SocketAddress> EnsureServer(const Params& params);
void OnInLinkLost(InLink& link, const Status& cause);
// Connections that were not accepted are closed. Does not touch engine.listeners.
void CloseListener(ListenState& listener, const Status& reason);

// Re-reads what a link flap changes: port state, LID, GID index.
Status RefreshPort(EnginePort& port, const Params& params);
// Gives a new connection its requests; takes them back from a dead one. Recycled, so that memory follows the
// peak.
void ResetConnection(SendConnection& connection, Engine& engine);
void ResetConnection(RecvConnection& connection, Engine& engine);
void RecycleRequests(Connection& connection);

// Engines of this process by uid, for incoming links. Any thread.
void RegisterEngine(Engine* engine);
void UnregisterEngine(uint64_t uid);
Engine* FindEngine(uint64_t uid);

}  // namespace sluice
