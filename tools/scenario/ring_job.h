// A training job as the network sees it: every rank computes, then takes part in a ring all-reduce, step
// after step. A rank forwards a piece when it has arrived whole, and computes again when its own part is
// done.
//
// Thread rule: single threaded; outlives the simulation's run.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/scenario/flow_network.h"

namespace sluice::scenario {

struct RingJobSettings {
  std::vector<uint32_t> endpoints;  // in the order of the ring
  uint64_t bytes = 0;               // reduced in a step
  soft::Picos compute = 0;          // of every rank in every step
  soft::Picos start = 0;
  uint32_t steps = 1;
  uint32_t slices = 1;  // messages that a piece is cut into; each is forwarded by itself
  uint32_t slots = 0;   // messages that a rank may have on the way, as its buffers allow; 0: any number
  uint8_t sl = 0;
  uint8_t traffic_class = 0;
  const soft::CongestionControlFactory* control = nullptr;
};

class RingJob final : public soft::FlowObserver {
 public:
  RingJob(soft::Simulation* simulation, FlowRouter* router, const RingJobSettings& settings);
  void OnReceived(soft::FlowId flow, uint64_t message) override;
  void OnSent(soft::FlowId flow, uint64_t message) override;

  bool done() const { return ranks_done_ == ranks_.size(); }
  // Ends Simulation::Run when all ranks have done all steps.
  void StopWhenDone() { stop_when_done_ = true; }
  // Of the first rank, step by step.
  const std::vector<double>& step_us() const { return step_us_; }

 private:
  struct Rank {
    soft::FlowId flow = 0;  // to the next one
    uint64_t sent = 0;
    uint64_t received = 0;
    uint64_t acknowledged = 0;
    uint32_t step = 0;
    bool communicates = false;
  };
  void Begin(size_t rank);
  void Advance(size_t rank);
  uint64_t MessagesPerStep() const { return 2 * (ranks_.size() - 1) * settings_.slices; }

  soft::Simulation* simulation_;
  RingJobSettings settings_;
  uint64_t message_bytes_;
  soft::FlowId first_flow_;
  std::vector<Rank> ranks_;
  std::vector<double> step_us_;
  soft::Picos step_began_ = 0;
  size_t ranks_done_ = 0;
  bool stop_when_done_ = false;
};

}  // namespace sluice::scenario
