// What the fabric consists of: hosts with their NICs and ports, switches, links. A plain value, checked when
// made.
//
//   Result<Topology> t = Topology::FromText("leaf-spine:hosts=128,rate=400G,switch=shared64");
//   Result<Topology> t = Topology::FromFile("cluster.toml");
//   Topology t = Topology::Default();   // one switch, up to 256 hosts on demand, each `soft0`, RoCE v2 at
//                                       // 100 Gb/s
//
// TOML (every key is optional; units: rate "400G" or "100M", times "1us", "300ns", sizes "64K", "2MB"):
//
//   [topology]           # or [fabric]
//   kind = "leaf-spine"  # single (default), leaf-spine, fat-tree, rail, explicit: see topology_build.h
//   hosts = 8            # number of hosts named host0, host1, ...
//   on_demand = false    # true: hosts exist as processes ask for them
//   nics = 2             # per host
//   ports = 1            # per NIC
//   link = "infiniband"  # or "roce" (also "ethernet")
//   rate = "400G"
//   delay = "1us"        # propagation, each link
//   mtu = 4096           # active MTU: 256, 512, 1024, 2048, 4096
//   device = "soft"      # device name prefix: soft0, soft1, ...
//   pci = true           # false: devices without a PCI path, as Soft-RoCE has
//   switch = "shared64"  # presets; single settings in [switches], [nics], [routing]: see topology_network.h
//   [limits]             # resource limits of every NIC, see ResourceLimits
//   max_qp = 1024
//   [[host]]             # exceptions by host
//   name = "storage"     # or index = 3
//   rename = "storage0"  # gives host `index` another name
//   nics = 1             # any of nics, ports, link, rate, delay, mtu, device, pci
//   [[switch]]           # kind explicit: name, count
//   [[link]]             # kind explicit: a = "host0/soft0/1", b = "leaf0", rate, delay, count
//   [[fault]]            # see faults.h
//   [[background]]       # see background.h
//
// The one-line form has the keys of [topology] and [limits], and those of the sections as "switches.pool=32M".
// Errors name the file, line, key, value and the allowed range. Thread rule: as a value type.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/background.h"
#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/faults.h"
#include "verbs/soft/model/network_settings.h"

namespace sluice::soft {

enum class LinkLayer : uint8_t { kInfiniBand, kEthernet };

struct ResourceLimits {
  uint32_t max_qp = 65536;
  uint32_t max_qp_wr = 32768;
  uint32_t max_sge = 30;
  uint32_t max_inline = 1024;
  uint32_t max_cq = 65536;
  uint32_t max_cqe = 4194303;
  uint32_t max_mr = 1 << 20;
  uint64_t max_mr_size = UINT64_MAX;
  uint32_t max_pd = 65536;
  uint32_t max_srq = 65536;
  uint32_t max_srq_wr = 32767;
  uint32_t max_srq_sge = 30;
  uint32_t max_rd_atomic = 16;  // outstanding READs and atomics per queue pair, either role
};

struct PortSpec {
  LinkLayer link_layer = LinkLayer::kEthernet;
  uint64_t rate_bps = 100'000'000'000;
  Picos delay = kPicosPerUs;
  uint32_t mtu_bytes = 4096;
};

struct NicSpec {
  std::string name;  // as ibv_devices shows it: "soft0"
  bool pci = true;
  ResourceLimits limits;
  std::vector<PortSpec> ports;
};

struct HostSpec {
  std::string name;
  std::vector<NicSpec> nics;
};

// One end of a cable: a port of a host's NIC, or a port of a switch (numbered as links name them).
struct LinkEnd {
  bool is_switch = false;
  uint32_t node = 0;  // host or switch index
  uint32_t nic = 0;   // hosts only
  uint32_t port = 0;  // from 0
};

struct LinkSpec {
  LinkEnd a;
  LinkEnd b;
  uint64_t rate_bps = 0;
  Picos delay = 0;
};

struct SwitchSpec {
  std::string name;
};

struct Topology {
  std::vector<HostSpec> hosts;
  std::vector<SwitchSpec> switches;
  std::vector<LinkSpec> links;
  SwitchSettings switch_settings;  // of every switch
  NicSettings nic_settings;        // of every NIC
  RoutingSettings routing;
  std::vector<FaultSpec> faults;           // Fabric::Create starts them
  std::vector<BackgroundSpec> background;  // played over a fabric, see model_traffic.h, and in a Simulation
  uint64_t seed = 1;                       // of the random times of faults and background
  // Hosts are handed out as processes ask (Fabric::AcquireHost) and `hosts` is only the upper bound.
  bool on_demand = false;

  static Topology Default();
  // An empty text is Default(); a text that names an existing file or ends in ".toml" is read as a file; else
  // one line.
  static Result<Topology> Parse(std::string_view text);
  static Result<Topology> FromFile(const std::string& path);
  static Result<Topology> FromToml(std::string_view toml, std::string_view file_name);
  static Result<Topology> FromText(std::string_view one_line);
  // More faults and background traffic, each as lines separated by ";", beside those that the topology has.
  // What names nothing of this topology is refused.
  Status Add(std::string_view more_faults, std::string_view more_background);
};

}  // namespace sluice::soft
