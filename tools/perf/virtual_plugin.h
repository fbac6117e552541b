// A plugin as one simulated process calls it: every call is made in the name of that process and costs its
// processor the time that the host preset says.
//
// Threads: the one that drives the virtual fabric.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tools/perf/host_processor.h"
#include "tools/perf/net_plugin.h"
#include "tools/perf/virtual_time.h"
#include "verbs/soft/virtual/virtual_fabric.h"

namespace sluice::perf {

class VirtualPlugin final : public NetPlugin {
 public:
  VirtualPlugin(std::unique_ptr<NetPlugin> plugin, soft::VirtualFabric* fabric, uint32_t process,
                const HostPreset& preset)
      : plugin_(std::move(plugin)), fabric_(fabric), process_(process), preset_(preset) {}

  int api() const override { return plugin_->api(); }
  std::string name() const override { return plugin_->name(); }
  Status Init(void** context, uint64_t comm_id, int traffic_class) override {
    return At(0).Init(context, comm_id, traffic_class);
  }
  Status Finalize(void* context) override { return At(0).Finalize(context); }
  Status Devices(int* count) override { return At(0).Devices(count); }
  Status Properties(int device, DeviceProperties* properties) override {
    return At(0).Properties(device, properties);
  }
  bool can_merge() const override { return plugin_->can_merge(); }
  Status MakeVDevice(const std::vector<int>& members, int* device) override {
    return At(0).MakeVDevice(members, device);
  }
  bool has_set_attr() const override { return plugin_->has_set_attr(); }
  Status SetAttr(void* context, const nccl::NetAttr& attributes) override {
    return At(0).SetAttr(context, attributes);
  }
  Status Listen(void* context, int device, Handle* handle, void** listen_comm) override {
    return At(0).Listen(context, device, handle, listen_comm);
  }
  Status Connect(void* context, int device, int traffic_class, Handle* handle, void** send_comm) override {
    return At(0).Connect(context, device, traffic_class, handle, send_comm);
  }
  Status Accept(void* listen_comm, void** recv_comm) override { return At(0).Accept(listen_comm, recv_comm); }
  Status RegMr(void* comm, void* data, size_t bytes, void** mhandle) override {
    return At(0).RegMr(comm, data, bytes, mhandle);
  }
  Status DeregMr(void* comm, void* mhandle) override { return At(0).DeregMr(comm, mhandle); }
  Status CloseSend(void* comm) override { return At(0).CloseSend(comm); }
  Status CloseRecv(void* comm) override { return At(0).CloseRecv(comm); }
  Status CloseListen(void* comm) override { return At(0).CloseListen(comm); }

  Status Isend(void* comm, void* data, size_t bytes, int tag, void* mhandle, void* phandle,
               void** request) override {
    return Data(preset_.post)->Isend(comm, data, bytes, tag, mhandle, phandle, request);
  }
  Status Irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** phandles,
               void** request) override {
    return Data(preset_.post)->Irecv(comm, n, data, sizes, tags, mhandles, phandles, request);
  }
  Status Iflush(void* comm, int n, void** data, int* sizes, void** mhandles, void** request) override {
    return Data(preset_.post)->Iflush(comm, n, data, sizes, mhandles, request);
  }
  Status Test(void* request, bool* done, int* sizes) override {
    return Data(preset_.test)->Test(request, done, sizes);
  }
  Status IrecvConsumed(void* comm, int n, void* request) override {
    return At(0).IrecvConsumed(comm, n, request);
  }

 private:
  // A call of the data path: while it lasts the plugin's clock is the virtual one.
  class DataCall {
   public:
    DataCall(NetPlugin* plugin, const soft::VirtualFabric& fabric) : plugin_(plugin) {
      VirtualTime::Show(fabric.Now());
    }
    ~DataCall() { VirtualTime::Hide(); }
    DataCall(const DataCall&) = delete;
    DataCall& operator=(const DataCall&) = delete;
    NetPlugin* operator->() const { return plugin_; }

   private:
    NetPlugin* plugin_;
  };

  NetPlugin& At(Picos cost) {
    fabric_->Enter(process_);
    if (cost != 0) fabric_->Charge(cost);
    return *plugin_;
  }
  DataCall Data(Picos cost) { return DataCall(&At(cost), *fabric_); }

  std::unique_ptr<NetPlugin> plugin_;
  soft::VirtualFabric* fabric_;
  uint32_t process_;
  const HostPreset& preset_;
};

}  // namespace sluice::perf
