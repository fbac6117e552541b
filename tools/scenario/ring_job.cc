#include "tools/scenario/ring_job.h"

#include <algorithm>

namespace sluice::scenario {

RingJob::RingJob(soft::Simulation* simulation, FlowRouter* router, const RingJobSettings& settings)
    : simulation_(simulation),
      settings_(settings),
      message_bytes_(std::max<uint64_t>(1, settings.bytes / settings.endpoints.size() / settings.slices)),
      first_flow_(static_cast<soft::FlowId>(simulation->flows())),
      ranks_(settings.endpoints.size()),
      step_began_(settings.start) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    soft::FlowSpec spec;
    spec.source = settings.endpoints[i];
    spec.destination = settings.endpoints[(i + 1) % ranks_.size()];
    spec.sl = settings.sl;
    spec.traffic_class = settings.traffic_class;
    spec.control = settings.control;
    ranks_[i].flow = simulation->AddFlow(spec);
    router->Set(ranks_[i].flow, this);
    simulation->CallAt(settings.start + settings.compute, [this, i] { Begin(i); });
  }
}

void RingJob::Begin(size_t rank) {
  ranks_[rank].communicates = true;
  Advance(rank);
}

void RingJob::OnReceived(soft::FlowId flow, uint64_t) {
  const size_t rank = (flow - first_flow_ + 1) % ranks_.size();
  ++ranks_[rank].received;
  Advance(rank);
}

void RingJob::OnSent(soft::FlowId flow, uint64_t) {
  const size_t rank = flow - first_flow_;
  ++ranks_[rank].acknowledged;
  if (settings_.slots != 0) Advance(rank);
}

void RingJob::Advance(size_t index) {
  Rank& rank = ranks_[index];
  if (!rank.communicates) return;
  const uint64_t begin = rank.step * MessagesPerStep();
  const uint64_t end = begin + MessagesPerStep();
  // The first piece is the rank's own; every other one must have come from its neighbour.
  while (rank.sent < end && (settings_.slots == 0 || rank.sent < rank.acknowledged + settings_.slots) &&
         (rank.sent < begin + settings_.slices || rank.received + settings_.slices > rank.sent)) {
    ++rank.sent;
    simulation_->Post(rank.flow, message_bytes_);
  }
  if (rank.sent < end || rank.received < end) return;
  rank.communicates = false;
  ++rank.step;
  if (index == 0) {
    step_us_.push_back(Us(simulation_->Now() - step_began_));
    step_began_ = simulation_->Now();
  }
  if (rank.step < settings_.steps) {
    simulation_->CallAt(simulation_->Now() + settings_.compute, [this, index] { Begin(index); });
  } else if (++ranks_done_ == ranks_.size() && stop_when_done_) {
    simulation_->Stop();
  }
}

}  // namespace sluice::scenario
