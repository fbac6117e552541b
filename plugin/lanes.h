// From policy and environment to the lanes of a path: service levels, traffic classes, queue pairs per class.
//
// Precedence per class and field: policy > SLUICE_SL, SLUICE_TC > NCCL_IB_FIFO_TC (traffic class of control only)
// > NCCL_IB_SL, NCCL_IB_TC > the communicator's trafficClass > 0. The communicator's one number sets the service
// level (0-15) on InfiniBand and the traffic class (0-255) on Ethernet, never both.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugin/params.h"
#include "tuner/policy.h"

namespace sluice {

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

// One entry for each reachable class, in the order of the policy; the first is control.
Result<std::vector<LaneSpec>> ResolveLanes(const Params& params, const Policy& policy,
                                           int communicator_traffic_class, bool infiniband);

// The policy of this process (SLUICE_POLICY), parsed at the first call.
const Result<std::shared_ptr<const Policy>>& GetPolicy();

}  // namespace sluice
