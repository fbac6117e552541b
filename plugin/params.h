// Every environment variable that the plugin reads: one registry, one typed struct.
//
//   const Result<Params>& params = GetParams();   // parsed once per process
//   if (!params.ok()) return params.status();     // "NCCL_IB_TIMEOUT=99 is out of range 1..31; ..."
//   attr.timeout = params->ib_timeout;
//
// docs/configuration.md is written from the registry (sluice-params-doc). A variable that is malformed, out
// of range or in conflict with another is an error that names it; an empty value means unset, as in NCCL.
// Numbers: strtoll, base 0. NCCL reads nccl.conf into the environment before it loads a plugin, so its
// settings arrive here too.
//
// Threads: any. A parsed Params never changes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "verbs/address_family.h"
#include "verbs/gid.h"
#include "verbs/relaxed_ordering.h"

namespace sluice {

// NCCL_SOCKET_IFNAME: "eth,ib" by prefix, "=eth0,eth1" exact names, "^docker" and "^=eth3" all others.
// Without names every interface matches.
struct InterfaceFilter {
  bool exclude = false;
  bool exact = false;
  std::vector<std::string> names;

  bool Matches(std::string_view interface) const;
};

// Values after defaults. -1: the user set none; -2: automatic. Ranges and meaning: the registry.
struct Params {
  // Devices.
  bool ib_disable = false;
  std::string ib_hca;  // grammar: verbs
  bool ib_merge_vfs = true;
  bool ib_merge_nics = true;
  bool ib_device_pci_order = true;
  int speed_mbps = 0;  // SLUICE_SPEED_MBPS; 0: what the port reports

  // Addresses.
  int ib_gid_index = -1;
  int ib_routable_flid_gid_index = 1;
  int ib_roce_version_num = 2;
  AddressFamily ib_addr_family = AddressFamily::kAny;  // kAny: IPv4 preferred
  AddressRanges ib_addr_range;
  int ib_pkey_index = 0;
  InterfaceFilter socket_ifname;
  AddressFamily socket_family = AddressFamily::kAny;

  // Queue pairs.
  int ib_timeout = 20;
  int ib_retry_cnt = 7;
  int ib_qps_per_connection = 1;
  bool ib_split_data_on_qps = false;
  int qps_per_class = 4;              // SLUICE_QPS_PER_CLASS
  int64_t stripe_min_bytes = 131072;  // SLUICE_STRIPE_MIN_BYTES
  bool ib_ece_enable = true;
  int ib_adaptive_routing = -2;
  int64_t ib_ar_threshold_bytes = 8192;
  bool ib_return_async_events = true;

  // Marks on the wire. -1: unset. Use ResolveLanes (plugin/lanes.h).
  int ib_sl = -1;
  int ib_tc = -1;
  int ib_fifo_tc = -1;
  int sl = -1;                // SLUICE_SL
  int tc = -1;                // SLUICE_TC
  bool sl_from_path = false;  // SLUICE_SL_SOURCE=path
  std::string policy;         // SLUICE_POLICY; use GetPolicy (plugin/lanes.h)

  // Scheduler of a port.
  int scheduler = -1;                   // SLUICE_SCHEDULER
  int activity_hold_us = 50;            // SLUICE_ACTIVITY_HOLD_US
  int shared_budget_us = 15;            // SLUICE_SHARED_BUDGET_US
  int64_t piece_bytes = 32768;          // SLUICE_PIECE_BYTES
  int background_floor_percent = 2;     // SLUICE_BACKGROUND_FLOOR
  std::string shared_dir = "/dev/shm";  // SLUICE_SHARED_DIR
  bool clock_monotonic = false;         // SLUICE_CLOCK

  // Memory.
  RelaxedOrdering ib_pci_relaxed_ordering = RelaxedOrdering::kAuto;
  bool gdr_flush_disable = false;
  bool force_flush = false;  // SLUICE_FORCE_FLUSH
  int gpu_direct = -1;       // SLUICE_GPU_DIRECT

  // Receives and set-up.
  int max_recvs = 1;               // SLUICE_MAX_RECVS
  int connect_timeout_ms = 60000;  // SLUICE_CONNECT_TIMEOUT_MS
  int admit_timeout_ms = 5000;     // SLUICE_ADMIT_TIMEOUT_MS

  // The other halves, and what is published.
  bool profiler = true;        // SLUICE_PROFILER
  bool tuner = true;           // SLUICE_TUNER
  bool statistics = true;      // SLUICE_STATISTICS

  // One line each for what was accepted without effect, or looks like a misspelt name. Logged once, at the
  // first init.
  std::vector<std::string> notes;
};

// Value of a variable, null if unset: getenv, or a map in tests.
using Environment = std::function<const char*(const char* name)>;

Result<Params> ParseParams(const Environment& environment);

// Names of NAME=value strings that start like ours (SLUICE_, NCCL_IB_) and are one or two letters off a
// registered name. Each comes as a line that names both.
std::vector<std::string> FindMisspelt(const char* const* environ);

// The environment of the process, parsed at the first call.
const Result<Params>& GetParams();

// The registry.
enum class ParamStatus : uint8_t { kHonoured, kNoEffect, kRefused };

struct IntParam {
  std::variant<std::monostate, bool Params::*, int Params::*, int64_t Params::*, RelaxedOrdering Params::*>
      field;
  int64_t min = 0;
  int64_t max = 1;
  int64_t default_value = 0;
};
struct TextParam {
  // Checks and stores; the Status names the variable. Null: any text, without effect.
  Status (*store)(const std::string& text, Params& params) = nullptr;
  const char* grammar = "";  // Markdown
  const char* default_text = "";
};
struct ParamSpec {
  const char* name;
  const char* field;  // member of Params, "" if the value goes nowhere
  const char* unit;   // "" for none
  const char* since;  // "NCCL 2.21", or "Sluice"
  ParamStatus status;
  std::variant<IntParam, TextParam> type;
  const char* text;  // one paragraph; for kNoEffect and kRefused it says why
};

std::span<const ParamSpec> ParamRegistry();

// docs/configuration.md.
std::string ParamsMarkdown();

}  // namespace sluice
