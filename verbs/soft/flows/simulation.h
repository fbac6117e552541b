// A network with light hosts in virtual time: the switches, links and ports of the software fabric, and flows
// instead of verbs objects. For up to 8192 hosts.
//
//   SimulationSettings settings;
//   settings.seed = 1;
//   Result<std::unique_ptr<Simulation>> made =
//       Simulation::Create(*Topology::FromText("leaf-spine:hosts=128"), settings);
//   Simulation& simulation = **made;
//   const FlowId flow = simulation.AddFlow({.source = 0, .destination = 5});
//   simulation.PostAt(0, flow, 1 << 20);
//   simulation.Run();                        // until nothing is left to happen
//   simulation.FinishTime(flow);
//
// Faults and background traffic of the topology take part; what a pause of a host is to programs, nothing is
// to flows, which have no processor.
//
// The same calls give the same result, to the picosecond. Thread rule: one thread drives everything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "verbs/soft/flows/flow.h"
#include "verbs/soft/flows/uec_flow.h"
#include "verbs/soft/flows/uec_pull_pacer.h"
#include "verbs/soft/model/network.h"
#include "verbs/soft/model/topology.h"

namespace sluice::soft {

enum class Transport : uint8_t { kRc, kNscc, kRccc };

struct SimulationSettings {
  uint64_t seed = 1;
  Transport transport = Transport::kRc;
  RcSettings rc;
  UecSettings uec;  // kNscc and kRccc
};

class Simulation final : public EventTarget, public FlowObserver {
 public:
  static Result<std::unique_ptr<Simulation>> Create(Topology topology, const SimulationSettings& settings);
  ~Simulation();

  const Topology& topology() const { return topology_; }
  uint32_t endpoints() const { return static_cast<uint32_t>(hosts_.size()); }
  Picos Now() const { return context_.Now(); }

  FlowId AddFlow(const FlowSpec& spec);
  // A message of `bytes` on the flow, now or later. Messages of a flow go one after the other.
  void Post(FlowId flow, uint64_t bytes);
  void PostAt(Picos at, FlowId flow, uint64_t bytes);
  void CallAt(Picos at, std::function<void()> call);
  // Told about every message, after the simulation's own books. Null: nobody.
  void set_observer(FlowObserver* observer) { observer_ = observer; }

  // Runs until nothing is left to happen, or the next event is later than `until`. True in the first case.
  bool Run(Picos until = kNever);
  // Ends Run() within some thousand events.
  void Stop() { stopped_ = true; }

  // Of the last message: posted, arrived whole, acknowledged. kNever: not yet.
  Picos StartTime(FlowId flow) const { return books_[flow].start; }
  Picos ReceiveTime(FlowId flow) const { return books_[flow].received; }
  Picos FinishTime(FlowId flow) const { return books_[flow].finished; }
  uint64_t ReceivedMessages(FlowId flow) const { return books_[flow].received_messages; }
  bool Failed(FlowId flow) const { return books_[flow].failed; }
  size_t flows() const { return books_.size(); }
  // Those before are the topology's background traffic.
  FlowId first_flow() const { return first_flow_; }
  const FlowSpec& spec(FlowId flow) const { return books_[flow].spec; }

  const FlowCounters& counters() const { return context_.counters; }
  FabricStatistics statistics() const;
  Network& network() { return network_; }
  NetworkTruth& truth() { return network_; }
  const NetworkTruth& truth() const { return network_; }
  NetworkContext& context() { return network_context_; }
  PortCounters& port_counters(uint32_t endpoint);

  void OnEvent(uint32_t kind, uint64_t argument) override;
  void OnSent(FlowId flow, uint64_t message) override;
  void OnReceived(FlowId flow, uint64_t message) override;
  void OnFailed(FlowId flow) override;

 private:
  struct Host;
  struct Faults;
  struct Book {
    FlowSpec spec;
    Picos start = kNever;
    Picos received = kNever;
    Picos finished = kNever;
    uint64_t posted = 0;
    uint64_t received_messages = 0;
    bool failed = false;
  };
  static constexpr uint32_t kCall = 1000;
  static constexpr uint32_t kPost = 1001;

  Simulation(Topology topology, const SimulationSettings& settings);
  void Build();
  Status StartFaults();
  Status StartBackground();
  Flow& FlowOf(FlowId flow);
  uint8_t LaneOf(const FlowSpec& spec) const;

  Topology topology_;
  SimulationSettings settings_;
  NetworkContext network_context_;
  Network network_;
  FlowContext context_;
  std::vector<std::unique_ptr<Host>> hosts_;  // by endpoint
  std::vector<Attachment> attachments_;
  std::vector<Book> books_;
  std::vector<std::unique_ptr<Flow>> flows_;  // made on first use
  std::vector<std::function<void()>> calls_;
  std::vector<uint32_t> free_calls_;
  struct LaterPost {
    FlowId flow;
    uint64_t bytes;
  };
  std::vector<LaterPost> later_posts_;
  std::unique_ptr<Faults> faults_;  // null: the topology has none
  FlowObserver* observer_ = nullptr;
  FlowId first_flow_ = 0;
  bool stopped_ = false;
};

}  // namespace sluice::soft
