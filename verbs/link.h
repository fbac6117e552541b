// Properties of a port's link as numbers: MTU, rate, link layer; and where a device sits on the PCI bus.
// Pure functions, except those that take a path. Thread rule: any thread.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

enum class LinkLayer : uint8_t { kInfiniBand, kEthernet };

// "IB" and "RoCE", as NCCL prints them.
std::string_view LinkLayerName(LinkLayer layer);
// Empty for link layers that cannot carry RDMA verbs of ours (IBV_LINK_LAYER_UNSPECIFIED counts as
// InfiniBand, as old drivers report it).
std::optional<LinkLayer> LinkLayerOf(uint8_t verbs_link_layer);

// 256 to 4096; 0 for a value outside the enum.
uint32_t MtuBytes(ibv_mtu mtu);
// The largest verbs MTU that is not above `bytes`; IBV_MTU_256 below 256.
ibv_mtu MtuFromBytes(uint32_t bytes);
// What a path between two ports may use: the smaller of both (M1). Values outside the enum count as
// IBV_MTU_1024, which every InfiniBand port supports.
ibv_mtu PathMtu(ibv_mtu local, ibv_mtu remote);

// Largest message of one work request on the port, rounded down to a multiple of 128 bytes; 1 GiB where the
// port tells nothing.
uint32_t MaxMessageBytes(const ibv_port_attr& port);

inline constexpr int kFallbackSpeedMbps = 10000;  // what NCCL assumes for a NIC that tells nothing

// Rate of a port in Mb/s from ibv_port_attr.active_width and active_speed; 0 when either is zero or unknown.
int LinkSpeedMbps(uint8_t active_width, uint8_t active_speed);
// Mb/s from the text of <ibdev_path>/ports/<n>/rate, "400 Gb/sec (4X NDR)"; 0 when it is not of that form.
int ParseSysfsRateMbps(std::string_view text);

// What to report for a port: `override_mbps` if positive; otherwise width and speed; otherwise the sysfs
// rate; otherwise kFallbackSpeedMbps. NDR is as fast as the 8 bits of active_speed can say: there a faster
// sysfs rate (XDR) wins.
int PortSpeedMbps(uint8_t active_width, uint8_t active_speed, std::string_view sysfs_rate, int override_mbps);

// realpath(<ibdev_path>/device), or empty when there is no PCI device behind it (rdma_rxe, siw).
std::string ReadPciPath(const std::string& ibdev_path);
// The path with the function digit set to 0, and with merge_vfs also the device digits (a virtual
// function's), as NCCL's own transport folds them: the ports of one NIC look like one PCI device. Returns
// paths that do not end in dddd:dd:dd.d unchanged.
std::string FoldPciPath(std::string_view pci_path, bool merge_vfs);
// domain:bus:device.function of the last component as one number that orders like the bus; UINT64_MAX without
// one, so that devices without PCI path sort last.
uint64_t PciOrder(std::string_view pci_path);

// The first `limit` bytes of a small text file without trailing whitespace; empty optional when it cannot be
// read.
std::optional<std::string> ReadTextFile(const std::string& path, size_t limit = 4096);

}  // namespace sluice
