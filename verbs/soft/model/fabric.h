// The whole software fabric: every host's NICs, the network between them, and model time. A pure in-process
// library: no I/O, no thread, no wall clock; the same calls at the same model times give the same result to
// the byte.
//
//   Result<std::unique_ptr<Fabric>> fabric = Fabric::Create(Topology::Default(), &pool);
//   Result<uint32_t> host = (*fabric)->AcquireHost("");
//   ProcessId process = (*fabric)->AttachProcess(*host, &memory);
//   ... verbs on (*fabric)->nic(*host, 0) ...
//   (*fabric)->Advance(now);              // real time: every event up to `now`
//   while ((t = (*fabric)->NextEventTime()) != kNever) (*fabric)->Advance(t);   // virtual time
//
// Work posted between two Advance calls happens at Now(). Thread rule: one thread drives everything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/memory.h"
#include "verbs/soft/model/model_traffic.h"
#include "verbs/soft/model/nic.h"
#include "verbs/soft/model/topology.h"

namespace sluice::soft {

// What a fault hook sees of a packet that is about to enter a link.
struct PacketView {
  uint32_t link = 0;  // directed: 2 * index in Topology::links, + 1 for the direction b to a
  bool from_host = false;
  uint32_t source_endpoint = 0, destination_endpoint = 0;  // NIC ports in topology order: host, NIC, port
  uint32_t destination_qp = 0;
  uint32_t psn = 0;
  bool is_ack = false;  // ACK, NAK or RNR NAK
  bool is_nak = false;
  bool is_cnp = false;            // congestion notification
  bool is_read_response = false;  // READ or atomic response
  uint32_t payload_bytes = 0, wire_bytes = 0;
};
enum class PacketFate : uint8_t {
  kDeliver,
  kDrop,
  kCorrupt
};  // a corrupted packet is dropped by the receiving NIC
using FaultHook = std::function<PacketFate(const PacketView&)>;

struct FabricStatistics {
  uint64_t events = 0;
  uint64_t packet_hops = 0;        // one packet, data or ACK, over one link
  uint64_t dropped_packets = 0;    // by faults, downed links and full buffers
  uint64_t corrupted_packets = 0;  // by faults; the receiving NIC drops them
  uint64_t trace_hash = 0;         // over every packet arrival: equal runs have equal hashes
  uint64_t dma_pending = 0;
};

class NetworkTruth;

class Fabric {
 public:
  // `pool` must outlive the fabric. `traffic` plays the topology's background traffic; without it a topology
  // that has some is refused.
  static Result<std::unique_ptr<Fabric>> Create(Topology topology, PayloadPool* pool,
                                                TrafficMaker traffic = nullptr);
  virtual ~Fabric() = default;

  // Time.
  virtual Picos Now() const = 0;
  virtual Picos NextEventTime() const = 0;  // kNever when nothing will happen by itself
  virtual void Advance(Picos until) = 0;    // runs events in order, then Now() == max(Now(), until)
  // As Advance, but stops after `max_events`; returns true when `until` was reached. The real-time driver
  // uses it to serve its processes between slices of a backlog.
  virtual bool AdvanceBounded(Picos until, uint64_t max_events) = 0;
  // Events of the caller (virtual time: timers, poll gaps) in the same order as the model's own.
  virtual void CallAt(Picos when, std::function<void()> call) = 0;

  // Hosts and processes. AcquireHost: a name of the topology or its number; an empty name picks the first
  // host without processes; on demand, an unknown name takes a free host. A host is free again when its last
  // process detaches.
  virtual const Topology& topology() const = 0;
  virtual Result<uint32_t> AcquireHost(std::string_view name) = 0;
  virtual ProcessId AttachProcess(uint32_t host, ProcessMemory* memory) = 0;
  // Frees every object of the process at once; its memory is not touched any more. Peers see silence, then
  // timeouts.
  virtual void DetachProcess(ProcessId process) = 0;
  virtual uint32_t nic_count(uint32_t host) const = 0;
  virtual Nic* nic(uint32_t host, uint32_t index) = 0;  // nullptr: no such NIC

  // Answer to ProcessMemory::Gather and Atomic. ok == false: the process cannot read that memory.
  virtual void DmaDone(DmaId id, bool ok, uint64_t value) = 0;

  // Faults.
  virtual void SetFaultHook(FaultHook hook) = 0;  // empty: none. Comes before the topology's own faults
  virtual Status SetLinkUp(uint32_t link, bool up) = 0;  // index in Topology::links; both directions
  virtual Status SetLinkRate(uint32_t link,
                             uint64_t rate_bps) = 0;  // both directions, from the next packet on
  virtual Status SetReceiverStalled(uint32_t endpoint, bool stalled) = 0;  // the NIC port takes nothing more
  virtual Status ResetSwitch(uint32_t switch_index) = 0;                   // its queues are lost
  // A book for the drivers: no process of the host runs before this time.
  virtual void PauseHost(uint32_t host, Picos until) = 0;
  virtual Picos HostPausedUntil(uint32_t host) const = 0;
  virtual FabricStatistics statistics() const = 0;
  // What happened inside the network, for tests and scenarios.
  virtual NetworkTruth& truth() = 0;
};

}  // namespace sluice::soft
