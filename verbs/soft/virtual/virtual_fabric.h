// The software fabric in virtual time, as the program that drives it sees it. The library
// lib/virtual/libibverbs.so.1 has the same verbs objects as the one for real time, over a fabric in its own
// address space: no fabric process, no rings, one copy from a sender's memory to a receiver's, and a clock
// that moves only when the driver says so.
//
//   void* library = dlopen("lib/virtual/libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);   // before anything that
//   needs verbs auto get = reinterpret_cast<VirtualFabricGetter*>(dlsym(library, kVirtualFabricSymbol));
//   VirtualFabric* fabric = get();
//   fabric->Create({.topology = "hosts=4,rate=400G", .completion_cost = 60'000});
//   fabric->AddProcess(2, &process);
//   fabric->Enter(process);                  // ibv_get_device_list now shows host 2's devices
//   ... verbs ...
//   while (!done) fabric->Run(fabric->NextEventTime(), 1);
//
// Texts are owned by the fabric and good until the next call that returns one; nullptr is success. Thread
// rule: one thread drives. Verbs may be called by any thread; while the clock stands they take effect at
// once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/truth_summary.h"

namespace sluice::soft {

// What an event did to a process.
enum TouchKind : uint8_t {
  kTouchedControl = 1,  // a completion or an event, or bytes in memory that was not declared as data
  kTouchedData = 2,     // bytes in declared data
};
struct Touch {
  uint32_t process = 0;
  uint8_t kinds = 0;  // TouchKind
};

struct VirtualStatistics {
  uint64_t events = 0;
  uint64_t packet_hops = 0;
  uint64_t dropped_packets = 0;
  uint64_t corrupted_packets = 0;
  uint64_t trace_hash = 0;
};

struct VirtualFabricSettings {
  const char* topology = "";       // as Topology::Parse takes it
  const uint64_t* seed = nullptr;  // of routes, faults and background traffic; nullptr: as the topology says
  Picos completion_cost = 0;       // processor time of taking one completion
  // What is different from the topology: "switches.KEY=value,nics.KEY=value,routing.KEY=value".
  const char* overrides = "";
  // Traffic beside that of the topology, as BackgroundSpec::ListFromText takes it.
  const char* background = "";
  const char* faults = "";  // likewise, as FaultSpec::ListFromText takes them
};

class VirtualFabric {
 public:
  // Once. Faults and background traffic of SLUICE_FABRIC_FAULTS and SLUICE_FABRIC_BACKGROUND are added to the
  // topology's.
  virtual const char* Create(const VirtualFabricSettings& settings) = 0;
  // Where its files are: what others put there goes with RemoveFiles as well.
  virtual const char* directory() const = 0;
  virtual uint32_t host_count() const = 0;
  virtual const char* host_name(uint32_t host) const = 0;

  // A simulated process on `host`; they are numbered from 0.
  virtual const char* AddProcess(uint32_t host, uint32_t* process) = 0;
  // Until the next Enter a device list, whichever thread asks for it, shows this process's devices. Whatever
  // has a device context belongs to the process that opened it.
  virtual void Enter(uint32_t process) = 0;
  // Memory in which no plugin looks for news, so that bytes written there do not end a processor's sleep.
  virtual void DeclareData(uint32_t process, const void* begin, size_t bytes) = 0;
  virtual void ForgetData(uint32_t process, const void* begin) = 0;

  // The clock.
  virtual Picos Now() const = 0;
  // A fault holds the process's host until then; in the past: it runs.
  virtual Picos PausedUntil(uint32_t process) const = 0;
  virtual Picos NextEventTime() const = 0;  // kNever: nothing will happen by itself
  // Runs events in their order up to `until`. False: it stopped before, because an event touched a process
  // (then Now() is the time of that event) or `max_events` ran.
  virtual bool Run(Picos until, uint64_t max_events) = 0;
  // Processes touched since the last call, in the order of the first touch. Writes at most `capacity`.
  virtual size_t TakeTouched(Touch* out, size_t capacity) = 0;

  // Processor time of what a process does at Now(): BeginPass, then Charge before each call. Work is posted
  // to the NIC that much later; what completes meanwhile is seen by the next pass. EndPass returns the sum.
  virtual void BeginPass() = 0;
  virtual void Charge(Picos cost) = 0;
  virtual Picos EndPass() = 0;

  virtual VirtualStatistics statistics() const = 0;
  // What happened inside the network, which no plugin sees.
  virtual TruthSummary truth() const = 0;
  // Where packets lie in switches now, one line each; good until the next call.
  virtual const char* DescribeQueues() = 0;
  // Of the bytes inside switches, counted from TrackDestinations on.
  virtual void TrackDestinations() = 0;
  virtual uint64_t PeakBytesBoundFor(uint32_t endpoint) const = 0;
  // Brings the counters that programs read from files up to date, as a device does now and then.
  virtual void RefreshCounters() = 0;
  // Removes what lies in the file system; no process can be added any more. Any thread.
  virtual void RemoveFiles() = 0;

 protected:
  ~VirtualFabric() = default;
};

using VirtualFabricGetter = VirtualFabric*();
inline constexpr char kVirtualFabricSymbol[] = "sluice_virtual_fabric";

}  // namespace sluice::soft
