// Isend: match the head group's CTS entry, cut the message into chunks, post them.
#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "plugin/transport/engine.h"
#include "plugin/transport/path.h"
#include "plugin/transport/post.h"

namespace sluice {
namespace {

constexpr uint32_t RoundUpToChunkAlign(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + kChunkAlignBytes - 1) & ~uint64_t{kChunkAlignBytes - 1});
}

// Number and size of the chunks of a message: one, unless it is long enough to stripe or above the port's
// limit.
void PlanChunks(const OutPath& path, uint32_t granted_chunks, SendRequest& request) {
  request.chunks = 1;
  request.chunk_bytes = request.bytes;
  if (request.bytes <= path.stripe_above_bytes) [[likely]]
    return;
  uint64_t count =
      std::max<uint64_t>(path.stripes, (request.bytes + path.max_message_bytes - 1) / path.max_message_bytes);
  count = std::min<uint64_t>(count, granted_chunks);
  request.chunk_bytes = RoundUpToChunkAlign((request.bytes + count - 1) / count);
  request.chunks = static_cast<uint16_t>((request.bytes + request.chunk_bytes - 1) / request.chunk_bytes);
}

// The queue pair of the lane with the least outstanding among the next four; an idle one ends the search.
[[gnu::always_inline]] inline DataQueue& LeastLoaded(OutPath& path, Lane& lane, uint32_t pair) {
  constexpr uint32_t kCandidates = 4;
  DataQueue* const first = lane.queues + size_t{pair} * path.queues_per_pair;
  uint32_t next = lane.next;
  DataQueue* best = first + next;
  for (uint32_t tried = 1; best->outstanding_chunks != 0 && tried < kCandidates; ++tried) {
    next = next + 1 == lane.count ? 0 : next + 1;
    if (first[next].outstanding_chunks < best->outstanding_chunks) best = first + next;
  }
  lane.next = next + 1 == lane.count ? 0 : next + 1;
  return *best;
}

// The queue pairs of a lane in turn: the chunks of one message go to different ones.
[[gnu::always_inline]] inline DataQueue& NextQueue(OutPath& path, Lane& lane, uint32_t pair) {
  DataQueue& queue = lane.queues[size_t{pair} * path.queues_per_pair + lane.next];
  lane.next = lane.next + 1 == lane.count ? 0 : lane.next + 1;
  return queue;
}

std::string SizeMismatch(const SendConnection& connection, uint64_t bytes, uint32_t capacity, int tag) {
  return "message of " + std::to_string(bytes) + " bytes (tag " + std::to_string(tag) + ") to " +
         connection.path->peer + " does not fit the posted receive of " + std::to_string(capacity) +
         " bytes; likely one rank registered its buffer and the other did not, or the counts differ between "
         "the ranks";
}

}  // namespace

void DataQueue::Prepare(bool inline_records) {
  bulk.opcode = IBV_WR_RDMA_WRITE;
  bulk.sg_list = &bulk_sge;
  bulk.num_sge = 1;
  record.opcode = IBV_WR_RDMA_WRITE;
  record.sg_list = &record_sge;
  record.num_sge = 1;
  record.send_flags = inline_records ? IBV_SEND_INLINE : 0;
  record.next = &immediate;
  record_sge.length = sizeof(Record);
  immediate.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  immediate.send_flags = IBV_SEND_SIGNALED;
  immediate.sg_list = &immediate_sge;
  piece.opcode = IBV_WR_RDMA_WRITE;
  piece.send_flags = IBV_SEND_SIGNALED;
  piece.sg_list = &piece_sge;
  piece.num_sge = 1;
}

