// What the scenarios over RC flows share: networks by default or as asked for, arms, references.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/scenario/scenario.h"
#include "verbs/soft/flows/simulation.h"
#include "verbs/soft/model/truth_summary.h"

namespace sluice::scenario {

// One way to run the traffic of a scenario.
struct Arm {
  std::string name;
  bool infiniband = false;
  const soft::CongestionControlFactory* control = nullptr;
};

// `roce static`, `roce unbounded` and `ib static`; with --topology that network's own link layer alone.
std::vector<Arm> StandardArms(const RunConfig& config);
// NCCL's window of one channel.
const soft::CongestionControlFactory* StaticControl();

// --topology, or `default_text` with the arm's link layer.
Result<soft::Topology> TopologyOf(const RunConfig& config, const std::string& default_text, const Arm& arm);
bool IsInfiniBand(const soft::Topology& topology);
uint32_t EndpointCount(const soft::Topology& topology);
// `needed` endpoints or an error that names the scenario's need.
Status NeedEndpoints(const soft::Topology& topology, uint32_t needed);

soft::SimulationSettings FlowSettings(const soft::Topology& topology, uint64_t seed);
Result<std::unique_ptr<soft::Simulation>> MakeSimulation(const soft::Topology& topology, uint64_t seed);

// Of the incasts: how many send, and a draw of who does, of all but endpoint 0.
std::vector<uint32_t> IncastDegrees(Size size);
std::vector<uint32_t> DrawSenders(uint32_t count, uint32_t endpoints, uint64_t seed);

// Time until `bytes` from one endpoint to another are acknowledged when nothing else is sent.
Result<double> AloneUs(const soft::Topology& topology, uint32_t source, uint32_t destination, uint64_t bytes);
// An error that names the first flow which never ended: its completion is no figure.
Status NeedFinished(const soft::Simulation& simulation);
// The same of flows that send without end: an error names the first that gave up.
Status NeedAlive(const soft::Simulation& simulation);
// Of these senders the one that is nearest: time until its single byte is acknowledged when nothing else is sent.
Result<double> NearestUs(const soft::Topology& topology, const std::vector<uint32_t>& sources,
                         uint32_t destination);
// On the wire, with all headers.
uint64_t WireBytes(uint64_t bytes, const soft::RcSettings& rc);
uint64_t RateOf(const soft::Topology& topology);  // of the first port, bits per second
inline soft::TruthSummary TruthOf(const soft::Simulation& simulation) {
  return soft::Summarise(simulation.topology(), simulation.truth());
}

// Passes on what happens to a flow to the one who cares for it.
class FlowRouter final : public soft::FlowObserver {
 public:
  void Set(soft::FlowId flow, soft::FlowObserver* observer);
  void OnSent(soft::FlowId flow, uint64_t message) override;
  void OnReceived(soft::FlowId flow, uint64_t message) override;
  void OnFailed(soft::FlowId flow) override;

 private:
  soft::FlowObserver* Find(soft::FlowId flow) const {
    return flow < observers_.size() ? observers_[flow] : nullptr;
  }
  std::vector<soft::FlowObserver*> observers_;
};

inline double Us(soft::Picos time) {
  return static_cast<double>(time) * 1e-6;
}

}  // namespace sluice::scenario
