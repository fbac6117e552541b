#include "verbs/soft/flows/uec_pull_pacer.h"

#include "verbs/soft/flows/uec_flow.h"

namespace sluice::soft {
namespace {

// Even when a grant turns out to be empty some time passes.
constexpr uint64_t kLeastUnits = 1024 / kPullUnitBytes;

}  // namespace

UecPullPacer::UecPullPacer(FlowContext* context, const UecSettings& settings, uint32_t endpoint,
                           uint64_t rate_bps)
    : context_(*context),
      unit_time_(static_cast<Picos>(static_cast<double>(SerialisationTime(kPullUnitBytes, rate_bps)) /
                                    settings.pull_rate)),
      max_credit_units_(settings.max_window_bytes(rate_bps) / kPullUnitBytes),
      endpoint_(endpoint) {}

void UecPullPacer::Request(UecSink* sink) {
  active_.push_back(sink);
  if (running_) return;
  running_ = true;
  context_.SetTimer(context_.Now(), FlowTimer::kPull, endpoint_);
}

void UecPullPacer::OnTimer() {
  if (active_.empty() && idle_.empty()) {
    running_ = false;
    return;
  }
  uint64_t units;
  if (!active_.empty()) {
    UecSink* sink = active_.front();
    active_.pop_front();
    units = sink->Pull();
    if (sink->demand_units() > 0) {
      active_.push_back(sink);
    } else {
      idle_.push_back(sink);
      sink->LeavePullQueue();
    }
  } else {
    UecSink* sink = idle_.front();
    idle_.pop_front();
    units = kPullUnits;
    sink->PullInAdvance(units);
    // At most a window of it.
    if (sink->demand_units() == 0 && sink->advance_units() < max_credit_units_) idle_.push_back(sink);
  }
  if (units == 0) units = kLeastUnits;
  context_.SetTimer(context_.Now() + unit_time_ * static_cast<Picos>(units), FlowTimer::kPull, endpoint_);
}

}  // namespace sluice::soft
