// The objects of one NIC and the way of packets and events to its queue pairs.
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "verbs/soft/model/core.h"
#include "verbs/soft/model/nic.h"
#include "verbs/soft/model/port.h"
#include "verbs/soft/model/qp.h"
#include "verbs/soft/model/queues.h"

namespace sluice::soft {

class NicImpl final : public Nic, public EventTarget, public PortOwner {
 public:
  // `ordinal` counts NICs over the whole topology; `first_endpoint` is that of port 1.
  NicImpl(FabricCore* core, uint32_t host, uint32_t index, uint32_t ordinal, uint32_t first_endpoint,
          const NicSpec& spec, const NicSettings& settings);
  ~NicImpl() override;

  // Nic.
  const NicInfo& info() const override { return info_; }
  void QueryDevice(ibv_device_attr* attr) const override;
  uint32_t max_inline() const override { return limits_.max_inline; }
  uint32_t port_count() const override { return static_cast<uint32_t>(ports_.size()); }
  int QueryPort(uint32_t port, ibv_port_attr* attr) const override;
  int QueryGid(uint32_t port, uint32_t gid_index, GidEntry* entry) const override;
  int QueryPkey(uint32_t port, uint32_t index, uint16_t* pkey) const override;
  const PortCounters* counters(uint32_t port) const override;
  int AllocPd(ProcessId process, PdId* pd) override;
  int DeallocPd(ProcessId process, PdId pd) override;
  int RegMr(ProcessId process, PdId pd, uint64_t address, uint64_t length, uint64_t iova, unsigned access,
            uint32_t* key) override;
  int DeregMr(ProcessId process, uint32_t key) override;
  int CreateCq(ProcessId process, uint32_t cqe, CqId* cq, uint32_t* depth) override;
  int ResizeCq(ProcessId process, CqId cq, uint32_t cqe, uint32_t* depth) override;
  int DestroyCq(ProcessId process, CqId cq) override;
  int CreateSrq(ProcessId process, PdId pd, const ibv_srq_attr& attr, SrqId* srq,
                ibv_srq_attr* actual) override;
  int ModifySrq(ProcessId process, SrqId srq, const ibv_srq_attr& attr, int mask) override;
  int QuerySrq(ProcessId process, SrqId srq, ibv_srq_attr* attr) override;
  int DestroySrq(ProcessId process, SrqId srq) override;
  int PostSrqRecv(SrqId srq, const RecvWork& work) override;
  int CreateQp(ProcessId process, QpInit* init, uint32_t* qp_num) override;
  int ModifyQp(ProcessId process, uint32_t qp_num, const ibv_qp_attr& attr, int mask) override;
  int QueryQp(ProcessId process, uint32_t qp_num, ibv_qp_attr* attr) override;
  int DestroyQp(ProcessId process, uint32_t qp_num) override;
  int PostSend(uint32_t qp_num, const SendWork& work) override;
  int PostRecv(uint32_t qp_num, const RecvWork& work) override;
  ProcessId PeerProcess(uint32_t qp_num) override;
  int SetPortUp(uint32_t port, bool up) override;
  int SetGid(uint32_t port, uint32_t gid_index, const GidEntry& entry) override;
  void Die() override;

  // Inside the model.
  const ResourceLimits& limits() const { return limits_; }
  const NicSettings& settings() const { return host_interface_.settings(); }
  Port* port(uint32_t number) {
    return number == 0 || number > ports_.size() ? nullptr : ports_[number - 1].get();
  }
  void Deliver(Port* port, const Packet& packet) override;
  void LinkChanged(uint32_t port, bool up);
  void Detach(ProcessId process);
  Qp* FindQp(uint32_t qp_num) {
    const auto found = qps_.find(qp_num);
    return found == qps_.end() ? nullptr : found->second.get();
  }
  // The queue pair at the other end of `qp`, if it exists and is connected to `qp`.
  const Qp* FindPeer(const Qp& qp) const;
  void OnDma(const DmaRecord& record, bool ok, uint64_t value);
  void ScheduleTimer(Picos at, uint32_t qp_num) {
    core_.network.scheduler.At(at, this, kTransportTimer, qp_num);
  }
  void ScheduleRnr(Picos at, uint32_t qp_num) { core_.network.scheduler.At(at, this, kRnrTimer, qp_num); }
  void ScheduleDoorbell(Picos at, uint32_t qp_num) {
    core_.network.scheduler.At(at, this, kDoorbell, qp_num);
  }
  void OnEvent(uint32_t kind, uint64_t argument) override;

  // Memory regions. `local` receives the address in the process. False: no such key in this PD, out of
  // bounds, or the region lacks `access`.
  bool ResolveLocal(PdId pd, const ibv_sge& sge, unsigned access, uint64_t* local) const;
  bool ResolveRemote(PdId pd, uint32_t key, uint64_t address, uint64_t length, unsigned access,
                     uint64_t* local) const;
  bool InvalidateKey(PdId pd, uint32_t key);
  // Changes whenever a region goes: results of Resolve are good while it stays.
  uint64_t memory_epoch() const { return memory_epoch_; }

  bool TakeShared(SharedReceiveQueue* srq, ReceiveWqe* wqe);
  void PushCompletion(CompletionQueue* cq, ProcessMemory* memory, Completion* completion);

 private:
  enum : uint32_t { kTransportTimer, kRnrTimer, kCqOverrun, kDoorbell };

  struct ProtectionDomain {
    ProcessId process = 0;
    uint32_t users = 0;
  };
  struct MemoryRegion {
    PdId pd = 0;  // 0: free slot
    ProcessId process = 0;
    uint32_t generation = 0;
    unsigned access = 0;
    uint64_t address = 0;
    uint64_t length = 0;
    uint64_t iova = 0;
  };

  ProtectionDomain* FindPd(ProcessId process, PdId pd);
  CompletionQueue* FindCq(ProcessId process, CqId cq);
  SharedReceiveQueue* FindSrq(ProcessId process, SrqId srq);
  Qp* FindOwnQp(ProcessId process, uint32_t qp_num);
  const MemoryRegion* FindMr(PdId pd, uint32_t key) const;
  void FreeMr(uint32_t index);
  void FreeQp(uint32_t qp_num);
  void OnCqOverrun(CqId cq);
  void NotifyProcesses(ibv_event_type type, uint32_t element);
  uint32_t NextQpNumber();

  FabricCore& core_;
  NicInfo info_;
  ResourceLimits limits_;
  HostInterface host_interface_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::unordered_map<PdId, ProtectionDomain> pds_;
  std::vector<MemoryRegion> mrs_;
  std::vector<uint32_t> free_mrs_;
  uint64_t memory_epoch_ = 1;
  std::unordered_map<CqId, std::unique_ptr<CompletionQueue>> cqs_;
  std::unordered_map<SrqId, std::unique_ptr<SharedReceiveQueue>> srqs_;
  std::unordered_map<uint32_t, std::unique_ptr<Qp>> qps_;
  uint32_t next_qp_ = 0;
  bool dead_ = false;
};

}  // namespace sluice::soft
