// A NET plugin, versions 7 to 12, over loopback TCP, that watches its caller and fails on demand: what
// `sluice perf` is tested with.
//
//   PERF_TOY=fault[=n]  the fault, in the rank that PERF_TOY_RANK names (all ranks if unset). n: at the n-th
//   occasion.
//     refuse=n       every n-th isend and irecv returns no request
//     corrupt=n      the n-th message that has bytes arrives with one bit flipped
//     fail_isend=n   the n-th isend returns an error          fail_test=n    the n-th completed test does
//     crash=n        the n-th isend ends the process          hang_test=n    the n-th request never completes
//     fail_connect   connect returns an error                 hang_connect   connect never succeeds
//     short_size=n   the n-th receive reports one byte less   extra_size     receives report a size too many
//     unset          getProperties leaves maxP2pBytes unset   no_device      devices() reports none
//     stop_init      init stops the process (SIGSTOP)
//     flush          asks for iflush                          group=n        maxRecvs
//
// Violations of NCCL's habits (a request tested from another thread or after it was done, buffers or
// connections left at finalize, a size above the receive) end the process with a line on stderr.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "plugin/abi/nccl_net.h"

namespace sluice::nccl {
namespace {

DebugLogger logger = nullptr;
std::atomic<long> live_comms{0}, live_regions{0}, live_contexts{0};
std::atomic<bool> abandoned{false};  // a connection was closed with requests open: the job was aborted

[[noreturn]] void Violation(const char* what) {
  fprintf(stderr, "perf_toy_plugin: the caller broke the rules: %s\n", what);
  abort();
}

// The value of a fault that is on in this rank; -1: off.
long Fault(const char* name) {
  static const std::string spec = [] {
    const char* rank = getenv("PERF_TOY_RANK");
    const char* mine = getenv("RANK");
    const char* text = getenv("PERF_TOY");
    const bool here = rank == nullptr || (mine != nullptr && strcmp(rank, mine) == 0);
    return std::string(text != nullptr && here ? text : "");
  }();
  const size_t n = strlen(name);
  if (spec.compare(0, n, name) != 0) return -1;
  if (spec.size() == n) return 1;
  return spec[n] == '=' ? atol(spec.c_str() + n + 1) : -1;
}
// Counts occasions; true at the one that the fault names.
bool Occurs(const char* name, std::atomic<long>& counter) {
  const long at = Fault(name);
  return at > 0 && ++counter == at;
}
NcclResult Fail(const char* text) {
  if (logger != nullptr) logger(kLogWarn, kLogNet, __FILE__, __LINE__, "toy: %s", text);
  return kRemoteError;
}

struct Header {
  uint64_t bytes;
  int64_t tag;
};
struct Comm;
struct Request {
  Comm* comm = nullptr;
  int n = 0;  // 0: a send or a flush
  std::vector<char*> data{};
  std::vector<size_t> capacity{};
  std::vector<int64_t> tags{};
  std::vector<int> sizes{};
  int left = 0;
  Header header{};
  const char* payload = nullptr;
  size_t sent = 0;
  bool done = false;
};
struct Comm {
  int fd = -1;
  std::deque<Request*> queue{};
  Header header{};
  size_t header_bytes = 0;
  Request* current = nullptr;
  size_t slot = 0;
  size_t got = 0;
  std::thread::id user{};  // of the data path
  std::vector<Request*> open{};
};
struct Listener {
  int fd = -1;
};
std::mutex listeners_mutex;
std::set<Listener*> listeners;  // guarded by listeners_mutex

void SetUp(int fd) {
  const int one = 1, bytes = 4 << 20;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  fcntl(fd, F_SETFL, O_NONBLOCK);
}

void ProgressSend(Comm* c) {
  while (!c->queue.empty()) {
    Request* r = c->queue.front();
    const size_t total = sizeof(Header) + r->header.bytes;
    while (r->sent < total) {
      const bool head = r->sent < sizeof(Header);
      const char* from = head ? reinterpret_cast<const char*>(&r->header) + r->sent
                              : r->payload + (r->sent - sizeof(Header));
      const ssize_t k = send(c->fd, from, head ? sizeof(Header) - r->sent : total - r->sent, MSG_NOSIGNAL);
      if (k <= 0) return;
      r->sent += static_cast<size_t>(k);
    }
    r->done = true;
    c->queue.pop_front();
  }
}

void ProgressRecv(Comm* c) {
  static std::atomic<long> messages{0};
  for (;;) {
    if (c->current == nullptr) {
      if (c->queue.empty()) return;
      while (c->header_bytes < sizeof(Header)) {
        const ssize_t k = recv(c->fd, reinterpret_cast<char*>(&c->header) + c->header_bytes,
                               sizeof(Header) - c->header_bytes, 0);
        if (k <= 0) return;
        c->header_bytes += static_cast<size_t>(k);
      }
      for (Request* r : c->queue) {
        for (size_t i = 0; i < r->tags.size() && c->current == nullptr; ++i) {
          if (r->sizes[i] < 0 && r->tags[i] == c->header.tag) c->current = r, c->slot = i, c->got = 0;
        }
        if (c->current != nullptr) break;
      }
      if (c->current == nullptr) return;  // its receive is not posted yet
      if (c->header.bytes > c->current->capacity[c->slot]) Violation("a message is larger than its receive");
    }
    Request* r = c->current;
    while (c->got < c->header.bytes) {
      const ssize_t k = recv(c->fd, r->data[c->slot] + c->got, c->header.bytes - c->got, 0);
      if (k <= 0) return;
      c->got += static_cast<size_t>(k);
    }
    if (c->header.bytes > 0 && Occurs("corrupt", messages)) r->data[c->slot][c->header.bytes / 2] ^= 1;
    r->sizes[c->slot] = static_cast<int>(c->header.bytes);
    c->current = nullptr;
    c->header_bytes = 0;
    if (--r->left == 0) {
      r->done = true;
      c->queue.erase(std::find(c->queue.begin(), c->queue.end(), r));
    }
  }
}

void CheckThread(Comm* c) {
  if (c->user == std::thread::id()) c->user = std::this_thread::get_id();
  if (c->user != std::this_thread::get_id())
    Violation("the data path of a connection moved to another thread");
}

// ---- what all versions share
// ------------------------------------------------------------------------------------------

NcclResult Devices(int* n) {
  *n = Fault("no_device") > 0 ? 0 : 2;
  return kSuccess;
}

template <typename Properties>
NcclResult GetProperties(int dev, Properties* p) {
  static const char* const names[] = {"toy0", "toy1"};
  if (dev < 0 || dev > 1) return kInvalidArgument;
  p->name = names[dev];
  p->pciPath = nullptr;
  p->guid = static_cast<uint64_t>(dev);
  p->ptrSupport = kPtrHost;
  p->speed = 10000;
  p->port = 1;
  p->latency = 1;
  p->maxComms = 65536;
  p->maxRecvs = static_cast<int>(std::max(1l, Fault("group")));
  p->netDeviceType = kNetDeviceHost;
  p->netDeviceVersion = 0;
  if constexpr (requires { p->regIsGlobal; }) p->regIsGlobal = 1;
  if constexpr (requires { p->forceFlush; }) {
    p->forceFlush = Fault("flush") > 0 ? 1 : 0;
    p->vProps.ndevs = 1;
    p->vProps.devs[0] = dev;
    if (Fault("unset") < 0) p->maxP2pBytes = uint64_t{1} << 31;
    p->maxCollBytes = uint64_t{1} << 31;
  }
  if constexpr (requires { p->maxMultiRequestSize; }) p->maxMultiRequestSize = 1;
  if constexpr (requires { p->railId; }) p->railId = p->planeId = kNetIdUndefined;
  return kSuccess;
}

NcclResult Listen(int, void* handle, void** comm) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd, 64) != 0)
    return kSystemError;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  fcntl(fd, F_SETFL, O_NONBLOCK);
  memset(handle, 0, kNetHandleBytes);
  memcpy(handle, &address, sizeof address);
  Listener* listener = new Listener{fd};
  *comm = listener;
  std::lock_guard lock(listeners_mutex);
  listeners.insert(listener);
  return kSuccess;
}

