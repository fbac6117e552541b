// The GID table of a port and the choice of the entry that names it on the network.
//
//   Result<std::vector<GidEntry>> table = ReadGidTable(*port.device, port.number, port.query.gid_tbl_len);
//   Result<GidEntry> own = ChooseGid(*table, port.link_layer, port.name, options);
//
// Choosing is a pure function of the table. The table changes while a process runs (link flaps, address
// changes), so an index is looked up again before it is used for a new queue pair: FindGid.
//
// Thread rule: any thread.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "verbs/address_family.h"
#include "verbs/link.h"

namespace sluice {

class DeviceContext;

enum class GidType : uint8_t { kInfiniBand, kRoceV1, kRoceV2, kUnknown };
std::string_view GidTypeName(GidType type);  // "IB", "RoCE v1", "RoCE v2", "unknown type"

struct GidEntry {
  int index = 0;
  union ibv_gid gid {};
  GidType type = GidType::kUnknown;
  std::string ndev{};  // network device behind a RoCE entry, if known
};

// A set of addresses, "10.1.0.0/16" or a comma separated list of such; IPv4 and IPv6 may be mixed.
class AddressRanges {
 public:
  // Empty text: no ranges. kInvalidArgument names `source` and the wrong part (prefix length missing or too
  // long, not an address).
  static Result<AddressRanges> Parse(std::string_view text, std::string_view source);

  bool empty() const { return ranges_.empty(); }
  bool Contains(const union ibv_gid& gid) const;
  const std::string& text() const { return text_; }

 private:
  struct Range {
    union ibv_gid base;  // IPv4 as ::ffff:a.b.c.d
    int prefix_bits;
  };
  std::vector<Range> ranges_;
  std::string text_;
};

struct GidOptions {
  int forced_index = -1;                       // RoCE only, as NCCL_IB_GID_INDEX; -1: choose
  int roce_version = 2;                        // NCCL_IB_ROCE_VERSION_NUM
  AddressFamily family = AddressFamily::kAny;  // NCCL_IB_ADDR_FAMILY; kAny: IPv4 preferred
  AddressRanges ranges{};                      // NCCL_IB_ADDR_RANGE
  int routable_flid_index = 1;                 // NCCL_IB_ROUTABLE_FLID_GID_INDEX, InfiniBand only
};

// InfiniBand: the entry at routable_flid_index if it has a FLID, else index 0. RoCE: forced_index if set;
// otherwise, among the configured entries inside `ranges` (all, when there are none), the best by: routable
// (not link-local), version as asked, family as asked, lowest index. Version and family are preferences: a
// table without any match still works. Errors (kInvalidArgument for settings that no entry satisfies, kSystem
// for an empty table) name `port_name` and index and list what the table has.
Result<GidEntry> ChooseGid(std::span<const GidEntry> table, LinkLayer link_layer, std::string_view port_name,
                           const GidOptions& options);

// The entry of the same GID and type, wherever it is now: after a link flap a GID can come back at another
// index, some time after the port is active again. Empty: not there (yet).
std::optional<GidEntry> FindGid(std::span<const GidEntry> table, const GidEntry& wanted);

// Non-empty entries of the port, by index. ibv_query_gid_table; where kernel or provider lack it,
// ibv_query_gid and the type files under ibdev_path. Errors: kSystem naming device, port and errno.
Result<std::vector<GidEntry>> ReadGidTable(const DeviceContext& device, uint8_t port, int table_length);
// The sysfs half: type and network device of one index under <ibdev_path>/ports/<port>. kUnknown and empty
// when absent.
GidType ReadGidType(const std::string& ibdev_path, uint8_t port, int index, LinkLayer link_layer);
std::string ReadGidNetDevice(const std::string& ibdev_path, uint8_t port, int index);

// "::ffff:10.0.0.1" and "fe80::1" as inet_ntop writes them; IPv4-mapped ones as "10.0.0.1".
std::string FormatGid(const union ibv_gid& gid);
// Reverse of FormatGid, also for full IPv6 text; empty when `text` is no address.
std::optional<union ibv_gid> ParseGid(std::string_view text);

bool SameGid(const union ibv_gid& a, const union ibv_gid& b);
bool IsConfiguredGid(const union ibv_gid& gid);  // neither all zero nor a bare link-local prefix
bool IsLinkLocalGid(const union ibv_gid& gid);   // fe80::/64: on RoCE not routable between hosts' subnets
AddressFamily GidFamily(const union ibv_gid& gid);

// InfiniBand subnet prefix, host byte order; FLID (16 bits of a link-local prefix, 0 if none).
uint64_t SubnetPrefix(const union ibv_gid& gid);
uint16_t GidFlid(const union ibv_gid& gid);

// Whether two GIDs are neighbours. InfiniBand: same subnet (FLIDs ignored). RoCE: same address family and
// prefix (ipv4_prefix_bits, NCCL_IB_SUBNET_PREFIX_LEN; 64 for IPv6).
bool SameSubnet(LinkLayer link_layer, const union ibv_gid& a, const union ibv_gid& b,
                int ipv4_prefix_bits = 24);

// How to address a peer; goes into RtrParams.
struct Route {
  bool is_global = false;
  uint16_t dlid = 0;
};
// RoCE: always global. InfiniBand: local routing inside a subnet unless the local port requires a GRH
// (IBV_QPF_GRH_REQUIRED in port_flags); between subnets global, towards the peer's FLID, or its LID where it
// has none. kRemote when the peer's addresses cannot be used (LID 0, unconfigured GID).
Result<Route> PlanRoute(LinkLayer link_layer, const union ibv_gid& local, const union ibv_gid& remote,
                        uint16_t remote_lid, uint8_t port_flags);

}  // namespace sluice
