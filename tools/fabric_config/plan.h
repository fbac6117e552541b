// What a fabric must do for the classes of a policy: virtual lanes on InfiniBand, priorities and queues on RoCE. Plans are
// plain data, the same for the same policy and options; the writers (writers.h) turn them into the configuration of a tool.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tuner/policy.h"

namespace sluice::fabric_config {

struct Options {
  // InfiniBand.
  int vls = 4;                  // data virtual lanes of the fabric: 1 to 15
  int arbitration_entries = 8;  // of each VL arbitration table: 8 to 64
  int floor_percent = 2;        // of a port, that classes which are not strict keep: 1 to 50
  // RoCE.
  int cnp_dscp = 48;               // of congestion notification packets
  int other_percent = 10;          // of a port, for traffic that is not of the policy: 1 to 50
  int rate_gbps = 400;             // of a switch port
  std::vector<std::string> lossy;  // classes without PFC
  std::vector<std::string> ports = {"Ethernet0"};
};

// Classes that the fabric cannot tell apart, or that have no mark of their own.
struct Group {
  std::vector<std::string> classes;  // most urgent first
  std::vector<int> marks;            // service levels or DSCPs
  bool strict = false;
  int priority = 0;  // of strict ones
  int weight = 50;   // of others
  // What is not marked by the policy goes here too.
  bool unmarked = false;
  int lane = 0;  // VL, or 802.1p priority = traffic class = queue
  bool lossless = true;

  std::string Name() const;  // "control, latency"; "everything else"
};

struct InfiniBandPlan {
  std::vector<Group> groups;  // by VL
  std::array<int, 16> vl_of_sl{};
  int high_limit = 0;                     // units of 4 KiB
  std::vector<std::pair<int, int>> high;  // VL, weight in units of 64 bytes
  std::vector<std::pair<int, int>> low;
  bool nothing = false;  // the policy names no service level
  std::vector<std::string> warnings;
};
InfiniBandPlan PlanInfiniBand(const Policy& policy, const Options& options);

inline constexpr int kPriorities = 8;
inline constexpr int kCnpPriority = 6;
// Routers and switches talk to each other here; never given to a class.
inline constexpr int kNetworkControlPriority = 7;

struct RocePlan {
  std::vector<Group> groups;  // by priority
  std::array<int, 64> priority_of_dscp{};
  std::array<bool, kPriorities> strict{};
  std::array<int, kPriorities> percent{};  // of those that are not strict; sums to 100
  std::array<bool, kPriorities> pfc{};
  bool nothing = false;  // the policy names no traffic class
  std::vector<std::string> warnings;

  std::vector<int> LosslessPriorities() const;
};
// An error: a class in options.lossy that the policy does not have.
Result<RocePlan> PlanRoce(const Policy& policy, const Options& options);

}  // namespace sluice::fabric_config
