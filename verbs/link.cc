#include "verbs/link.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdlib>

namespace sluice {
namespace {

// Byte offsets inside "dddd:dd:dd.d", the last component of a PCI path. Domains can be longer than four
// digits (VMD).
struct PciAddress {
  size_t start;   // of the domain
  size_t device;  // of the two device digits
};

bool IsHex(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
}

std::optional<PciAddress> FindPciAddress(std::string_view path) {
  const size_t slash = path.rfind('/');
  const size_t start = slash == std::string_view::npos ? 0 : slash + 1;
  const std::string_view last = path.substr(start);
  constexpr size_t kTail = std::string_view(":bb:dd.f").size();
  if (last.size() < 4 + kTail) return std::nullopt;
  const size_t domain_digits = last.size() - kTail;
  const std::string_view tail = last.substr(domain_digits);
  if (domain_digits > 8 || !IsHex(last.substr(0, domain_digits))) return std::nullopt;
  if (tail[0] != ':' || tail[3] != ':' || tail[6] != '.') return std::nullopt;
  if (!IsHex(tail.substr(1, 2)) || !IsHex(tail.substr(4, 2)) || !IsHex(tail.substr(7, 1)))
    return std::nullopt;
  return PciAddress{start, start + domain_digits + 4};
}

uint64_t HexValue(std::string_view text) {
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

}  // namespace

std::string_view LinkLayerName(LinkLayer layer) {
  return layer == LinkLayer::kInfiniBand ? "IB" : "RoCE";
}

std::optional<LinkLayer> LinkLayerOf(uint8_t verbs_link_layer) {
  switch (verbs_link_layer) {
    case IBV_LINK_LAYER_UNSPECIFIED:
    case IBV_LINK_LAYER_INFINIBAND:
      return LinkLayer::kInfiniBand;
    case IBV_LINK_LAYER_ETHERNET:
      return LinkLayer::kEthernet;
    default:
      return std::nullopt;
  }
}

uint32_t MtuBytes(ibv_mtu mtu) {
  if (mtu < IBV_MTU_256 || mtu > IBV_MTU_4096) return 0;
  return 128U << static_cast<unsigned>(mtu);
}

ibv_mtu MtuFromBytes(uint32_t bytes) {
  for (int mtu = IBV_MTU_4096; mtu > IBV_MTU_256; --mtu) {
    if (bytes >= MtuBytes(static_cast<ibv_mtu>(mtu))) return static_cast<ibv_mtu>(mtu);
  }
  return IBV_MTU_256;
}

ibv_mtu PathMtu(ibv_mtu local, ibv_mtu remote) {
  const auto known = [](ibv_mtu mtu) { return MtuBytes(mtu) == 0 ? IBV_MTU_1024 : mtu; };
  return std::min(known(local), known(remote));
}

uint32_t MaxMessageBytes(const ibv_port_attr& port) {
  constexpr uint32_t kUnknown = 1U << 30;
  constexpr uint32_t kAlignment = 128;
  const uint32_t limit = port.max_msg_sz < kAlignment ? kUnknown : port.max_msg_sz;
  return limit - limit % kAlignment;
}

int LinkSpeedMbps(uint8_t active_width, uint8_t active_speed) {
  // Bit values as in PortInfo; a port reports exactly one of each.
  const auto lanes = [](uint8_t width) {
    switch (width) {
      case 1:
        return 1;
      case 2:
        return 4;
      case 4:
        return 8;
      case 8:
        return 12;
      case 16:
        return 2;
      default:
        return 0;
    }
  };
  const auto lane_mbps = [](uint8_t speed) {
    switch (speed) {
      case 1:
        return 2500;  // SDR
      case 2:
        return 5000;  // DDR
      case 4:
      case 8:
        return 10000;  // QDR, FDR10
      case 16:
        return 14000;  // FDR
      case 32:
        return 25000;  // EDR
      case 64:
        return 50000;  // HDR
      case 128:
        return 100000;  // NDR
      default:
        return 0;
    }
  };
  return lanes(active_width) * lane_mbps(active_speed);
}

int ParseSysfsRateMbps(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double gigabits = std::strtod(copy.c_str(), &end);
  if (end == copy.c_str() || !std::isfinite(gigabits) || gigabits <= 0 || gigabits > 1e6) return 0;
  if (!std::string_view(end).starts_with(" Gb/sec")) return 0;
  return static_cast<int>(std::lround(gigabits * 1000));
}

int PortSpeedMbps(uint8_t active_width, uint8_t active_speed, std::string_view sysfs_rate,
                  int override_mbps) {
  if (override_mbps > 0) return override_mbps;
  constexpr uint8_t kNdr = 128;
  const int reported = LinkSpeedMbps(active_width, active_speed);
  if (reported > 0 && active_speed != kNdr) return reported;
  const int rate = ParseSysfsRateMbps(sysfs_rate);
  if (reported > 0 || rate > 0) return std::max(reported, rate);
  return kFallbackSpeedMbps;
}

std::string ReadPciPath(const std::string& ibdev_path) {
  if (ibdev_path.empty()) return {};
  char* resolved = realpath((ibdev_path + "/device").c_str(), nullptr);
  if (resolved == nullptr) return {};
  std::string path(resolved);
  std::free(resolved);
  return path;
}

std::string FoldPciPath(std::string_view pci_path, bool merge_vfs) {
  std::string folded(pci_path);
  const std::optional<PciAddress> address = FindPciAddress(pci_path);
  if (!address) return folded;
  folded.back() = '0';
  if (merge_vfs) folded[address->device] = folded[address->device + 1] = '0';
  return folded;
}

uint64_t PciOrder(std::string_view pci_path) {
  const std::optional<PciAddress> address = FindPciAddress(pci_path);
  if (!address) return UINT64_MAX;
  const size_t device = address->device;
  const uint64_t domain = HexValue(pci_path.substr(address->start, device - 4 - address->start));
  const uint64_t bus = HexValue(pci_path.substr(device - 3, 2));
  const uint64_t slot = HexValue(pci_path.substr(device, 2));
  const uint64_t function = HexValue(pci_path.substr(device + 3, 1));
  return domain << 24 | bus << 16 | slot << 8 | function;
}

std::optional<std::string> ReadTextFile(const std::string& path, size_t limit) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::string text(limit, '\0');
  const ssize_t got = read(fd, text.data(), text.size());
  close(fd);
  if (got < 0) return std::nullopt;
  text.resize(static_cast<size_t>(got));
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
  return text;
}

}  // namespace sluice
