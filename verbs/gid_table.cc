// Reading GID tables: the part of verbs/gid.h that touches devices and sysfs.
#include <net/if.h>

#include <algorithm>
#include <cerrno>

#include "verbs/device.h"
#include "verbs/errors.h"
#include "verbs/gid.h"

namespace sluice {
namespace {

std::string PortPath(const std::string& ibdev_path, uint8_t port) {
  return ibdev_path + "/ports/" + std::to_string(port);
}

GidType TypeOf(uint32_t verbs_type) {
  switch (verbs_type) {
    case IBV_GID_TYPE_IB:
      return GidType::kInfiniBand;
    case IBV_GID_TYPE_ROCE_V1:
      return GidType::kRoceV1;
    case IBV_GID_TYPE_ROCE_V2:
      return GidType::kRoceV2;
    default:
      return GidType::kUnknown;
  }
}

std::string InterfaceName(uint32_t index) {
  char name[IF_NAMESIZE] = "";
  return index != 0 && if_indextoname(index, name) != nullptr ? name : "";
}

// One by one, with the types from sysfs.
Result<std::vector<GidEntry>> ReadSingly(const DeviceContext& device, uint8_t port, int table_length,
                                         LinkLayer link_layer) {
  std::vector<GidEntry> table;
  for (int index = 0; index < table_length; ++index) {
    GidEntry entry;
    entry.index = index;
    errno = 0;
    if (ibv_query_gid(device.context(), port, index, &entry.gid) != 0) {
      const int error = errno == 0 ? EIO : errno;
      // An unused index, or one whose network device belongs to another container.
      if (error == EINVAL || error == ENODATA || error == ENOENT || error == EAGAIN) continue;
      return VerbError("ibv_query_gid on " + device.name() + ":" + std::to_string(port) + ", index " +
                           std::to_string(index),
                       error);
    }
    if (!IsConfiguredGid(entry.gid)) continue;
    entry.type = ReadGidType(device.ibdev_path(), port, index, link_layer);
    entry.ndev = ReadGidNetDevice(device.ibdev_path(), port, index);
    table.push_back(std::move(entry));
  }
  return table;
}

}  // namespace

GidType ReadGidType(const std::string& ibdev_path, uint8_t port, int index, LinkLayer link_layer) {
  if (link_layer == LinkLayer::kInfiniBand) return GidType::kInfiniBand;
  const auto text =
      ReadTextFile(PortPath(ibdev_path, port) + "/gid_attrs/types/" + std::to_string(index), 64);
  if (!text) return GidType::kUnknown;
  if (text->starts_with("RoCE v2")) return GidType::kRoceV2;
  if (text->starts_with("IB/RoCE v1") || text->starts_with("RoCE v1")) return GidType::kRoceV1;
  return GidType::kUnknown;
}

std::string ReadGidNetDevice(const std::string& ibdev_path, uint8_t port, int index) {
  return ReadTextFile(PortPath(ibdev_path, port) + "/gid_attrs/ndevs/" + std::to_string(index), 64)
      .value_or("");
}

Result<std::vector<GidEntry>> ReadGidTable(const DeviceContext& device, uint8_t port, int table_length) {
  Result<ibv_port_attr> attributes = device.QueryPort(port);
  if (!attributes.ok()) return attributes.status();
  const LinkLayer link_layer = LinkLayerOf(attributes->link_layer).value_or(LinkLayer::kInfiniBand);
  const int length = std::max(table_length, attributes->gid_tbl_len);
  if (length <= 0) return std::vector<GidEntry>();

  // The call returns the tables of all ports of the device.
  const size_t ports = std::max<size_t>(1, device.attributes().phys_port_cnt);
  std::vector<ibv_gid_entry> raw(static_cast<size_t>(length) * ports);
  errno = 0;
  const ssize_t count = ibv_query_gid_table(device.context(), raw.data(), raw.size(), 0);
  if (count < 0) return ReadSingly(device, port, length, link_layer);

  std::vector<GidEntry> table;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    if (raw[i].port_num != port || !IsConfiguredGid(raw[i].gid)) continue;
    GidEntry entry;
    entry.index = static_cast<int>(raw[i].gid_index);
    entry.gid = raw[i].gid;
    entry.type = TypeOf(raw[i].gid_type);
    entry.ndev = InterfaceName(raw[i].ndev_ifindex);
    table.push_back(std::move(entry));
  }
  if (table.empty()) return ReadSingly(device, port, length, link_layer);
  std::sort(table.begin(), table.end(),
            [](const GidEntry& a, const GidEntry& b) { return a.index < b.index; });
  return table;
}

}  // namespace sluice
