// Isend: match the head group's CTS entry, cut the message into chunks, post them.
#include <arpa/inet.h>

#include <algorithm>

#include "plugin/transport/engine.h"
#include "plugin/transport/path.h"
#include "plugin/transport/post.h"

namespace sluice {
namespace {

constexpr uint32_t RoundUpToChunkAlign(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + kChunkAlignBytes - 1) & ~uint64_t{kChunkAlignBytes - 1});
}

// Number and size of the chunks of a message: one, unless it is long enough to stripe or above the port's limit.
void PlanChunks(const OutPath& path, uint32_t granted_chunks, SendRequest& request) {
  request.chunks = 1;
  request.chunk_bytes = request.bytes;
  if (request.bytes <= path.stripe_above_bytes) [[likely]] return;
  uint64_t count = std::max<uint64_t>(path.stripes, (request.bytes + path.max_message_bytes - 1) / path.max_message_bytes);
  count = std::min<uint64_t>(count, granted_chunks);
  request.chunk_bytes = RoundUpToChunkAlign((request.bytes + count - 1) / count);
  request.chunks = static_cast<uint16_t>((request.bytes + request.chunk_bytes - 1) / request.chunk_bytes);
}

DataQueue& LeastLoaded(OutPath& path, uint32_t pair) {
  DataQueue* queue = &path.queues[pair * path.queues_per_pair];
  DataQueue* best = queue;
  for (uint32_t i = 1; i < path.queues_per_pair && best->outstanding_chunks != 0; ++i) {
    if (queue[i].outstanding_chunks < best->outstanding_chunks) best = queue + i;
  }
  return *best;
}

std::string SizeMismatch(const SendConnection& connection, uint64_t bytes, uint32_t capacity, int tag) {
  return "message of " + std::to_string(bytes) + " bytes (tag " + std::to_string(tag) + ") to " + connection.path->peer +
         " does not fit the posted receive of " + std::to_string(capacity) +
         " bytes; likely one rank registered its buffer and the other did not, or the counts differ between the ranks";
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
}

bool PostChunks(SendRequest& request) {
  auto& connection = static_cast<SendConnection&>(*request.connection);
  OutPath& path = *connection.path;
  Engine& engine = *request.engine;
  while (request.chunks_posted < request.chunks) {
    DataQueue& queue = LeastLoaded(path, request.next_pair);
    EnginePort& port = engine.ports[queue.engine_port];
    const uint32_t offset = request.chunks_posted * request.chunk_bytes;
    const uint32_t length = std::min(request.chunk_bytes, request.bytes - offset);
    const bool last = request.chunks_posted + 1 == request.chunks;
    // Adaptive routing delivers packets of one write out of order: the immediate follows in a packet of its own.
    const bool split = length > queue.split_above_bytes;
    const bool record = last && (request.chunks > 1 || split);
    const uint32_t needed = 1u + split + record;
    if (queue.free_wrs < needed || port.cq_credits < needed) [[unlikely]] return false;

    const uint32_t lkey = request.memory == nullptr ? 0 : request.memory->lkey(queue.engine_port);
    const uint32_t rkey = request.rkeys[queue.peer_port];
    ibv_send_wr* first = &queue.immediate;
    if (record) {
      queue.record_sge.addr = reinterpret_cast<uint64_t>(connection.records + request.slot_sub);
      queue.record_sge.lkey = connection.table_lkeys[queue.engine_port];
      queue.record.wr.rdma.remote_addr = connection.remote_records + request.slot_sub * sizeof(Record);
      queue.record.wr.rdma.rkey = connection.remote_record_rkeys[queue.peer_port];
      Record& source = connection.records[request.slot_sub];
      source = {static_cast<uint32_t>(SequenceOf(request.group)), request.bytes, request.chunks, 0};
      first = &queue.record;
    }
    ibv_sge& sge = split ? queue.bulk_sge : queue.immediate_sge;
    sge.addr = request.data + offset;
    sge.length = length;
    sge.lkey = lkey;
    queue.immediate.wr.rdma.remote_addr = request.remote_address + offset;
    queue.immediate.wr.rdma.rkey = rkey;
    queue.immediate.num_sge = split || length == 0 ? 0 : 1;
    if (split) {
      queue.bulk.wr.rdma.remote_addr = request.remote_address + offset;
      queue.bulk.wr.rdma.rkey = rkey;
      queue.bulk.next = first;
      first = &queue.bulk;
    }
    const ImmKind kind = !last ? ImmKind::kChunk : record ? ImmKind::kLast : ImmKind::kSingle;
    queue.immediate.imm_data = htonl(Immediate::Pack(kind, request.group, connection.index, request.sub));
    queue.immediate.wr_id = WorkId::Pack(WorkKind::kData, &request, needed, queue.index);

    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(queue.qp, first, &bad);
    if (error != 0) [[unlikely]] {
      engine.FailPath(path, SystemError("posting a message to " + path.peer + " on " + port.port.name, error));
      return true;
    }
    queue.free_wrs -= needed;
    port.cq_credits -= needed;
    ++queue.outstanding_chunks;
    ++request.chunks_posted;
    ++request.chunks_pending;
    if (++request.next_pair == path.pairs.size()) request.next_pair = 0;
  }
  return true;
}