NcclResult Connect(void* handle, void** comm) {
  *comm = nullptr;
  if (Fault("fail_connect") > 0) return Fail("no route to the peer");
  static std::atomic<long> attempts{0};
  if (Fault("hang_connect") > 0 || ++attempts % 3 != 0) return kSuccess;  // NCCL calls again
  sockaddr_in address{};
  memcpy(&address, handle, sizeof address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return kSystemError;
  SetUp(fd);
  *comm = new Comm{.fd = fd};
  ++live_comms;
  return kSuccess;
}

NcclResult Accept(void* listen_comm, void** comm, NetDeviceHandle**) {
  *comm = nullptr;
  const int fd = accept4(static_cast<Listener*>(listen_comm)->fd, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return kSuccess;
  SetUp(fd);
  *comm = new Comm{.fd = fd};
  ++live_comms;
  return kSuccess;
}

template <typename Size>
NcclResult RegMr(void* comm, void* data, Size bytes, int type, void** mhandle) {
  if (comm == nullptr || data == nullptr || bytes <= 0 || type != kPtrHost) Violation("regMr of nothing");
  *mhandle = new char;
  ++live_regions;
  return kSuccess;
}
NcclResult DeregMr(void*, void* mhandle) {
  delete static_cast<char*>(mhandle);
  --live_regions;
  return kSuccess;
}
NcclResult CloseComm(void* comm) {
  Comm* c = static_cast<Comm*>(comm);
  if (!c->open.empty()) abandoned = true;
  for (Request* r : c->open) delete r;
  close(c->fd);
  delete c;
  --live_comms;
  return kSuccess;
}
NcclResult CloseListen(void* comm) {
  Listener* listener = static_cast<Listener*>(comm);
  std::lock_guard lock(listeners_mutex);
  if (listeners.erase(listener) != 1) Violation("closeListen of something else");
  close(listener->fd);
  delete listener;
  return kSuccess;
}

bool Refuse() {
  static std::atomic<long> calls{0};
  const long every = Fault("refuse");
  return every > 0 && ++calls % every == 0;
}

NcclResult Isend(void* comm, void* data, size_t bytes, int tag, void* mhandle, void** request) {
  static std::atomic<long> sends{0}, crashes{0};
  Comm* c = static_cast<Comm*>(comm);
  CheckThread(c);
  if (mhandle == nullptr) Violation("isend without a memory handle");
  if (Occurs("crash", crashes)) {
    signal(SIGSEGV, SIG_DFL);  // a sanitizer would catch it
    raise(SIGSEGV);
  }
  if (Occurs("fail_isend", sends)) return Fail("the wire is cut");
  *request = nullptr;
  if (Refuse()) return kSuccess;
  Request* r = new Request{.comm = c};
  r->header = {bytes, tag};
  r->payload = static_cast<const char*>(data);
  c->queue.push_back(r);
  r->comm->open.push_back(r);
  ProgressSend(c);
  *request = r;
  return kSuccess;
}

template <typename Size>
NcclResult Irecv(void* comm, int n, void** data, Size* sizes, int* tags, void** mhandles, void** request) {
  Comm* c = static_cast<Comm*>(comm);
  CheckThread(c);
  *request = nullptr;
  if (Refuse()) return kSuccess;
  Request* r = new Request{.comm = c, .n = n};
  for (int i = 0; i < n; ++i) {
    if (mhandles[i] == nullptr) Violation("irecv without a memory handle");
    r->data.push_back(static_cast<char*>(data[i]));
    r->capacity.push_back(static_cast<size_t>(sizes[i]));
    r->tags.push_back(tags[i]);
    r->sizes.push_back(-1);
  }
  r->left = n;
  c->queue.push_back(r);
  r->comm->open.push_back(r);
  ProgressRecv(c);
  *request = r;
  return kSuccess;
}

NcclResult Iflush(void* comm, int, void**, int*, void**, void** request) {
  Request* r = new Request{.comm = static_cast<Comm*>(comm)};
  r->done = true;
  r->comm->open.push_back(r);
  *request = r;
  return kSuccess;
}

NcclResult Test(void* request, int* done, int* sizes) {
  static std::atomic<long> tests{0}, receives{0}, hangs{0};
  Request* r = static_cast<Request*>(request);
  CheckThread(r->comm);
  if (!r->done) r->n == 0 ? ProgressSend(r->comm) : ProgressRecv(r->comm);
  *done = r->done ? 1 : 0;
  if (!r->done) return kSuccess;
  static Request* never = nullptr;
  if (never == nullptr && Occurs("hang_test", hangs)) never = r;
  if (r == never) {
    *done = 0;
    return kSuccess;
  }
  if (Occurs("fail_test", tests)) return Fail("retry count exceeded");
  if (sizes != nullptr) {
    for (int i = 0; i < r->n; ++i) sizes[i] = r->sizes[static_cast<size_t>(i)];
    if (r->n > 0 && Fault("extra_size") > 0) sizes[r->n] = 1;
    if (r->n > 0 && r->sizes[0] > 0 && Occurs("short_size", receives)) --sizes[0];
  }
  r->comm->open.erase(std::find(r->comm->open.begin(), r->comm->open.end(), r));
  delete r;
  return kSuccess;
}

NcclResult Finalize(void*) {
  if (--live_contexts != 0) return kSuccess;
  std::lock_guard lock(listeners_mutex);
  const bool half_open = !listeners.empty();
  for (Listener* listener : listeners) {
    close(listener->fd);
    delete listener;
  }
  listeners.clear();
  if (abandoned || half_open) return kSuccess;  // what an aborted job leaves
  if (live_comms != 0) Violation("a connection is open at finalize");
  if (live_regions != 0) Violation("memory is registered at finalize");
  return kSuccess;
}
NcclResult SetNetAttr(void*, NetAttr* attributes) {
  return attributes->op == 0 ? kInvalidArgument : kSuccess;
}

// ---- the tables
// -------------------------------------------------------------------------------------------------------

NcclResult InitV7(DebugLogger log) {
  if (Fault("stop_init") > 0) raise(SIGSTOP);
  logger = log;
  return kSuccess;
}
NcclResult InitV10(DebugLogger log, ProfilerCallback) {
  return InitV7(log);
}
NcclResult InitV11(void** ctx, uint64_t, NetCommConfig* config, DebugLogger log, ProfilerCallback) {
  if (config == nullptr) return kInvalidArgument;
  *ctx = &logger;
  ++live_contexts;
  return InitV7(log);
}
NcclResult ListenV11(void* ctx, int dev, void* handle, void** comm) {
  if (ctx != &logger) Violation("listen with a foreign context");
  return Listen(dev, handle, comm);
}
NcclResult ConnectV7(int, void* handle, void** comm, NetDeviceHandle**) {
  return Connect(handle, comm);
}
NcclResult ConnectV10(int, NetCommConfig* config, void* handle, void** comm, NetDeviceHandle**) {
  if (config == nullptr) Violation("connect of version 10 without a config");
  return Connect(handle, comm);
}
NcclResult ConnectV11(void* ctx, int, void* handle, void** comm, NetDeviceHandle**) {
  if (ctx != &logger) Violation("connect with a foreign context");
  return Connect(handle, comm);
}
NcclResult IsendV7(void* c, void* d, int n, int tag, void* m, void** r) {
  return Isend(c, d, static_cast<size_t>(n), tag, m, r);
}
NcclResult IsendV9(void* c, void* d, size_t n, int tag, void* m, void** r) {
  return Isend(c, d, n, tag, m, r);
}
NcclResult IsendV10(void* c, void* d, size_t n, int tag, void* m, void* phandle, void** r) {
  if (phandle == nullptr) Violation("isend without a profiler handle");
  return Isend(c, d, n, tag, m, r);
}
NcclResult IrecvV10(void* c, int n, void** d, size_t* s, int* tags, void** m, void** phandles, void** r) {
  if (phandles == nullptr) Violation("irecv without profiler handles");
  return Irecv(c, n, d, s, tags, m, r);
}

}  // namespace
}  // namespace sluice::nccl

