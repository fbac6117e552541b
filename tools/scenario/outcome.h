// What one run of a scenario (one seed) yields: named numbers by arm (an arm is one way to control traffic,
// for example `static`), and samples for the plot. Travels as JSON from the process that ran it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace sluice::scenario {

struct Metric {
  std::string arm;
  std::string name;
  std::string unit;
  double value = 0;
};

struct Outcome {
  uint64_t seed = 0;
  std::vector<Metric> metrics;
  std::map<std::string, std::vector<double>> samples;  // by arm; see Scenario::sample_name
  uint64_t packet_hops = 0;
  double processor_s = 0;
  uint64_t peak_bytes = 0;  // of the memory of its process

  void Add(std::string arm, std::string name, std::string unit, double value) {
    metrics.push_back({std::move(arm), std::move(name), std::move(unit), value});
  }
  std::string ToJson() const;
  static Result<Outcome> FromJson(const std::string& text);
};

// The value below which `fraction` of the values lie, between two neighbours by proportion. 0 without values.
double Quantile(std::vector<double> values, double fraction);
double Mean(const std::vector<double>& values);
// Jain's index: 1 when all are equal, 1/n when one has everything.
double JainIndex(const std::vector<double>& values);

}  // namespace sluice::scenario
