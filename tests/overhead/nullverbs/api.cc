// The exported functions of the fake libibverbs.so.1 (rdma-core 44 ABI).
//
// Not provided: extended completion queues, completion channels, ibv_wr_* posting, UD, atomics, memory
// windows. No asynchronous event is ever raised.

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "tests/overhead/nullverbs/objects.h"

namespace nullverbs {

Config::Config() {
  if (const char* v = getenv("NULLVERBS_DEVICES")) devices = std::clamp(atoi(v), 0, kMaxDevices);
  if (const char* v = getenv("NULLVERBS_LINK")) roce = !strcmp(v, "roce");
  if (const char* v = getenv("NULLVERBS_NOCOPY"); v && atoi(v)) copy_max = 4096;
  if (const char* v = getenv("NULLVERBS_COPY_MAX")) copy_max = static_cast<uint32_t>(atol(v));
  if (const char* v = getenv("NULLVERBS_POLL_MAX")) poll_max = atoi(v);
  if (const char* v = getenv("NULLVERBS_SYSFS")) sysfs = v;
}

const Config& config() {
  static const Config c;
  return c;
}

std::atomic<int> cqe_delay{getenv("NULLVERBS_CQE_DELAY") ? atoi(getenv("NULLVERBS_CQE_DELAY")) : 0};
NullverbsStats stats;
Table<Mr> mr_table;
Table<Qp> qp_table;

namespace {

Device* DeviceAt(int i) {
  static Device* const devices = [] {
    Device* all = new Device[kMaxDevices]();
    for (int d = 0; d < kMaxDevices; ++d) {
      Device& dev = all[d];
      dev.index = d;
      dev.guid = 0x0200c90300a10000ull + (static_cast<uint64_t>(d) << 8);
      dev.node_type = IBV_NODE_CA;
      dev.transport_type = IBV_TRANSPORT_IB;
      snprintf(dev.name, sizeof dev.name, "null%d", d);
      snprintf(dev.dev_name, sizeof dev.dev_name, "uverbs%d", d);
      const char* root = config().sysfs.c_str();
      snprintf(dev.dev_path, sizeof dev.dev_path, "%s/class/infiniband_verbs/uverbs%d", root, d);
      snprintf(dev.ibdev_path, sizeof dev.ibdev_path, "%s/class/infiniband/null%d", root, d);
    }
    return all;
  }();
  return &devices[i];
}

int QueryPort(ibv_context*, uint8_t port, ibv_port_attr* out, size_t size) {
  if (port != 1) return EINVAL;
  ibv_port_attr a = {};
  a.state = IBV_PORT_ACTIVE;
  a.phys_state = 5;
  a.max_mtu = a.active_mtu = IBV_MTU_4096;
  a.gid_tbl_len = kGidTableLen;
  a.pkey_tbl_len = 1;
  a.max_msg_sz = 1u << 30;
  a.lid = a.sm_lid = config().roce ? 0 : 1;
  a.max_vl_num = 4;
  a.active_width = 2;    // 4 lanes
  a.active_speed = 128;  // 100 Gb/s each
  a.link_layer = config().roce ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  memcpy(out, &a, std::min(size, sizeof a));
  return 0;
}

// InfiniBand: entry 0 only. RoCE: link-local, then IPv4-mapped address, each as v1 and v2.
bool GidAt(const Device* dev, uint32_t index, ibv_gid* gid) {
  *gid = {};
  if (index >= kGidTableLen || (!config().roce && index > 0)) return false;
  if (index < 2) {
    gid->global.subnet_prefix = htobe64(0xfe80000000000000ull);
    gid->global.interface_id = htobe64(dev->guid);
  } else {
    gid->global.interface_id = htobe64(0x0000ffff0a000001ull + static_cast<uint64_t>(dev->index));
  }
  return true;
}

Mr* AddMr(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  static std::atomic<uint32_t> generation{0};
  Mr* mr = new Mr();
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = addr;
  mr->length = length;
  mr->iova = iova;
  mr->access = access;
  mr->handle = mr_table.Insert(mr);
  mr->lkey = mr->handle << 8 | (generation.fetch_add(2) & 0xfe);
  mr->rkey = mr->lkey | 1;  // never equal to the lkey, so that a mix-up is caught
  return mr;
}

void StoreAttributes(const ibv_qp_attr& from, int mask, ibv_qp_attr& to) {
  if (mask & IBV_QP_ACCESS_FLAGS) to.qp_access_flags = from.qp_access_flags;
  if (mask & IBV_QP_PKEY_INDEX) to.pkey_index = from.pkey_index;
  if (mask & IBV_QP_PORT) to.port_num = from.port_num;
  if (mask & IBV_QP_QKEY) to.qkey = from.qkey;
  if (mask & IBV_QP_AV) to.ah_attr = from.ah_attr;
  if (mask & IBV_QP_PATH_MTU) to.path_mtu = from.path_mtu;
  if (mask & IBV_QP_DEST_QPN) to.dest_qp_num = from.dest_qp_num;
  if (mask & IBV_QP_TIMEOUT) to.timeout = from.timeout;
  if (mask & IBV_QP_RETRY_CNT) to.retry_cnt = from.retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) to.rnr_retry = from.rnr_retry;
  if (mask & IBV_QP_RQ_PSN) to.rq_psn = from.rq_psn;
  if (mask & IBV_QP_SQ_PSN) to.sq_psn = from.sq_psn;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) to.max_rd_atomic = from.max_rd_atomic;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) to.max_dest_rd_atomic = from.max_dest_rd_atomic;
  if (mask & IBV_QP_MIN_RNR_TIMER) to.min_rnr_timer = from.min_rnr_timer;
}

