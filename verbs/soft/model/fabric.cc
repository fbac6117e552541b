#include "verbs/soft/model/fabric.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "verbs/soft/model/core.h"
#include "verbs/soft/model/faults_plan.h"
#include "verbs/soft/model/network.h"
#include "verbs/soft/model/nic_impl.h"
#include "verbs/soft/model/topology_check.h"

namespace sluice::soft {
namespace {

class FabricImpl final : public Fabric, public EventTarget {
 public:
  FabricImpl(Topology topology, PayloadPool* pool)
      : topology_(std::move(topology)), core_(pool), network_(&core_.network) {
    core_.flow_hash = topology_.routing.hash;
    uint32_t ordinal = 0;
    uint32_t endpoint = 0;
    for (uint32_t host = 0; host < topology_.hosts.size(); ++host) {
      hosts_.emplace_back();
      for (uint32_t index = 0; index < topology_.hosts[host].nics.size(); ++index) {
        const NicSpec& spec = topology_.hosts[host].nics[index];
        auto nic =
            std::make_unique<NicImpl>(&core_, host, index, ordinal++, endpoint, spec, topology_.nic_settings);
        for (uint32_t port = 1; port <= nic->port_count(); ++port) {
          attachments_.push_back({nic->port(port)->wire(), nic->port(port)});
        }
        endpoint += nic->port_count();
        hosts_.back().nics.push_back(std::move(nic));
      }
    }
    network_.Build(topology_, &attachments_);
    endpoint = 0;
    for (Host& host : hosts_) {
      for (auto& nic : host.nics) {
        for (uint32_t port = 1; port <= nic->port_count(); ++port, ++endpoint) {
          nic->port(port)->Connect(attachments_[endpoint].uplink, attachments_[endpoint].link);
        }
      }
    }
    core_.set_link_up = [this](uint32_t link, bool up) { return SetLinkUp(link, up); };
  }
  Status StartTraffic(TrafficMaker make) {
    TrafficGround ground{&core_.network, &topology_, {}};
    for (Host& host : hosts_) {
      for (auto& nic : host.nics) {
        for (uint32_t port = 1; port <= nic->port_count(); ++port) ground.ports.push_back(nic->port(port));
      }
    }
    Result<std::unique_ptr<ModelTraffic>> made = make(ground);
    if (!made.ok()) return made.status();
    traffic_ = std::move(*made);
    core_.traffic = traffic_.get();
    return {};
  }
  // The faults of the topology.
  Status StartFaults() {
    if (topology_.faults.empty()) return {};
    Result<std::unique_ptr<FaultPlan>> plan = FaultPlan::Make(topology_, topology_.faults, topology_.seed);
    if (!plan.ok()) return plan.status();
    fault_plan_ = std::move(*plan);
    fault_plan_->Start(&fault_target_);
    return {};
  }

  Picos Now() const override { return core_.Now(); }
  Picos NextEventTime() const override { return core_.network.scheduler.NextTime(); }
  void Advance(Picos until) override { core_.network.scheduler.Run(until, UINT64_MAX); }
  bool AdvanceBounded(Picos until, uint64_t max_events) override {
    return core_.network.scheduler.Run(until, max_events);
  }
  void CallAt(Picos when, std::function<void()> call) override {
    uint32_t slot;
    if (free_calls_.empty()) {
      slot = static_cast<uint32_t>(calls_.size());
      calls_.emplace_back();
    } else {
      slot = free_calls_.back();
      free_calls_.pop_back();
    }
    calls_[slot] = std::move(call);
    core_.network.scheduler.At(when, this, 0, slot);
  }
  void OnEvent(uint32_t, uint64_t slot) override {
    const std::function<void()> call = std::move(calls_[slot]);
    calls_[slot] = nullptr;
    free_calls_.push_back(static_cast<uint32_t>(slot));
    call();
  }

