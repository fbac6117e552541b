// Completion queues: entries lie in memory of this process, so polling an empty queue is two loads.
#include <cerrno>
#include <cstring>

#include "verbs/soft/lib/objects.h"

namespace sluice::soft {
namespace {

// What a program reads from a field that verbs leaves undefined.
constexpr unsigned char kPoison = 0xa5;
constexpr auto kPoisonOpcode = static_cast<ibv_wc_opcode>(0x7f);  // in the range of the type, no operation

int Invoke(Cq* cq, Call call, CallArguments* arguments) {
  arguments->id = cq->id;
  return cq->context->session->Invoke(call, cq->context->nic, arguments);
}

bool Empty(const Cq* cq) {
  return cq->head.load(std::memory_order_relaxed) == cq->tail.load(std::memory_order_acquire);
}

// The places of the queue that became free with this entry.
void FreePlace(const Cqe& entry) {
  if (entry.kind == QueueKind::kSharedRecv) {
    if (entry.srq == nullptr) return;
    pthread_mutex_lock(&entry.srq->mutex);
    entry.srq->free_places.push_back(entry.index);
    pthread_mutex_unlock(&entry.srq->mutex);
  } else if (entry.qp != nullptr) {
    WorkQueue& queue = entry.kind == QueueKind::kSend ? entry.qp->send : entry.qp->recv;
    queue.tail.store(entry.index + 1, std::memory_order_release);
  }
}

// The mutex is held.
bool TakeOne(Cq* cq, Cqe* entry) {
  const uint64_t head = cq->head.load(std::memory_order_relaxed);
  if (head == cq->tail.load(std::memory_order_acquire)) return false;
  *entry = cq->entries[head & (cq->entries.size() - 1)];
  cq->head.store(head + 1, std::memory_order_release);
  cq->taken_seen->store(++cq->taken, std::memory_order_release);
  FreePlace(*entry);
  return true;
}

bool HasByteLength(const Cqe& entry) {
  switch (entry.opcode) {
    case IBV_WC_SEND:
    case IBV_WC_RDMA_WRITE:
    case IBV_WC_BIND_MW:
    case IBV_WC_LOCAL_INV:
      return false;
    default:
      return true;
  }
}

void FillWc(const Cqe& entry, ibv_wc* wc) {
  memset(static_cast<void*>(wc), kPoison, sizeof(*wc));
  wc->opcode = kPoisonOpcode;
  wc->wr_id = entry.wr_id;
  wc->status = entry.status;
  wc->vendor_err = entry.vendor_err;
  wc->qp_num = entry.qp_num;
  if (!entry.full) return;
  wc->opcode = entry.opcode;
  wc->wc_flags = entry.wc_flags;
  wc->src_qp = entry.src_qp;
  wc->slid = entry.slid;
  wc->sl = entry.sl;
  if (HasByteLength(entry)) wc->byte_len = entry.byte_len;
  if ((entry.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) != 0) wc->imm_data = entry.imm_data;
}

// Looks for work that the fabric has for this program.
bool StaysEmpty(Cq* cq) {
  if (!Empty(cq)) return false;
  cq->context->session->Progress();
  if (!Empty(cq)) return false;
  cq->context->session->PolledInVain();
  return true;
}

int PollCq(ibv_cq* queue, int count, ibv_wc* wc) {
  Cq* cq = Own(queue);
  if (StaysEmpty(cq)) return 0;
  pthread_mutex_lock(&cq->mutex);
  int taken = 0;
  Cqe entry;
  while (taken < count && TakeOne(cq, &entry)) FillWc(entry, &wc[taken++]);
  pthread_mutex_unlock(&cq->mutex);
  cq->context->session->TookCompletions(static_cast<uint32_t>(taken));
  return taken;
}

int ReqNotifyCq(ibv_cq* queue, int solicited_only) {
  Cq* cq = Own(queue);
  if (solicited_only == 0) {
    cq->armed.store(Cq::kAny, std::memory_order_seq_cst);
  } else {
    int none = Cq::kNo;
    cq->armed.compare_exchange_strong(none, Cq::kSolicited, std::memory_order_seq_cst);
  }
  return 0;
}

// ---- extended polling

void Show(Cq* cq) {
  cq->context->session->TookCompletions(1);
  cq->cq.wr_id = cq->current.wr_id;
  cq->cq.status = cq->current.status;
}

int StartPoll(ibv_cq_ex* queue, ibv_poll_cq_attr* attr) {
  if (attr != nullptr && attr->comp_mask != 0) return EINVAL;
  Cq* cq = Own(queue);
  if (StaysEmpty(cq)) return ENOENT;
  pthread_mutex_lock(&cq->mutex);
  if (!TakeOne(cq, &cq->current)) {
    pthread_mutex_unlock(&cq->mutex);
    return ENOENT;
  }
  Show(cq);
  return 0;
}
int NextPoll(ibv_cq_ex* queue) {
  Cq* cq = Own(queue);
  if (!TakeOne(cq, &cq->current)) return ENOENT;
  Show(cq);
  return 0;
}
void EndPoll(ibv_cq_ex* queue) {
  pthread_mutex_unlock(&Own(queue)->mutex);
}

ibv_wc Current(ibv_cq_ex* queue) {
  ibv_wc wc;
  FillWc(Own(queue)->current, &wc);
  return wc;
}
ibv_wc_opcode ReadOpcode(ibv_cq_ex* queue) {
  return Current(queue).opcode;
}
uint32_t ReadVendorErr(ibv_cq_ex* queue) {
  return Current(queue).vendor_err;
}
uint32_t ReadByteLen(ibv_cq_ex* queue) {
  return Current(queue).byte_len;
}
__be32 ReadImmData(ibv_cq_ex* queue) {
  return Current(queue).imm_data;
}
uint32_t ReadQpNum(ibv_cq_ex* queue) {
  return Current(queue).qp_num;
}
uint32_t ReadSrcQp(ibv_cq_ex* queue) {
  return Current(queue).src_qp;
}
unsigned ReadWcFlags(ibv_cq_ex* queue) {
  return Current(queue).wc_flags;
}
uint32_t ReadSlid(ibv_cq_ex* queue) {
  return Current(queue).slid;
}
uint8_t ReadSl(ibv_cq_ex* queue) {
  return Current(queue).sl;
}
uint8_t ReadDlidPathBits(ibv_cq_ex* queue) {
  return Current(queue).dlid_path_bits;
}
uint64_t ReadCompletionTs(ibv_cq_ex* queue) {
  return static_cast<uint64_t>(Own(queue)->current.timestamp_ps / 1000);
}

// ---- life

Cq* Create(ibv_context* context, uint32_t cqe, void* cq_context, ibv_comp_channel* channel,
           uint32_t comp_vector) {
  Context* own_context = Own(context);
  if (cqe < 1 || cqe > INT32_MAX || comp_vector >= static_cast<uint32_t>(context->num_comp_vectors)) {
    return Fail<Cq*>(EINVAL);
  }
  Session& session = *own_context->session;
  auto cq = std::make_unique<Cq>();
  cq->context = own_context;
  cq->handle = session.completion_queues().Add(cq.get());
  if (cq->handle == 0 || cq->handle >= kMaxCqSlots) {
    if (cq->handle != 0) session.completion_queues().Remove(cq->handle);
    return Fail<Cq*>(ENOMEM);
  }
  cq->taken_seen = session.TakenCounter(cq.get());
  cq->taken_seen->store(0, std::memory_order_release);
  CallArguments arguments;
  arguments.number = cqe;
  arguments.index = cq->handle;
  arguments.cookie = reinterpret_cast<uint64_t>(cq.get());
  if (const int error = session.Invoke(Call::kCreateCq, own_context->nic, &arguments)) {
    session.completion_queues().Remove(cq->handle);
    return Fail<Cq*>(error);
  }
  cq->id = arguments.id;
  cq->entries.resize(RoundUpToPowerOfTwo(arguments.number));
  ibv_cq_ex& queue = cq->cq;
  queue.context = context;
  queue.channel = channel;
  queue.cq_context = cq_context;
  queue.handle = arguments.id;
  queue.cqe = static_cast<int>(arguments.number);
  pthread_mutex_init(&queue.mutex, nullptr);
  pthread_cond_init(&queue.cond, nullptr);
  queue.start_poll = StartPoll;
  queue.next_poll = NextPoll;
  queue.end_poll = EndPoll;
  queue.read_opcode = ReadOpcode;
  queue.read_vendor_err = ReadVendorErr;
  queue.read_byte_len = ReadByteLen;
  queue.read_imm_data = ReadImmData;
  queue.read_qp_num = ReadQpNum;
  queue.read_src_qp = ReadSrcQp;
  queue.read_wc_flags = ReadWcFlags;
  queue.read_slid = ReadSlid;
  queue.read_sl = ReadSl;
  queue.read_dlid_path_bits = ReadDlidPathBits;
  queue.read_completion_ts = ReadCompletionTs;
  std::lock_guard lock(own_context->objects_mutex);
  if (channel != nullptr) ++channel->refcnt;
  own_context->completion_queues.insert(cq.get());
  return cq.release();
}

// Makes room for `count` entries; the mutex is held.
void Grow(Cq* cq, uint32_t count) {
  if (count <= cq->entries.size()) return;
  std::vector<Cqe> entries(RoundUpToPowerOfTwo(count));
  cq->context->session->LockCommands();
  for (uint64_t i = cq->head.load(); i < cq->tail.load(); ++i) {
    entries[i & (entries.size() - 1)] = cq->entries[i & (cq->entries.size() - 1)];
  }
  cq->entries.swap(entries);
  cq->context->session->UnlockCommands();
}

ibv_cq_ex* CreateCqEx(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  constexpr uint64_t kWcFlags =
      static_cast<uint64_t>(IBV_WC_STANDARD_FLAGS) | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  constexpr uint32_t kMask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
  constexpr uint32_t kFlags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
  if ((attr->wc_flags & ~kWcFlags) != 0 || (attr->comp_mask & ~kMask) != 0) return Fail(EOPNOTSUPP);
  if ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 && (attr->flags & ~kFlags) != 0)
    return Fail(EOPNOTSUPP);
  Cq* cq = Create(context, attr->cqe, attr->cq_context, attr->channel, attr->comp_vector);
  return cq == nullptr ? nullptr : &cq->cq;
}

}  // namespace

