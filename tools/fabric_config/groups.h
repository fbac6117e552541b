// Groups of classes, common to both kinds of fabric. Private to the plans.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/fabric_config/plan.h"

namespace sluice::fabric_config {

// What the fabric sees of a class: its mark, or none.
struct Marked {
  const ServiceClass* service_class = nullptr;
  std::optional<int> mark;
};

// One group per mark, and one for what has none (with mark 0 in it: nobody's mark is 0). Strict ones first, most urgent first,
// then by weight, unmarked traffic after a class of the same weight. Warns where classes share a mark; `mark_name` is "sl" or
// "DSCP".
std::vector<Group> GroupByMark(const std::vector<Marked>& classes, const std::string& mark_name,
                               std::vector<std::string>* warnings);

// Joins the two groups at first and first + 1; the stricter discipline is given up unless both have it.
void Merge(std::vector<Group>* groups, size_t first);

// The order of GroupByMark.
void SortByUrgency(std::vector<Group>* groups);

// The classes that the policy's rules can reach.
std::vector<const ServiceClass*> ReachableClasses(const Policy& policy);

}  // namespace sluice::fabric_config
