#include "tests/overhead/bench/plugin.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>

void Die(const char* format, ...) {
  va_list ap;
  va_start(ap, format);
  fputs("plugbench: ", stderr);
  vfprintf(stderr, format, ap);
  va_end(ap);
  fputc('\n', stderr);
  exit(1);
}

namespace {

using net_abi::CommConfig;
using net_abi::Logger;
using net_abi::ProfilerCallback;

constexpr int kWarn = 2;  // NCCL's log levels: VERSION 1, WARN 2, INFO 3

void LogLine(int level, unsigned long, const char* file, int line, const char* format, ...) {
  static const bool verbose = getenv("PLUGBENCH_VERBOSE");
  if (level > kWarn && !verbose) return;
  va_list ap;
  va_start(ap, format);
  fprintf(stderr, "[plugin %d] %s:%d ", level, file ? file : "?", line);
  vfprintf(stderr, format, ap);
  fputc('\n', stderr);
  va_end(ap);
}

int OnProfilerEvent(void** handle, int, void*, int64_t, void*) {
  if (handle) *handle = nullptr;
  return 0;
}

template <typename F>
F* Fn(void* p) {
  return reinterpret_cast<F*>(p);
}

void Check(const char* what, int rc) {
  if (rc) Die("%s failed with %d", what, rc);
}

}  // namespace

Plugin::Plugin(const char* path, int version) {
  void* lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib) Die("%s", dlerror());
  for (version_ = version ? version : net_abi::kNewest; version_ >= (version ? version : net_abi::kOldest);
       --version_) {
    const std::string symbol = "ncclNetPlugin_v" + std::to_string(version_);
    table_ = static_cast<net_abi::Table*>(dlsym(lib, symbol.c_str()));
    if (table_) return;
  }
  Die("no usable ncclNetPlugin_v* in %s", path);
}

void Plugin::Init(void** ctx, uint64_t comm) {
  CommConfig config = {-1};
  if (version_ >= 11) {
    Check("init", Fn<int(void**, uint64_t, CommConfig*, Logger, ProfilerCallback)>(table_->init)(
                      ctx, comm, &config, LogLine, OnProfilerEvent));
  } else if (version_ == 10) {
    Check("init", Fn<int(Logger, ProfilerCallback)>(table_->init)(LogLine, OnProfilerEvent));
  } else {
    Check("init", Fn<int(Logger)>(table_->init)(LogLine));
  }
}

int Plugin::Devices() {
  int n = 0;
  Check("devices", Fn<int(int*)>(table_->devices)(&n));
  return n;
}

int Plugin::MaxRecvs(int dev) {
  alignas(16) char raw[512];
  memset(raw, 0xa5, sizeof raw);
  Check("getProperties", Fn<int(int, void*)>(table_->get_properties)(dev, raw));
  net_abi::PropertiesTail tail;
  memcpy(&tail, raw + sizeof(net_abi::PropertiesHead) + (version_ >= 9 ? sizeof(int) : 0), sizeof tail);
  return tail.max_recvs;
}

void Plugin::Listen(void* ctx, int dev, void* handle, void** listen_comm) {
  Check("listen", version_ >= 11
                      ? Fn<int(void*, int, void*, void**)>(table_->listen)(ctx, dev, handle, listen_comm)
                      : Fn<int(int, void*, void**)>(table_->listen)(dev, handle, listen_comm));
}

void Plugin::Connect(void* ctx, int dev, void* handle, void** send_comm) {
  static CommConfig config = {-1};
  void* offload = nullptr;
  if (version_ >= 11) {
    Check("connect",
          Fn<int(void*, int, void*, void**, void**)>(table_->connect)(ctx, dev, handle, send_comm, &offload));
  } else if (version_ == 10) {
    Check("connect", Fn<int(int, void*, void*, void**, void**)>(table_->connect)(dev, &config, handle,
                                                                                 send_comm, &offload));
  } else {
    Check("connect", Fn<int(int, void*, void**, void**)>(table_->connect)(dev, handle, send_comm, &offload));
  }
}

