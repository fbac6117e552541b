#include "plugin/lanes.h"

#include <algorithm>
#include <climits>

namespace sluice {
namespace {

// One place where a value may come from; -1: not set there.
struct Candidate {
  int value;
  const char* source;
};

Candidate FirstSet(std::initializer_list<Candidate> candidates) {
  for (const Candidate& candidate : candidates) {
    if (candidate.value >= 0) return candidate;
  }
  return {0, "default"};
}

constexpr const char* kCommunicator = "communicator";

}  // namespace

Result<std::vector<LaneSpec>> ResolveLanes(const Params& params, const Policy& policy,
                                           int communicator_traffic_class, bool infiniband) {
  // Below zero, but set: out of range wherever it is used.
  const bool unset = communicator_traffic_class == -1 || communicator_traffic_class == INT_MIN;
  const int most = infiniband ? 15 : 255;
  const bool in_range = communicator_traffic_class >= 0 && communicator_traffic_class <= most;
  const int from_communicator = unset ? -1 : in_range ? communicator_traffic_class : INT_MAX;

  std::vector<LaneSpec> lanes;
  int queue_pairs = 0;
  for (size_t i = 0; i < policy.classes().size(); ++i) {
    if ((policy.reachable() >> i & 1) == 0) continue;
    const ServiceClass& service_class = policy.classes()[i];
    const bool control = i == ClassIndex(BuiltInClass::kControl);
    const Candidate sl = FirstSet({{service_class.sl.value_or(-1), "policy"},
                                   {params.sl, "SLUICE_SL"},
                                   {params.ib_sl, "NCCL_IB_SL"},
                                   {infiniband ? from_communicator : -1, kCommunicator}});
    const Candidate traffic_class = FirstSet({{service_class.traffic_class.value_or(-1), "policy"},
                                              {params.tc, "SLUICE_TC"},
                                              {control ? params.ib_fifo_tc : -1, "NCCL_IB_FIFO_TC"},
                                              {params.ib_tc, "NCCL_IB_TC"},
                                              {infiniband ? -1 : from_communicator, kCommunicator}});
    if (sl.value == INT_MAX || traffic_class.value == INT_MAX) {
      return InvalidArgument("trafficClass " + std::to_string(communicator_traffic_class) +
                             " of the communicator is out of range 0.." + std::to_string(most) +
                             (infiniband ? " (on InfiniBand it is the service level)" : "") +
                             "; change it in ncclConfig_t, or set " +
                             (infiniband ? "SLUICE_SL" : "SLUICE_TC"));
    }
    LaneSpec lane;
    lane.name = service_class.name;
    lane.service_class = static_cast<uint8_t>(i);
    lane.sl = sl.value;
    lane.sl_source = sl.source;
    lane.traffic_class = traffic_class.value;
    lane.traffic_class_source = traffic_class.source;
    lane.strict = service_class.strict;
    lane.priority = service_class.priority;
    lane.weight = service_class.weight;
    lane.flow_labels = service_class.flow_labels;
    lane.queue_pairs = control ? 0 : std::max(1, service_class.queue_pairs);
    queue_pairs += lane.queue_pairs;
    lanes.push_back(std::move(lane));
  }
  if (policy.classes()[ClassIndex(BuiltInClass::kBulk)].queue_pairs == 0) {
    LaneSpec& bulk = const_cast<LaneSpec&>(LaneOf(lanes, BuiltInClass::kBulk));
    const int wanted = params.qps_per_class * params.ib_qps_per_connection;
    bulk.queue_pairs = std::clamp(wanted, 1, std::max(1, kMaxLaneQueuePairs - (queue_pairs - 1)));
    queue_pairs += bulk.queue_pairs - 1;
  }
  if (queue_pairs > kMaxLaneQueuePairs) {
    return InvalidArgument("the policy (" + policy.origin() + ") asks for " + std::to_string(queue_pairs) +
                           " data queue pairs per port pair over all classes; a path has at most " +
                           std::to_string(kMaxLaneQueuePairs) + "; lower queue_pairs of its classes");
  }
  return lanes;
}

const LaneSpec& LaneOf(std::span<const LaneSpec> lanes, BuiltInClass built_in) {
  const LaneSpec* bulk = &lanes.front();
  for (const LaneSpec& lane : lanes) {
    if (lane.service_class == ClassIndex(built_in)) return lane;
    if (lane.service_class == ClassIndex(BuiltInClass::kBulk)) bulk = &lane;
  }
  return *bulk;
}

const Result<std::shared_ptr<const Policy>>& GetPolicy() {
  static const auto* const policy = [] {
    const Result<Params>& params = GetParams();
    return new Result<std::shared_ptr<const Policy>>(
        params.ok() ? Policy::Load(params->policy) : Result<std::shared_ptr<const Policy>>(params.status()));
  }();
  return *policy;
}

}  // namespace sluice
