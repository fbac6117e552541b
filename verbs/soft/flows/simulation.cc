#include "verbs/soft/flows/simulation.h"

#include <map>
#include <utility>

#include "verbs/soft/flows/rc_flow.h"
#include "verbs/soft/model/background.h"
#include "verbs/soft/model/faults_plan.h"
#include "verbs/soft/model/topology_check.h"

namespace sluice::soft {

// A NIC port and what of the host its flows share.
struct Simulation::Host final : public PortOwner {
  Host(Simulation* owner, uint32_t endpoint, const PortSpec& spec)
      : simulation(owner),
        host_interface(owner->topology_.nic_settings),
        port(&owner->network_context_, this, 1, endpoint, spec, &host_interface) {}

  void Deliver(Port*, const Packet& packet) override {
    simulation->flows_[packet.destination_qp >> 1]->OnPacket(packet, (packet.destination_qp & 1) == 0);
  }

  Simulation* simulation;
  HostInterface host_interface;
  Port port;
  std::unique_ptr<UecPullPacer> pull_pacer;  // made on first use
};

struct Simulation::Faults final : public FaultTarget {
  explicit Faults(Simulation* owner) : simulation(*owner), endpoints(owner->topology_) {}

  void CallAt(Picos when, std::function<void()> call) override { simulation.CallAt(when, std::move(call)); }
  void SetFaultHook(FaultHook hook) override { simulation.network_context_.fault_hook = std::move(hook); }
  void SetLinkUp(uint32_t link, bool up) override { simulation.network_.SetLinkUp(link, up); }
  void SetLinkRate(uint32_t link, uint64_t rate_bps) override {
    simulation.network_.SetLinkRate(link, rate_bps);
  }
  void SetReceiverStalled(uint32_t endpoint, bool stalled) override {
    simulation.hosts_[endpoint]->port.SetStalled(stalled);
  }
  void ResetSwitch(uint32_t switch_index) override { simulation.network_.ResetSwitch(switch_index); }
  void KillNic(uint32_t host, uint32_t nic) override {
    const NicSpec& spec = simulation.topology_.hosts[host].nics[nic];
    for (uint32_t port = 0; port < spec.ports.size(); ++port) {
      const uint32_t endpoint = endpoints.Find({.node = host, .nic = nic, .port = port});
      simulation.network_.SetLinkUp(simulation.attachments_[endpoint].link, false);
    }
  }
  // Flows have neither processor nor addresses.
  void PauseHost(uint32_t, Picos) override {}
  GidEntry Gid(uint32_t, uint32_t, uint32_t, uint32_t) override { return {}; }
  void SetGid(uint32_t, uint32_t, uint32_t, uint32_t, const GidEntry&) override {}