template <typename E, size_t N>
const char* NameOf(E value, const char* const (&names)[N]) {
  return static_cast<size_t>(value) < N ? names[value] : "unknown";
}

}  // namespace
}  // namespace nullverbs

using namespace nullverbs;  // NOLINT(google-build-using-namespace): the C entry points below live outside

extern "C" {

const NullverbsStats* nullverbs_stats() {
  return &stats;
}
void nullverbs_set_cqe_delay(int polls) {
  cqe_delay = polls;
}

// ---- devices

ibv_device** ibv_get_device_list(int* num) {
  const int n = config().devices;
  ibv_device** list = static_cast<ibv_device**>(calloc(static_cast<size_t>(n) + 1, sizeof *list));
  for (int i = 0; i < n; ++i) list[i] = DeviceAt(i);
  if (num) *num = n;
  return list;
}
void ibv_free_device_list(ibv_device** list) {
  free(list);
}
const char* ibv_get_device_name(ibv_device* d) {
  return d->name;
}
int ibv_get_device_index(ibv_device* d) {
  return static_cast<Device*>(d)->index;
}
__be64 ibv_get_device_guid(ibv_device* d) {
  return htobe64(static_cast<Device*>(d)->guid);
}

ibv_context* ibv_open_device(ibv_device* d) {
  Context* c = new Context();
  c->dev = static_cast<Device*>(d);
  c->sz = sizeof(verbs_context);
  c->query_port = QueryPort;  // other extended calls fall back to plain verbs or fail with EOPNOTSUPP
  ibv_context& v = c->context;
  v.device = d;
  v.cmd_fd = -1;
  v.async_fd = eventfd(0, EFD_CLOEXEC);
  v.num_comp_vectors = 1;
  v.abi_compat = __VERBS_ABI_IS_EXTENDED;
  pthread_mutex_init(&v.mutex, nullptr);
  SetDataPath(v.ops);
  return &v;
}
int ibv_close_device(ibv_context* c) {
  close(c->async_fd);
  delete ContextOf(c);
  return 0;
}

// Nothing ever arrives: a caller blocks here, or sees EAGAIN if it made async_fd non-blocking.
int ibv_get_async_event(ibv_context* c, ibv_async_event* event) {
  uint64_t value;
  if (read(c->async_fd, &value, sizeof value) != sizeof value) return -1;
  event->event_type = static_cast<ibv_event_type>(value - 1);
  event->element.port_num = 1;
  return 0;
}
void ibv_ack_async_event(ibv_async_event*) {}

int ibv_query_device(ibv_context* c, ibv_device_attr* a) {
  *a = {};
  snprintf(a->fw_ver, sizeof a->fw_ver, "0.0.1");
  a->node_guid = a->sys_image_guid = htobe64(ContextOf(c)->dev->guid);
  a->max_mr_size = UINT64_MAX;
  a->page_size_cap = ~0xfffull;
  a->vendor_id = 0x02c9;
  a->max_qp = kTableSize - kFirstNumber;
  a->max_qp_wr = kMaxWr;
  a->max_sge = a->max_sge_rd = kMaxSge;
  a->max_cq = kTableSize;
  a->max_cqe = kMaxCqe;
  a->max_mr = kTableSize - kFirstNumber;
  a->max_pd = kTableSize;
  a->max_qp_rd_atom = a->max_qp_init_rd_atom = 16;
  a->max_srq = kTableSize;
  a->max_srq_wr = kMaxWr;
  a->max_srq_sge = kMaxSge;
  a->max_pkeys = 1;
  a->phys_port_cnt = 1;
  a->atomic_cap = IBV_ATOMIC_NONE;
  return 0;
}
int ibv_query_port(ibv_context* c, uint8_t port, _compat_ibv_port_attr* a) {
  return QueryPort(c, port, reinterpret_cast<ibv_port_attr*>(a), offsetof(ibv_port_attr, port_cap_flags2));
}
int ibv_query_gid(ibv_context* c, uint8_t port, int index, ibv_gid* gid) {
  if (port != 1 || index < 0 || index >= kGidTableLen) {
    errno = EINVAL;
    return -1;
  }
  GidAt(ContextOf(c)->dev, static_cast<uint32_t>(index), gid);
  return 0;
}
int _ibv_query_gid_ex(ibv_context* c, uint32_t port, uint32_t index, ibv_gid_entry* e, uint32_t flags,
                      size_t size) {
  ibv_gid_entry entry = {};
  if (port != 1 || flags) return EINVAL;
  if (!GidAt(ContextOf(c)->dev, index, &entry.gid)) return ENODATA;
  entry.gid_index = index;
  entry.port_num = port;
  entry.ndev_ifindex = config().roce ? 1 : 0;
  entry.gid_type = !config().roce ? IBV_GID_TYPE_IB : index & 1 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
  memcpy(e, &entry, std::min(size, sizeof entry));
  return 0;
}
ssize_t _ibv_query_gid_table(ibv_context* c, ibv_gid_entry* e, size_t max, uint32_t flags, size_t size) {
  char* at = reinterpret_cast<char*>(e);
  uint32_t n = 0;
  while (n < max && !_ibv_query_gid_ex(c, 1, n, reinterpret_cast<ibv_gid_entry*>(at + n * size), flags, size))
    ++n;
  return static_cast<ssize_t>(n);
}
int ibv_query_pkey(ibv_context*, uint8_t, int index, __be16* pkey) {
  if (index) {
    errno = EINVAL;
    return -1;
  }
  *pkey = htobe16(0xffff);
  return 0;
}
int ibv_get_pkey_index(ibv_context*, uint8_t, __be16 pkey) {
  return pkey == htobe16(0xffff) ? 0 : -1;
}

// ---- memory

ibv_pd* ibv_alloc_pd(ibv_context* c) {
  ibv_pd* pd = new ibv_pd();
  pd->context = c;
  return pd;
}
int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned access) {
  if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE)) {
    errno = EINVAL;
    return nullptr;
  }
  return AddMr(pd, addr, length, iova, static_cast<int>(access));
}
ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  return ibv_reg_mr_iova2(pd, addr, length, iova, static_cast<unsigned>(access));
}
ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return ibv_reg_mr_iova2(pd, addr, length, reinterpret_cast<uint64_t>(addr), static_cast<unsigned>(access));
}
// A bad descriptor answers EBADF, which callers read as "DMA-BUF is supported".
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
  if (fcntl(fd, F_GETFD) < 0) return nullptr;
  const uint64_t page = offset & ~0xfffull, within = offset - page;
  void* map =
      mmap(nullptr, length + within, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(page));
  if (map == MAP_FAILED) return nullptr;
  Mr* mr = AddMr(pd, static_cast<char*>(map) + within, length, iova, access);
  mr->mapping = map;
  return mr;
}
int ibv_dereg_mr(ibv_mr* m) {
  Mr* mr = static_cast<Mr*>(m);
  mr_table.Erase(mr->handle);
  if (mr->mapping) {
    const size_t within = static_cast<size_t>(static_cast<char*>(mr->addr) - static_cast<char*>(mr->mapping));
    munmap(mr->mapping, mr->length + within);
  }
  delete mr;
  return 0;
}