namespace {

enum class PostOutcome : uint8_t { kPosted, kNoRoom, kFailed };

// One chunk, as one post of up to three work requests.
struct Chunk {
  uint64_t data;
  uint64_t remote_address;
  uint32_t length;
  uint32_t lkey;
  uint32_t rkey;
  uint32_t sub;
  uint64_t group;
  bool last;        // of its message
  bool pieces;      // the end of it: others went before
  uint32_t chunks;  // of its message
};

[[gnu::always_inline]] inline PostOutcome PostChunk(SendConnection& connection, OutPath& path,
                                                    DataQueue& queue, SendRequest& request,
                                                    const Chunk& chunk) {
  Engine& engine = *connection.engine;
  EnginePort& port = *queue.port;
  // Adaptive routing delivers packets of one write out of order: the immediate follows in a packet of its
  // own.
  const bool split = chunk.length > queue.split_above_bytes;
  const bool record = chunk.last && (split || chunk.chunks > 1 || chunk.pieces);
  const uint32_t needed = 1u + split + record;
  if (queue.free_wrs < needed || port.cq_credits < needed) [[unlikely]]
    return PostOutcome::kNoRoom;

  ibv_send_wr* first = &queue.immediate;
  ibv_sge* sge = &queue.immediate_sge;
  queue.immediate.num_sge = chunk.length != 0;
  queue.immediate.wr.rdma.remote_addr = chunk.remote_address;
  queue.immediate.wr.rdma.rkey = chunk.rkey;
  if (record) {
    Record& source = connection.records[request.slot_sub];
    source = {SequenceOf(chunk.group), request.bytes, chunk.chunks, 0};
    queue.record_sge.addr = reinterpret_cast<uint64_t>(&source);
    queue.record_sge.lkey = connection.table_lkeys[queue.engine_port];
    queue.record.wr.rdma.remote_addr = connection.remote_records + request.slot_sub * sizeof(Record);
    queue.record.wr.rdma.rkey = connection.remote_record_rkeys[queue.peer_port];
    first = &queue.record;
  }
  if (split) {
    sge = &queue.bulk_sge;
    queue.immediate.num_sge = 0;
    queue.bulk.wr.rdma.remote_addr = chunk.remote_address;
    queue.bulk.wr.rdma.rkey = chunk.rkey;
    queue.bulk.next = first;
    first = &queue.bulk;
  }
  *sge = {chunk.data, chunk.length, chunk.lkey};
  const ImmKind kind = !chunk.last ? ImmKind::kChunk : record ? ImmKind::kLast : ImmKind::kSingle;
  queue.immediate.imm_data = htonl(Immediate::Pack(kind, chunk.group, connection.index, chunk.sub));
  queue.immediate.wr_id = WorkId::Pack(WorkKind::kData, &request, needed, queue.index);

  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(queue.qp, first, &bad);
  if (error != 0) [[unlikely]] {
    engine.FailPath(path, SystemError("posting a message to " + path.peer + " on " + port.port.name, error));
    return PostOutcome::kFailed;
  }
  queue.free_wrs -= needed;
  port.cq_credits -= needed;
  ++queue.outstanding_chunks;
  return PostOutcome::kPosted;
}

// The next bytes of a chunk whose end does not fit yet. What follows goes to the same queue pair, so the immediate
// comes after all of them.
PostOutcome PostPiece(SendRequest& request, OutPath& path, DataQueue& queue, const Chunk& chunk) {
  Engine& engine = *request.engine;
  EnginePort& port = *queue.port;
  if (queue.free_wrs < 1 || port.cq_credits < 1) return PostOutcome::kNoRoom;
  queue.piece_sge = {chunk.data, chunk.length, chunk.lkey};
  queue.piece.wr.rdma.remote_addr = chunk.remote_address;
  queue.piece.wr.rdma.rkey = chunk.rkey;
  queue.piece.wr_id = WorkId::Pack(WorkKind::kPiece, &request, 1, queue.index);
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(queue.qp, &queue.piece, &bad);
  if (error != 0) {
    engine.FailPath(path, SystemError("posting a message to " + path.peer + " on " + port.port.name, error));
    return PostOutcome::kFailed;
  }
  --queue.free_wrs;
  --port.cq_credits;
  ++queue.outstanding_chunks;
  request.chunk_posted += chunk.length;
  request.chunk_queue = queue.index;
  request.piece_bytes = chunk.length;
  return PostOutcome::kPosted;
}

}  // namespace

bool PostChunks(SendRequest& request) noexcept {
  auto& connection = static_cast<SendConnection&>(*request.connection);
  OutPath& path = *connection.path;
  PortShare& share = connection.engine->share;
  Lane& lane = path.lanes[request.service_class];
  const uint64_t now = lane.shared ? TickClock::Now() : 0;
  const bool limited = lane.shared && share.Limits(request.service_class, now);
  PostOutcome outcome = PostOutcome::kPosted;
  uint32_t posted = 0;  // bytes that neither the share nor the request knows of yet
  const auto settle = [&] {
    share.Posted(request.service_class, posted);
    request.outstanding_bytes += std::exchange(posted, 0);
  };
  while (request.chunks_posted < request.chunks) {
    DataQueue& queue = request.chunk_posted != 0 ? path.queues[request.chunk_queue]
                       : request.chunks > 1      ? NextQueue(path, lane, request.next_pair)
                                                 : LeastLoaded(path, lane, request.next_pair);
    const uint32_t offset = request.chunks_posted * request.chunk_bytes + request.chunk_posted;
    const uint32_t rest = std::min(request.chunk_bytes - request.chunk_posted, request.bytes - offset);
    uint32_t length = rest;
    if (limited && rest != 0) [[unlikely]] {
      settle();
      length = share.Admit(request.service_class, rest, now);
      if (length == 0) return false;
    }
    const Chunk chunk = {.data = request.data + offset,
                         .remote_address = request.remote_address + offset,
                         .length = length,
                         .lkey = request.memory->lkey(queue.engine_port),
                         .rkey = request.rkeys[queue.peer_port],
                         .sub = request.sub,
                         .group = request.group,
                         .last = request.chunks_posted + 1 == request.chunks,
                         .pieces = request.chunk_posted != 0,
                         .chunks = request.chunks};
    outcome = length < rest ? PostPiece(request, path, queue, chunk)
                            : PostChunk(connection, path, queue, request, chunk);
    if (outcome != PostOutcome::kPosted) break;
    posted += length;
    ++request.chunks_pending;
    if (length < rest) continue;
    request.chunk_posted = 0;
    ++request.chunks_posted;
    if (++request.next_pair == path.pair_count) request.next_pair = 0;
  }
  settle();
  return outcome != PostOutcome::kNoRoom;
}

