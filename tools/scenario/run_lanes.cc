// priority, storage.
#include <algorithm>

#include "tools/scenario/flow_network.h"
#include "tools/scenario/ring_job.h"
#include "tools/scenario/runs.h"
#include "verbs/soft/model/background.h"

namespace sluice::scenario {
namespace {

using soft::FlowId;
using soft::Picos;
using soft::Simulation;
using soft::Topology;

enum class Lanes { kAlone, kOne, kTwo };

// Where traffic that must not wait goes when it has a lane of its own: priority 3 by DSCP 24, or VL 1 by
// SL 1.
constexpr uint8_t kUrgentTrafficClass = 24 << 2;
constexpr uint8_t kUrgentSl = 1;

void PreferUrgentLane(Topology* topology) {
  soft::SwitchSettings& settings = topology->switch_settings;
  if (IsInfiniBand(*topology)) {
    settings.vl_high = {{1, 255}};
    settings.vl_low = {{0, 64}, {2, 64}, {3, 64}};
  } else {
    settings.strict_priorities |= 1 << 3;
  }
}

const char* NameOf(Lanes lanes) {
  switch (lanes) {
    case Lanes::kAlone:
      return "alone";
    case Lanes::kOne:
      return "one lane";
    case Lanes::kTwo:
      return "two lanes";
  }
  return "";
}

// Sends one message after the other, each when the one before is acknowledged.
class PingPong final : public soft::FlowObserver {
 public:
  PingPong(Simulation* simulation, FlowId flow, uint64_t bytes, uint32_t messages)
      : simulation_(simulation), flow_(flow), bytes_(bytes), left_(messages) {}
  void Send() {
    posted_ = simulation_->Now();
    simulation_->Post(flow_, bytes_);
  }
  void OnSent(FlowId, uint64_t) override {
    latencies_us_.push_back(Us(simulation_->Now() - posted_));
    if (--left_ == 0) {
      simulation_->Stop();
    } else {
      Send();
    }
  }
  const std::vector<double>& latencies_us() const { return latencies_us_; }

 private:
  Simulation* simulation_;
  FlowId flow_;
  uint64_t bytes_;
  uint32_t left_;
  Picos posted_ = 0;
  std::vector<double> latencies_us_;
};

// Keeps `depth` messages posted, for ever.
class EndlessFlow final : public soft::FlowObserver {
 public:
  EndlessFlow(Simulation* simulation, FlowId flow, uint64_t bytes)
      : simulation_(simulation), flow_(flow), bytes_(bytes) {}
  void Start() {
    for (int i = 0; i < 8; ++i) simulation_->Post(flow_, bytes_);
  }
  void OnSent(FlowId, uint64_t) override { simulation_->Post(flow_, bytes_); }