// ---- completion queues

ibv_comp_channel* ibv_create_comp_channel(ibv_context*) {
  errno = EOPNOTSUPP;
  return nullptr;
}
int ibv_destroy_comp_channel(ibv_comp_channel*) {
  return EINVAL;
}
int ibv_get_cq_event(ibv_comp_channel*, ibv_cq**, void**) {
  return -1;
}
void ibv_ack_cq_events(ibv_cq*, unsigned) {}

ibv_cq* ibv_create_cq(ibv_context* c, int cqe, void* cq_context, ibv_comp_channel* channel, int) {
  if (cqe < 1 || cqe > kMaxCqe) {
    errno = EINVAL;
    return nullptr;
  }
  Cq* cq = new Cq(static_cast<size_t>(cqe));
  cq->context = c;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->cqe = cqe;
  return cq;
}
int ibv_resize_cq(ibv_cq*, int) {
  return EOPNOTSUPP;
}
int ibv_destroy_cq(ibv_cq* cq) {
  delete CqOf(cq);
  return 0;
}

// ---- shared receive queues

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* a) {
  Srq* srq = new Srq(a->attr.max_wr);
  srq->context = pd->context;
  srq->pd = pd;
  srq->srq_context = a->srq_context;
  return srq;
}
int ibv_modify_srq(ibv_srq*, ibv_srq_attr*, int) {
  return EOPNOTSUPP;
}
int ibv_query_srq(ibv_srq* s, ibv_srq_attr* a) {
  *a = {static_cast<uint32_t>(SrqOf(s)->rq.ring.capacity()), kMaxSge, 0};
  return 0;
}
int ibv_destroy_srq(ibv_srq* s) {
  delete SrqOf(s);
  return 0;
}

