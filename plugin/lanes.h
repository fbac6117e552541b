// From policy and environment to the lanes of a path: service levels, traffic classes, queue pairs per class.
//
//   Result<std::vector<LaneSpec>> lanes = ResolveLanes(params, **GetPolicy(), config.traffic_class, infiniband);
//   if (!lanes.ok()) return lanes.status();
//   attr.sl = LaneOf(*lanes, BuiltInClass::kBulk).sl;
//
// For each class and field, the first of these that is set (docs/configuration.md, "Service level and traffic class"):
//
//   service level                            traffic class
//   policy                                   policy
//   SLUICE_SL                                SLUICE_TC
//                                            NCCL_IB_FIFO_TC, of control only
//   NCCL_IB_SL                               NCCL_IB_TC
//   trafficClass of the communicator,        trafficClass of the communicator,
//     on InfiniBand                            on RoCE
//   0                                        0
//
// -1 and NCCL_CONFIG_UNDEF_INT are unset. Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugin/params.h"
#include "tuner/policy.h"

namespace sluice {

// Data queue pairs of all lanes on one port pair: what one frame of the set-up link can name.
inline constexpr int kMaxLaneQueuePairs = 64;

struct LaneSpec {
  std::string name;           // of the class
  uint8_t service_class = 0;  // index in Policy::classes()
  int sl = 0;
  int traffic_class = 0;
  bool strict = false;
  int priority = 0;
  int weight = 1;
  int queue_pairs = 1;  // per port pair; control has its own and none here: 0
  int flow_labels = 0;
  const char* sl_source = "default";  // "policy", the variable, "communicator" or "default"; for the log
  const char* traffic_class_source = "default";
};

// One entry for each reachable class, in the order of the policy; the first is control, and bulk is always there. A class
// whose queue pairs the policy leaves open has one; bulk has SLUICE_QPS_PER_CLASS x NCCL_IB_QPS_PER_CONNECTION, or what
// the other classes leave of kMaxLaneQueuePairs. The communicator's trafficClass is checked only where it is used.
Result<std::vector<LaneSpec>> ResolveLanes(const Params& params, const Policy& policy,
                                           int communicator_traffic_class, bool infiniband);

// Of a list that ResolveLanes made: the lane of that class, or of bulk where the class is not reachable.
const LaneSpec& LaneOf(std::span<const LaneSpec> lanes, BuiltInClass built_in);

// The policy of this process (SLUICE_POLICY), read at the first call; or what is wrong with it or with the parameters.
const Result<std::shared_ptr<const Policy>>& GetPolicy();

}  // namespace sluice
