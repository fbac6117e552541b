#include "tools/scenario/validate.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/scenario/report.h"

namespace sluice::scenario {
namespace {

struct NotComparable {
  const char* what;
  const char* why;
};
constexpr NotComparable kNotComparable[] = {
    {"retransmissions and NACKs of NSCC and RCCC",
     "they count trimmed packets; RC has none, and a like count depends on which packet a full queue trims"},
    {"permutation tails of the 400G table",
     "those transports spray over 64 or more paths, RC keeps one: six or seven flows share the worst link"},
    {"4:1 oversubscribed permutation", "the same, and the floor of 84 us comes before any collision"},
    {"victim slowdown of other fabrics", "load balancing, trimming and control differ at once"},
    {"TIMELY and HPCC of ns-3", "they have no counterpart here"},
};

void PrintTable(const Checks& all) {
  size_t group_width = 5;
  size_t figure_width = 6;
  for (const Check& check : all.checks) {
    group_width = std::max(group_width, check.group.size());
    figure_width = std::max(figure_width, check.figure.size());
  }
  const int group = static_cast<int>(group_width);
  const int figure = static_cast<int>(figure_width);
  printf("%-*s  %-*s  %10s  %10s  %21s  %s\n", group, "group", figure, "figure", "ours", "reference", "band",
         "verdict");
  for (const Check& check : all.checks) {
    printf("%-*s  %-*s  %10s  %10s  %10s %10s  %s\n", group, check.group.c_str(), figure,
           check.figure.c_str(), Number(check.ours).c_str(), Number(check.reference).c_str(),
           check.judged ? Number(check.low).c_str() : "-", check.judged ? Number(check.high).c_str() : "-",
           !check.judged    ? "info"
           : check.inside() ? "ok"
                            : "OUTSIDE");
  }
  for (const NotComparable& entry : kNotComparable)
    printf("# not comparable: %s: %s\n", entry.what, entry.why);
}

std::string ToJson(const Checks& all) {
  nlohmann::ordered_json out;
  out["checks"] = nlohmann::ordered_json::array();
  for (const Check& check : all.checks) {
    out["checks"].push_back({{"group", check.group},
                             {"figure", check.figure},
                             {"ours", check.ours},
                             {"reference", check.reference},
                             {"low", check.low},
                             {"high", check.high},
                             {"judged", check.judged},
                             {"inside", check.inside()}});
  }
  for (const NotComparable& entry : kNotComparable)
    out["not_comparable"].push_back({{entry.what, entry.why}});
  out["failures"] = all.failures;
  return out.dump();
}

}  // namespace

int Validate(const ValidateOptions& options) {
  Checks all;
  CheckLikeForLike(options, &all);
  CheckYardsticks(options, &all);
  CheckClosedForms(&all);
  CheckDcqcn(options, &all);
  if (options.json) {
    printf("%s\n", ToJson(all).c_str());
  } else {
    PrintTable(all);
  }
  size_t outside = 0;
  for (const Check& check : all.checks) outside += check.inside() ? 0 : 1;
  for (const std::string& failure : all.failures)
    fprintf(stderr, "sluice scenario: validate: %s\n", failure.c_str());
  if (outside != 0) {
    fprintf(stderr, "sluice scenario: validate: %zu of %zu figures lie outside their bands\n", outside,
            all.checks.size());
  }
  return outside == 0 && all.failures.empty() ? 0 : 1;
}

}  // namespace sluice::scenario
