// Any NCCL net plugin behind one set of calls: the differences between v8 and v12 are in plugin.cc.
//
//   Plugin plugin("libnccl-net-sluice.so", 0);  // 0: the highest version that it exports
//   plugin.Init(&context, 0x1234);
//
// A call that returns an error ends the program with a message. Threads: as the plugin allows.
#pragma once

#include "tests/overhead/bench/net_abi.h"

// Prints one line and exits with status 1.
[[noreturn]] __attribute__((format(printf, 1, 2))) void Die(const char* format, ...);

class Plugin {
 public:
  Plugin(const char* path, int version);

  int version() const { return version_; }
  const char* name() const { return table_->name; }

  void Init(void** ctx, uint64_t comm);
  int Devices();
  int MaxRecvs(int dev);
  void Listen(void* ctx, int dev, void* handle, void** listen_comm);
  // *send_comm stays null until the connection is made; call again.
  void Connect(void* ctx, int dev, void* handle, void** send_comm);
  void Accept(void* listen_comm, void** recv_comm);
  void* RegMr(void* comm, void* data, size_t size);
  void DeregMr(void* comm, void* mhandle);
  void Consumed(void* recv_comm, int n, void* request);
  void CloseSend(void* comm);
  void CloseRecv(void* comm);
  void CloseListen(void* comm);
  void Finalize(void* ctx);
  void SetAttr(void* ctx, net_abi::NetAttr* attr);

  // The message path. Each is a function of its own, so that callgrind can be switched on for one kind of
  // call.
  __attribute__((noinline, no_icf)) void Isend(void* comm, void* data, size_t size, int tag, void* mhandle,
                                               void* phandle, void** request);
  __attribute__((noinline, no_icf)) void Irecv(void* comm, int n, void** data, size_t* sizes, int* tags,
                                               void** mhandles, void** phandles, void** request);
  __attribute__((noinline, no_icf)) bool TestSend(void* request, int* sizes);
  __attribute__((noinline, no_icf)) bool TestRecv(void* request, int* sizes);

 private:
  bool Test(void* request, int* sizes);

  net_abi::Table* table_ = nullptr;
  int version_ = 0;
};
