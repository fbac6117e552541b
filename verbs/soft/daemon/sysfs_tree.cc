#include "verbs/soft/daemon/sysfs_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "verbs/soft/daemon/log.h"
#include "verbs/soft/model/network_truth.h"

namespace sluice::soft {
namespace {

constexpr char kPrefix[] = "sluice-fabric-";
constexpr size_t kMaxRootBytes = 160;  // leaves room in ibv_device.ibdev_path
constexpr char kRemedy[] = "free space there or set TMPDIR to another directory";

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string Format(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

std::string BaseDirectory() {
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* value = getenv(name);
    if (value != nullptr && *value == '/' && access(value, W_OK | X_OK) == 0) return value;
  }
  return "/tmp";
}

void RemoveTree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

// Trees of this user whose owner is gone: nobody holds the lock.
void RemoveStaleTrees(const std::string& base) {
  const std::string mine = kPrefix + std::to_string(geteuid()) + "-";
  DIR* directory = opendir(base.c_str());
  if (directory == nullptr) return;
  std::vector<std::string> found;
  while (const dirent* entry = readdir(directory)) {
    if (std::string_view(entry->d_name).starts_with(mine)) found.push_back(base + "/" + entry->d_name);
  }
  closedir(directory);
  for (const std::string& path : found) {
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!fd.valid() || fstat(fd.get(), &status) != 0 || status.st_uid != geteuid()) continue;
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;
    Log("removing stale tree %s", path.c_str());
    RemoveTree(path);
  }
}

std::string Guid(uint64_t guid) {
  return Format("%04x:%04x:%04x:%04x\n", static_cast<unsigned>(guid >> 48 & 0xffff),
                static_cast<unsigned>(guid >> 32 & 0xffff), static_cast<unsigned>(guid >> 16 & 0xffff),
                static_cast<unsigned>(guid & 0xffff));
}

std::string GidText(const ibv_gid& gid) {
  std::string text;
  for (int i = 0; i < 16; i += 2)
    text += Format(i == 0 ? "%02x%02x" : ":%02x%02x", gid.raw[i], gid.raw[i + 1]);
  return text + "\n";
}

const char* StateText(ibv_port_state state) {
  static const char* const kNames[] = {"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  return state <= IBV_PORT_ACTIVE_DEFER ? kNames[state] : "UNKNOWN";
}

const char* PhysStateText(unsigned state) {
  static const char* const kNames[] = {
      "No state change",           "Sleep",  "Polling",           "Disabled",
      "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "Phy Test"};
  return state < 8 ? kNames[state] : "<unknown>";
}

// As the kernel words it: "100 Gb/sec (4X EDR)".
std::string RateText(const ibv_port_attr& attr) {
  static constexpr struct {
    unsigned speed;
    double gbps_per_lane;
    const char* name;
  } kSpeeds[] = {{1, 2.5, " SDR"}, {2, 5, " DDR"},   {4, 10, " QDR"},  {8, 10, " FDR10"},
                 {16, 14, " FDR"}, {32, 25, " EDR"}, {64, 50, " HDR"}, {128, 100, " NDR"}};
  unsigned lanes = 1;
  switch (attr.active_width) {
    case 2:
      lanes = 4;
      break;
    case 4:
      lanes = 8;
      break;
    case 8:
      lanes = 12;
      break;
    case 16:
      lanes = 2;
      break;
    default:
      break;
  }
  for (const auto& speed : kSpeeds) {
    if (speed.speed == attr.active_speed) {
      return Format("%g Gb/sec (%uX%s)\n", speed.gbps_per_lane * lanes, lanes, speed.name);
    }
  }
  return Format("%g Gb/sec (%uX)\n", 2.5 * lanes, lanes);
}

}  // namespace

SysfsTree::~SysfsTree() {
  if (!root_.empty()) RemoveTree(root_);
}

Status SysfsTree::Create(const std::string& instance) {
  const std::string base = BaseDirectory();
  RemoveStaleTrees(base);
  const std::string name =
      kPrefix + std::to_string(geteuid()) + "-" + instance + "-" + std::to_string(getpid());
  const std::string path = base + "/" + name;
  if (path.size() > kMaxRootBytes) {
    return InvalidArgument("fabric process: the path \"" + path + "\" is longer than " +
                           std::to_string(kMaxRootBytes) + " bytes; set TMPDIR to a shorter one");
  }
  // Locked under a name that nobody takes for a stale tree, then renamed.
  const std::string unborn = base + "/." + name;
  RemoveTree(unborn);
  RemoveTree(path);
  if (mkdir(unborn.c_str(), 0700) != 0) {
    return SystemError("fabric process: cannot make the directory \"" + unborn + "\"", errno, kRemedy);
  }
  lock_.reset(open(unborn.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_.valid() || flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 ||
      rename(unborn.c_str(), path.c_str()) != 0) {
    const int error = errno;
    RemoveTree(unborn);
    return SystemError("fabric process: cannot lock the directory \"" + path + "\"", error, kRemedy);
  }
  root_ = path;
  return Status::Ok();
}

Result<std::string> SysfsTree::HostRoot(Fabric* fabric, uint32_t host) {
  const std::string& name = fabric->topology().hosts[host].name;
  const std::string root = root_ + "/" + std::to_string(host);
  const auto found = hosts_.find(host);
  if (found != hosts_.end() && found->second == name) return root;
  SLUICE_RETURN_IF_ERROR(WriteHost(fabric, host, root));
  hosts_[host] = name;
  return root;
}

void SysfsTree::Refresh(Fabric* fabric, bool now) {
  period_ = fabric->Now() / kCounterPeriod;
  for (const auto& [host, name] : hosts_) {
    for (uint32_t index = 0; index < fabric->nic_count(host); ++index) {
      Nic* nic = fabric->nic(host, index);
      const std::string device = root_ + "/" + std::to_string(host) + "/class/infiniband/" + nic->info().name;
      for (uint32_t port = 1; port <= nic->port_count(); ++port) {
        const std::string directory = device + "/ports/" + std::to_string(port);
        Status status = WritePort(nic, port, directory, nullptr);
        const auto files = ports_.find(directory);
        if (status.ok() && files != ports_.end()) {
          status = RefreshCounters(fabric, {false, host, index, port - 1}, now, &files->second, directory);
        }
        if (!status.ok()) Log("%s", status.message().c_str());
      }
    }
  }
}

Status SysfsTree::Write(const std::string& path, const std::string& text) {
  // Over the old text, then cut: a reader never finds the file empty.
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  const auto size = static_cast<ssize_t>(text.size());
  if (!file.valid() || write(file.get(), text.data(), text.size()) != size ||
      ftruncate(file.get(), size) != 0) {
    const int error = errno == 0 ? ENOSPC : errno;
    return SystemError("fabric process: cannot write \"" + path + "\"", error,
                       error == EMFILE ? "raise the limit of open files (ulimit -n)" : kRemedy);
  }
  return Status::Ok();
}

Status SysfsTree::WriteHost(Fabric* fabric, uint32_t host, const std::string& root) {
  RemoveTree(root);
  std::error_code error;
  for (const char* name : {"class/infiniband", "class/infiniband_verbs", "devices"}) {
    std::filesystem::create_directories(root + "/" + name, error);
    if (error) {
      return SystemError("fabric process: cannot make the directory \"" + root + "/" + name + "\"",
                         error.value(), kRemedy);
    }
  }
  for (uint32_t index = 0; index < fabric->nic_count(host); ++index) {
    SLUICE_RETURN_IF_ERROR(
        WriteDevice(fabric->nic(host, index), fabric->topology().hosts[host].nics[index], root));
  }
  return Status::Ok();
}

Status SysfsTree::WriteDevice(Nic* nic, const NicSpec& spec, const std::string& root) {
  const NicInfo& info = nic->info();
  // "0000:41:00.0" lies below the root complex of its bus, behind a bridge, as on a real host.
  std::string parent = "devices/virtual";
  if (!info.pci_address.empty()) {
    parent = "devices/pci" + info.pci_address.substr(0, 7) + "/" + info.pci_address;
  }
  const std::string directory = root + "/" + parent + "/infiniband/" + info.name;
  std::error_code error;
  std::filesystem::create_directories(directory + "/ports", error);
  std::filesystem::create_directories(root + "/class/infiniband_verbs/uverbs" + std::to_string(info.index),
                                      error);
  std::filesystem::create_symlink("../../" + parent + "/infiniband/" + info.name,
                                  root + "/class/infiniband/" + info.name, error);
  if (error) return SystemError("fabric process: cannot make \"" + directory + "\"", error.value(), kRemedy);
  const std::string uverbs = root + "/class/infiniband_verbs/uverbs" + std::to_string(info.index);
  SLUICE_RETURN_IF_ERROR(Write(uverbs + "/ibdev", info.name + "\n"));
  SLUICE_RETURN_IF_ERROR(Write(uverbs + "/abi_version", "1\n"));
  SLUICE_RETURN_IF_ERROR(Write(root + "/class/infiniband_verbs/abi_version", "6\n"));
  if (!info.pci_address.empty()) {
    const std::string pci = root + "/" + parent;
    std::filesystem::create_symlink("../../../" + info.pci_address, directory + "/device", error);
    const unsigned cpus = static_cast<unsigned>(sysconf(_SC_NPROCESSORS_CONF));
    const std::string mask = Format("%08x\n", cpus >= 32 ? 0xffffffffu : (1u << cpus) - 1);
    const std::pair<const char*, std::string> files[] = {
        {"vendor", Format("0x%04x\n", info.vendor_id)},
        {"device", Format("0x%04x\n", info.device_id)},
        {"subsystem_vendor", Format("0x%04x\n", info.vendor_id)},
        {"subsystem_device", Format("0x%04x\n", info.device_id)},
        {"class", "0x020700\n"},
        {"numa_node", "0\n"},
        {"local_cpus", mask},
        {"local_cpulist", Format("0-%u\n", cpus - 1)},
        {"max_link_speed", "32.0 GT/s PCIe\n"},
        {"current_link_speed", "32.0 GT/s PCIe\n"},
        {"max_link_width", "16\n"},
        {"current_link_width", "16\n"},
    };
    for (const auto& [name, text] : files) SLUICE_RETURN_IF_ERROR(Write(pci + "/" + name, text));
  }
  ibv_device_attr attr{};
  nic->QueryDevice(&attr);
  const std::pair<const char*, std::string> files[] = {
      {"node_type", "1: CA\n"},
      {"node_guid", Guid(info.node_guid)},
      {"sys_image_guid", Guid(info.system_image_guid)},
      {"fw_ver", std::string(attr.fw_ver) + "\n"},
      {"hw_rev", Format("%x\n", attr.hw_ver)},
      {"hca_type", "Sluice\n"},
      {"board_id", "SLUICE_SOFT\n"},
      {"node_desc", "host" + std::to_string(info.host) + " " + info.name + "\n"},
  };
  for (const auto& [name, text] : files) SLUICE_RETURN_IF_ERROR(Write(directory + "/" + name, text));
  for (uint32_t port = 1; port <= nic->port_count(); ++port) {
    const std::string ports = directory + "/ports/" + std::to_string(port);
    for (const char* name :
         {"gids", "gid_attrs/types", "gid_attrs/ndevs", "pkeys", "counters", "hw_counters"}) {
      std::filesystem::create_directories(ports + "/" + name, error);
    }
    if (error) return SystemError("fabric process: cannot make \"" + ports + "\"", error.value(), kRemedy);
    SLUICE_RETURN_IF_ERROR(
        WritePort(nic, port, root + "/class/infiniband/" + info.name + "/ports/" + std::to_string(port),
                  &spec.ports[port - 1]));
  }
  return Status::Ok();
}

Status SysfsTree::WritePort(Nic* nic, uint32_t port, const std::string& directory, const PortSpec* spec) {
  ibv_port_attr attr{};
  nic->QueryPort(port, &attr);
  std::vector<std::pair<std::string, std::string>> files = {
      {"state", Format("%d: %s\n", attr.state, StateText(attr.state))},
      {"phys_state", Format("%u: %s\n", attr.phys_state, PhysStateText(attr.phys_state))},
  };
  if (spec != nullptr) {
    files.emplace_back("rate", RateText(attr));
    files.emplace_back("link_layer",
                       attr.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet\n" : "InfiniBand\n");
    files.emplace_back("lid", Format("0x%x\n", attr.lid));
    files.emplace_back("sm_lid", Format("0x%x\n", attr.sm_lid));
    files.emplace_back("sm_sl", Format("%u\n", attr.sm_sl));
    files.emplace_back("lid_mask_count", Format("%u\n", attr.lmc));
    files.emplace_back("cap_mask", Format("0x%08x\n", attr.port_cap_flags));
    for (uint32_t index = 0; index < attr.pkey_tbl_len; ++index) {
      uint16_t pkey = 0;
      if (nic->QueryPkey(port, index, &pkey) != 0) break;
      files.emplace_back("pkeys/" + std::to_string(index), Format("0x%04x\n", __builtin_bswap16(pkey)));
    }
  }
  const bool ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  for (int index = 0; index < attr.gid_tbl_len; ++index) {
    GidEntry entry;
    if (nic->QueryGid(port, static_cast<uint32_t>(index), &entry) != 0) break;
    const std::string number = std::to_string(index);
    files.emplace_back("gids/" + number, GidText(entry.gid));
    if (!entry.valid) continue;
    files.emplace_back("gid_attrs/types/" + number,
                       entry.type == GidType::kRoceV2 ? "RoCE v2\n" : "IB/RoCE v1\n");
    if (ethernet) files.emplace_back("gid_attrs/ndevs/" + number, nic->info().netdev + "\n");
  }
  if (spec != nullptr) {
    PortFiles counters{PortCounterView(spec->link_layer, spec->rate_bps), {}, UINT32_MAX};
    SLUICE_RETURN_IF_ERROR(WriteCounters(&counters, directory));
    ports_.insert_or_assign(directory, std::move(counters));
  }
  for (const auto& [name, text] : files) {
    const std::string path = directory + "/" + name;
    std::string& before = written_[path];
    if (before == text) continue;
    SLUICE_RETURN_IF_ERROR(Write(path, text));
    before = text;
  }
  return Status::Ok();
}

Status SysfsTree::RefreshCounters(Fabric* fabric, const LinkEnd& end, bool now, PortFiles* files,
                                  const std::string& directory) {
  const auto is_end = [&](const LinkEnd& other) {
    return !other.is_switch && other.node == end.node && other.nic == end.nic && other.port == end.port;
  };
  const std::vector<LinkSpec>& links = fabric->topology().links;
  for (uint32_t i = 0; i < links.size() && files->uplink == UINT32_MAX; ++i) {
    if (is_end(links[i].a)) files->uplink = 2 * i;
    if (is_end(links[i].b)) files->uplink = 2 * i + 1;
  }
  PortCounters counters = *fabric->nic(end.node, end.nic)->counters(end.port + 1);
  counters.transmit_wait = fabric->truth().link(files->uplink).transmit_wait;
  if (now) {
    files->view.RefreshNow(fabric->Now(), counters);
  } else if (!files->view.Refresh(fabric->Now(), counters)) {
    return Status::Ok();
  }
  return WriteCounters(files, directory);
}

Status SysfsTree::WriteCounters(PortFiles* files, const std::string& directory) {
  std::vector<uint64_t>& written = files->written;
  const bool first = written.empty();
  written.resize(files->view.port().size() + files->view.hardware().size());
  size_t index = 0;
  for (const char* group : {"counters/", "hw_counters/"}) {
    const auto values = group[0] == 'c' ? files->view.port() : files->view.hardware();
    for (const PortCounterView::Value& value : values) {
      uint64_t& before = written[index++];
      if (!first && before == value.value) continue;
      SLUICE_RETURN_IF_ERROR(
          Write(directory + "/" + group + value.name, Format("%" PRIu64 "\n", value.value)));
      before = value.value;
    }
  }
  return Status::Ok();
}

}  // namespace sluice::soft