  const Topology& topology() const override { return topology_; }
  Result<uint32_t> AcquireHost(std::string_view name) override;
  ProcessId AttachProcess(uint32_t host, ProcessMemory* memory) override {
    const ProcessId id = next_process_++;
    core_.processes[id] = {host, memory};
    ++hosts_[host].processes;
    return id;
  }
  void DetachProcess(ProcessId process) override {
    const Process* found = core_.FindProcess(process);
    if (found == nullptr) return;
    Host& host = hosts_[found->host];
    core_.dma.Forget(process);
    for (auto& nic : host.nics) nic->Detach(process);
    core_.processes.erase(process);
    if (--host.processes == 0) host.name.clear();
  }
  uint32_t nic_count(uint32_t host) const override {
    return host < hosts_.size() ? static_cast<uint32_t>(hosts_[host].nics.size()) : 0;
  }
  Nic* nic(uint32_t host, uint32_t index) override {
    return index < nic_count(host) ? hosts_[host].nics[index].get() : nullptr;
  }

  void DmaDone(DmaId id, bool ok, uint64_t value) override {
    DmaRecord record;
    if (core_.dma.Close(id, &record)) record.nic->OnDma(record, ok, value);
  }

  void SetFaultHook(FaultHook hook) override {
    callers_hook_ = std::move(hook);
    CombineHooks();
  }
  Status SetLinkUp(uint32_t link, bool up) override;
  Status SetLinkRate(uint32_t link, uint64_t rate_bps) override;
  Status SetReceiverStalled(uint32_t endpoint, bool stalled) override;
  Status ResetSwitch(uint32_t switch_index) override;
  void PauseHost(uint32_t host, Picos until) override {
    if (host < hosts_.size()) hosts_[host].paused_until = std::max(hosts_[host].paused_until, until);
  }
  Picos HostPausedUntil(uint32_t host) const override {
    return host < hosts_.size() ? hosts_[host].paused_until : 0;
  }
  NetworkTruth& truth() override { return network_; }
  FabricStatistics statistics() const override {
    FabricStatistics statistics = core_.network.statistics;
    statistics.events = core_.network.scheduler.events();
    statistics.dma_pending = core_.dma.pending();
    return statistics;
  }

 private:
  struct Host {
    std::vector<std::unique_ptr<NicImpl>> nics;
    uint32_t processes = 0;
    Picos paused_until = 0;
    std::string name;  // on demand: what the processes on it call it
  };

  // The topology's own faults, beside the hook of the caller.
  struct OwnFaults final : public FabricFaultTarget {
    explicit OwnFaults(FabricImpl* owner) : FabricFaultTarget(owner), impl(owner) {}
    void SetFaultHook(FaultHook hook) override {
      impl->planned_hook_ = std::move(hook);
      impl->CombineHooks();
    }
    FabricImpl* impl;
  };
  void CombineHooks() {
    FaultHook& hook = core_.network.fault_hook;
    if (!callers_hook_ || !planned_hook_) {
      hook = callers_hook_ ? callers_hook_ : planned_hook_;
      return;
    }
    hook = [this](const PacketView& view) {
      const PacketFate fate = callers_hook_(view);
      return fate == PacketFate::kDeliver ? planned_hook_(view) : fate;
    };
  }
  Status CheckLink(uint32_t link) const;

