// The figures of a scenario over its seeds: a table, JSON, and a plot.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/scenario/outcome.h"
#include "tools/scenario/scenario.h"

namespace sluice::scenario {

struct Summary {
  std::string arm;
  std::string name;
  std::string unit;
  std::vector<double> values;  // one per seed
};
// In the order in which the first seed that has it named it.
std::vector<Summary> Summarise(const std::vector<Outcome>& outcomes);

// A number with 4 significant digits and no exponent where that is readable.
std::string Number(double value);

void PrintTable(FILE* out, const Scenario& scenario, const RunConfig& config,
                const std::vector<Outcome>& outcomes);
// Packet-hops per second: what differs from run to run, and so stands outside the table.
void PrintSpeed(FILE* out, const std::vector<Outcome>& outcomes);
std::string ToJson(const Scenario& scenario, const RunConfig& config, const std::vector<Outcome>& outcomes,
                   const std::vector<std::string>& failures);
// The share of samples at or below x, one curve per arm, all seeds together.
Status WritePlot(const std::string& path, const Scenario& scenario, const std::vector<Outcome>& outcomes);

const char* SizeName(Size size);

}  // namespace sluice::scenario