namespace {

// The whole message as one chunk, at once: what nearly every message is.
[[gnu::always_inline]] inline bool TryPostWhole(SendConnection& connection, OutPath& path, Lane& lane,
                                                SendRequest& request, const CtsEntry& entry, uint64_t data,
                                                uint32_t bytes, uint32_t sub, uint32_t pair) {
  DataQueue& queue = LeastLoaded(path, lane, pair);
  if (lane.shared && connection.engine->share.Admit(request.service_class, bytes, TickClock::Now()) != bytes)
      [[unlikely]] {
    return false;
  }
  const Chunk chunk = {.data = data,
                       .remote_address = entry.address,
                       .length = bytes,
                       .lkey = request.memory->lkey(queue.engine_port),
                       .rkey = entry.rkeys[queue.peer_port],
                       .sub = sub,
                       .group = connection.group,
                       .last = true,
                       .pieces = false,
                       .chunks = 1};
  request.chunks = request.chunks_posted = request.chunks_pending = 1;
  const PostOutcome outcome = PostChunk(connection, path, queue, request, chunk);
  if (outcome == PostOutcome::kNoRoom) [[unlikely]]
    return false;
  connection.engine->share.Posted(request.service_class, bytes);
  return true;
}

// Several chunks, or no room: remembers what the chunks need and posts as many as possible.
[[gnu::noinline]] void PlanAndPost(SendConnection& connection, OutPath& path, SendRequest& request,
                                   const CtsEntry& entry, uint32_t granted_chunks, uint64_t data,
                                   uint32_t sub, uint32_t pair) {
  request.chunks_posted = request.chunks_pending = 0;
  request.group = connection.group;
  request.sub = static_cast<uint8_t>(sub);
  request.data = data;
  request.remote_address = entry.address;
  request.rkeys = entry.rkeys;
  request.next_pair = pair;
  PlanChunks(path, granted_chunks, request);
  request.chunk_posted = request.outstanding_bytes = 0;
  // Older messages of the class first.
  Engine& engine = *connection.engine;
  if (engine.has_waiting_sends(request.service_class) || !PostChunks(request)) {
    engine.Enqueue(&request);
    engine.Progress();
  }
}

Attempt<Request> FailSend(SendConnection& connection, const Status& cause) noexcept {
  connection.engine->FailPath(*connection.path, cause);
  connection.Fail(cause);
  return Attempt<Request>::Failed(connection.error.load(std::memory_order_relaxed));
}

// No CTS entry yet, and something else to look at.
[[gnu::noinline]] Attempt<Request> RefuseSlowly(SendConnection& connection) noexcept {
  if (connection.engine->has_waiting()) connection.engine->Progress();
  if (const Status* error = connection.error.load(std::memory_order_acquire))
    return Attempt<Request>::Failed(error);
  if (!connection.peer_closed) return Attempt<Request>::Again();
  connection.Fail(RemoteError("the receiver " + connection.path->peer +
                              " closed the connection; see the log of that host for the cause"));
  return Attempt<Request>::Failed(connection.error.load(std::memory_order_relaxed));
}

// The head group has an entry.
[[gnu::noinline]] Attempt<Request> Match(SendConnection& connection, const void* data, size_t bytes, int tag,
                                         MemoryHandle* memory, void* phandle) noexcept {
  if (const Status* error = connection.error.load(std::memory_order_acquire)) [[unlikely]]
    return Attempt<Request>::Failed(error);
  Engine& engine = *connection.engine;
  OutPath& path = *connection.path;
  const CtsEntry* ring = connection.head;
  // The ring is the peer's to write: each field is read once, then checked.
  const uint32_t n = ring->group_size;
  if (n == 0 || n > connection.max_recvs) [[unlikely]] {
    return FailSend(connection, RemoteError("the receiver " + path.peer + " granted a group of " +
                                            std::to_string(n) + " buffers, at most " +
                                            std::to_string(connection.max_recvs) + " are possible"));
  }
  uint32_t sub = 0;
  while (sub < n && (__atomic_load_n(&ring[sub].seq, __ATOMIC_ACQUIRE) != connection.seq ||
                     ring[sub].tag != tag || (connection.matched_subs >> sub & 1) != 0)) {
    ++sub;
  }
  if (sub == n) return Attempt<Request>::Again();
  const CtsEntry& entry = ring[sub];
  const uint32_t capacity = entry.capacity_bytes;
  const uint32_t chunks = entry.chunks;
  SendRequest& request = connection.requests[static_cast<size_t>(ring - connection.cts_ring) + sub];
  if (request.open) [[unlikely]]
    return Attempt<Request>::Again();  // the caller has not tested the group 32 before
  if (bytes > capacity || chunks == 0) [[unlikely]] {
    return FailSend(connection, chunks == 0 ? RemoteError("the receiver " + path.peer + " granted no chunk")
                                            : InvalidUsage(SizeMismatch(connection, bytes, capacity, tag)));
  }
  if (memory == nullptr) [[unlikely]] {
    if (bytes != 0) {
      return FailSend(connection, InvalidArgument("isend of " + std::to_string(bytes) +
                                                  " bytes without a memory handle"));
    }
    memory = &MemoryHandle::None();
  }

  const Claim& claim = engine.classifier.OfSend(memory->hint(), phandle);
  const uint8_t service_class = claim.service_class;
  request.service_class = service_class;
  EngineClassifier::CountSent(claim, bytes);
  request.open = true;
  request.done = false;
  request.bytes = request.outstanding_bytes = static_cast<uint32_t>(bytes);
  request.memory = memory;
  ++connection.open_requests;
  const uint32_t pair = path.next_pair;
  path.next_pair = pair + 1 == path.pair_count ? 0 : pair + 1;
  const auto address = reinterpret_cast<uint64_t>(data);
  Lane& lane = path.lanes[service_class];
  if (bytes > path.stripe_above_bytes || engine.has_waiting_sends(service_class) ||
      !TryPostWhole(connection, path, lane, request, entry, address, static_cast<uint32_t>(bytes), sub, pair))
      [[unlikely]] {
    PlanAndPost(connection, path, request, entry, chunks, address, sub, pair);
  }
  connection.matched_subs |= 1u << sub;
  if (connection.matched_subs == (1u << n) - 1) {
    connection.matched_subs = 0;
    ++connection.group;
    connection.seq = NextSequence(connection.seq);
    connection.head = connection.cts_ring + connection.group % kSlots * connection.max_recvs;
  }
  return Attempt<Request>::Of(&request);
}

[[gnu::always_inline]] inline Attempt<Request> IsendLocked(SendConnection& connection, const void* data,
                                                           size_t bytes, int tag, MemoryHandle* memory,
                                                           void* phandle) noexcept {
  if (__atomic_load_n(&connection.head->seq, __ATOMIC_ACQUIRE) == connection.seq)
    return Match(connection, data, bytes, tag, memory, phandle);
  if (connection.engine->has_waiting() || connection.peer_closed ||
      connection.error.load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
    return RefuseSlowly(connection);
  }
  return Attempt<Request>::Again();
}

// For engines that several threads share, or whose bias a control call has taken away for a moment.
[[gnu::noinline]] Attempt<Request> IsendShared(SendConnection& connection, const void* data, size_t bytes,
                                               int tag, MemoryHandle* memory, void* phandle) noexcept {
  DataGuard guard(connection.engine->lock);
  connection.engine->classifier.Bind();
  return IsendLocked(connection, data, bytes, tag, memory, phandle);
}

}  // namespace

Attempt<Request> SendComm::Isend(const void* data, size_t bytes, int tag, MemoryHandle* memory,
                                 void* phandle) noexcept {
  auto& connection = *static_cast<SendConnection*>(this);
  BiasedLock& lock = connection.engine->lock;
  if (!lock.TryLockBiased()) [[unlikely]]
    return IsendShared(connection, data, bytes, tag, memory, phandle);
  const Attempt<Request> attempt = IsendLocked(connection, data, bytes, tag, memory, phandle);
  lock.UnlockBiased();
  return attempt;
}

}  // namespace sluice
