// Irecv, Iflush and Test.
#include <algorithm>

#include "plugin/transport/engine.h"
#include "plugin/transport/path.h"
#include "plugin/transport/post.h"

namespace sluice {
namespace {

// Immediates that a message of this capacity may need at least and would like at most.
struct ChunkNeed {
  uint32_t least;
  uint32_t wanted;
};

ChunkNeed NeedOf(const InPath& path, uint32_t capacity_bytes) {
  if (capacity_bytes <= path.stripe_above_bytes) [[likely]]
    return {1, 1};
  const auto least =
      static_cast<uint32_t>((capacity_bytes + path.max_message_bytes - 1) / path.max_message_bytes);
  return {least, std::max<uint32_t>(least, path.stripes)};
}

}  // namespace

void ControlQueue::Prepare() {
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.sg_list = &sge;
  wr.num_sge = 1;
}

namespace {

// Grants fewer chunks when receive entries are short. False when not even the least are there.
bool ReserveLess(Engine& engine, const InPath& path, RecvGroup& group) {
  for (uint32_t i = 0; i < engine.port_count; ++i) {
    if (engine.ports[i].srq_posted - engine.ports[i].srq_reserved < group.least_chunks) return false;
  }
  for (uint32_t i = 0; i < group.n; ++i) {
    const uint32_t chunks = NeedOf(path, group.entries[i].capacity_bytes).least;
    group.entries[i].chunks = static_cast<uint16_t>(chunks);
    group.subs[i].granted = static_cast<uint16_t>(chunks);
  }
  group.wanted_chunks = group.least_chunks;
  return true;
}

}  // namespace

CtsOutcome PostCts(RecvGroup& group) noexcept {
  auto& connection = static_cast<RecvConnection&>(*group.connection);
  InPath& path = *connection.path;
  Engine& engine = *group.engine;
  ControlQueue& control = path.controls[connection.control_pair];
  EnginePort& port = *control.port;
  if (control.free_wrs == 0 || port.cq_credits == 0) [[unlikely]]
    return CtsOutcome::kQueueFull;
  for (uint32_t i = 0; i < engine.port_count; ++i) {
    const EnginePort& reserved = engine.ports[i];
    if (reserved.srq_posted - reserved.srq_reserved < group.wanted_chunks) [[unlikely]] {
      if (!ReserveLess(engine, path, group)) return CtsOutcome::kNoReceives;
    }
  }
  for (uint32_t i = 0; i < engine.port_count; ++i) engine.ports[i].srq_reserved += group.wanted_chunks;

  const uint32_t bytes = group.n * static_cast<uint32_t>(sizeof(CtsEntry));
  control.sge = {reinterpret_cast<uint64_t>(group.entries), bytes, connection.cts_lkey};
  control.wr.wr.rdma.remote_addr = group.remote_entries;
  control.wr.wr.rdma.rkey = connection.cts_rkey;
  unsigned flags = bytes <= control.max_inline ? IBV_SEND_INLINE : 0;
  // What is posted without a signal keeps its credit until a later signal of the same queue. With many paths
  // these would be all credits there are; so the second half of them goes to signalled work only.
  if (++control.unsignaled >= control.signal_every || port.cq_credits <= port.cq_credits_low) {
    flags |= IBV_SEND_SIGNALED;
    control.wr.wr_id = WorkId::Pack(WorkKind::kControl, &control, 0, control.unsignaled);
    control.unsignaled = 0;
  }
  control.wr.send_flags = flags;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(control.qp, &control.wr, &bad);
  if (error != 0) [[unlikely]] {
    engine.FailPath(path, SystemError("posting a grant to " + path.peer + " on " + port.port.name, error));
    return CtsOutcome::kDone;
  }
  --control.free_wrs;
  --port.cq_credits;
  return CtsOutcome::kDone;
}

namespace {

[[gnu::cold, gnu::noinline]] Attempt<Request> RefuseBuffer(RecvConnection& connection, uint32_t index,
                                                           const ReceiveBuffer& buffer) noexcept {
  connection.engine->FailPath(
      *connection.path,
      InvalidArgument("irecv buffer " + std::to_string(index) + " of " + std::to_string(buffer.bytes) +
                      " bytes " +
                      (buffer.memory == nullptr ? "has no memory handle" : "exceeds 2147483647")));
  return Attempt<Request>::Failed(connection.error.load(std::memory_order_relaxed));
}

// The entry of one buffer. Adds to what the group needs. False: the buffer is refused.
[[gnu::always_inline]] inline bool FillEntry(RecvConnection& connection, RecvGroup& group,
                                             const ReceiveBuffer& buffer, uint32_t i, uint32_t n,
                                             ChunkNeed* group_need) noexcept {
  const MemoryHandle* memory = buffer.memory;
  if (buffer.bytes > kMaxMessageBytes || memory == nullptr) [[unlikely]] {
    if (buffer.bytes != 0) return false;
    memory = &MemoryHandle::None();
  }
  const ChunkNeed need = NeedOf(*connection.path, static_cast<uint32_t>(buffer.bytes));
  group_need->least += need.least;
  group_need->wanted += need.wanted;
  CtsEntry& entry = group.entries[i];
  entry.address = reinterpret_cast<uint64_t>(buffer.data);
  entry.capacity_bytes = static_cast<uint32_t>(buffer.bytes);
  entry.tag = buffer.tag;
  entry.rkeys = memory->rkeys();
  entry.granted_bytes = static_cast<uint32_t>(buffer.bytes);
  entry.chunks = static_cast<uint16_t>(need.wanted);
  entry.group_size = static_cast<uint8_t>(n);
  entry.sub = static_cast<uint8_t>(i);
  entry.seq = connection.seq;
  group.subs[i] = {.granted = static_cast<uint16_t>(need.wanted), .memory = buffer.memory};
  if (i == 0) {  // speaks for the group
    const Claim& claim = connection.engine->classifier.OfReceive(memory->hint());
    group.counter = claim.counter;
    entry.op_hint = claim.op_hint;
  }
  return true;
}

// The buffers behind the first. The number of the one that is refused, n if none.
[[gnu::noinline]] uint32_t FillRest(RecvConnection& connection, RecvGroup& group,
                                    std::span<const ReceiveBuffer> buffers, ChunkNeed* need) noexcept {
  const auto n = static_cast<uint32_t>(buffers.size());
  uint32_t i = 1;
  while (i < n && FillEntry(connection, group, buffers[i], i, n, need)) ++i;
  return i;
}

}  // namespace

Attempt<Request> RecvComm::Irecv(std::span<const ReceiveBuffer> buffers) noexcept {
  auto& connection = *static_cast<RecvConnection*>(this);
  Engine& engine = *connection.engine;
  DataGuard guard(engine.lock);
  if (!guard.biased()) [[unlikely]]
    engine.classifier.Bind();
  if (const Status* error = connection.error.load(std::memory_order_acquire)) [[unlikely]]
    return Attempt<Request>::Failed(error);
  if (buffers.empty() || buffers.size() > connection.max_recvs) [[unlikely]] {
    engine.FailPath(*connection.path,
                    InvalidArgument("irecv of " + std::to_string(buffers.size()) +
                                    " buffers: this connection groups 1 to " +
                                    std::to_string(connection.max_recvs) + " (SLUICE_MAX_RECVS)"));
    return Attempt<Request>::Failed(connection.error.load(std::memory_order_relaxed));
  }
  const uint32_t slot = static_cast<uint32_t>(connection.group % kSlots);
  RecvGroup& group = connection.groups[slot];
  if (group.open) [[unlikely]]
    return Attempt<Request>::Again();  // 32 receives are open
  const uint32_t n = static_cast<uint32_t>(buffers.size());
  const uint32_t seq = connection.seq;
  ChunkNeed need{0, 0};
  if (!FillEntry(connection, group, buffers[0], 0, n, &need)) [[unlikely]]
    return RefuseBuffer(connection, 0, buffers[0]);
  if (n != 1) [[unlikely]] {
    const uint32_t filled = FillRest(connection, group, buffers, &need);
    if (filled != n) return RefuseBuffer(connection, filled, buffers[filled]);
  }
  group.n = static_cast<uint8_t>(n);
  group.remaining = group.n;
  group.least_chunks = need.least;
  group.wanted_chunks = need.wanted;
  group.epoch = static_cast<uint8_t>(connection.group >> 5 & 63);
  group.seq = seq;
  group.open = true;
  group.done = false;
  ++connection.group;
  connection.seq = NextSequence(seq);
  ++connection.open_requests;
  if (engine.has_waiting() || PostCts(group) != CtsOutcome::kDone) [[unlikely]] {
    const uint32_t entries = engine.ReceiveEntries();
    if (need.least > entries) {
      engine.FailPath(*connection.path, InvalidUsage("irecv of " + std::to_string(n) + " buffers needs " +
                                                     std::to_string(need.least) + " receive entries and " +
                                                     engine.Describe() + " has " + std::to_string(entries) +
                                                     " (max_srq_wr, max_cqe); lower SLUICE_MAX_RECVS"));
      return Attempt<Request>::Failed(connection.error.load(std::memory_order_relaxed));
    }
    engine.Enqueue(&group);
    engine.Progress();
  }
  return Attempt<Request>::Of(&group);
}

Attempt<Request> RecvComm::Iflush(std::span<const ReceiveBuffer> buffers) noexcept {
  auto& connection = *static_cast<RecvConnection*>(this);
  Engine& engine = *connection.engine;
  DataGuard guard(engine.lock);
  if (const Status* error = connection.error.load(std::memory_order_acquire)) [[unlikely]]
    return Attempt<Request>::Failed(error);
  const ReceiveBuffer* last = nullptr;
  for (const ReceiveBuffer& buffer : buffers) {
    if (buffer.bytes != 0 && buffer.memory != nullptr) last = &buffer;
  }
  // Host memory is coherent; the read is for GPU memory, where data may still be in flight inside the PCIe
  // tree.
  if (last == nullptr || engine.params.gdr_flush_disable ||
      (last->memory->kind() == MemoryKind::kHost && !engine.params.force_flush)) {
    return Attempt<Request>::Again();
  }
  FlushRequest* request = nullptr;
  for (uint32_t i = 0; i < kSlots && request == nullptr; ++i) {
    if (!connection.flushes[i].open) request = &connection.flushes[i];
  }
  bool room = request != nullptr;
  for (uint32_t i = 0; i < engine.port_count; ++i)
    room &= engine.ports[i].flush_free_wrs > 0 && engine.ports[i].cq_credits > 0;
  // An empty answer would mean "done": wait for room by polling. Each flush in flight completes without
  // remote software.
  while (!room) {
    engine.Poll();
    if (const Status* error = connection.error.load(std::memory_order_acquire))
      return Attempt<Request>::Failed(error);
    if (request == nullptr) {
      connection.Fail(InvalidUsage("more than 32 flushes are open on one connection"));
      return Attempt<Request>::Failed(connection.error.load(std::memory_order_relaxed));
    }
    room = true;
    for (uint32_t i = 0; i < engine.port_count; ++i)
      room &= engine.ports[i].flush_free_wrs > 0 && engine.ports[i].cq_credits > 0;
  }
  request->open = true;
  request->done = false;
  request->pending = 0;
  for (uint32_t i = 0; i < engine.port_count; ++i) {
    EnginePort& port = engine.ports[i];
    ibv_sge sge = {reinterpret_cast<uint64_t>(port.flush_target.data()), 1, port.flush_memory->lkey(0)};
    ibv_send_wr wr = {};
    wr.wr_id = WorkId::Pack(WorkKind::kFlush, request, 0, 0);
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(last->data);
    wr.wr.rdma.rkey = last->memory->rkeys()[i];
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(port.flush_qp.get(), &wr, &bad);
    if (error != 0) {
      connection.Fail(SystemError("posting a flush on " + port.port.name, error));
      return Attempt<Request>::Failed(connection.error.load(std::memory_order_relaxed));
    }
    --port.flush_free_wrs;
    --port.cq_credits;
    ++request->pending;
  }
  ++connection.open_requests;
  return Attempt<Request>::Of(request);
}

namespace {

[[gnu::noinline]] void ReportGroup(const RecvGroup& group, int* sizes) noexcept {
  AddRelaxed(group.counter[kReceivedOffset].messages, group.n);
  for (uint32_t i = 0; i < group.n; ++i) {
    AddRelaxed(group.counter[kReceivedOffset].bytes, group.subs[i].bytes);
    if (sizes != nullptr) sizes[i] = static_cast<int>(group.subs[i].bytes);
  }
}

[[gnu::always_inline]] inline TestOutcome Finish(RequestBase& request, int* sizes) noexcept {
  request.open = false;
  --request.connection->open_requests;
  uint32_t bytes;
  if (request.kind == RequestKind::kSend) {
    bytes = static_cast<SendRequest&>(request).bytes;
  } else if (request.kind == RequestKind::kReceive) [[likely]] {
    const auto& group = static_cast<RecvGroup&>(request);
    if (group.n != 1) [[unlikely]] {
      ReportGroup(group, sizes);
      return {true, nullptr};
    }
    bytes = group.subs[0].bytes;
    AddRelaxed(group.counter[kReceivedOffset].messages, 1);
    AddRelaxed(group.counter[kReceivedOffset].bytes, bytes);
  } else {
    return {true, nullptr};
  }
  if (sizes != nullptr) *sizes = static_cast<int>(bytes);
  return {true, nullptr};
}

// For engines that several threads share, or whose bias a control call has taken away for a moment.
[[gnu::noinline]] TestOutcome TestShared(RequestBase& request, int* sizes) noexcept {
  DataGuard guard(request.engine->lock);
  if (!request.done) request.engine->Poll();
  if (!request.done) return {false, request.connection->error.load(std::memory_order_acquire)};
  return Finish(request, sizes);
}

}  // namespace

TestOutcome Request::Test(int* sizes) noexcept {
  auto& request = *static_cast<RequestBase*>(this);
  Engine& engine = *request.engine;
  if (!engine.lock.TryLockBiased()) [[unlikely]]
    return TestShared(request, sizes);
  if (!request.done) {
    int count;
    if (engine.PollQuickly(&count)) engine.FinishPoll(count);
    if (!request.done) {
      engine.lock.UnlockBiased();
      return {false, request.connection->error.load(std::memory_order_acquire)};
    }
  }
  const TestOutcome outcome = Finish(request, sizes);
  engine.lock.UnlockBiased();
  return outcome;
}

}  // namespace sluice