  // Payloads in packets return to the pool, queue pairs unhook from ports: the order of destruction matters.
  Topology topology_;
  FabricCore core_;
  std::vector<Attachment> attachments_;
  Network network_;
  std::vector<Host> hosts_;
  std::vector<std::function<void()>> calls_;
  std::vector<uint32_t> free_calls_;
  ProcessId next_process_ = 1;
  FaultHook callers_hook_;
  FaultHook planned_hook_;
  OwnFaults fault_target_{this};
  std::unique_ptr<FaultPlan> fault_plan_;
  std::unique_ptr<ModelTraffic> traffic_;
};

Result<uint32_t> FabricImpl::AcquireHost(std::string_view name) {
  const auto count = static_cast<uint32_t>(hosts_.size());
  if (!name.empty()) {
    for (uint32_t i = 0; i < count; ++i) {
      if (hosts_[i].name == name) return i;
    }
    for (uint32_t i = 0; i < count; ++i) {
      if (topology_.hosts[i].name == name) return i;
    }
    uint32_t number = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number);
    if (parsed.ec == std::errc() && parsed.ptr == name.data() + name.size() && number < count) return number;
    if (!topology_.on_demand) {
      return InvalidArgument("software fabric: no host \"" + std::string(name) + "\"; the topology has " +
                             std::to_string(count) + " hosts, 0 to " + std::to_string(count - 1) +
                             ", the first named " + topology_.hosts[0].name);
    }
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (hosts_[i].processes != 0 || !hosts_[i].name.empty()) continue;
    hosts_[i].name = name;
    return i;
  }
  return InvalidArgument("software fabric: all " + std::to_string(count) +
                         " hosts have processes; give a topology with more hosts, or name a host to share");
}

Status FabricImpl::CheckLink(uint32_t link) const {
  if (link < topology_.links.size()) return {};
  return InvalidArgument("software fabric: no link " + std::to_string(link) + "; the topology has " +
                         std::to_string(topology_.links.size()));
}

Status FabricImpl::SetLinkRate(uint32_t link, uint64_t rate_bps) {
  SLUICE_RETURN_IF_ERROR(CheckLink(link));
  if (rate_bps == 0) {
    return InvalidArgument("software fabric: rate 0 for link " + std::to_string(link) +
                           "; take it down instead");
  }
  network_.SetLinkRate(link, rate_bps);
  return {};
}

Status FabricImpl::SetReceiverStalled(uint32_t endpoint, bool stalled) {
  if (endpoint >= core_.nic_of_endpoint.size()) {
    return InvalidArgument("software fabric: no NIC port number " + std::to_string(endpoint) +
                           "; the topology has " + std::to_string(core_.nic_of_endpoint.size()));
  }
  NicImpl* nic = core_.nic_of_endpoint[endpoint];
  nic->port(endpoint - nic->port(1)->endpoint() + 1)->SetStalled(stalled);
  return {};
}

Status FabricImpl::ResetSwitch(uint32_t switch_index) {
  if (switch_index >= topology_.switches.size()) {
    return InvalidArgument("software fabric: no switch " + std::to_string(switch_index) +
                           "; the topology has " + std::to_string(topology_.switches.size()));
  }
  network_.ResetSwitch(switch_index);
  return {};
}

Status FabricImpl::SetLinkUp(uint32_t link, bool up) {
  SLUICE_RETURN_IF_ERROR(CheckLink(link));
  network_.SetLinkUp(link, up);
  for (const LinkEnd* end : {&topology_.links[link].a, &topology_.links[link].b}) {
    if (!end->is_switch) hosts_[end->node].nics[end->nic]->LinkChanged(end->port + 1, up);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Fabric>> Fabric::Create(Topology topology, PayloadPool* pool, TrafficMaker traffic) {
  SLUICE_RETURN_IF_ERROR(CheckTopology(topology));
  const bool plays = !topology.background.empty();
  if (plays && traffic == nullptr) {
    const std::string& where = topology.background[0].where;
    return InvalidArgument((where.empty() ? "topology" : where) +
                           ": [[background]]: nobody plays background traffic on this fabric; leave it out");
  }
  auto fabric = std::make_unique<FabricImpl>(std::move(topology), pool);
  if (plays) SLUICE_RETURN_IF_ERROR(fabric->StartTraffic(traffic));
  SLUICE_RETURN_IF_ERROR(fabric->StartFaults());
  return std::unique_ptr<Fabric>(std::move(fabric));
}

}  // namespace sluice::soft
