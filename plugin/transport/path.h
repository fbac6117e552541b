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
#include "verbs/queue_pair.h"

namespace sluice {

class Engine;
struct InLink;
struct Path;
struct OutLink;

// Send side of one data queue pair, with its work request templates: bulk write, record, immediate.
struct alignas(64) DataQueue {
  ibv_qp* qp = nullptr;
  uint32_t engine_port = 0;
  uint32_t peer_port = 0;
  uint32_t index = 0;  // in OutPath::queues
  uint32_t outstanding_chunks = 0;
  uint32_t free_wrs = 0;
  uint32_t depth = 0;
  uint32_t split_above_bytes =
      ~0u;  // longer chunks: data and immediate in two work requests (adaptive routing)
  ibv_send_wr bulk{};
  ibv_send_wr record{};
  ibv_send_wr immediate{};
  ibv_sge bulk_sge{};
  ibv_sge record_sge{};
  ibv_sge immediate_sge{};

  // Links the templates; `inline_records`: a record fits the queue pair's inline limit.
  void Prepare(bool inline_records);
};

// Send side of a control queue pair at R.
struct alignas(64) ControlQueue {
  Path* path = nullptr;
  ibv_qp* qp = nullptr;
  uint32_t engine_port = 0;
  uint32_t free_wrs = 0;
  uint32_t depth = 0;
  uint32_t unsignaled = 0;
  uint32_t signal_every = 1;
  uint32_t max_inline = 0;
  ibv_send_wr wr{};
  ibv_sge sge{};

  void Prepare();
};

struct PortPair {
  uint8_t sender_port = 0;
  uint8_t receiver_port = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  QueuePair control;
  std::vector<QueuePair> data;
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

struct OutPath : Path {
  using Path::Path;
  OutLink* link = nullptr;
  std::vector<DataQueue> queues;  // by pair, then by class and stripe
  uint32_t pair_count = 0;
  uint32_t queues_per_pair = 0;
  uint32_t next_pair = 0;   // where the next message starts
  uint32_t next_queue = 0;  // of a pair: where the search for a queue starts
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
// Creates the queue pairs of `pair` (in INIT) on the engine. `data_queues` of them carry data.
Status CreatePair(Engine& engine, bool outbound, uint32_t data_queues, PortPair& pair);
// INIT to RTS with the other side's numbers. ECE of the peer is applied when it has any.
Status ConnectPair(Engine& engine, const Path& path, PortPair& pair, uint32_t pair_index,
                   const PairFrame& theirs, const PortAddress& peer_port, uint32_t own_base_psn,
                   uint32_t peer_base_psn);
// One INFO line: device, GIDs, MTU, SL and TC, queue pairs, routing, ordering, GPU memory kind.
void LogPath(const Path& path, const std::vector<PortAddress>& peer_ports);

// Which port pairs connect two engines: as many as the larger one has ports, same link layer, same subnet
// where possible.
Result<std::vector<std::pair<uint8_t, uint8_t>>> MatchPorts(const std::vector<PortAddress>& senders,
                                                            const std::vector<PortAddress>& receivers);

}  // namespace sluice
