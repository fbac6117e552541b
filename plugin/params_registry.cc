// The table of every variable: range, default, meaning. Order is the order of docs/configuration.md.
#include <algorithm>
#include <utility>

#include "plugin/params.h"
#include "verbs/gid.h"
#include "verbs/hca_filter.h"

namespace sluice {
namespace {

Status Refuse(std::string_view name, const std::string& text, std::string_view cause,
              std::string_view remedy) {
  std::string message;
  message.append(name).append("=").append(text).append(": ").append(cause).append("; ").append(remedy);
  return InvalidArgument(std::move(message));
}

// Read and checked with the first communicator: GetPolicy.
Status StorePolicy(const std::string& text, Params& params) {
  params.policy = text;
  return Status::Ok();
}

Status StoreHca(const std::string& text, Params& params) {
  params.ib_hca = text;
  return HcaFilter::Parse(text, "NCCL_IB_HCA").status();
}

Result<AddressFamily> ParseFamily(std::string_view name, const std::string& text) {
  if (text == "AF_INET") return AddressFamily::kIpv4;
  if (text == "AF_INET6") return AddressFamily::kIpv6;
  return Refuse(name, text, "not an address family", "use AF_INET or AF_INET6, or unset it");
}

Status StoreGidFamily(const std::string& text, Params& params) {
  const Result<AddressFamily> family = ParseFamily("NCCL_IB_ADDR_FAMILY", text);
  params.ib_addr_family = *family;
  return family.status();
}

Status StoreSocketFamily(const std::string& text, Params& params) {
  const Result<AddressFamily> family = ParseFamily("NCCL_SOCKET_FAMILY", text);
  params.socket_family = *family;
  return family.status();
}

Status StoreRanges(const std::string& text, Params& params) {
  Result<AddressRanges> ranges = AddressRanges::Parse(text, "NCCL_IB_ADDR_RANGE");
  params.ib_addr_range = std::move(*ranges);
  return ranges.status();
}

Status StoreInterfaces(const std::string& text, Params& params) {
  constexpr std::string_view kName = "NCCL_SOCKET_IFNAME";
  InterfaceFilter filter;
  std::string_view rest = text;
  if (rest.starts_with('^')) {
    filter.exclude = true;
    rest.remove_prefix(1);
  }
  if (rest.starts_with('=')) {
    filter.exact = true;
    rest.remove_prefix(1);
  }
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view name = rest.substr(0, comma);
    if (name.find_first_of("^=") != std::string_view::npos) {
      return Refuse(kName, text, "a modifier inside the list",
                    "^ and = stand once, at the start, and apply to the whole list: ^=eth0,eth1");
    }
    if (!name.empty()) filter.names.emplace_back(name);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (filter.names.empty()) {
    return Refuse(kName, text, "the list names no interface",
                  "name interfaces, as in ^docker,lo, or unset it");
  }
  params.socket_ifname = std::move(filter);
  return Status::Ok();
}

Status StoreSharedDir(const std::string& text, Params& params) {
  if (!text.starts_with('/'))
    return Refuse("SLUICE_SHARED_DIR", text, "not an absolute path",
                  "use a directory in memory, such as /dev/shm");
  params.shared_dir = text;
  return Status::Ok();
}

Status StoreSlSource(const std::string& text, Params& params) {
  if (text != "static" && text != "path")
    return Refuse("SLUICE_SL_SOURCE", text, "not a source", "use static or path");
  params.sl_from_path = text == "path";
  return Status::Ok();
}

Status StoreClock(const std::string& text, Params& params) {
  if (text != "auto" && text != "monotonic")
    return Refuse("SLUICE_CLOCK", text, "not a clock", "use auto or monotonic");
  params.clock_monotonic = text == "monotonic";
  return Status::Ok();
}

constexpr ParamStatus kHonoured = ParamStatus::kHonoured;
constexpr ParamStatus kNoEffect = ParamStatus::kNoEffect;
constexpr ParamStatus kRefused = ParamStatus::kRefused;

constexpr int64_t kMaxInt = 2147483647;

// A number that is stored in Params::member; a number that goes nowhere.
#define SLUICE_NUMBER(name, member, min, max, default_value, unit, since, text)                     \
  ParamSpec {                                                                                       \
    name, #member, unit, since, kHonoured, IntParam{&Params::member, min, max, default_value}, text \
  }
#define SLUICE_NO_EFFECT(name, min, max, default_value, unit, since, text)                      \
  ParamSpec {                                                                                   \
    name, "", unit, since, kNoEffect, IntParam{std::monostate{}, min, max, default_value}, text \
  }

const ParamSpec kRegistry[] = {
    // Devices.
    SLUICE_NUMBER("NCCL_IB_DISABLE", ib_disable, 0, 1, 0, "", "NCCL 2.3",
                  "1: the plugin reports no device, so that NCCL uses another network."),
    {"NCCL_IB_HCA", "ib_hca", "", "NCCL 2.3", kHonoured,
     TextParam{StoreHca, "`[^][=]name[:port[:rail[:plane]]],...`", ""},
     "Devices to use. Names are prefixes; `=` before the list makes them exact, `^` excludes them; `:port` "
     "limits an entry to one port; rail and plane are accepted and ignored. Unset: every active port."},
    SLUICE_NUMBER("NCCL_IB_MERGE_VFS", ib_merge_vfs, 0, 1, 1, "", "NCCL 2.18",
                  "1: virtual functions of one adapter are reported under one PCI path, so that NCCL sees "
                  "one adapter."),
    SLUICE_NUMBER("NCCL_IB_MERGE_NICS", ib_merge_nics, 0, 1, 1, "", "NCCL 2.20",
                  "1: NCCL may merge ports into one virtual device. 0: makeVDevice is refused."),
    SLUICE_NUMBER("NCCL_IB_DEVICE_PCI_ORDER", ib_device_pci_order, 0, 1, 1, "", "NCCL 2.29",
                  "1: devices are numbered by PCI address, 0: as the verbs library lists them."),
    SLUICE_NUMBER(
        "SLUICE_SPEED_MBPS", speed_mbps, 0, kMaxInt, 0, "Mb/s", "Sluice",
        "Speed reported for every port. NCCL derives the number of channels from it. 0: what the port "
        "reports, 10 Gb/s where it reports nothing usable."),
    // Addresses.
    SLUICE_NUMBER(
        "NCCL_IB_GID_INDEX", ib_gid_index, -1, 255, -1, "", "NCCL 2.3",
        "GID table index on every RoCE port. -1: the best routable entry of each port by itself; the "
        "variables on version, family and range then narrow the choice."),
    SLUICE_NUMBER(
        "NCCL_IB_ROUTABLE_FLID_GID_INDEX", ib_routable_flid_gid_index, 0, 255, 1, "", "NCCL 2.22",
        "InfiniBand: GID index that holds a routable FLID. It is used when its prefix says so, else index "
        "0."),
    SLUICE_NUMBER("NCCL_IB_ROCE_VERSION_NUM", ib_roce_version_num, 1, 2, 2, "", "NCCL 2.21",
                  "RoCE version of the GID that is chosen automatically."),
    {"NCCL_IB_ADDR_FAMILY", "ib_addr_family", "", "NCCL 2.21", kHonoured,
     TextParam{StoreGidFamily, "`AF_INET` or `AF_INET6`", ""},
     "Address family of the GID that is chosen automatically. Unset: IPv4, or IPv6 on a port that has no "
     "other."},
    {"NCCL_IB_ADDR_RANGE", "ib_addr_range", "", "NCCL 2.21", kHonoured,
     TextParam{StoreRanges, "`address/bits,...`", ""},
     "Only GIDs of these networks are chosen automatically, as in 10.1.0.0/16 or fd00:1::/64."},
    SLUICE_NUMBER("NCCL_IB_PKEY", ib_pkey_index, 0, 65535, 0, "", "NCCL 2.8",
                  "Index into the partition key table of the port."),
    {"NCCL_SOCKET_IFNAME", "socket_ifname", "", "NCCL 2.3", kHonoured,
     TextParam{StoreInterfaces, "`[^][=]name,...`", ""},
     "Interface of the TCP links that set connections up. Names are prefixes; `=` before the list makes them "
     "exact, `^` "
     "excludes them. Unset: any interface that is up, loopback and container bridges last."},
    {"NCCL_SOCKET_FAMILY", "socket_family", "", "NCCL 2.3", kHonoured,
     TextParam{StoreSocketFamily, "`AF_INET` or `AF_INET6`", ""},
     "Address family of the TCP links. Unset: either."},
    // Queue pairs.
    SLUICE_NUMBER("NCCL_IB_TIMEOUT", ib_timeout, 1, 31, 20, "", "NCCL 2.3",
                  "Local ACK timeout of a queue pair: 4.096 us x 2^value before a packet is sent again."),
    SLUICE_NUMBER("NCCL_IB_RETRY_CNT", ib_retry_cnt, 0, 7, 7, "", "NCCL 2.3",
                  "How often a queue pair sends a packet again before the connection fails."),
    SLUICE_NUMBER(
        "NCCL_IB_QPS_PER_CONNECTION", ib_qps_per_connection, 1, 128, 1, "queue pairs", "NCCL 2.10",
        "Multiplies the data queue pairs of a path. Connections between two engines share them, so the "
        "number does not grow with channels."),
    SLUICE_NUMBER("NCCL_IB_SPLIT_DATA_ON_QPS", ib_split_data_on_qps, 0, 1, 0, "", "NCCL 2.18",
                  "1: every message is spread over all queue pairs of its path. 0: only messages above "
                  "SLUICE_STRIPE_MIN_BYTES are."),
    SLUICE_NUMBER(
        "SLUICE_QPS_PER_CLASS", qps_per_class, 1, 16, 4, "queue pairs", "Sluice",
        "Data queue pairs of the bulk class on each path, before NCCL_IB_QPS_PER_CONNECTION multiplies them. "
        "Several give the switches several flows to spread."),
    SLUICE_NUMBER(
        "SLUICE_STRIPE_MIN_BYTES", stripe_min_bytes, 0, kMaxInt, 131072, "bytes", "Sluice",
        "Messages up to this size use one queue pair, the one with the least outstanding; longer ones are "
        "spread."),
    SLUICE_NUMBER(
        "NCCL_IB_ECE_ENABLE", ib_ece_enable, 0, 1, 1, "", "NCCL 2.23",
        "1: both ends agree on the vendor's enhanced connection options where the device has them."),
    SLUICE_NUMBER(
        "NCCL_IB_ADAPTIVE_ROUTING", ib_adaptive_routing, -2, 1, -2, "", "NCCL 2.16",
        "Whether the network may deliver packets of one queue pair out of order, so that completion is "
        "signalled by a write of its own after the data. -2: yes on InfiniBand, no on RoCE."),
    SLUICE_NUMBER(
        "NCCL_IB_AR_THRESHOLD", ib_ar_threshold_bytes, -2, kMaxInt, -2, "bytes", "NCCL 2.6",
        "With adaptive routing, messages above this size are completed by a write of their own. -2: 8192."),
    SLUICE_NUMBER(
        "NCCL_IB_RETURN_ASYNC_EVENTS", ib_return_async_events, 0, 1, 1, "", "NCCL 2.23",
        "1: a fatal event of a device or queue pair fails the connections on it. 0: it is only logged."),
    // Marks on the wire.
    SLUICE_NUMBER(
        "NCCL_IB_SL", ib_sl, -1, 15, -1, "", "NCCL 2.3",
        "Service level of every queue pair. -1: the communicator's trafficClass on InfiniBand, else 0."),
    SLUICE_NUMBER(
        "NCCL_IB_TC", ib_tc, -1, 255, -1, "", "NCCL 2.3",
        "Traffic class (DSCP x 4 + ECN) of every queue pair. -1: the communicator's trafficClass on RoCE, "
        "else 0."),
    SLUICE_NUMBER(
        "NCCL_IB_FIFO_TC", ib_fifo_tc, -1, 255, -1, "", "NCCL 2.22",
        "Traffic class of the control queue pairs, which carry clear-to-send. -1: that of the data. "
        "SLUICE_TC wins over it."),
    SLUICE_NUMBER("SLUICE_SL", sl, -1, 15, -1, "", "Sluice",
                  "Service level of every queue pair; wins over NCCL_IB_SL. -1: unset."),
    SLUICE_NUMBER("SLUICE_TC", tc, -1, 255, -1, "", "Sluice",
                  "Traffic class of every queue pair; wins over NCCL_IB_TC and NCCL_IB_FIFO_TC. -1: unset."),
    {"SLUICE_SL_SOURCE", "sl_from_path", "", "Sluice", kHonoured,
     TextParam{StoreSlSource, "`static` or `path`", "static"},
     "Where service levels on InfiniBand come from. static: policy, variables, communicator. path: a lane "
     "for which "
     "these name none has that of the route, from the subnet administrator, and a lane whose service level "
     "the route "
     "does not allow is not opened; for subnets whose routing owns the service level (DFSSSP, LASH, Nue, "
     "torus-2QoS). "
     "It needs access to /dev/infiniband/umad*. No effect on RoCE."},
    // Scheduler of a port.
    SLUICE_NUMBER("SLUICE_SCHEDULER", scheduler, -1, 1, -1, "", "Sluice",
                  "Whether lanes share a port in software: urgent classes first, the others within what they "
                  "leave. -1: where "
                  "lanes have the same service level and traffic class, so that the network cannot tell them "
                  "apart. 0: never. 1: "
                  "always, for service levels that share one virtual lane."),
    SLUICE_NUMBER("SLUICE_ACTIVITY_HOLD_US", activity_hold_us, 1, 10000000, 50, "us", "Sluice",
                  "How long a class counts as active on a port after it posted something there."),
    SLUICE_NUMBER(
        "SLUICE_SHARED_BUDGET_US", shared_budget_us, 1, 100000, 15, "us", "Sluice",
        "While urgent traffic is active on a port that is shared in software, all other classes together may "
        "have as "
        "much outstanding as the port sends in this time. Less than a round trip costs throughput."),
    SLUICE_NUMBER("SLUICE_PIECE_BYTES", piece_bytes, 4096, 16777216, 32768, "bytes", "Sluice",
                  "Largest piece of a message that is posted at a time while a port is shared in software."),
    SLUICE_NUMBER("SLUICE_BACKGROUND_FLOOR", background_floor_percent, 1, 50, 2, "%", "Sluice",
                  "Part of a port that is left to the background class while other classes are active."),
    {"SLUICE_SHARED_DIR", "shared_dir", "", "Sluice", kHonoured,
     TextParam{StoreSharedDir, "an absolute path", "/dev/shm"},
     "Directory on a file system in memory. In its subdirectory sluice-UID, private to the user, the "
     "processes of a host see "
     "each other's activity on a port and publish their statistics."},
    {"SLUICE_CLOCK", "clock_monotonic", "", "Sluice", kHonoured,
     TextParam{StoreClock, "`auto` or `monotonic`", "auto"},
     "Clock of the scheduler. auto: the processor's counter where its rate is constant. monotonic: "
     "CLOCK_MONOTONIC, "
     "which virtual time needs."},

    {"SLUICE_POLICY", "policy", "", "Sluice", kHonoured, TextParam{StorePolicy, "a file, or TOML text", ""},
     "Service classes and the rules that lead operations to them: docs/policy.md. A value with a line break "
     "or `=` is the policy itself, any other one the path of a file. Unset: the built-in policy, which names "
     "no service level and no traffic class."},
    // Memory.
    SLUICE_NUMBER(
        "NCCL_IB_PCI_RELAXED_ORDERING", ib_pci_relaxed_ordering, 0, 2, 2, "", "NCCL 2.12",
        "Relaxed ordering of the device's writes to data buffers. 0: off, 1: on, 2: on where the verbs "
        "library knows it. Memory that is polled never has it."),
    SLUICE_NUMBER(
        "NCCL_GDR_FLUSH_DISABLE", gdr_flush_disable, 0, 1, 0, "", "NCCL 2.3",
        "1: no flush after receives into GPU memory. Safe only where the platform orders the device's writes "
        "before the GPU's reads."),
    SLUICE_NUMBER("SLUICE_FORCE_FLUSH", force_flush, 0, 1, 0, "", "Sluice",
                  "1: asks NCCL to flush after every receive into GPU memory, whatever the GPU."),
    SLUICE_NUMBER(
        "SLUICE_GPU_DIRECT", gpu_direct, -1, 1, -1, "", "Sluice",
        "Whether to announce GPU memory to NCCL. -1: when a peer-memory module is loaded, or DMA-BUF works. "
        "0: never. 1: always, for platforms where the GPU's memory registers as ordinary memory."),
    // Receives and set-up.
    SLUICE_NUMBER(
        "SLUICE_MAX_RECVS", max_recvs, 1, 8, 1, "buffers", "Sluice",
        "Largest grouped receive that is offered to NCCL. Above 1, NCCL shares point-to-point connections."),
    SLUICE_NUMBER(
        "SLUICE_CONNECT_TIMEOUT_MS", connect_timeout_ms, 100, 3600000, 60000, "ms", "Sluice",
        "Deadline of each step of set-up. After it the connection fails with the step and the peer."),
    SLUICE_NUMBER(
        "SLUICE_ADMIT_TIMEOUT_MS", admit_timeout_ms, 100, 3600000, 5000, "ms", "Sluice",
        "How long a stranger may hold a TCP link without presenting the secret of a listener. Lowered to "
        "SLUICE_CONNECT_TIMEOUT_MS where that is less."),
    // Classification and statistics.
    SLUICE_NUMBER(
        "SLUICE_PROFILER", profiler, 0, 1, 1, "", "Sluice",
        "1: where NCCL loads the library as its profiler too, it tells the size and the communicator of the "
        "operation that each message belongs to. 0: NCCL is asked for no event."),
    SLUICE_NUMBER(
        "SLUICE_TUNER", tuner, 0, 1, 1, "", "Sluice",
        "1: where NCCL loads the library as its tuner too, it learns the size of the communicator and counts "
        "what NCCL asks; NCCL's choices hold. 0: it does nothing. NCCL skips its own rule for "
        "NCCL_CTA_POLICY_EFFICIENCY while any tuner is loaded: NCCL_TUNER_PLUGIN=none keeps that rule."),
    SLUICE_NUMBER(
        "SLUICE_STATISTICS", statistics, 0, 1, 1, "", "Sluice",
        "1: publishes counters in a memory-mapped file while the process runs, for tools. 0: counts for "
        "itself only."),
    // Accepted without effect.
    SLUICE_NO_EFFECT(
        "NCCL_IB_USE_INLINE", 0, 1, 0, "", "NCCL 2.8",
        "Control messages are inline wherever the device takes inline data: it saves a read over PCI."),
    SLUICE_NO_EFFECT(
        "NCCL_IB_QUERY_PORT_SPEED", 0, 1, 1, "", "NCCL 2.30",
        "A port's speed is its active width times its active speed; SLUICE_SPEED_MBPS sets another one."),
    SLUICE_NO_EFFECT(
        "NCCL_IB_DATA_DIRECT", 0, 2, 1, "", "NCCL 2.27",
        "The second data path of ConnectX-8 needs vendor calls outside verbs. GPU memory is reached through "
        "DMA-BUF or peer memory."),
    SLUICE_NO_EFFECT(
        "NCCL_IB_OOO_RQ", 0, 1, 0, "", "NCCL 2.30",
        "Out-of-order receive queues need vendor calls outside verbs. The protocol does not depend on the "
        "order of receive completions."),
    SLUICE_NO_EFFECT("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", -2, 1, -2, "", "NCCL 2.29",
                     "Receive entries are always posted ahead and reserved per message."),
    SLUICE_NO_EFFECT("NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", -2, 1, -2, "", "NCCL 2.29",
                     "Messages are matched by the index that clear-to-send carries."),
    SLUICE_NO_EFFECT(
        "NCCL_IB_SUBNET_AWARE_ROUTING", 0, 1, 0, "", "NCCL 2.30",
        "The device that NCCL names is used; NCCL's topology search pairs devices. A peer that it cannot "
        "reach is an error that names both addresses."),
    SLUICE_NO_EFFECT("NCCL_IB_SUBNET_PREFIX_LEN", 0, 128, 24, "bits", "NCCL 2.30",
                     "Belongs to NCCL_IB_SUBNET_AWARE_ROUTING."),
    SLUICE_NO_EFFECT("NCCL_IB_WARN_RAIL_LOCAL", 0, 1, 0, "", "NCCL 2.24",
                     "Every path is logged with its devices, so that traffic between rails shows there."),
    SLUICE_NO_EFFECT("NCCL_IB_MQP_RETRY_ALL", 0, 1, 0, "", "NCCL 2.24",
                     "A queue pair that cannot be brought up fails the connection at once, with its cause."),
    SLUICE_NO_EFFECT("NCCL_IB_MQP_RETRY_CNT", 0, kMaxInt, 34, "", "NCCL 2.24", "See NCCL_IB_MQP_RETRY_ALL."),
    SLUICE_NO_EFFECT("NCCL_IB_MQP_RETRY_SLEEP_MSEC", 0, kMaxInt, 100, "ms", "NCCL 2.24",
                     "See NCCL_IB_MQP_RETRY_ALL. No call of the plugin sleeps."),
    SLUICE_NO_EFFECT("NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS", 0, kMaxInt, 1, "", "NCCL 2.29",
                     "Belongs to NCCL_IB_RESILIENCY_PORT_FAILOVER."),
    SLUICE_NO_EFFECT("NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY", 0, kMaxInt, 10, "ms", "NCCL 2.29",
                     "Belongs to NCCL_IB_RESILIENCY_PORT_FAILOVER."),
    SLUICE_NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY", 0, kMaxInt, 200, "ms", "NCCL 2.30",
                     "Belongs to NCCL_IB_RESILIENCY_PORT_RECOVERY."),
    SLUICE_NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL", 0, kMaxInt, 500, "ms",
                     "NCCL 2.30", "Belongs to NCCL_IB_RESILIENCY_PORT_RECOVERY."),
    SLUICE_NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE", 0, kMaxInt, 5, "", "NCCL 2.30",
                     "Belongs to NCCL_IB_RESILIENCY_PORT_RECOVERY."),
    SLUICE_NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE", 0, kMaxInt, 5, "",
                     "NCCL 2.30", "Belongs to NCCL_IB_RESILIENCY_PORT_RECOVERY."),
    SLUICE_NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT", 0, kMaxInt, 4000, "ms",
                     "NCCL 2.30", "Belongs to NCCL_IB_RESILIENCY_PORT_RECOVERY."),
    SLUICE_NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT", 0, kMaxInt, 5000, "ms", "NCCL 2.30",
                     "Belongs to NCCL_IB_RESILIENCY_PORT_RECOVERY."),
    SLUICE_NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX", 0, kMaxInt, 5, "", "NCCL 2.30",
                     "Belongs to NCCL_IB_RESILIENCY_PORT_RECOVERY."),
    {"NCCL_IBVERBS_LIB", "", "", "NCCL 2.30", kNoEffect, TextParam{nullptr, "a path", ""},
     "The plugin is linked with libibverbs.so.1; LD_LIBRARY_PATH chooses another one."},
    SLUICE_NO_EFFECT("NCCL_GIN_IB_TC", -1, 255, -1, "", "NCCL 2.30",
                     "Traffic that GPUs start themselves runs on NCCL's own transport, not on this plugin."),
    // Refused.
    {"NCCL_IB_RESILIENCY_PORT_FAILOVER", "", "", "NCCL 2.29", kRefused, IntParam{std::monostate{}, 0, 1, 0},
     "A failed port fails its connections here. A job that relies on failover must learn that at the start; "
     "NCCL's own transport has it (NCCL_NET=IB)."},
    {"NCCL_IB_RESILIENCY_PORT_RECOVERY", "", "", "NCCL 2.30", kRefused, IntParam{std::monostate{}, 0, 1, 0},
     "A failed port fails its connections here, so there is none to recover. NCCL's own transport has it "
     "(NCCL_NET=IB)."},
};

#undef SLUICE_NUMBER
#undef SLUICE_NO_EFFECT

}  // namespace

std::span<const ParamSpec> ParamRegistry() {
  return kRegistry;
}

}  // namespace sluice
