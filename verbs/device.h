// RDMA devices and ports of this host.
//
//   Result<std::vector<Port>> ports = DiscoverPorts({.hca_filter = "mlx5", .filter_source = "NCCL_IB_HCA"},
//   warn); for (const Port& port : *ports) Use(port.device->pd(), port.number, port.speed_mbps);
//
// No device is not an error: the result is empty and nothing is printed. Everything in sysfs is found through
// ibv_device.ibdev_path.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/errors.h"
#include "verbs/link.h"
#include "verbs/memory.h"
#include "verbs/protection_domain.h"

namespace sluice {

struct DeviceOptions {
  bool merge_vfs = true;  // NCCL_IB_MERGE_VFS
  RelaxedOrdering relaxed_ordering = RelaxedOrdering::kAuto;
  WarningSink warn{};  // kept as long as the device is open
};

// One open device: context, protection domain, registrations. One per physical device and process, shared by
// all ports and engines. The first opener's options hold.
//
// Thread rule: immutable after Open, except memory(), which locks. Verbs on context() and pd() are thread
// safe. Destroyed with its last owner, after every queue made on it: callers keep the shared_ptr as long as
// any object of theirs lives.
class DeviceContext {
 public:
  // Opens `device`, or returns the context that this process has already. Makes async_fd() non-blocking.
  // Errors: kSystem naming device, verb and errno (EPERM: remedy for containers).
  static Result<std::shared_ptr<DeviceContext>> Open(ibv_device* device, const DeviceOptions& options);

  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;
  ~DeviceContext();

  const std::string& name() const { return name_; }  // "mlx5_0"
  const std::string& ibdev_path() const {
    return ibdev_path_;
  }  // the device's directory in sysfs; may not exist
  // Folded (FoldPciPath): what NCCL gets, equal for the ports of one NIC. Empty without PCI device.
  const std::string& pci_path() const { return pci_path_; }
  const std::string& full_pci_path() const { return full_pci_path_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  uint64_t node_guid() const { return node_guid_; }  // host byte order
  uint64_t sys_image_guid() const {
    return sys_image_guid_;
  }  // host byte order; node_guid() when the device has none

  ibv_context* context() const { return context_; }
  const ProtectionDomain& pd() const { return pd_; }
  MemoryCache& memory() { return *memory_; }
  // O_NONBLOCK. Read with DrainAsyncEvents (verbs/async_events.h), by one thread.
  int async_fd() const { return context_->async_fd; }

  bool supports_srq() const { return attributes_.max_srq > 0 && attributes_.max_srq_wr > 0; }
  bool supports_atomics() const { return attributes_.atomic_cap != IBV_ATOMIC_NONE; }

  // Largest max_inline_data up to `wanted` that an RC queue pair of this device gets, found by creating one
  // once; 0 when it offers none. Slow on the first call; any thread.
  uint32_t ProbeMaxInline(uint32_t wanted);

  // Fresh attributes of a port.
  Result<ibv_port_attr> QueryPort(uint8_t port) const;

 private:
  DeviceContext() = default;

  ibv_context* context_ = nullptr;
  std::string name_;
  std::string ibdev_path_;
  std::string pci_path_;
  std::string full_pci_path_;
  ibv_device_attr attributes_{};
  uint64_t node_guid_ = 0;
  uint64_t sys_image_guid_ = 0;
  ProtectionDomain pd_;
  std::unique_ptr<MemoryCache> memory_;
  std::mutex probe_mutex_;
  uint32_t probed_wanted_ = 0;
  uint32_t probed_inline_ = 0;
};

// A port as discovered. A value; `query` is as old as the discovery (DeviceContext::QueryPort renews it).
struct Port {
  std::shared_ptr<DeviceContext> device;
  uint8_t number = 0;  // as verbs counts: from 1
  LinkLayer link_layer = LinkLayer::kInfiniBand;
  int speed_mbps = 0;  // never 0
  // Unique in this process: "mlx5_0"; "mlx4_0:2" on devices with several physical ports.
  std::string name;
  ibv_port_attr query{};
  // 1, 2, ... among the discovered ports of one NIC (folded PCI path; GUID without one), so that two ports
  // never look like one. For NCCL's properties.
  int nic_port = 0;
  int rail = -1;   // label given in the HCA list; -1: none
  int plane = -1;  // likewise
};

struct DiscoveryOptions {
  std::string hca_filter{};                // grammar in verbs/hca_filter.h; empty: all
  std::string filter_source = "HCA list";  // how messages call hca_filter
  bool merge_vfs = true;                   // NCCL_IB_MERGE_VFS
  bool pci_order = true;  // NCCL_IB_DEVICE_PCI_ORDER: sort by PCI address, devices without one last
  int speed_mbps = 0;     // above 0: replaces the speed of every port
  RelaxedOrdering relaxed_ordering = RelaxedOrdering::kAuto;
};

// Active InfiniBand and RoCE ports that the filter selects. A device that cannot be opened or queried is left
// out with one warning naming it and the errno. A list that selects no active port of a host with devices is
// warned about, with the ports there are. Calls ibv_fork_init first. Errors: kInvalidArgument for a bad list.
// Any thread.
Result<std::vector<Port>> DiscoverPorts(const DiscoveryOptions& options, const WarningSink& warn);

// ibv_fork_init, once per process and before the first device is opened (DiscoverPorts calls it). A failure
// is warned about once: the process works, but must not fork.
void InitForkSupport(const WarningSink& warn);

}  // namespace sluice