void PushCompletion(Cq* cq, const Cqe& entry, bool solicited) {
  const uint64_t tail = cq->tail.load(std::memory_order_relaxed);
  // The model has reported the overrun; the entry is lost, as on a device.
  if (tail - cq->head.load(std::memory_order_acquire) >= cq->entries.size()) return;
  cq->entries[tail & (cq->entries.size() - 1)] = entry;
  cq->tail.store(tail + 1, std::memory_order_seq_cst);
  const int armed = cq->armed.load(std::memory_order_seq_cst);
  if (armed == Cq::kNo) return;
  if (armed == Cq::kSolicited && !solicited && entry.status == IBV_WC_SUCCESS) return;
  if (cq->armed.exchange(Cq::kNo, std::memory_order_seq_cst) == Cq::kNo) return;
  if (cq->cq.channel != nullptr) Own(cq->cq.channel)->events.Push(cq);
}

void ForgetQueuePair(Cq* cq, const Qp* qp) {
  pthread_mutex_lock(&cq->mutex);
  const uint64_t head = cq->head.load(std::memory_order_relaxed);
  uint64_t kept = cq->tail.load(std::memory_order_acquire);
  const size_t mask = cq->entries.size() - 1;
  for (uint64_t i = kept; i-- > head;) {
    const Cqe& entry = cq->entries[i & mask];
    if (entry.qp == qp || (entry.kind == QueueKind::kSharedRecv && entry.qp_num == qp->qp.qp_base.qp_num)) {
      if (entry.kind == QueueKind::kSharedRecv) FreePlace(entry);
    } else {
      --kept;
      if (kept != i) cq->entries[kept & mask] = cq->entries[i & mask];
    }
  }
  cq->taken += kept - head;
  cq->head.store(kept, std::memory_order_release);
  cq->taken_seen->store(cq->taken, std::memory_order_release);
  pthread_mutex_unlock(&cq->mutex);
}

