// DSCPs to priorities, queues, PFC and shares.
#include <algorithm>

#include "base/words.h"
#include "tools/fabric_config/groups.h"
#include "tools/fabric_config/plan.h"

namespace sluice::fabric_config {
namespace {

// 5 and 4 for strict groups, 3 to 1 for weighted ones: 3 is where RoCE usually is.
constexpr int kHighestStrict = 5;
constexpr size_t kStrictPriorities = 2;
constexpr int kHighestWeighted = 3;
constexpr size_t kWeightedPriorities = 3;
constexpr size_t kUsualLossless = 2;

void Share(std::vector<Group>* groups, size_t first, std::vector<std::string>* warnings) {
  warnings->push_back(
      (*groups)[first].Name() + " and " + (*groups)[first + 1].Name() +
      " share one priority: there are 2 for strict classes and 3 for the others, so only Sluice's own "
      "scheduler keeps them apart");
  Merge(groups, first);
}

void AssignPriorities(std::vector<Group>* groups, std::vector<std::string>* warnings) {
  const auto strict = [&] {
    return static_cast<size_t>(
        std::count_if(groups->begin(), groups->end(), [](const Group& group) { return group.strict; }));
  };
  while (strict() > kStrictPriorities) Share(groups, strict() - 2, warnings);
  // The unmarked group has priority 0, at the end of the list.
  while (groups->size() - 1 - strict() > kWeightedPriorities) Share(groups, groups->size() - 3, warnings);
  int next_strict = kHighestStrict;
  int next_weighted = kHighestWeighted;
  for (Group& group : *groups)
    group.lane = group.unmarked ? 0 : group.strict ? next_strict-- : next_weighted--;
}

void ShareBandwidth(RocePlan* plan, int other_percent) {
  int weights = 0;
  for (const Group& group : plan->groups) weights += group.strict || group.unmarked ? 0 : group.weight;
  int left = 100;
  const Group* heaviest = nullptr;
  for (const Group& group : plan->groups) {
    plan->strict[static_cast<size_t>(group.lane)] = group.strict;
    if (group.strict || group.unmarked) continue;
    const int percent = std::max(1, (100 - other_percent) * group.weight / weights);
    plan->percent[static_cast<size_t>(group.lane)] = percent;
    left -= percent;
    if (heaviest == nullptr || group.weight > heaviest->weight) heaviest = &group;
  }
  if (heaviest == nullptr) {
    plan->percent[0] = 100;
    return;
  }
  plan->percent[0] = other_percent;
  plan->percent[static_cast<size_t>(heaviest->lane)] += left - other_percent;  // what rounding left
}

}  // namespace

std::vector<int> RocePlan::LosslessPriorities() const {
  std::vector<int> priorities;
  for (int i = 0; i < kPriorities; ++i) {
    if (pfc[static_cast<size_t>(i)]) priorities.push_back(i);
  }
  return priorities;
}

Result<RocePlan> PlanRoce(const Policy& policy, const Options& options) {
  RocePlan plan;
  std::vector<Marked> classes;
  for (const ServiceClass* one : ReachableClasses(policy)) {
    Marked marked{one, std::nullopt};
    if (one->traffic_class) marked.mark = *one->traffic_class / 4;
    classes.push_back(marked);
  }
  for (const std::string& name : options.lossy) {
    const bool known = std::any_of(classes.begin(), classes.end(),
                                   [&](const Marked& one) { return one.service_class->name == name; });
    if (!known)
      return InvalidArgument("--lossy " + OneLine(name) + ": no rule of the policy leads to such a class");
  }
  plan.nothing =
      std::none_of(classes.begin(), classes.end(), [](const Marked& one) { return one.mark.has_value(); });
  if (plan.nothing) {
    plan.warnings.push_back(
        "the policy names no traffic class or dscp: every class uses the communicator's, and the network has "
        "nothing to "
        "configure; give classes a dscp");
    return plan;
  }
  for (const Marked& one : classes) {
    const std::string name = "class " + one.service_class->name;
    if (!one.mark) {
      plan.warnings.push_back(
          name +
          " names no dscp: it uses the communicator's, 0 unless the job sets one, which is "
          "priority 0 without PFC");
    } else if (*one.service_class->traffic_class % 4 == 0) {
      plan.warnings.push_back(name +
                              " is not ECN-capable: switches cannot mark its packets; add ecn = \"ect0\"");
    }
    if (one.mark == options.cnp_dscp) {
      plan.warnings.push_back(name + " uses DSCP " + std::to_string(options.cnp_dscp) +
                              ", as congestion notifications do: both get the priority of the class");
    }
  }
  plan.groups = GroupByMark(classes, "DSCP", &plan.warnings);
  // Unmarked traffic keeps priority 0 without PFC, also where a class chose DSCP 0.
  const auto unmarked =
      std::find_if(plan.groups.begin(), plan.groups.end(), [](const Group& group) { return group.unmarked; });
  unmarked->strict = false;
  unmarked->lossless = false;
  std::rotate(unmarked, unmarked + 1, plan.groups.end());
  for (Group& group : plan.groups) {
    const auto lossy = [&](const std::string& name) {
      return std::find(options.lossy.begin(), options.lossy.end(), name) != options.lossy.end();
    };
    if (!group.unmarked) group.lossless = !std::all_of(group.classes.begin(), group.classes.end(), lossy);
  }
  AssignPriorities(&plan.groups, &plan.warnings);
  plan.priority_of_dscp[static_cast<size_t>(options.cnp_dscp)] = kCnpPriority;
  for (const Group& group : plan.groups) {
    for (const int dscp : group.marks) plan.priority_of_dscp[static_cast<size_t>(dscp)] = group.lane;
    plan.pfc[static_cast<size_t>(group.lane)] = group.lossless;
  }
  ShareBandwidth(&plan, options.other_percent);
  plan.strict[kCnpPriority] = true;
  plan.strict[kNetworkControlPriority] = true;
  if (plan.LosslessPriorities().size() > kUsualLossless) {
    plan.warnings.push_back(
        "PFC on " + std::to_string(plan.LosslessPriorities().size()) +
        " priorities: most switches have headroom for 2; give classes one DSCP in common, or leave some "
        "without PFC (--lossy CLASS)");
  }
  std::sort(plan.groups.begin(), plan.groups.end(),
            [](const Group& a, const Group& b) { return a.lane < b.lane; });
  return plan;
}

}  // namespace sluice::fabric_config