#define TOY_EXPORT extern "C" __attribute__((visibility("default")))
using namespace sluice::nccl;  // NOLINT: the whole file is the plugin

TOY_EXPORT const NetV7 ncclNetPlugin_v7{"Toy",     InitV7,      Devices,    GetProperties, Listen,
                                        ConnectV7, Accept,      RegMr<int>, nullptr,       DeregMr,
                                        IsendV7,   Irecv<int>,  Iflush,     Test,          CloseComm,
                                        CloseComm, CloseListen, nullptr,    nullptr};
TOY_EXPORT const NetV8 ncclNetPlugin_v8{"Toy",     InitV7,      Devices,       GetProperties, Listen,
                                        ConnectV7, Accept,      RegMr<size_t>, nullptr,       DeregMr,
                                        IsendV7,   Irecv<int>,  Iflush,        Test,          CloseComm,
                                        CloseComm, CloseListen, nullptr,       nullptr};
TOY_EXPORT const NetV9 ncclNetPlugin_v9{"Toy",     InitV7,        Devices,       GetProperties, Listen,
                                        ConnectV7, Accept,        RegMr<size_t>, nullptr,       DeregMr,
                                        IsendV9,   Irecv<size_t>, Iflush,        Test,          CloseComm,
                                        CloseComm, CloseListen,   nullptr,       nullptr,       nullptr};
TOY_EXPORT const NetV10 ncclNetPlugin_v10{"Toy",      InitV10,     Devices,       GetProperties, Listen,
                                          ConnectV10, Accept,      RegMr<size_t>, nullptr,       DeregMr,
                                          IsendV10,   IrecvV10,    Iflush,        Test,          CloseComm,
                                          CloseComm,  CloseListen, nullptr,       nullptr,       nullptr};
TOY_EXPORT const NetV11 ncclNetPlugin_v11{
    "Toy",       InitV11, Devices,  GetProperties, ListenV11, ConnectV11, Accept,    RegMr<size_t>,
    nullptr,     DeregMr, IsendV10, IrecvV10,      Iflush,    Test,       CloseComm, CloseComm,
    CloseListen, nullptr, nullptr,  nullptr,       Finalize,  SetNetAttr};
TOY_EXPORT const NetV12 ncclNetPlugin_v12{
    "Toy",       InitV11, Devices,  GetProperties, ListenV11, ConnectV11, Accept,    RegMr<size_t>,
    nullptr,     DeregMr, IsendV10, IrecvV10,      Iflush,    Test,       CloseComm, CloseComm,
    CloseListen, nullptr, nullptr,  nullptr,       Finalize,  SetNetAttr};