void ForgetSharedQueue(Cq* cq, const Srq* srq) {
  pthread_mutex_lock(&cq->mutex);
  const uint64_t tail = cq->tail.load(std::memory_order_acquire);
  for (uint64_t i = cq->head.load(std::memory_order_relaxed); i < tail; ++i) {
    Cqe& entry = cq->entries[i & (cq->entries.size() - 1)];
    if (entry.srq == srq) entry.srq = nullptr;
  }
  pthread_mutex_unlock(&cq->mutex);
}

int DestroyCq(Cq* cq) {
  Session& session = *cq->context->session;
  CallArguments arguments;
  const int error = Invoke(cq, Call::kDestroyCq, &arguments);
  if (error != 0 && error != EIO) return error;
  if (error == EIO) {
    std::lock_guard lock(cq->context->objects_mutex);
    for (const Qp* qp : cq->context->queue_pairs) {
      const ibv_cq* queue = reinterpret_cast<const ibv_cq*>(&cq->cq);
      if (qp->qp.qp_base.send_cq == queue || qp->qp.qp_base.recv_cq == queue) return EBUSY;
    }
  }
  // Nothing is delivered any more. Events that the program has taken must be acknowledged first.
  if (cq->cq.channel != nullptr) {
    Own(cq->cq.channel)->events.Remove([&](const Cq* event) { return event == cq; });
  }
  cq->context->events.Remove([&](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == reinterpret_cast<ibv_cq*>(&cq->cq);
  });
  pthread_mutex_lock(&cq->cq.mutex);
  while (cq->cq.comp_events_completed != cq->channel_events_taken.load() ||
         cq->cq.async_events_completed != cq->async_events_taken.load()) {
    pthread_cond_wait(&cq->cq.cond, &cq->cq.mutex);
  }
  pthread_mutex_unlock(&cq->cq.mutex);
  session.completion_queues().Remove(cq->handle);
  {
    std::lock_guard lock(cq->context->objects_mutex);
    if (cq->cq.channel != nullptr) --cq->cq.channel->refcnt;
    cq->context->completion_queues.erase(cq);
  }
  pthread_cond_destroy(&cq->cq.cond);
  pthread_mutex_destroy(&cq->cq.mutex);
  delete cq;
  return 0;
}

