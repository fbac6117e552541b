// The one virtual fabric of a program, and the sessions of its simulated processes.
#include <unistd.h>

#include <mutex>
#include <string>
#include <vector>

#include "verbs/soft/calls/start_fabric.h"
#include "verbs/soft/daemon/sysfs_tree.h"
#include "verbs/soft/flows/background_player.h"
#include "verbs/soft/ipc/socket.h"
#include "verbs/soft/model/network_truth.h"
#include "verbs/soft/model/topology_network.h"
#include "verbs/soft/virtual/direct_session.h"

namespace sluice::soft {
namespace {

class VirtualFabricImpl final : public VirtualFabric {
 public:
  const char* Create(const VirtualFabricSettings& settings) override {
    Status status = CreateFabric(settings);
    core_.completion_cost = settings.completion_cost;
    return Text(status);
  }
  uint32_t host_count() const override {
    return static_cast<uint32_t>(core_.fabric->topology().hosts.size());
  }
  const char* host_name(uint32_t host) const override {
    return core_.fabric->topology().hosts[host].name.c_str();
  }

  const char* AddProcess(uint32_t host, uint32_t* process) override {
    if (host >= host_count()) {
      return Text(InvalidArgument("virtual fabric: no host " + std::to_string(host) + "; the topology has " +
                                  std::to_string(host_count())));
    }
    std::lock_guard lock(core_.mutex);
    std::lock_guard files_lock(files_mutex_);
    if (sysfs_ == nullptr) return Text(InternalError("virtual fabric: its files are removed already"));
    Result<std::string> root = sysfs_->HostRoot(core_.fabric.get(), host);
    if (!root.ok()) return Text(root.status());
    *process = static_cast<uint32_t>(sessions_.size());
    core_.touched.push_back(0);
    sessions_.push_back(std::make_shared<DirectSession>(&core_, host, *process, root->c_str()));
    return nullptr;
  }
  void Enter(uint32_t process) override {
    current_.store(static_cast<int64_t>(process), std::memory_order_release);
  }
  void DeclareData(uint32_t process, const void* begin, size_t bytes) override {
    sessions_[process]->DeclareData(begin, bytes);
  }
  void ForgetData(uint32_t process, const void* begin) override { sessions_[process]->ForgetData(begin); }

  Picos Now() const override { return core_.fabric->Now(); }
  Picos PausedUntil(uint32_t process) const override {
    std::lock_guard lock(core_.mutex);
    return core_.fabric->HostPausedUntil(sessions_[process]->host());
  }
  Picos NextEventTime() const override {
    std::lock_guard lock(core_.mutex);
    return core_.fabric->NextEventTime();
  }
  bool Run(Picos until, uint64_t max_events) override {
    std::lock_guard lock(core_.mutex);
    Fabric& fabric = *core_.fabric;
    for (uint64_t events = 0; events < max_events; ++events) {
      const Picos next = fabric.NextEventTime();
      if (next > until) {
        fabric.Advance(until);
        return true;
      }
      fabric.AdvanceBounded(next, 1);
      if (!core_.touched_order.empty()) return false;
    }
    return false;
  }
  size_t TakeTouched(Touch* out, size_t capacity) override {
    std::lock_guard lock(core_.mutex);
    std::vector<uint32_t>& order = core_.touched_order;
    const size_t count = std::min(capacity, order.size());
    for (size_t i = 0; i < count; ++i)
      out[i] = {order[i], std::exchange(core_.touched[order[i]], uint8_t{0})};
    order.erase(order.begin(), order.begin() + static_cast<ptrdiff_t>(count));
    return count;
  }

  void BeginPass() override { core_.spent.store(0, std::memory_order_relaxed); }
  void Charge(Picos cost) override {
    core_.spent.store(core_.spent.load(std::memory_order_relaxed) + cost, std::memory_order_relaxed);
  }
  Picos EndPass() override { return core_.spent.exchange(0, std::memory_order_relaxed); }