void Plugin::Accept(void* listen_comm, void** recv_comm) {
  void* offload = nullptr;
  Check("accept", Fn<int(void*, void**, void**)>(table_->accept)(listen_comm, recv_comm, &offload));
}

void* Plugin::RegMr(void* comm, void* data, size_t size) {
  void* mhandle = nullptr;
  Check("regMr", Fn<int(void*, void*, size_t, int, void**)>(table_->reg_mr)(comm, data, size,
                                                                            net_abi::kPtrHost, &mhandle));
  return mhandle;
}

void Plugin::DeregMr(void* comm, void* mhandle) {
  Check("deregMr", Fn<int(void*, void*)>(table_->dereg_mr)(comm, mhandle));
}

void Plugin::Isend(void* comm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                   void** request) {
  if (version_ >= 10) {
    Check("isend", Fn<int(void*, void*, size_t, int, void*, void*, void**)>(table_->isend)(
                       comm, data, size, tag, mhandle, phandle, request));
  } else if (version_ == 9) {
    Check("isend", Fn<int(void*, void*, size_t, int, void*, void**)>(table_->isend)(comm, data, size, tag,
                                                                                    mhandle, request));
  } else {
    Check("isend", Fn<int(void*, void*, int, int, void*, void**)>(table_->isend)(
                       comm, data, static_cast<int>(size), tag, mhandle, request));
  }
}

void Plugin::Irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** phandles,
                   void** request) {
  if (version_ >= 10) {
    Check("irecv", Fn<int(void*, int, void**, size_t*, int*, void**, void**, void**)>(table_->irecv)(
                       comm, n, data, sizes, tags, mhandles, phandles, request));
  } else if (version_ == 9) {
    Check("irecv", Fn<int(void*, int, void**, size_t*, int*, void**, void**)>(table_->irecv)(
                       comm, n, data, sizes, tags, mhandles, request));
  } else {
    int narrow[64];
    for (int i = 0; i < n; ++i) narrow[i] = static_cast<int>(sizes[i]);
    Check("irecv", Fn<int(void*, int, void**, int*, int*, void**, void**)>(table_->irecv)(
                       comm, n, data, narrow, tags, mhandles, request));
  }
}

bool Plugin::Test(void* request, int* sizes) {
  int done = 0;
  Check("test", Fn<int(void*, int*, int*)>(table_->test)(request, &done, sizes));
  return done;
}
bool Plugin::TestSend(void* request, int* sizes) {
  return Test(request, sizes);
}
bool Plugin::TestRecv(void* request, int* sizes) {
  return Test(request, sizes);
}

void Plugin::Consumed(void* recv_comm, int n, void* request) {
  if (!table_->irecv_consumed) return;
  Check("irecvConsumed", Fn<int(void*, int, void*)>(table_->irecv_consumed)(recv_comm, n, request));
}

void Plugin::CloseSend(void* comm) {
  Check("closeSend", Fn<int(void*)>(table_->close_send)(comm));
}
void Plugin::CloseRecv(void* comm) {
  Check("closeRecv", Fn<int(void*)>(table_->close_recv)(comm));
}
void Plugin::CloseListen(void* comm) {
  Check("closeListen", Fn<int(void*)>(table_->close_listen)(comm));
}

void Plugin::Finalize(void* ctx) {
  if (version_ >= 11 && table_->finalize) Check("finalize", Fn<int(void*)>(table_->finalize)(ctx));
}

void Plugin::SetAttr(void* ctx, net_abi::NetAttr* attr) {
  if (version_ < 11 || !table_->set_net_attr) return;
  Check("setNetAttr", Fn<int(void*, net_abi::NetAttr*)>(table_->set_net_attr)(ctx, attr));
}
