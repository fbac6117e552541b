// What goes wrong in a fabric, and when: a description in words of the topology that becomes a deterministic
// plan. Times are model time from the start of the fabric.
//
//   [[fault]]                          # in the TOML file of a topology
//   kind = "loss"
//   at = "2ms"
//   for = "5ms"
//   link = "leaf0-spine1"
//   probability = 1e-3
//   packets = ["data", "nak"]
//
//   "loss:at=2ms,for=5ms,link=leaf0-spine1,probability=1e-3,packets=data+nak"     the same as one line
//
// kind, where, what:
//   loss, corruption   link (default: all)  each packet with `probability`, `count` packets at most; `packets`:
//                                           data, ack, nak; `one_way`: only from the end named first
//   link-down          link                 both directions; what is on the wire is lost
//   port-flap          port                 down, and up after `for`; with `to_index` its GID comes back there,
//                                           `gid_delay` after the port is up
//   gid-change         port                 the GID at `gid_index` moves to `to_index`, or is replaced by `gid`,
//                                           or (neither) vanishes; `for` brings it back
//   nic-death          nic                  the device is gone for good
//   switch-reboot      switch               its links down for `for`, its queues lost
//   slow-link          link                 both directions at `rate`
//   stalled-receiver   port                 takes nothing more: pause frames or missing credits spread
//   host-pause         host                 none of its processes posts anything; NICs go on
//
// `at` is the first time; `times` repeats it, `every` so often, or at random with a `mean_gap` (exponential).
// `for` is how long each lasts; without it, until the end.
//
// Thread rule: a FaultPlan belongs to the thread that drives its target.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/clock.h"

namespace sluice::soft {

struct Topology;
struct TextSection;

enum class FaultKind : uint8_t {
  kLoss,
  kCorruption,
  kLinkDown,
  kPortFlap,
  kGidChange,
  kNicDeath,
  kSwitchReboot,
  kSlowLink,
  kStalledReceiver,
  kHostPause,
};

// Bits of FaultSpec::packets.
inline constexpr uint8_t kFaultData = 1;
inline constexpr uint8_t kFaultAck = 2;
inline constexpr uint8_t kFaultNak = 4;  // RNR NAKs too

struct FaultSpec {
  FaultKind kind = FaultKind::kLoss;
  std::string target;  // as TopologyNames writes it; empty: every link (loss and corruption only)
  std::string where;   // starts the message when the topology lacks the target
  Picos at = 0;
  Picos duration = 0;  // 0: until the end
  uint32_t times = 1;
  Picos every = 0;     // from one start to the next
  Picos mean_gap = 0;  // instead of `every`: exponential gaps from the end of one to the start of the next

  double probability = 0;
  uint64_t count = UINT64_MAX;  // packets that meet the fault, all links together
  uint8_t packets = kFaultData | kFaultAck | kFaultNak;
  bool one_way = false;
  uint64_t rate_bps = 0;  // kSlowLink
  uint32_t gid_index = 3;
  int32_t to_index = -1;
  std::string gid;  // IPv6 notation, "::ffff:10.0.0.9" for IPv4
  Picos gid_delay = 0;

  // "KIND:key=value,..."
  static Result<FaultSpec> FromText(std::string_view one_line);
  // Several, separated by ";". An empty text is none.
  static Result<std::vector<FaultSpec>> ListFromText(std::string_view text);
  static Result<FaultSpec> FromSection(const TextSection& section);
};

std::string_view FaultKindName(FaultKind kind);

}  // namespace sluice::soft
