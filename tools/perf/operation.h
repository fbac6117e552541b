// One launched operation, as the threads of a communicator see it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tools/perf/connection.h"
#include "tools/perf/schedule.h"
#include "tools/perf/synthetic.h"

namespace sluice::perf {

// A schedule bound to the connections of one communicator. Built once per size, launched many times.
struct Plan {
  Schedule schedule;
  std::vector<std::vector<Connection*>> receive;  // per strand, in the order of receive_from
  std::vector<std::vector<Connection*>> send;
  std::vector<std::vector<size_t>> received_slices;  // per strand: which slices receive
  int peers = 1;  // what setNetAttr announces: peers at a time, and connections per peer
  int channels = 1;
};

// The profiler's events of a launched operation.
struct TaskEvents {
  void* collective = nullptr;
  std::map<std::pair<bool, int>, void*> point_to_point{};  // by direction (sending) and peer
  void* Of(bool send, int peer) const {
    const auto found = point_to_point.find({send, peer});
    return found == point_to_point.end() ? collective : found->second;
  }
};

struct Operation {
  uint64_t id = 0;  // 1, 2, ...: order of launch
  std::shared_ptr<const Plan> plan;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  SyntheticPayload* payload = nullptr;  // in the place of input and output
  int64_t launched_ns = 0;
  std::shared_ptr<const TaskEvents> events{};  // null without a profiler
};

// Where a registered slice is sent from or lands.
inline std::byte* WireAddress(const Operation& op, const Slice& slice) {
  const bool from_input = !slice.receives && slice.target == Operand::kNone;
  return from_input ? op.input + slice.source_offset : op.output + slice.wire_offset;
}

}  // namespace sluice::perf
