#include "verbs/soft/model/faults_plan.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "verbs/soft/model/random.h"
#include "verbs/soft/model/topology_check.h"
#include "verbs/soft/model/topology_names.h"
#include "verbs/soft/model/topology_text.h"

namespace sluice::soft {
namespace {

enum Purpose : uint64_t { kRandomPacket = 0x46415430, kRandomGap };

bool OnPackets(FaultKind kind) {
  return kind == FaultKind::kLoss || kind == FaultKind::kCorruption;
}

uint8_t PacketBit(const PacketView& view) {
  if (view.is_cnp) return 0;
  if (!view.is_ack) return kFaultData;
  return view.is_nak ? kFaultNak : kFaultAck;
}

}  // namespace

Result<std::unique_ptr<FaultPlan>> FaultPlan::Make(const Topology& topology,
                                                   const std::vector<FaultSpec>& specs, uint64_t seed) {
  std::unique_ptr<FaultPlan> plan(new FaultPlan(topology, specs, seed));
  SLUICE_RETURN_IF_ERROR(plan->Resolve());
  return plan;
}

Status FaultPlan::Resolve() {
  links_down_.resize(topology_.links.size());
  receivers_stalled_.resize(EndpointIndex(topology_).count());
  gids_.resize(specs_.size());
  for (uint32_t index = 0; index < specs_.size(); ++index) SLUICE_RETURN_IF_ERROR(AddSpec(index));
  // At equal times in the order of the specs; the end of a fault before the start of the next.
  std::stable_sort(actions_.begin(), actions_.end(),
                   [](const Action& a, const Action& b) { return a.at < b.at; });
  return {};
}

std::vector<FaultPlan::Span> FaultPlan::Spans(uint32_t index) const {
  const FaultSpec& spec = specs_[index];
  std::vector<Span> spans;
  Random random(seed_, kRandomGap, index);
  Picos at = spec.at;
  for (uint32_t i = 0; i < spec.times; ++i) {
    if (spec.mean_gap != 0) {
      // Exponential; the first start is drawn too, so that runs of different seeds differ.
      at += static_cast<Picos>(-std::log1p(-random.Unit()) * static_cast<double>(spec.mean_gap));
    }
    const Picos end = spec.duration == 0 ? kNever : at + spec.duration;
    spans.push_back({at, end});
    at = spec.mean_gap != 0 ? end : at + spec.every;
  }
  return spans;
}

Status FaultPlan::ResolveTarget(uint32_t index, std::vector<uint32_t>* objects) {
  const FaultSpec& spec = specs_[index];
  const TopologyNames names(topology_);
  const auto located = [&](const Status& status) {
    return InvalidArgument(spec.where + ": fault " + std::string(FaultKindName(spec.kind)) + ": " +
                           status.message());
  };
  switch (spec.kind) {
    case FaultKind::kLoss:
    case FaultKind::kCorruption: {
      if (spec.target.empty()) return {};
      Result<std::vector<uint32_t>> links = names.DirectedLinks(spec.target);
      if (!links.ok()) return located(links.status());
      *objects = std::move(*links);
      return {};
    }
    case FaultKind::kLinkDown:
    case FaultKind::kSlowLink: {
      Result<std::vector<uint32_t>> links = names.Links(spec.target);
      if (!links.ok()) return located(links.status());
      *objects = std::move(*links);
      for (const uint32_t link : *objects) {
        if (spec.kind != FaultKind::kSlowLink || spec.rate_bps < topology_.links[link].rate_bps) continue;
        return located(InvalidArgument("rate = " + RateText(spec.rate_bps) + " is not below the rate of \"" +
                                       spec.target + "\", " + RateText(topology_.links[link].rate_bps) +
                                       "; use less"));
      }
      return {};
    }
    case FaultKind::kSwitchReboot: {
      const Result<uint32_t> node = names.Switch(spec.target);
      if (!node.ok()) return located(node.status());
      *objects = {*node};
      return {};
    }
    case FaultKind::kHostPause: {
      const Result<uint32_t> host = names.Host(spec.target);
      if (!host.ok()) return located(host.status());
      *objects = {*host};
      return {};
    }
    case FaultKind::kPortFlap:
    case FaultKind::kGidChange:
    case FaultKind::kNicDeath:
    case FaultKind::kStalledReceiver:
      break;
  }
  bool port_given = false;
  const Result<LinkEnd> end = names.End(spec.target, &port_given);
  if (!end.ok()) return located(end.status());
  if (end->is_switch) {
    return located(InvalidArgument("\"" + spec.target + "\" is a switch; name a port of a NIC, such as " +
                                   topology_.hosts[0].name + "/" + topology_.hosts[0].nics[0].name + "/1"));
  }
  if (spec.kind == FaultKind::kGidChange &&
      topology_.hosts[end->node].nics[end->nic].ports[end->port].link_layer == LinkLayer::kInfiniBand &&
      spec.to_index >= 0) {
    return located(InvalidArgument("\"" + spec.target +
                                   "\" is an InfiniBand port, whose GID stays at index 0; use gid"));
  }
  gids_[index].port = *end;
  *objects = {EndpointIndex(topology_).Find(*end)};
  return {};
}

Status FaultPlan::AddSpec(uint32_t index) {
  const FaultSpec& spec = specs_[index];
  std::vector<uint32_t> objects;
  SLUICE_RETURN_IF_ERROR(ResolveTarget(index, &objects));
  if (OnPackets(spec.kind)) {
    Rule rule;
    rule.spec = index;
    rule.seen.resize(2 * topology_.links.size());
    if (!spec.target.empty()) rule.links.resize(2 * topology_.links.size());
    for (const uint32_t link : objects) {
      rule.links[link] = true;
      if (!spec.one_way) rule.links[link ^ 1] = true;
    }
    objects = {static_cast<uint32_t>(rules_.size())};
    rules_.push_back(std::move(rule));
  }
  GidState& gid = gids_[index];
  gid.index = spec.gid_index;
  gid.other_index = spec.to_index >= 0 ? static_cast<uint32_t>(spec.to_index) : spec.gid_index;
  if (!spec.gid.empty()) {
    gid.held.valid = true;
    inet_pton(AF_INET6, spec.gid.c_str(), gid.held.gid.raw);
  }
  for (const Span& span : Spans(index)) {
    switch (spec.kind) {
      case FaultKind::kLoss:
      case FaultKind::kCorruption:
        Add(span.from, ActionKind::kRuleOn, index, objects);
        Add(span.to, ActionKind::kRuleOff, index, objects);
        break;
      case FaultKind::kLinkDown:
        Add(span.from, ActionKind::kLinkDown, index, objects);
        Add(span.to, ActionKind::kLinkUp, index, objects);
        break;
      case FaultKind::kPortFlap: {
        std::vector<uint32_t> links;
        for (uint32_t i = 0; i < topology_.links.size(); ++i) {
          for (const LinkEnd* end : {&topology_.links[i].a, &topology_.links[i].b}) {
            if (!end->is_switch && EndpointIndex(topology_).Find(*end) == objects[0]) links.push_back(i);
          }
        }
        Add(span.from, ActionKind::kLinkDown, index, links);
        Add(span.to, ActionKind::kLinkUp, index, links);
        if (spec.to_index >= 0) {
          Add(span.from, ActionKind::kTakeGid, index, objects);
          Add(span.to + spec.gid_delay, ActionKind::kPutGid, index, objects);
        }
        break;
      }
      case FaultKind::kGidChange:
        for (const Picos at : {span.from, span.to}) {
          if (spec.to_index >= 0) {
            Add(at, ActionKind::kTakeGid, index, objects);
            Add(at, ActionKind::kPutGid, index, objects);
          } else {
            Add(at, ActionKind::kSwapGid, index, objects);
          }
        }
        break;
      case FaultKind::kNicDeath:
        Add(span.from, ActionKind::kKill, index, objects);
        break;
      case FaultKind::kSwitchReboot: {
        std::vector<uint32_t> links;
        for (uint32_t i = 0; i < topology_.links.size(); ++i) {
          const LinkSpec& link = topology_.links[i];
          if ((link.a.is_switch && link.a.node == objects[0]) ||
              (link.b.is_switch && link.b.node == objects[0])) {
            links.push_back(i);
          }
        }
        Add(span.from, ActionKind::kLinkDown, index, links);
        Add(span.from, ActionKind::kReset, index, objects);
        Add(span.to, ActionKind::kLinkUp, index, links);
        break;
      }
      case FaultKind::kSlowLink:
        Add(span.from, ActionKind::kSlow, index, objects);
        Add(span.to, ActionKind::kFullRate, index, objects);
        break;
      case FaultKind::kStalledReceiver:
        Add(span.from, ActionKind::kStall, index, objects);
        Add(span.to, ActionKind::kGoOn, index, objects);
        break;
      case FaultKind::kHostPause:
        Add(span.from, ActionKind::kPause, index, objects, span.to);
        break;
    }
  }
  return {};
}

void FaultPlan::Add(Picos at, ActionKind kind, uint32_t spec, const std::vector<uint32_t>& objects,
                    Picos until) {
  if (at == kNever) return;
  actions_.push_back({at, kind, spec, objects, until});
}

void FaultPlan::Start(FaultTarget* target) {
  target_ = target;
  DoDue(0);
}

// Only the next time is in the target's event queue.
void FaultPlan::DoDue(Picos now) {
  while (next_ < actions_.size() && actions_[next_].at <= now) Do(actions_[next_++]);
  if (next_ == actions_.size()) return;
  const Picos at = actions_[next_].at;
  target_->CallAt(at, [this, at] { DoDue(at); });
}

void FaultPlan::Do(const Action& action) {
  const FaultSpec& spec = specs_[action.spec];
  GidState& gid = gids_[action.spec];
  const LinkEnd& port = gid.port;
  switch (action.kind) {
    case ActionKind::kRuleOn:
    case ActionKind::kRuleOff:
      SetRule(action.objects[0], action.kind == ActionKind::kRuleOn);
      return;
    case ActionKind::kLinkDown:
      for (const uint32_t link : action.objects) {
        if (links_down_[link]++ == 0) target_->SetLinkUp(link, false);
      }
      return;
    case ActionKind::kLinkUp:
      for (const uint32_t link : action.objects) {
        if (--links_down_[link] == 0) target_->SetLinkUp(link, true);
      }
      return;
    case ActionKind::kReset:
      target_->ResetSwitch(action.objects[0]);
      return;
    case ActionKind::kSlow:
      for (const uint32_t link : action.objects) target_->SetLinkRate(link, spec.rate_bps);
      return;
    case ActionKind::kFullRate:
      for (const uint32_t link : action.objects) target_->SetLinkRate(link, topology_.links[link].rate_bps);
      return;
    case ActionKind::kStall:
      if (receivers_stalled_[action.objects[0]]++ == 0) target_->SetReceiverStalled(action.objects[0], true);
      return;
    case ActionKind::kGoOn:
      if (--receivers_stalled_[action.objects[0]] == 0) target_->SetReceiverStalled(action.objects[0], false);
      return;
    case ActionKind::kKill:
      target_->KillNic(port.node, port.nic);
      return;
    case ActionKind::kPause:
      target_->PauseHost(action.objects[0], action.until);
      return;
    case ActionKind::kTakeGid:
      gid.held = target_->Gid(port.node, port.nic, port.port + 1, gid.index);
      target_->SetGid(port.node, port.nic, port.port + 1, gid.index, {{}, gid.held.type, false});
      return;
    case ActionKind::kPutGid:
      std::swap(gid.index, gid.other_index);
      target_->SetGid(port.node, port.nic, port.port + 1, gid.index, gid.held);
      return;
    case ActionKind::kSwapGid: {
      const GidEntry now = target_->Gid(port.node, port.nic, port.port + 1, gid.index);
      gid.held.type = now.type;
      target_->SetGid(port.node, port.nic, port.port + 1, gid.index, gid.held);
      gid.held = now;
      return;
    }
  }
}

void FaultPlan::SetRule(uint32_t rule, bool active) {
  rules_[rule].active = active;
  active_rules_ += active ? 1 : -1;
  // Without an active rule packets pay nothing.
  if (active_rules_ == 0) {
    target_->SetFaultHook({});
  } else if (active && active_rules_ == 1) {
    target_->SetFaultHook([this](const PacketView& view) { return FateOf(view); });
  }
}

PacketFate FaultPlan::FateOf(const PacketView& view) {
  for (uint32_t index = 0; index < rules_.size(); ++index) {
    Rule& rule = rules_[index];
    if (!rule.active || (!rule.links.empty() && !rule.links[view.link])) continue;
    const FaultSpec& spec = specs_[rule.spec];
    if ((spec.packets & PacketBit(view)) == 0 || rule.hit >= spec.count) continue;
    const uint64_t number = uint64_t{view.link} << 32 | rule.seen[view.link]++;
    if (Random(seed_ + index, kRandomPacket, number).Unit() >= spec.probability) continue;
    ++rule.hit;
    return spec.kind == FaultKind::kLoss ? PacketFate::kDrop : PacketFate::kCorrupt;
  }
  return PacketFate::kDeliver;
}

std::vector<uint64_t> FaultPlan::PacketsHit() const {
  std::vector<uint64_t> hits;
  for (const Rule& rule : rules_) hits.push_back(rule.hit);
  return hits;
}

std::vector<std::string> FaultPlan::Describe() const {
  std::vector<std::string> lines;
  for (uint32_t index = 0; index < specs_.size(); ++index) {
    const FaultSpec& spec = specs_[index];
    for (const Span& span : Spans(index)) {
      std::string line = TimeText(span.from) + " " + std::string(FaultKindName(spec.kind));
      if (!spec.target.empty()) line += " " + spec.target;
      if (span.to != kNever) line += " for " + TimeText(span.to - span.from);
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

void FabricFaultTarget::CallAt(Picos when, std::function<void()> call) {
  fabric_.CallAt(when, std::move(call));
}

void FabricFaultTarget::SetFaultHook(FaultHook hook) {
  fabric_.SetFaultHook(std::move(hook));
}

// The plan has checked every number: these calls cannot be refused.
void FabricFaultTarget::SetLinkUp(uint32_t link, bool up) {
  (void)fabric_.SetLinkUp(link, up);
}

void FabricFaultTarget::SetLinkRate(uint32_t link, uint64_t rate_bps) {
  (void)fabric_.SetLinkRate(link, rate_bps);
}

void FabricFaultTarget::SetReceiverStalled(uint32_t endpoint, bool stalled) {
  (void)fabric_.SetReceiverStalled(endpoint, stalled);
}

void FabricFaultTarget::ResetSwitch(uint32_t switch_index) {
  (void)fabric_.ResetSwitch(switch_index);
}

void FabricFaultTarget::KillNic(uint32_t host, uint32_t nic) {
  fabric_.nic(host, nic)->Die();
}

void FabricFaultTarget::PauseHost(uint32_t host, Picos until) {
  fabric_.PauseHost(host, until);
}

GidEntry FabricFaultTarget::Gid(uint32_t host, uint32_t nic, uint32_t port, uint32_t gid_index) {
  GidEntry entry;
  fabric_.nic(host, nic)->QueryGid(port, gid_index, &entry);
  return entry;
}

void FabricFaultTarget::SetGid(uint32_t host, uint32_t nic, uint32_t port, uint32_t gid_index,
                               const GidEntry& entry) {
  fabric_.nic(host, nic)->SetGid(port, gid_index, entry);
}

}  // namespace sluice::soft
