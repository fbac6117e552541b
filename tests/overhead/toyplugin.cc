// A v12 plugin of known cost, to check the rig itself: no verbs; a message takes 2 mallocs (one request per
// side), 2 frees, 4 mutex locks (isend, irecv, 2 x test) and, when data is copied, 1 memcpy.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <deque>

#include "tests/overhead/bench/net_abi.h"

namespace {

struct Pipe;

struct Request {
  Pipe* pipe;
  void* data;
  int size;
  bool done;
};

struct Pipe {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  std::deque<Request*> posted;
  int ends = 0;
};

class Guard {
 public:
  explicit Guard(Pipe* p) : p_(p) { pthread_mutex_lock(&p_->lock); }
  ~Guard() { pthread_mutex_unlock(&p_->lock); }

 private:
  Pipe* p_;
};

Request* Make(Pipe* p, void* data, size_t size, bool done) {
  Request* r = static_cast<Request*>(malloc(sizeof(Request)));
  *r = {p, data, static_cast<int>(size), done};
  return r;
}

int Init(void** ctx, uint64_t, net_abi::CommConfig*, net_abi::Logger, net_abi::ProfilerCallback) {
  *ctx = new int;
  return 0;
}

int Devices(int* n) {
  *n = 1;
  return 0;
}

// Only maxRecvs matters to the bench.
int GetProperties(int, char* properties) {
  constexpr size_t kAt =
      sizeof(net_abi::PropertiesHead) + sizeof(int) + offsetof(net_abi::PropertiesTail, max_recvs);
  const int one = 1;
  memcpy(properties + kAt, &one, sizeof one);
  return 0;
}

int Listen(void*, int, Pipe** handle, void** listen_comm) {
  *listen_comm = *handle = new Pipe;
  return 0;
}

int Connect(void*, int, Pipe** handle, void** send_comm, void**) {
  ++(*handle)->ends;
  *send_comm = *handle;
  return 0;
}

int Accept(Pipe* listen_comm, void** recv_comm, void**) {
  ++listen_comm->ends;
  *recv_comm = listen_comm;
  return 0;
}

int RegMr(void*, void* data, size_t, int, void** mhandle) {
  *mhandle = data;
  return 0;
}

int DeregMr(void*, void*) {
  return 0;
}

int Isend(Pipe* p, void* data, size_t size, int, void*, void*, void** out) {
  Guard guard(p);
  *out = nullptr;
  if (p->posted.empty()) return 0;
  Request* to = p->posted.front();
  p->posted.pop_front();
  memcpy(to->data, data, size);
  to->size = static_cast<int>(size);
  to->done = true;
  *out = Make(p, data, size, true);
  return 0;
}

int Irecv(Pipe* p, int, void** data, size_t* sizes, int*, void**, void**, void** out) {
  Guard guard(p);
  Request* r = Make(p, data[0], sizes[0], false);
  p->posted.push_back(r);
  *out = r;
  return 0;
}

int Test(Request* r, int* done, int* size) {
  {
    Guard guard(r->pipe);
    *done = r->done;
    if (!r->done) return 0;
    *size = r->size;
  }
  free(r);
  return 0;
}

int CloseEnd(Pipe* p) {
  if (--p->ends == 0) delete p;
  return 0;
}

int CloseListen(void*) {
  return 0;
}

int Finalize(int* ctx) {
  delete ctx;
  return 0;
}

int SetNetAttr(void*, net_abi::NetAttr*) {
  return 0;
}

template <typename F>
void* Erase(F* f) {
  return reinterpret_cast<void*>(f);
}

}  // namespace

extern "C" {
extern net_abi::Table ncclNetPlugin_v12;
net_abi::Table ncclNetPlugin_v12 = {.name = "toy",
                                    .init = Erase(Init),
                                    .devices = Erase(Devices),
                                    .get_properties = Erase(GetProperties),
                                    .listen = Erase(Listen),
                                    .connect = Erase(Connect),
                                    .accept = Erase(Accept),
                                    .reg_mr = Erase(RegMr),
                                    .reg_mr_dmabuf = nullptr,
                                    .dereg_mr = Erase(DeregMr),
                                    .isend = Erase(Isend),
                                    .irecv = Erase(Irecv),
                                    .iflush = nullptr,
                                    .test = Erase(Test),
                                    .close_send = Erase(CloseEnd),
                                    .close_recv = Erase(CloseEnd),
                                    .close_listen = Erase(CloseListen),
                                    .get_device_mr = nullptr,
                                    .irecv_consumed = nullptr,
                                    .make_vdevice = nullptr,
                                    .finalize = Erase(Finalize),
                                    .set_net_attr = Erase(SetNetAttr)};
}  // extern "C"
