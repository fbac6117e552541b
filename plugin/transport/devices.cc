#include "plugin/transport/devices.h"

#include <unistd.h>

#include <algorithm>

#include "plugin/log.h"

namespace sluice {
namespace {

// GPUDirect RDMA through a peer-memory module, as NCCL's own transport detects it.
bool HasPeerMemoryModule() {
  for (const char* path :
       {"/sys/kernel/mm/memory_peers/nv_mem/version", "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
        "/sys/module/nvidia_peermem/version"}) {
    if (access(path, F_OK) == 0) return true;
  }
  return false;
}

}  // namespace

GidOptions GidOptionsFrom(const Params& params) {
  GidOptions options;
  options.forced_index = params.ib_gid_index;
  options.roce_version = params.ib_roce_version_num;
  options.family = params.ib_addr_family;
  options.ranges = params.ib_addr_range;
  options.routable_flid_index = params.ib_routable_flid_gid_index;
  return options;
}

Result<DeviceTable*> DeviceTable::Get() {
  static std::mutex mutex;
  static Result<DeviceTable*>* outcome = nullptr;
  std::lock_guard lock(mutex);
  if (outcome == nullptr) {
    const Result<Params>& params = GetParams();
    if (!params.ok()) {
      outcome = new Result<DeviceTable*>(params.status());
    } else {
      auto* table = new DeviceTable;
      Status status = table->Discover(*params);
      outcome = status.ok() ? new Result<DeviceTable*>(table) : new Result<DeviceTable*>(status);
    }
  }
  return *outcome;
}

Status DeviceTable::Discover(const Params& params) {
  for (const std::string& note : params.notes) SLUICE_INFO(kLogInit | kLogEnv, "%s", note.c_str());
  if (params.ib_disable) {
    SLUICE_INFO(kLogInit | kLogNet, "NCCL_IB_DISABLE is set: no device is used");
    return Status::Ok();
  }
  DiscoveryOptions options;
  options.hca_filter = params.ib_hca;
  options.filter_source = "NCCL_IB_HCA";
  options.merge_vfs = params.ib_merge_vfs;
  options.pci_order = params.ib_device_pci_order;
  options.speed_mbps = params.speed_mbps;
  options.relaxed_ordering = params.ib_pci_relaxed_ordering;
  const WarningSink warn = [](const std::string& line) { SLUICE_WARN("%s", line.c_str()); };
  Result<std::vector<Port>> ports = DiscoverPorts(options, warn);
  if (!ports.ok()) return ports.status();
  ports_ = std::move(*ports);
  for (size_t i = 0; i < ports_.size(); ++i) AddPhysical(params, static_cast<int>(i));
  SLUICE_INFO(kLogInit | kLogNet, "Sluice %s: %zu device%s%s", SLUICE_VERSION, ports_.size(),
              ports_.size() == 1 ? "" : "s",
              ports_.empty() ? " (no active RDMA port on this host, or NCCL_IB_HCA selects none)" : "");
  for (const NetDevice& device : devices_) {
    const Port& port = ports_[static_cast<size_t>(device.members[0])];
    SLUICE_INFO(kLogInit | kLogNet, "  %s: %s, %d Mb/s, %s, dma-buf %s", device.name.c_str(),
                std::string(LinkLayerName(port.link_layer)).c_str(), port.speed_mbps,
                device.pci_path.empty() ? "no PCI device" : device.pci_path.c_str(),
                device.properties.dmabuf ? "yes" : "no");
  }
  return Status::Ok();
}

void DeviceTable::AddPhysical(const Params& params, int port_index) {
  const Port& port = ports_[static_cast<size_t>(port_index)];
  NetDevice& device = devices_.emplace_back();
  device.name = port.name;
  device.pci_path = port.device->pci_path();
  device.members = {port_index};
  NetProperties& properties = device.properties;
  properties.name = device.name.c_str();
  properties.pci_path = device.pci_path.empty() ? nullptr : device.pci_path.c_str();
  properties.guid = port.device->sys_image_guid();
  properties.cuda = params.gpu_direct > 0 || (params.gpu_direct < 0 && HasPeerMemoryModule());
  properties.dmabuf = params.gpu_direct != 0 && port.device->memory().SupportsDmaBuf();
  properties.force_flush = params.force_flush;
  properties.speed_mbps = port.speed_mbps;
  properties.port = port.nic_port;
  properties.latency_us = 0;
  properties.max_comms = port.device->attributes().max_qp;
  properties.max_recvs = params.max_recvs;
  properties.max_p2p_bytes = kMaxMessageBytes;
  properties.max_coll_bytes = kMaxMessageBytes;
  properties.member_count = 1;
  properties.members[0] = port_index;
}

int DeviceTable::count() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(devices_.size());
}

