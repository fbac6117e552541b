// DiscoverPorts: from the device list of libibverbs to the ports that a transport may use.
#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <utility>

#include "verbs/device.h"
#include "verbs/errors.h"
#include "verbs/hca_filter.h"

namespace sluice {
namespace {

struct FreeDeviceList {
  void operator()(ibv_device** list) const { ibv_free_device_list(list); }
};
using DeviceList = std::unique_ptr<ibv_device*[], FreeDeviceList>;

void Warn(const WarningSink& warn, const std::string& line) {
  if (warn) warn(line);
}

bool IsRdmaTransport(const ibv_device& device) {
  return device.transport_type == IBV_TRANSPORT_IB && device.node_type != IBV_NODE_SWITCH &&
         device.node_type != IBV_NODE_ROUTER;
}

void AppendPort(const std::shared_ptr<DeviceContext>& device, uint8_t number, const HcaFilter& filter,
                const DiscoveryOptions& options, const WarningSink& warn, std::vector<Port>* ports) {
  Result<ibv_port_attr> query = device->QueryPort(number);
  if (!query.ok()) return Warn(warn, query.status().message() + " (port left out)");
  const std::optional<LinkLayer> link_layer = LinkLayerOf(query->link_layer);
  if (query->state != IBV_PORT_ACTIVE || !link_layer) return;
  Port port;
  port.device = device;
  port.number = number;
  port.link_layer = *link_layer;
  port.query = *query;
  const std::string rate_path = device->ibdev_path() + "/ports/" + std::to_string(number) + "/rate";
  port.speed_mbps = PortSpeedMbps(query->active_width, query->active_speed,
                                  ReadTextFile(rate_path, 64).value_or(""), options.speed_mbps);
  port.name = device->name();
  if (device->attributes().phys_port_cnt > 1) port.name.append(":").append(std::to_string(number));
  if (const HcaEntry* entry = filter.Find(device->name(), number)) {
    port.rail = entry->rail;
    port.plane = entry->plane;
  }
  ports->push_back(std::move(port));
}

// Ports that NCCL sees on one PCI device, or on one GUID where there is no PCI device, count through.
void NumberNicPorts(std::vector<Port>* ports) {
  std::map<std::pair<std::string, uint64_t>, int> counts;
  for (Port& port : *ports) {
    const std::string& path = port.device->pci_path();
    port.nic_port = ++counts[{path, path.empty() ? port.device->sys_image_guid() : 0}];
  }
}

std::string JoinNames(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

}  // namespace

void InitForkSupport(const WarningSink& warn) {
  static const int result = ibv_fork_init();
  static std::once_flag warned;
  if (result == 0) return;
  std::call_once(warned, [&] {
    Warn(warn, VerbError("ibv_fork_init", ErrnoOf(result)).message() +
                   " (a child process may corrupt registered memory)");
  });
}

Result<std::vector<Port>> DiscoverPorts(const DiscoveryOptions& options, const WarningSink& warn) {
  Result<HcaFilter> filter = HcaFilter::Parse(options.hca_filter, options.filter_source);
  if (!filter.ok()) return filter.status();
  InitForkSupport(warn);

  std::vector<Port> ports;
  int count = 0;
  errno = 0;
  const DeviceList list(ibv_get_device_list(&count));
  // Without RDMA modules the call fails with ENOSYS or ENOENT: that is a host without devices.
  if (list == nullptr || count == 0) return ports;

  std::vector<std::string> rejected;
  std::vector<std::string> inactive;
  bool failed = false;
  const DeviceOptions device_options{options.merge_vfs, options.relaxed_ordering, warn};
  for (int i = 0; i < count; ++i) {
    ibv_device* device = list[static_cast<size_t>(i)];
    if (!IsRdmaTransport(*device)) continue;
    if (!filter->MayMatch(device->name)) {
      rejected.emplace_back(device->name);
      continue;
    }
    Result<std::shared_ptr<DeviceContext>> context = DeviceContext::Open(device, device_options);
    if (!context.ok()) {
      Warn(warn, context.status().message() + " (device left out)");
      failed = true;
      continue;
    }
    for (int number = 1; number <= (*context)->attributes().phys_port_cnt; ++number) {
      if (!filter->Matches(device->name, number)) {
        rejected.push_back(std::string(device->name) + ":" + std::to_string(number));
        continue;
      }
      const size_t before = ports.size();
      AppendPort(*context, static_cast<uint8_t>(number), *filter, options, warn, &ports);
      if (ports.size() == before)
        inactive.push_back(std::string(device->name) + ":" + std::to_string(number));
    }
  }
  if (ports.empty() && !filter->empty() && !failed) {
    std::string line =
        options.filter_source + "=" + options.hca_filter + " selects no active port of this host";
    if (!inactive.empty()) line += "; selected but not active: " + JoinNames(inactive);
    if (!rejected.empty()) line += "; not selected: " + JoinNames(rejected);
    Warn(warn, line);
  }
  if (options.pci_order) {
    std::stable_sort(ports.begin(), ports.end(), [](const Port& a, const Port& b) {
      return PciOrder(a.device->full_pci_path()) < PciOrder(b.device->full_pci_path());
    });
  }
  NumberNicPorts(&ports);
  return ports;
}

}  // namespace sluice