 private:
  Simulation* simulation_;
  FlowId flow_;
  uint64_t bytes_;
};

std::vector<Arm> LaneArms(const RunConfig& config) {
  if (!config.topology.empty()) return {{"", false, StaticControl()}};
  return {{"roce ", false, StaticControl()}, {"ib ", true, StaticControl()}};
}

}  // namespace

Result<Outcome> RunPriority(const RunConfig& config) {
  Outcome outcome;
  constexpr uint64_t kSmallBytes = 64 << 10;
  constexpr uint64_t kBulkBytes = 1 << 20;
  constexpr uint32_t kBulkSenders = 4;
  const uint32_t messages = config.size == Size::kCi ? 100 : config.size == Size::kDefault ? 1000 : 10'000;
  for (const Arm& arm : LaneArms(config)) {
    for (const Lanes lanes : {Lanes::kAlone, Lanes::kOne, Lanes::kTwo}) {
      Result<Topology> topology = TopologyOf(config, "leaf-spine:hosts=16,rate=400G", arm);
      if (!topology.ok()) return topology.status();
      SLUICE_RETURN_IF_ERROR(NeedEndpoints(*topology, kBulkSenders + 2));
      PreferUrgentLane(&*topology);
      Result<std::unique_ptr<Simulation>> made = MakeSimulation(*topology, config.seed);
      if (!made.ok()) return made.status();
      Simulation& simulation = **made;
      FlowRouter router;
      simulation.set_observer(&router);
      const uint32_t endpoints = simulation.endpoints();
      soft::FlowSpec small{.source = endpoints - 1, .destination = 0, .control = arm.control};
      if (lanes == Lanes::kTwo) {
        small.sl = kUrgentSl;
        small.traffic_class = kUrgentTrafficClass;
      }
      const FlowId flow = simulation.AddFlow(small);
      PingPong ping(&simulation, flow, kSmallBytes, messages);
      router.Set(flow, &ping);
      std::vector<std::unique_ptr<EndlessFlow>> bulk;
      for (uint32_t i = 0; i < kBulkSenders && lanes != Lanes::kAlone; ++i) {
        const FlowId id =
            simulation.AddFlow({.source = endpoints - 2 - i, .destination = 0, .control = arm.control});
        bulk.push_back(std::make_unique<EndlessFlow>(&simulation, id, kBulkBytes));
        router.Set(id, bulk.back().get());
        simulation.CallAt(0, [&flow = *bulk.back()] { flow.Start(); });
      }
      // After the bulk flows have filled what they can.
      const Picos start = 500 * soft::kPicosPerUs;
      simulation.CallAt(start, [&ping] { ping.Send(); });
      simulation.Run();
      SLUICE_RETURN_IF_ERROR(NeedAlive(simulation));
      if (ping.latencies_us().size() != messages) return InternalError("the small messages did not finish");
      uint64_t bulk_messages = 0;
      for (FlowId id = flow + 1; id < simulation.flows(); ++id)
        bulk_messages += simulation.ReceivedMessages(id);
      const std::string name = arm.name + NameOf(lanes);
      outcome.Add(name, "latency, median", "us", Quantile(ping.latencies_us(), 0.5));
      outcome.Add(name, "latency, 99 %", "us", Quantile(ping.latencies_us(), 0.99));
      outcome.Add(name, "bulk goodput", "Gb/s",
                  static_cast<double>(bulk_messages * kBulkBytes) * 8e-3 / Us(simulation.Now()));
      outcome.samples[name] = ping.latencies_us();
      outcome.packet_hops += simulation.statistics().packet_hops;
    }
  }
  return outcome;
}

Result<Outcome> RunStorage(const RunConfig& config) {
  Outcome outcome;
  constexpr uint32_t kRanks = 12;
  constexpr uint32_t kServers = 4;
  constexpr double kCommunication = 0.4;  // of a step, alone
  const uint64_t bytes = config.size == Size::kCi ? 4 << 20 : 16 << 20;
  const uint32_t steps = config.size == Size::kFull ? 40 : 6;
  for (const Arm& arm : LaneArms(config)) {
    double communication_us = 0;
    double alone_us = 0;
    // First without computing, to learn what communication takes; then the three cases.
    for (int pass = 0; pass < 4; ++pass) {
      const Lanes lanes = pass < 2 ? Lanes::kAlone : pass == 2 ? Lanes::kOne : Lanes::kTwo;
      Result<Topology> topology = TopologyOf(config, "leaf-spine:hosts=16,rate=400G,hosts_per_leaf=4", arm);
      if (!topology.ok()) return topology.status();
      SLUICE_RETURN_IF_ERROR(NeedEndpoints(*topology, kRanks + kServers));
      PreferUrgentLane(&*topology);
      RingJobSettings job;
      // Every fourth host is a storage server.
      for (uint32_t i = 0; i < kRanks + kServers; ++i) {
        if (i % 4 != 3) job.endpoints.push_back(i);
      }
      job.bytes = bytes;
      job.control = arm.control;
      job.steps = pass == 0 ? 1 : steps;
      if (lanes == Lanes::kTwo) {
        job.sl = kUrgentSl;
        job.traffic_class = kUrgentTrafficClass;
      }
      const double compute_us = pass == 0 ? 0 : communication_us * (1 - kCommunication) / kCommunication;
      job.compute = static_cast<Picos>(compute_us * soft::kPicosPerUs);
      Result<std::unique_ptr<Simulation>> made = MakeSimulation(*topology, config.seed);
      if (!made.ok()) return made.status();
      Simulation& simulation = **made;
      FlowRouter router;
      simulation.set_observer(&router);
      RingJob ring(&simulation, &router, job);
      ring.StopWhenDone();
      if (lanes != Lanes::kAlone) {
        soft::BackgroundSpec storage;
        storage.kind = soft::BackgroundKind::kStorage;
        for (uint32_t i = 0; i < kRanks + kServers; ++i) {
          (i % 4 == 3 ? storage.targets : storage.hosts).push_back(simulation.topology().hosts[i].name);
        }
        storage.load = 0.2;
        storage.stop = static_cast<Picos>(alone_us * steps * 2 * soft::kPicosPerUs);
        Result<std::vector<soft::BackgroundMessage>> messages =
            soft::MakeBackground(simulation.topology(), {storage}, config.seed);
        if (!messages.ok()) return messages.status();
        std::vector<FlowId> streams;
        for (const soft::BackgroundMessage& message : *messages) {
          while (streams.size() <= message.stream) streams.push_back(UINT32_MAX);
          FlowId& flow = streams[message.stream];
          if (flow == UINT32_MAX) {
            flow = simulation.AddFlow(
                {.source = message.source, .destination = message.destination, .control = arm.control});
          }
          simulation.PostAt(message.start, flow, message.bytes);
        }
      }
      simulation.Run();
      SLUICE_RETURN_IF_ERROR(NeedAlive(simulation));
      if (!ring.done()) return InternalError("the ring did not finish");
      const double step_us = Mean(ring.step_us());
      outcome.packet_hops += simulation.statistics().packet_hops;
      if (pass == 0) {
        communication_us = step_us;
        continue;
      }
      if (pass == 1) alone_us = step_us;
      const std::string name = arm.name + NameOf(lanes);
      outcome.Add(name, "step", "us", step_us);
      outcome.Add(name, "step / alone", "", step_us / alone_us);
      outcome.Add(name, "longest step / alone", "", Quantile(ring.step_us(), 1) / alone_us);
      outcome.samples[name] = ring.step_us();
    }
  }
  return outcome;
}

}  // namespace sluice::scenario