  Simulation& simulation;
  const EndpointIndex endpoints;
  std::unique_ptr<FaultPlan> plan;
};

Result<std::unique_ptr<Simulation>> Simulation::Create(Topology topology,
                                                       const SimulationSettings& settings) {
  SLUICE_RETURN_IF_ERROR(CheckTopology(topology));
  const RcSettings& rc = settings.rc;
  if (rc.payload_bytes == 0 || rc.ack_interval_packets == 0 || rc.timeout > 31 || rc.reorder_packets > 256 ||
      rc.timer_factor < 1 || rc.timer_factor > 4) {
    return InvalidArgument(
        "RC settings out of range: payload and acknowledgement interval from 1, timeout to 31, reordering to "
        "512 "
        "packets, timer factor 1 to 4");
  }
  std::unique_ptr<Simulation> simulation(new Simulation(std::move(topology), settings));
  simulation->Build();
  SLUICE_RETURN_IF_ERROR(simulation->StartFaults());
  SLUICE_RETURN_IF_ERROR(simulation->StartBackground());
  return simulation;
}

Simulation::Simulation(Topology topology, const SimulationSettings& settings)
    : topology_(std::move(topology)), settings_(settings), network_(&network_context_) {
  context_.network = &network_context_;
  context_.observer = this;
  context_.timers = this;
  context_.rc = settings.rc;
  context_.nic = &topology_.nic_settings;
  context_.seed = settings.seed;
}

Simulation::~Simulation() {
  // Flows leave the rings of the ports that they are in.
  flows_.clear();
}

void Simulation::Build() {
  for (const HostSpec& host : topology_.hosts) {
    for (const NicSpec& nic : host.nics) {
      for (const PortSpec& port : nic.ports) {
        hosts_.push_back(std::make_unique<Host>(this, static_cast<uint32_t>(hosts_.size()), port));
        attachments_.push_back({hosts_.back()->port.wire(), &hosts_.back()->port});
      }
    }
  }
  network_.Build(topology_, &attachments_);
  for (size_t i = 0; i < hosts_.size(); ++i) {
    hosts_[i]->port.Connect(attachments_[i].uplink, attachments_[i].link);
  }
}

Status Simulation::StartFaults() {
  if (topology_.faults.empty()) return {};
  Result<std::unique_ptr<FaultPlan>> plan = FaultPlan::Make(topology_, topology_.faults, settings_.seed);
  if (!plan.ok()) return plan.status();
  faults_ = std::make_unique<Faults>(this);
  faults_->plan = std::move(*plan);
  faults_->plan->Start(faults_.get());
  return {};
}

Status Simulation::StartBackground() {
  if (topology_.background.empty()) return {};
  Result<std::vector<BackgroundMessage>> messages =
      MakeBackground(topology_, topology_.background, settings_.seed);
  if (!messages.ok()) return messages.status();
  std::map<uint32_t, FlowId> flow_of_stream;
  for (const BackgroundMessage& message : *messages) {
    const auto [entry, added] = flow_of_stream.emplace(message.stream, 0);
    if (added) {
      entry->second = AddFlow({.source = message.source,
                               .destination = message.destination,
                               .sl = message.sl,
                               .traffic_class = message.traffic_class});
    }
    PostAt(message.start, entry->second, message.bytes);
  }
  first_flow_ = static_cast<FlowId>(books_.size());
  return {};
}

uint8_t Simulation::LaneOf(const FlowSpec& spec) const {
  return hosts_[spec.source]->port.LaneOf(spec.sl, spec.traffic_class);
}

FlowId Simulation::AddFlow(const FlowSpec& spec) {
  books_.push_back({});
  books_.back().spec = spec;
  flows_.emplace_back();
  return static_cast<FlowId>(books_.size() - 1);
}

Flow& Simulation::FlowOf(FlowId flow) {
  if (flows_[flow] == nullptr) {
    const FlowSpec& spec = books_[flow].spec;
    Host& source = *hosts_[spec.source];
    Host& sink = *hosts_[spec.destination];
    // Traffic of a port to itself turns round inside the NIC.
    const bool loop = spec.source == spec.destination;
    Egress* out = loop ? source.port.loop() : source.port.wire();
    Egress* back = loop ? sink.port.loop() : sink.port.wire();
    if (settings_.transport == Transport::kRc) {
      flows_[flow] = std::make_unique<RcFlow>(&context_, flow, spec, LaneOf(spec), out, back,
                                              source.port.spec().rate_bps);
    } else {
      if (settings_.transport == Transport::kRccc && sink.pull_pacer == nullptr) {
        sink.pull_pacer = std::make_unique<UecPullPacer>(&context_, settings_.uec, spec.destination,
                                                         sink.port.spec().rate_bps);
      }
      flows_[flow] = std::make_unique<UecFlow>(
          &context_, settings_.uec, flow, spec, LaneOf(spec), out, back, source.port.spec().rate_bps,
          settings_.transport == Transport::kRccc ? sink.pull_pacer.get() : nullptr);
    }
  }
  return *flows_[flow];
}

void Simulation::Post(FlowId flow, uint64_t bytes) {
  Book& book = books_[flow];
  book.start = Now();
  book.received = book.finished = kNever;
  ++book.posted;
  FlowOf(flow).Post(bytes);
}

void Simulation::PostAt(Picos at, FlowId flow, uint64_t bytes) {
  later_posts_.push_back({flow, bytes});
  network_context_.scheduler.At(at, this, kPost, later_posts_.size() - 1);
}

void Simulation::CallAt(Picos at, std::function<void()> call) {
  uint32_t slot;
  if (free_calls_.empty()) {
    slot = static_cast<uint32_t>(calls_.size());
    calls_.push_back(std::move(call));
  } else {
    slot = free_calls_.back();
    free_calls_.pop_back();
    calls_[slot] = std::move(call);
  }
  network_context_.scheduler.At(at, this, kCall, slot);
}

bool Simulation::Run(Picos until) {
  // Short enough that the clock ends near the last event, long enough to cost nothing.
  constexpr Picos kStretch = 10 * kPicosPerUs;
  constexpr uint64_t kSlice = 1 << 12;
  Scheduler& scheduler = network_context_.scheduler;
  stopped_ = false;
  while (!stopped_) {
    const Picos next = scheduler.NextTime();
    if (next == kNever) return true;
    if (next > until) return false;
    scheduler.Run(until == kNever ? next + kStretch : until, kSlice);
  }
  return false;
}

void Simulation::OnEvent(uint32_t kind, uint64_t argument) {
  if (kind == kCall) {
    const std::function<void()> call = std::move(calls_[argument]);
    calls_[argument] = nullptr;
    free_calls_.push_back(static_cast<uint32_t>(argument));
    call();
  } else if (kind == kPost) {
    Post(later_posts_[argument].flow, later_posts_[argument].bytes);
  } else if (static_cast<FlowTimer>(kind) == FlowTimer::kPull) {
    hosts_[argument]->pull_pacer->OnTimer();
  } else {
    flows_[argument]->OnTimer(static_cast<FlowTimer>(kind));
  }
}

void Simulation::OnSent(FlowId flow, uint64_t message) {
  if (message + 1 == books_[flow].posted) books_[flow].finished = Now();
  if (observer_ != nullptr) observer_->OnSent(flow, message);
}

void Simulation::OnReceived(FlowId flow, uint64_t message) {
  ++books_[flow].received_messages;
  if (message + 1 == books_[flow].posted) books_[flow].received = Now();
  if (observer_ != nullptr) observer_->OnReceived(flow, message);
}

void Simulation::OnFailed(FlowId flow) {
  books_[flow].failed = true;
  if (observer_ != nullptr) observer_->OnFailed(flow);
}

FabricStatistics Simulation::statistics() const {
  FabricStatistics statistics = network_context_.statistics;
  statistics.events = network_context_.scheduler.events();
  return statistics;
}

PortCounters& Simulation::port_counters(uint32_t endpoint) {
  return hosts_[endpoint]->port.counters();
}

}  // namespace sluice::soft