// ---- queue pairs

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* a) {
  if (a->cap.max_send_wr > kMaxWr || a->cap.max_recv_wr > kMaxWr || a->cap.max_send_sge > kMaxSge ||
      a->cap.max_recv_sge > kMaxSge || a->cap.max_inline_data > kMaxInline || !a->send_cq || !a->recv_cq) {
    errno = EINVAL;
    return nullptr;
  }
  if (a->qp_type != IBV_QPT_RC && a->qp_type != IBV_QPT_UC) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  Qp* qp = new Qp(*a);
  qp->context = pd->context;
  qp->qp_context = a->qp_context;
  qp->pd = pd;
  qp->send_cq = a->send_cq;
  qp->recv_cq = a->recv_cq;
  qp->srq = a->srq;
  qp->qp_type = a->qp_type;
  qp->state = IBV_QPS_RESET;
  qp->qp_num = qp->handle = qp_table.Insert(qp);
  return qp;
}
int ibv_query_qp(ibv_qp* q, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  const Qp* qp = QpOf(q);
  *attr = qp->attr;
  attr->qp_state = attr->cur_qp_state = qp->state;
  attr->cap = qp->init.cap;
  if (init) *init = qp->init;
  return 0;
}
int ibv_modify_qp(ibv_qp* q, ibv_qp_attr* a, int mask) {
  Qp* qp = QpOf(q);
  SpinGuard guard(qp->sq_lock);
  StoreAttributes(*a, mask, qp->attr);
  if (!(mask & IBV_QP_STATE) || a->qp_state == qp->state) return 0;
  if (a->qp_state == IBV_QPS_ERR) {
    EnterError(qp);
    return 0;
  }
  if (a->qp_state == IBV_QPS_RESET) {
    qp->held.clear();
    qp->own_rq.ring.Clear();
    qp->sq_posted = 0;
    qp->sq_retired = 0;
  } else if (a->qp_state > IBV_QPS_RTS || qp->state != a->qp_state - 1) {
    return EINVAL;
  }
  qp->state = a->qp_state;
  return 0;
}
int ibv_destroy_qp(ibv_qp* q) {
  Qp* qp = QpOf(q);
  qp_table.Erase(qp->qp_num);
  if (Qp* peer = qp_table.Find(qp->attr.dest_qp_num)) {
    SpinGuard guard(peer->rq->lock);
    std::erase(peer->rq->waiting, qp);
  }
  for (ibv_cq* c :
       {qp->send_cq, qp->recv_cq}) {  // completions may outlive the queue pair; the back pointer must not
    SpinGuard guard(CqOf(c)->lock);
    CqOf(c)->ring.ForEach([qp](Cqe& e) { e.qp = e.qp == qp ? nullptr : e.qp; });
  }
  delete qp;
  return 0;
}
ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp*) {
  return nullptr;
}
int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) {
  return 0;
}
int ibv_query_ece(ibv_qp*, ibv_ece* ece) {
  *ece = {};
  return EOPNOTSUPP;
}
int ibv_set_ece(ibv_qp*, ibv_ece*) {
  return EOPNOTSUPP;
}

