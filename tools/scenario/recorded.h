// Results that others recorded, as plain numbers.
#pragma once

#include <cstdint>
#include <span>

namespace sluice::scenario {

// One flow of a recorded run in the k = 8 fat-tree of 128 hosts. Choices count from 0 among the four that a
// switch has (aggregation switch of the pod; core of the aggregation switch); -1: no choice on the way.
struct RecordedFlow {
  int source;
  int destination;
  int aggregation;
  int core;
  int ack_aggregation;  // of the way back
  int ack_core;
  double completion_us;  // at this time, not after that long
};

// Flow i of the recorded runs starts this long after the one before.
inline constexpr uint32_t kRecordedStaggerUs = 7;

std::span<const RecordedFlow> RecordedVictimFlows();
std::span<const RecordedFlow> RecordedPermutationFlows();

}  // namespace sluice::scenario
