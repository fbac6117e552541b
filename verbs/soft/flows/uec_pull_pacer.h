// The receiver's side of RCCC: one per NIC port. Grants credit to the flows that want it, in turn, a little
// below the rate of the link; when nobody asks, it hands out credit for a start in advance.
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <deque>

#include "verbs/soft/flows/flow.h"
#include "verbs/soft/flows/uec_settings.h"

namespace sluice::soft {

class UecSink;

class UecPullPacer {
 public:
  // Timer events carry `endpoint`, that of the port.
  UecPullPacer(FlowContext* context, const UecSettings& settings, uint32_t endpoint, uint64_t rate_bps);
  // `sink` has a demand and is not in the queue yet.
  void Request(UecSink* sink);
  void OnTimer();

 private:
  FlowContext& context_;
  Picos unit_time_;
  uint64_t max_credit_units_;
  uint32_t endpoint_;
  std::deque<UecSink*> active_;
  std::deque<UecSink*> idle_;
  bool running_ = false;
};

}  // namespace sluice::soft