Attempt<Request> SendComm::Isend(const void* data, size_t bytes, int tag, MemoryHandle* memory, void* phandle) {
  (void)phandle;
  auto& connection = *static_cast<SendConnection*>(this);
  Engine& engine = *connection.engine;
  DataGuard guard(engine.lock);
  if (const Status* error = connection.error.load(std::memory_order_acquire)) [[unlikely]] return Attempt<Request>::Failed(error);
  const uint32_t slot = static_cast<uint32_t>(connection.group % kSlots);
  CtsEntry* ring = connection.cts_ring + slot * connection.max_recvs;
  if (__atomic_load_n(&ring->seq, __ATOMIC_ACQUIRE) != connection.seq) {
    if (engine.has_waiting()) [[unlikely]] engine.Progress();
    if (connection.peer_closed) [[unlikely]] {
      connection.Fail(RemoteError("the receiver " + connection.path->peer + " closed the connection; see the log of that host for the cause"));
      return Attempt<Request>::Failed(connection.error.load(std::memory_order_relaxed));
    }
    return Attempt<Request>::Again();
  }
  // The ring is the peer's to write: copy, then check the copy.
  const uint32_t n = ring->group_size;
  if (n == 0 || n > connection.max_recvs) [[unlikely]] {
    engine.FailPath(*connection.path, RemoteError("the receiver " + connection.path->peer + " granted a group of " + std::to_string(n) +
                                                  " buffers, at most " + std::to_string(connection.max_recvs) + " are possible"));
    return Attempt<Request>::Failed(connection.error.load(std::memory_order_relaxed));
  }
  uint32_t sub = 0;
  while (sub < n && (__atomic_load_n(&ring[sub].seq, __ATOMIC_ACQUIRE) != connection.seq || ring[sub].tag != tag ||
                     (connection.matched_subs >> sub & 1) != 0)) {
    ++sub;
  }
  if (sub == n) return Attempt<Request>::Again();
  const CtsEntry entry = ring[sub];
  SendRequest& request = connection.requests[slot * connection.max_recvs + sub];
  if (request.open) [[unlikely]] return Attempt<Request>::Again();  // the caller has not tested the group 32 before
  if (bytes > entry.capacity_bytes || entry.chunks == 0) [[unlikely]] {
    engine.FailPath(*connection.path, entry.chunks == 0 ? RemoteError("the receiver " + connection.path->peer + " granted no chunk")
                                                        : InvalidUsage(SizeMismatch(connection, bytes, entry.capacity_bytes, tag)));
    return Attempt<Request>::Failed(connection.error.load(std::memory_order_relaxed));
  }
  if (bytes != 0 && memory == nullptr) [[unlikely]] {
    engine.FailPath(*connection.path, InvalidArgument("isend of " + std::to_string(bytes) + " bytes without a memory handle"));
    return Attempt<Request>::Failed(connection.error.load(std::memory_order_relaxed));
  }

  request.open = true;
  request.done = false;
  request.chunks_posted = 0;
  request.chunks_pending = 0;
  request.group = connection.group;
  request.sub = static_cast<uint8_t>(sub);
  request.bytes = static_cast<uint32_t>(bytes);
  request.data = reinterpret_cast<uint64_t>(data);
  request.remote_address = entry.address;
  request.memory = memory;
  request.rkeys = entry.rkeys;
  request.next_pair = connection.path->next_pair;
  if (++connection.path->next_pair == connection.path->pairs.size()) connection.path->next_pair = 0;
  PlanChunks(*connection.path, entry.chunks, request);
  ++connection.open_requests;
  connection.matched_subs |= 1u << sub;
  if (connection.matched_subs == (1u << n) - 1) {
    connection.matched_subs = 0;
    ++connection.group;
    connection.seq = NextSequence(connection.seq);
  }
  // Older messages first.
  if (engine.has_waiting() || !PostChunks(request)) [[unlikely]] {
    engine.Enqueue(&request);
    engine.Progress();
  }
  return Attempt<Request>::Of(&request);
}

}  // namespace sluice
