// Paths: directed bundles of RC queue pairs between a sending and a receiving engine, shared by all their
// connections. Per port pair one control queue pair (R to S: CTS entries) and the data queue pairs of each
// class (S to R).
//
// Threads: queues and counters under the engine's lock; state and life cycle belong to the event thread.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugin/transport/connection.h"
#include "plugin/transport/event_loop.h"
#include "plugin/transport/frames.h"
#include "tuner/policy.h"
#include "verbs/queue_pair.h"

namespace sluice {

class Engine;
struct EnginePort;
struct InLink;
struct Path;
struct OutLink;

// Send side of one data queue pair, with its work request templates: bulk write, record, immediate.
struct alignas(64) DataQueue {
  ibv_qp* qp = nullptr;
  EnginePort* port = nullptr;
  uint32_t engine_port = 0;  // its index
  uint32_t peer_port = 0;
  uint32_t index = 0;               // in OutPath::queues
  uint32_t outstanding_chunks = 0;  // signalled work requests
  uint32_t free_wrs = 0;
  uint32_t depth = 0;
  uint32_t split_above_bytes =
      ~0u;  // longer chunks: data and immediate in two work requests (adaptive routing)
  ibv_send_wr bulk{};
  ibv_send_wr record{};
  ibv_send_wr immediate{};
  ibv_send_wr piece{};  // part of a chunk, when the port is shared
  ibv_sge bulk_sge{};
  ibv_sge record_sge{};
  ibv_sge immediate_sge{};
  ibv_sge piece_sge{};

  // Links the templates; `inline_records`: a record fits the queue pair's inline limit.
  void Prepare(bool inline_records);
};

// Send side of a control queue pair at R.
struct alignas(64) ControlQueue {
  Path* path = nullptr;
  ibv_qp* qp = nullptr;
  EnginePort* port = nullptr;
  uint32_t free_wrs = 0;
  uint32_t depth = 0;
  uint32_t unsignaled = 0;
  uint32_t signal_every = 1;
  uint32_t max_inline = 0;
  ibv_send_wr wr{};
  ibv_sge sge{};

  void Prepare();
};

// Of one lane on one port pair: sender to receiver, and back.
struct ServiceLevels {
  uint8_t forward = 0;
  uint8_t back = 0;
  bool operator==(const ServiceLevels&) const = default;
};

struct PortPair {
  uint8_t sender_port = 0;
  uint8_t receiver_port = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  QueuePair control;
  std::vector<QueuePair> data;
  std::vector<ServiceLevels> levels;  // by class, from the subnet administrator; empty: those of the classes
};

// What of a path both directions share.
struct Path {
  explicit Path(Engine& owner) : engine(owner) {}
  virtual ~Path() = default;
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;

  Engine& engine;
  uint32_t id = 0;  // chosen by S, unique on its link
  bool outbound = false;
  std::vector<ClassFrame> classes;
  std::vector<PortPair> pairs;
  uint16_t stripes = 1;             // chunks of a long message
  uint64_t max_message_bytes = 0;   // of one chunk
  uint64_t stripe_above_bytes = 0;  // longer messages may have more than one chunk; the same at both ends
  std::string peer;                 // "host:pid" of the other engine

  // Under the engine's lock.
  bool usable = false;
  bool failed = false;
  Status failure;
  uint32_t errors_seen = 0;  // error completions, flushes included

  // Event thread.
  uint32_t open_connections = 0;
  bool told_by_peer = false;  // the failure came from the peer: do not send it back
  bool closing = false;       // BYE sent or received
  bool stopping = false;      // queue pairs are being drained
  bool stopped = false;       // and are gone
  EventLoop::TimerId timer = 0;
};

// The data queue pairs of one service class on each port pair of a path.
struct alignas(32) Lane {
  DataQueue* queues = nullptr;  // of the first pair; those of pair i are i x OutPath::queues_per_pair further
  uint32_t count = 0;
  uint32_t next = 0;    // where the search for a queue starts
  bool shared = false;  // another lane of this path has the same marks: the port is divided in software
};

struct OutPath : Path {
  using Path::Path;
  OutLink* link = nullptr;
  // By service class. A class without queue pairs of its own (refused, or no room) has those of the default class.
  std::array<Lane, kMaxServiceClasses> lanes{};
  std::vector<uint8_t> lane_classes;  // service class of each entry of `classes`
  std::vector<DataQueue> queues;      // by pair, then by lane
  uint32_t pair_count = 0;
  uint32_t queues_per_pair = 0;
  uint32_t next_pair = 0;  // where the next message starts
  std::vector<SendConnection*> connections;
};

struct InPath : Path {
  using Path::Path;
  InLink* link = nullptr;
  std::vector<ControlQueue> controls;  // by pair
  std::vector<RecvConnection*> connections;
};

// Initial packet sequence numbers: distinct per queue pair, from one random base per direction.
constexpr uint32_t PsnOf(uint32_t base, uint32_t pair, uint32_t queue) {
  return (base + pair * 0x10007 + queue * 0x101) & 0xffffff;
}

// Sizes of the queue pairs of a path, before the device's limits.
inline constexpr uint32_t kDataQueueDepth = 256;
inline constexpr uint32_t kControlQueueDepth = 256;
// Work requests of one chunk at most: data, record, immediate. Queues with less room could never send it.
inline constexpr uint32_t kMostChunkWrs = 3;

// The error for a device whose queue can never hold one chunk; `limit` names the device attribute.
Status TooSmall(const std::string& device, const char* queue, const char* limit, uint32_t room,
                uint32_t needed);
// Creates the control queue pair of `pair` (in INIT) on the engine, or appends `count` data queue pairs.
Status CreateControl(Engine& engine, bool outbound, PortPair& pair);
Status CreateData(Engine& engine, bool outbound, uint32_t count, PortPair& pair);
// Service levels of class `index` on this pair.
ServiceLevels LevelsOf(const Path& path, const PortPair& pair, size_t index);
// Queue pairs of all classes of a frame, per port pair.
uint32_t QueueCount(const std::vector<ClassFrame>& classes);
// INIT to RTS with the other side's numbers. ECE of the peer is applied when it has any.
Status ConnectPair(Engine& engine, const Path& path, PortPair& pair, uint32_t pair_index,
                   const PairFrame& theirs, const PortAddress& peer_port, uint32_t own_base_psn,
                   uint32_t peer_base_psn);
// One INFO line: device, GIDs, MTU, lanes with SL and TC, queue pairs, routing, ordering, GPU memory kind.
void LogPath(const Path& path, const std::vector<PortAddress>& peer_ports);

// Which port pairs connect two engines: as many as the larger one has ports, same link layer, same subnet
// where possible.
Result<std::vector<std::pair<uint8_t, uint8_t>>> MatchPorts(const std::vector<PortAddress>& senders,
                                                            const std::vector<PortAddress>& receivers);

}  // namespace sluice