void InstallCompletionOps(Context* context) {
  context->verbs.create_cq_ex = CreateCqEx;
  context->verbs.context.ops.poll_cq = PollCq;
  context->verbs.context.ops.req_notify_cq = ReqNotifyCq;
}

}  // namespace sluice::soft

using namespace sluice::soft;

extern "C" {

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int comp_vector) {
  Cq* cq = Create(context, cqe < 1 ? 0 : static_cast<uint32_t>(cqe), cq_context, channel,
                  static_cast<uint32_t>(comp_vector));
  return reinterpret_cast<ibv_cq*>(cq);
}

int ibv_resize_cq(ibv_cq* queue, int cqe) {
  Cq* cq = Own(queue);
  if (cqe < 1) return EINVAL;
  CallArguments arguments;
  arguments.number = static_cast<uint32_t>(cqe);
  // Holds off pollers while entries move. Room is made before the model may use it.
  pthread_mutex_lock(&cq->mutex);
  Grow(cq, static_cast<uint32_t>(cqe));
  const int error = Invoke(cq, Call::kResizeCq, &arguments);
  if (error == 0) {
    Grow(cq, arguments.number);
    queue->cqe = static_cast<int>(arguments.number);
  }
  pthread_mutex_unlock(&cq->mutex);
  return error;
}

int ibv_destroy_cq(ibv_cq* cq) {
  return DestroyCq(Own(cq));
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto channel = std::make_unique<Channel>();
  const int fd = channel->events.Open();
  if (fd < 0) return nullptr;
  channel->channel.context = context;
  channel->channel.fd = fd;
  return &channel.release()->channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  {
    std::lock_guard lock(Own(channel->context)->objects_mutex);
    if (channel->refcnt != 0) return EBUSY;
  }
  Own(channel)->events.Close();
  delete Own(channel);
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  Cq* own = nullptr;
  if (!Own(channel)->events.Pop(&own, [](Cq* taken) { taken->channel_events_taken.fetch_add(1); })) return -1;
  *cq = reinterpret_cast<ibv_cq*>(&own->cq);
  *cq_context = own->cq.cq_context;
  return 0;
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += count;
  pthread_cond_signal(&cq->cond);
  pthread_mutex_unlock(&cq->mutex);
}

}  // extern "C"