bool DeviceTable::Has(LinkLayer link_layer) const {
  return std::any_of(ports_.begin(), ports_.end(),
                     [&](const Port& port) { return port.link_layer == link_layer; });
}

Result<NetProperties> DeviceTable::Properties(int device) const {
  std::lock_guard lock(mutex_);
  if (device < 0 || static_cast<size_t>(device) >= devices_.size()) {
    return InvalidArgument("device " + std::to_string(device) + " does not exist: there are " +
                           std::to_string(devices_.size()));
  }
  return devices_[static_cast<size_t>(device)].properties;
}

Result<std::vector<Port>> DeviceTable::Members(int device) const {
  std::lock_guard lock(mutex_);
  if (device < 0 || static_cast<size_t>(device) >= devices_.size()) {
    return InvalidArgument("device " + std::to_string(device) + " does not exist: there are " +
                           std::to_string(devices_.size()));
  }
  std::vector<Port> members;
  for (int index : devices_[static_cast<size_t>(device)].members)
    members.push_back(ports_[static_cast<size_t>(index)]);
  return members;
}

Result<int> DeviceTable::MakeVirtual(std::span<const int> members, int max_members) {
  const Result<Params>& params = GetParams();
  if (!params.ok()) return params.status();
  if (!params->ib_merge_nics) return InvalidUsage("merged NICs are off (NCCL_IB_MERGE_NICS=0)");
  if (members.empty() || members.size() > static_cast<size_t>(std::min(max_members, kMaxMergedPorts))) {
    return InvalidArgument("a virtual device of " + std::to_string(members.size()) +
                           " ports is not possible: 1 to " +
                           std::to_string(std::min(max_members, kMaxMergedPorts)));
  }
  std::lock_guard lock(mutex_);
  std::vector<int> indices;
  std::string name;
  int speed_mbps = 0;
  for (int member : members) {
    if (member < 0 || static_cast<size_t>(member) >= ports_.size()) {
      return InvalidArgument("virtual device: member " + std::to_string(member) +
                             " is not a physical device (0 to " + std::to_string(ports_.size() - 1) + ")");
    }
    if (std::find(indices.begin(), indices.end(), member) != indices.end()) {
      return InvalidArgument("virtual device: member " + std::to_string(member) + " is named twice");
    }
    const Port& port = ports_[static_cast<size_t>(member)];
    const Port& first = ports_[static_cast<size_t>(members[0])];
    if (port.link_layer != first.link_layer) {
      return InvalidArgument("virtual device: " + first.name + " is " +
                             std::string(LinkLayerName(first.link_layer)) + " and " + port.name + " is " +
                             std::string(LinkLayerName(port.link_layer)) +
                             "; merge ports of one link layer only");
    }
    indices.push_back(member);
    name += (name.empty() ? "" : "+") + port.name;
    speed_mbps += port.speed_mbps;
  }
  for (size_t i = 0; i < devices_.size(); ++i) {  // asked again by a later communicator: the same device
    if (devices_[i].members == indices && i >= ports_.size()) return static_cast<int>(i);
  }
  const NetProperties& base = devices_[static_cast<size_t>(members[0])].properties;
  NetDevice& device = devices_.emplace_back();
  device.name = name;
  device.members = indices;
  device.properties = base;
  device.properties.name = device.name.c_str();
  device.properties.pci_path = nullptr;
  device.properties.speed_mbps = speed_mbps;
  device.properties.member_count = static_cast<int>(indices.size());
  std::copy(indices.begin(), indices.end(), device.properties.members.begin());
  for (int member : members) {
    const NetProperties& part = devices_[static_cast<size_t>(member)].properties;
    device.properties.cuda &= part.cuda;
    device.properties.dmabuf &= part.dmabuf;
  }
  return static_cast<int>(devices_.size()) - 1;
}

}  // namespace sluice