// ---- the rest

int ibv_fork_init() {
  return 0;
}
ibv_fork_status ibv_is_fork_initialized() {
  return IBV_FORK_UNNEEDED;
}

const char* ibv_event_type_str(ibv_event_type e) {
  static const char* const names[] = {"CQ error",
                                      "QP fatal error",
                                      "QP request error",
                                      "QP access error",
                                      "communication established",
                                      "SQ drained",
                                      "path migrated",
                                      "path migration error",
                                      "device fatal error",
                                      "port active",
                                      "port error",
                                      "LID change",
                                      "P_Key change",
                                      "SM change",
                                      "SRQ error",
                                      "SRQ limit reached",
                                      "last WQE reached",
                                      "client reregistration",
                                      "GID table change",
                                      "WQ fatal error"};
  return NameOf(e, names);
}
const char* ibv_wc_status_str(ibv_wc_status s) {
  static const char* const names[] = {"success",
                                      "local length error",
                                      "local QP operation error",
                                      "local EE context operation error",
                                      "local protection error",
                                      "flushed",
                                      "memory window bind error",
                                      "bad response",
                                      "local access error",
                                      "remote invalid request",
                                      "remote access error",
                                      "remote operation error",
                                      "transport retry exceeded",
                                      "RNR retry exceeded",
                                      "local RDD violation",
                                      "remote invalid RD request",
                                      "aborted",
                                      "invalid EECN",
                                      "invalid EEC state",
                                      "fatal error",
                                      "response timeout",
                                      "general error"};
  return NameOf(s, names);
}
const char* ibv_port_state_str(ibv_port_state s) {
  return s == IBV_PORT_ACTIVE ? "PORT_ACTIVE" : "PORT_DOWN";
}
const char* ibv_node_type_str(ibv_node_type t) {
  return t == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown";
}

}  // extern "C"
