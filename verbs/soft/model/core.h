// What the parts of one fabric share: the network, addresses, outstanding memory accesses, work that waits
// for payload buffers, and the processes.
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/addressing.h"
#include "verbs/soft/model/memory.h"
#include "verbs/soft/model/model_traffic.h"
#include "verbs/soft/model/nic.h"
#include "verbs/soft/model/transmitter.h"

namespace sluice::soft {

class NicImpl;

struct Process {
  uint32_t host = 0;
  ProcessMemory* memory = nullptr;
};

enum class DmaKind : uint8_t { kSendGather, kResponseGather, kAtomic };

struct DmaRecord {
  NicImpl* nic = nullptr;
  uint32_t qp_num = 0;
  ProcessId process = 0;
  DmaKind kind = DmaKind::kSendGather;
  uint64_t tag = 0;  // segment number or PSN, for the queue pair
};

// Outstanding memory accesses. An id is a slot and the count of its uses, so a late answer finds nothing.
class DmaTable {
 public:
  DmaId Open(const DmaRecord& record);
  // False: no such access is outstanding.
  bool Close(DmaId id, DmaRecord* record);
  void Forget(ProcessId process);
  uint64_t pending() const { return pending_; }

 private:
  struct Slot {
    DmaRecord record;
    uint64_t use = 0;
    bool open = false;
  };
  static constexpr int kSlotBits = 24;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  uint64_t pending_ = 0;
};

struct FabricCore;

// Queue pairs that found the payload pool empty. They are asked again, oldest first, every microsecond of
// model time.
class PayloadWaiters final : public EventTarget {
 public:
  explicit PayloadWaiters(FabricCore* core) : core_(core) {}
  void Add(NicImpl* nic, uint32_t qp_num);
  void OnEvent(uint32_t kind, uint64_t argument) override;

 private:
  struct Waiter {
    NicImpl* nic;
    uint32_t qp_num;
  };
  FabricCore* core_;
  std::deque<Waiter> waiters_;
  bool scheduled_ = false;
};

struct FabricCore {
  explicit FabricCore(PayloadPool* payload_pool) : pool(payload_pool), payload_waiters(this) {}
  FabricCore(const FabricCore&) = delete;
  FabricCore& operator=(const FabricCore&) = delete;

  NetworkContext network;
  PayloadPool* pool;
  AddressMap addresses;
  DmaTable dma;
  PayloadWaiters payload_waiters;
  std::map<ProcessId, Process> processes;  // ordered: events reach them in a fixed order
  std::vector<NicImpl*> nic_of_endpoint;
  std::vector<MemoryRange> ranges;  // scratch, for one ProcessMemory::Gather
  FlowHashKind flow_hash = FlowHashKind::kCrc32;
  uint32_t next_object = 1;  // PDs, CQs, SRQs: one number space, so that a handle is never taken for another

  std::function<Status(uint32_t link, bool up)> set_link_up;
  ModelTraffic* traffic = nullptr;  // nullptr: processes alone send

  Picos Now() const { return network.scheduler.Now(); }
  Process* FindProcess(ProcessId id) {
    const auto found = processes.find(id);
    return found == processes.end() ? nullptr : &found->second;
  }
};

}  // namespace sluice::soft
