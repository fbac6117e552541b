#include "tools/fabric_config/groups.h"

#include <algorithm>
#include <map>

namespace sluice::fabric_config {

std::string Group::Name() const {
  std::string name;
  for (const std::string& one : classes) name += (name.empty() ? "" : ", ") + one;
  if (unmarked) name += name.empty() ? "everything else" : " and everything else";
  return name;
}

std::vector<const ServiceClass*> ReachableClasses(const Policy& policy) {
  std::vector<const ServiceClass*> classes;
  for (size_t i = 0; i < policy.classes().size(); ++i) {
    if ((policy.reachable() >> i & 1) != 0) classes.push_back(&policy.classes()[i]);
  }
  return classes;
}

void SortByUrgency(std::vector<Group>* groups) {
  std::stable_sort(groups->begin(), groups->end(), [](const Group& a, const Group& b) {
    if (a.strict != b.strict) return a.strict;
    if (a.strict) return a.priority < b.priority;
    return a.weight != b.weight ? a.weight > b.weight : !a.unmarked && b.unmarked;
  });
}

void Merge(std::vector<Group>* groups, size_t first) {
  Group& into = (*groups)[first];
  const Group& from = (*groups)[first + 1];
  into.classes.insert(into.classes.end(), from.classes.begin(), from.classes.end());
  into.marks.insert(into.marks.end(), from.marks.begin(), from.marks.end());
  std::sort(into.marks.begin(), into.marks.end());
  into.weight =
      into.strict != from.strict ? (into.strict ? from.weight : into.weight) : into.weight + from.weight;
  into.strict = into.strict && from.strict;
  into.unmarked = into.unmarked || from.unmarked;
  into.lossless = into.lossless || from.lossless;
  groups->erase(groups->begin() + static_cast<ptrdiff_t>(first) + 1);
}

std::vector<Group> GroupByMark(const std::vector<Marked>& classes, const std::string& mark_name,
                               std::vector<std::string>* warnings) {
  std::map<int, Group> by_mark;
  const auto join = [](Group& group, const ServiceClass& one) {
    if (group.classes.empty()) {
      group.strict = one.strict;
      group.priority = one.priority;
      group.weight = one.weight;
    } else if (one.strict != group.strict) {
      if (group.strict) group.weight = one.weight;
      group.strict = false;
    } else {
      group.priority = std::min(group.priority, one.priority);
      group.weight = group.strict ? group.weight : group.weight + one.weight;
    }
    group.classes.push_back(one.name);
  };
  for (const Marked& one : classes) {
    if (!one.mark) continue;
    Group& group = by_mark[*one.mark];
    group.marks = {*one.mark};
    join(group, *one.service_class);
  }
  for (const auto& [mark, group] : by_mark) {
    if (group.classes.size() > 1) {
      warnings->push_back("classes " + group.Name() + " share " + mark_name + " " + std::to_string(mark) +
                          ": the network cannot tell them apart, only Sluice's own scheduler does");
    }
  }
  // Unmarked traffic has the mark 0: that of other programs, and of classes that are left to the communicator.
  Group& unmarked = by_mark[0];
  if (!unmarked.classes.empty()) {
    warnings->push_back("class " + unmarked.Name() + " has " + mark_name +
                        " 0, as all traffic that nobody marks");
  }
  unmarked.unmarked = true;
  unmarked.marks = {0};
  for (const Marked& one : classes) {
    if (!one.mark) unmarked.classes.push_back(one.service_class->name);
  }
  const bool foreign =
      std::any_of(classes.begin(), classes.end(), [](const Marked& one) { return !one.mark; });
  if (foreign) unmarked.strict = false;
  std::vector<Group> groups;
  for (auto& [mark, group] : by_mark) groups.push_back(std::move(group));
  SortByUrgency(&groups);
  return groups;
}

}  // namespace sluice::fabric_config
