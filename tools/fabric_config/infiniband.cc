// Service levels to virtual lanes and their arbitration.
#include <algorithm>
#include <cmath>

#include "tools/fabric_config/groups.h"
#include "tools/fabric_config/plan.h"

namespace sluice::fabric_config {
namespace {

// Weights count 64 bytes; a packet of the largest MTU is 4 KiB. Whole packets keep the shares exact.
constexpr int kPacketUnits = 64;
constexpr int kMostPackets = 3;  // in one entry, whose weight is at most 255

// Until the groups fit: strict ones share first, then the weighted ones of least weight, then all.
void FitToVls(std::vector<Group>* groups, int vls, std::vector<std::string>* warnings) {
  while (groups->size() > static_cast<size_t>(vls)) {
    const auto first_weighted =
        std::find_if(groups->begin(), groups->end(), [](const Group& group) { return !group.strict; });
    const auto strict = static_cast<size_t>(first_weighted - groups->begin());
    const size_t weighted = groups->size() - strict;
    const size_t first = strict >= 2 ? strict - 2 : weighted >= 2 ? groups->size() - 2 : 0;
    warnings->push_back(
        (*groups)[first].Name() + " and " + (*groups)[first + 1].Name() +
        " share one virtual lane: " + std::to_string(vls) + (vls == 1 ? " is" : " are") +
        " too few, so only Sluice's own scheduler keeps them apart; give the fabric more (--vls)");
    Merge(groups, first);
    SortByUrgency(groups);
  }
}

// Entries of the low table in proportion to the weights, the smallest being one packet per round.
std::vector<std::pair<int, int>> LowTable(const std::vector<Group>& groups, int entries,
                                          std::vector<std::string>* warnings) {
  struct Share {
    const Group* group;
    int packets;  // wanted
    int entries = 1;
    int Given() const { return std::min(packets, entries * kMostPackets); }
  };
  std::vector<Share> shares;
  int least = 0;
  for (const Group& group : groups) {
    if (group.strict) continue;
    least = least == 0 ? group.weight : std::min(least, group.weight);
  }
  for (const Group& group : groups) {
    if (!group.strict) shares.push_back({&group, std::max(1, (group.weight + least / 2) / least)});
  }
  if (shares.size() == 1) return {{shares[0].group->lane, kPacketUnits * kMostPackets}};
  for (int left = entries - static_cast<int>(shares.size()); left > 0; --left) {
    const auto neediest = std::max_element(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
      return a.packets - a.Given() < b.packets - b.Given();
    });
    if (neediest->packets == neediest->Given()) break;
    ++neediest->entries;
  }
  std::vector<std::pair<int, int>> table;
  // In turns, so that none waits for another's whole share.
  std::vector<int> written(shares.size());
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < shares.size(); ++i) {
      const int left = shares[i].Given() - written[i];
      if (left == 0) continue;
      const int packets = std::min(left, kMostPackets);
      table.emplace_back(shares[i].group->lane, packets * kPacketUnits);
      written[i] += packets;
      more = true;
    }
  }
  for (const Share& share : shares) {
    if (share.Given() == share.packets) continue;
    warnings->push_back(
        share.group->Name() + ": weight " + std::to_string(share.packets) + " : 1 becomes " +
        std::to_string(share.Given()) + " : 1, as an arbitration table has " + std::to_string(entries) +
        " entries of at most " + std::to_string(kMostPackets) +
        " packets; more entries (--arbitration-entries, see smpquery portinfo VLArbLowCap) come closer");
  }
  return table;
}

}  // namespace

InfiniBandPlan PlanInfiniBand(const Policy& policy, const Options& options) {
  InfiniBandPlan plan;
  std::vector<Marked> classes;
  for (const ServiceClass* one : ReachableClasses(policy)) classes.push_back({one, one->sl});
  plan.nothing =
      std::none_of(classes.begin(), classes.end(), [](const Marked& one) { return one.mark.has_value(); });
  if (plan.nothing) {
    plan.warnings.push_back(
        "the policy names no service level: every class uses the communicator's, and the network has nothing "
        "to configure; "
        "give classes an sl");
    return plan;
  }
  plan.groups = GroupByMark(classes, "sl", &plan.warnings);
  for (const Marked& one : classes) {
    if (one.mark) continue;
    plan.warnings.push_back("class " + one.service_class->name +
                            " names no sl: it uses the communicator's, 0 unless the job sets one");
  }
  FitToVls(&plan.groups, options.vls, &plan.warnings);
  // Management and whatever is unmarked use SL 0, which is VL 0 on every fabric.
  int next = 1;
  for (Group& group : plan.groups) group.lane = group.unmarked ? 0 : next++;
  for (const Group& group : plan.groups) {
    for (const int sl : group.marks) plan.vl_of_sl[static_cast<size_t>(sl)] = group.lane;
  }
  plan.low = LowTable(plan.groups, options.arbitration_entries, &plan.warnings);
  if (std::all_of(plan.groups.begin(), plan.groups.end(), [](const Group& group) { return group.strict; })) {
    // Strict over nothing: one table will do.
    for (const Group& group : plan.groups) plan.low.emplace_back(group.lane, kPacketUnits * kMostPackets);
  } else {
    for (const Group& group : plan.groups) {
      if (group.strict) plan.high.emplace_back(group.lane, kPacketUnits * kMostPackets);
    }
  }
  // After so many bytes of high priority, one packet of the low table goes.
  plan.high_limit = std::clamp(static_cast<int>(std::lround(100.0 / options.floor_percent)) - 1, 1, 254);
  std::sort(plan.groups.begin(), plan.groups.end(),
            [](const Group& a, const Group& b) { return a.lane < b.lane; });
  return plan;
}

}  // namespace sluice::fabric_config
