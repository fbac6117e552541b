// Compares what the plugin says of every message with what the benchmark knows: after each one exactly the right
// counter of the plugin's statistics must have moved, and by one. Nothing of the plugin's fast path is touched.
//
//   ClaimCheck check(net_version, has_source);
//   SLUICE_RETURN_IF_ERROR(check.Attach());          // once the plugin has its first engine
//   check.Sent(shape, peer, bytes);                  // an isend was accepted
//   check.Received(shape, peer, 1);                  // a receive was reported done
//
// Threads: one, that which moves the data; totals when it rests. One communicator per process moves data.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "tools/perf/schedule.h"
#include "tools/statistics/reader.h"
#include "tuner/operation.h"
#include "tuner/policy.h"

namespace sluice::perf {

struct ClaimTotals {
  uint64_t messages = 0;
  uint64_t right = 0;      // operation, protocol and service class
  uint64_t kind_only = 0;  // collective or point-to-point and the protocol: all that a connection tells
  uint64_t wrong = 0;
  uint64_t by_source[kOperationSources] = {};
  uint64_t disagreed = 0;
  uint64_t compared = 0;
  uint64_t bytes_known = 0;
};

class ClaimCheck {
 public:
  // With bytes: the operation's size reaches the plugin, so rules on bytes apply.
  ClaimCheck(int net_version, bool with_bytes, const sluice::Communicator& communicator);

  // Finds the statistics of this process.
  Status Attach();
  void Sent(const Shape& shape, int peer, size_t bytes);
  void Received(const Shape& shape, int peer, int messages);
  ClaimTotals Totals() const;
  const std::vector<StatisticsReader>& readers() const { return readers_; }

 private:
  using Cell = std::tuple<Direction, Function, Protocol, int>;
  Operation Truth(const Shape& shape, bool send, int peer) const;
  uint64_t Count(const Cell& cell) const;
  void Look(Direction direction, const Operation& truth, uint64_t messages);

  const int net_version_;
  const bool with_bytes_;
  sluice::Communicator communicator_;
  ClassMap classes_;
  std::vector<StatisticsReader> readers_;
  std::map<Cell, uint64_t> seen_;
  ClaimTotals totals_;
};

}  // namespace sluice::perf
