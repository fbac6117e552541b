// Faults of one run: the descriptions resolved against a topology, every random time drawn, applied to
// whatever carries the packets.
//
//   Result<std::unique_ptr<FaultPlan>> plan = FaultPlan::Make(topology, topology.faults, seed);
//   (*plan)->Start(&target);        // schedules everything; `plan` and `target` outlive the run
//   for (const std::string& line : (*plan)->Describe()) ...   // "2ms link-down leaf0-spine1 for 5ms"
//
// Equal seeds give equal times, and a packet's fate depends on nothing but the seed, the link and how many
// packets the rule has seen on that link. Thread rule: the thread that drives the target.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/fabric.h"
#include "verbs/soft/model/faults.h"
#include "verbs/soft/model/topology.h"

namespace sluice::soft {

// What faults are done to. Numbers are in range: the plan has checked them.
class FaultTarget {
 public:
  virtual ~FaultTarget() = default;
  virtual void CallAt(Picos when, std::function<void()> call) = 0;
  virtual void SetFaultHook(FaultHook hook) = 0;
  virtual void SetLinkUp(uint32_t link, bool up) = 0;
  virtual void SetLinkRate(uint32_t link, uint64_t rate_bps) = 0;
  virtual void SetReceiverStalled(uint32_t endpoint, bool stalled) = 0;
  virtual void ResetSwitch(uint32_t switch_index) = 0;
  virtual void KillNic(uint32_t host, uint32_t nic) = 0;
  virtual void PauseHost(uint32_t host, Picos until) = 0;
  // Ports count from 1. An invalid entry removes the GID.
  virtual GidEntry Gid(uint32_t host, uint32_t nic, uint32_t port, uint32_t gid_index) = 0;
  virtual void SetGid(uint32_t host, uint32_t nic, uint32_t port, uint32_t gid_index,
                      const GidEntry& entry) = 0;
};

// A fabric with verbs as the target.
class FabricFaultTarget : public FaultTarget {
 public:
  explicit FabricFaultTarget(Fabric* fabric) : fabric_(*fabric) {}
  void CallAt(Picos when, std::function<void()> call) override;
  void SetFaultHook(FaultHook hook) override;
  void SetLinkUp(uint32_t link, bool up) override;
  void SetLinkRate(uint32_t link, uint64_t rate_bps) override;
  void SetReceiverStalled(uint32_t endpoint, bool stalled) override;
  void ResetSwitch(uint32_t switch_index) override;
  void KillNic(uint32_t host, uint32_t nic) override;
  void PauseHost(uint32_t host, Picos until) override;
  GidEntry Gid(uint32_t host, uint32_t nic, uint32_t port, uint32_t gid_index) override;
  void SetGid(uint32_t host, uint32_t nic, uint32_t port, uint32_t gid_index, const GidEntry& entry) override;

 private:
  Fabric& fabric_;
};

class FaultPlan {
 public:
  // Unknown names are errors at the line that has them. `topology` outlives the plan.
  static Result<std::unique_ptr<FaultPlan>> Make(const Topology& topology,
                                                 const std::vector<FaultSpec>& specs, uint64_t seed);
  FaultPlan(const FaultPlan&) = delete;
  FaultPlan& operator=(const FaultPlan&) = delete;

  void Start(FaultTarget* target);
  // What each rule on packets has hit so far, in the order of the specs of kind loss and corruption.
  std::vector<uint64_t> PacketsHit() const;
  std::vector<std::string> Describe() const;
  bool empty() const { return actions_.empty() && rules_.empty(); }

 private:
  enum class ActionKind : uint8_t {
    kRuleOn,
    kRuleOff,
    kLinkDown,
    kLinkUp,
    kReset,
    kSlow,
    kFullRate,
    kStall,
    kGoOn,
    kKill,
    kPause,
    kTakeGid,  // from where it is
    kPutGid,   // to the other index
    kSwapGid,  // with the spare one
  };
  struct Action {
    Picos at = 0;
    ActionKind kind = ActionKind::kLinkDown;
    uint32_t spec = 0;
    std::vector<uint32_t> objects;  // links, endpoints, the switch, the host, the rule
    Picos until = 0;                // kPause
  };
  // Loss or corruption.
  struct Rule {
    uint32_t spec = 0;
    bool active = false;
    std::vector<bool> links;     // directed; empty: all
    std::vector<uint32_t> seen;  // packets by directed link
    uint64_t hit = 0;
  };
  // A GID that moves or changes, by spec.
  struct GidState {
    LinkEnd port;
    uint32_t index = 0;        // where it is
    uint32_t other_index = 0;  // where it goes next
    GidEntry held;             // taken away, or the spare one
  };

  FaultPlan(const Topology& topology, const std::vector<FaultSpec>& specs, uint64_t seed)
      : topology_(topology), specs_(specs), seed_(seed) {}
  Status Resolve();
  Status AddSpec(uint32_t index);
  Status ResolveTarget(uint32_t index, std::vector<uint32_t>* objects);
  void Add(Picos at, ActionKind kind, uint32_t spec, const std::vector<uint32_t>& objects, Picos until = 0);
  struct Span {
    Picos from;
    Picos to;  // kNever: until the end
  };
  std::vector<Span> Spans(uint32_t index) const;
  void DoDue(Picos now);
  void Do(const Action& action);
  void SetRule(uint32_t rule, bool active);
  PacketFate FateOf(const PacketView& view);

  const Topology& topology_;
  const std::vector<FaultSpec> specs_;
  const uint64_t seed_;
  std::vector<Action> actions_;  // by time
  std::vector<Rule> rules_;
  FaultTarget* target_ = nullptr;
  size_t next_ = 0;  // in actions_
  uint32_t active_rules_ = 0;
  std::vector<uint32_t> links_down_;         // by link: faults that hold it down
  std::vector<uint32_t> receivers_stalled_;  // by endpoint
  std::vector<GidState> gids_;               // by spec
};

}  // namespace sluice::soft