  VirtualStatistics statistics() const override {
    std::lock_guard lock(core_.mutex);
    const FabricStatistics all = core_.fabric->statistics();
    return {all.events, all.packet_hops, all.dropped_packets, all.corrupted_packets, all.trace_hash};
  }
  TruthSummary truth() const override {
    std::lock_guard lock(core_.mutex);
    return Summarise(core_.fabric->topology(), core_.fabric->truth());
  }
  const char* DescribeQueues() override {
    std::lock_guard lock(core_.mutex);
    const Topology& topology = core_.fabric->topology();
    text_.clear();
    core_.fabric->truth().ForEachQueue([&](const QueueTruth& queue) {
      if (queue.bytes == 0) return;
      text_ += "switch " + topology.switches[queue.switch_index].name + " port " + std::to_string(queue.port) +
               " lane " + std::to_string(queue.lane) + ": " + std::to_string(queue.bytes) + " bytes\n";
    });
    return text_.c_str();
  }
  void TrackDestinations() override {
    std::lock_guard lock(core_.mutex);
    core_.fabric->truth().TrackDestinations();
  }
  uint64_t PeakBytesBoundFor(uint32_t endpoint) const override {
    std::lock_guard lock(core_.mutex);
    return core_.fabric->truth().PeakBytesBoundFor(endpoint);
  }
  void RefreshCounters() override {
    std::lock_guard lock(core_.mutex);
    std::lock_guard files_lock(files_mutex_);
    if (sysfs_ != nullptr) sysfs_->Refresh(core_.fabric.get());
  }
  const char* directory() const override { return sysfs_->root().c_str(); }

  void RemoveFiles() override {
    std::lock_guard files_lock(files_mutex_);
    removed_ = true;
    sysfs_.reset();
  }

  Result<std::shared_ptr<Session>> Current() const {
    const int64_t current = current_.load(std::memory_order_acquire);
    if (current < 0) {
      return SystemError(
          "virtual fabric: devices exist for simulated processes only; this library is for `sluice perf "
          "--fabric "
          "virtual` and `sluice scenario`, other programs use the one in lib/soft");
    }
    return std::shared_ptr<Session>(sessions_[static_cast<size_t>(current)]);
  }

 private:
  Status CreateFabric(const VirtualFabricSettings& settings) {
    Result<TopologySource> source = ReadTopologySource(settings.topology);
    if (!source.ok()) return source.status();
    Result<Topology> topology = TopologyOf(*source);
    if (!topology.ok()) return topology.status();
    SLUICE_RETURN_IF_ERROR(ApplyOverrides(settings.overrides, &*topology));
    SLUICE_RETURN_IF_ERROR(topology->Add(settings.faults, settings.background));
    if (settings.seed != nullptr) topology->seed = topology->routing.seed = *settings.seed;
    Result<std::unique_ptr<Fabric>> fabric =
        Fabric::Create(std::move(*topology), &core_.pool, MakeBackgroundPlayer);
    if (!fabric.ok()) return fabric.status();
    core_.fabric = std::move(*fabric);
    std::lock_guard files_lock(files_mutex_);
    if (removed_) return InternalError("virtual fabric: its files are removed already");
    sysfs_ = std::make_unique<SysfsTree>();
    return sysfs_->Create("virtual-" + std::to_string(getpid()));
  }
  const char* Text(const Status& status) {
    if (status.ok()) return nullptr;
    text_ = status.message();
    return text_.c_str();
  }

  mutable VirtualCore core_;
  // A signal or a watchdog removes the files while the driving thread goes on.
  std::mutex files_mutex_;
  std::unique_ptr<SysfsTree> sysfs_;  // guarded by files_mutex_
  bool removed_ = false;              // guarded by files_mutex_
  std::vector<std::shared_ptr<DirectSession>> sessions_;
  std::atomic<int64_t> current_{-1};
  std::string text_;
};

// Never destroyed: threads of plugins may call verbs while the program exits.
VirtualFabricImpl& TheFabric() {
  static auto* fabric = new VirtualFabricImpl;
  return *fabric;
}

}  // namespace

Result<std::shared_ptr<Session>> Session::Get() {
  return TheFabric().Current();
}

const char* Session::SysfsRoot() {
  const Result<std::shared_ptr<Session>> session = TheFabric().Current();
  return session.ok() ? (*session)->welcome().sysfs_root : "/sys";
}

}  // namespace sluice::soft

extern "C" sluice::soft::VirtualFabric* sluice_virtual_fabric() {
  return &sluice::soft::TheFabric();
}
