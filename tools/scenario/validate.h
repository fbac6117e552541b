// `sluice scenario validate`: the model's figures beside recorded results and closed forms, each with its
// band.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/scenario/scenario.h"

namespace sluice::scenario {

struct ValidateOptions {
  Size size = Size::kDefault;
  uint64_t seed = 1;
  uint32_t seeds = 0;  // of the victim experiment; 0: the 40 that its bands hold for
  uint32_t jobs = 0;
  bool json = false;
};

// Prints the table. 0: every figure is inside its band; 1: not.
int Validate(const ValidateOptions& options);

struct Check {
  std::string group;
  std::string figure;
  double ours = 0;
  double reference = 0;
  double low = 0;  // the band, inclusive
  double high = 0;
  bool judged = true;  // false: printed for information, without a band
  bool inside() const { return !judged || (ours >= low && ours <= high); }
};

// The parts, each in a file of its own. A failure (not a figure outside its band) is a line.
struct Checks {
  std::vector<Check> checks;
  std::vector<std::string> failures;
  void Within(std::string group, std::string figure, double ours, double reference, double share) {
    checks.push_back({std::move(group), std::move(figure), ours, reference, reference - share * reference,
                      reference + share * reference});
  }
  void Inform(std::string group, std::string figure, double ours, double reference) {
    checks.push_back({std::move(group), std::move(figure), ours, reference, 0, 0, false});
  }
  void Between(std::string group, std::string figure, double ours, double reference, double low,
               double high) {
    checks.push_back({std::move(group), std::move(figure), ours, reference, low, high});
  }
};
void CheckLikeForLike(const ValidateOptions& options, Checks* out);
void CheckYardsticks(const ValidateOptions& options, Checks* out);
void CheckClosedForms(Checks* out);
void CheckDcqcn(const ValidateOptions& options, Checks* out);

}  // namespace sluice::scenario
