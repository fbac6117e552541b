#include "tools/scenario/outcome.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace sluice::scenario {

std::string Outcome::ToJson() const {
  nlohmann::json out;
  out["seed"] = seed;
  out["packet_hops"] = packet_hops;
  out["processor_s"] = processor_s;
  out["peak_bytes"] = peak_bytes;
  out["samples"] = samples;
  for (const Metric& metric : metrics) {
    out["metrics"].push_back(
        {{"arm", metric.arm}, {"name", metric.name}, {"unit", metric.unit}, {"value", metric.value}});
  }
  return out.dump();
}

Result<Outcome> Outcome::FromJson(const std::string& text) {
  const nlohmann::json in = nlohmann::json::parse(text, nullptr, false);
  if (!in.is_object() || !in.contains("seed")) return InternalError("the result of a seed is not complete");
  Outcome outcome;
  outcome.seed = in["seed"];
  outcome.packet_hops = in["packet_hops"];
  outcome.processor_s = in.value("processor_s", 0.0);
  outcome.peak_bytes = in.value("peak_bytes", uint64_t{0});
  outcome.samples = in["samples"].get<std::map<std::string, std::vector<double>>>();
  for (const nlohmann::json& metric : in.value("metrics", nlohmann::json::array())) {
    outcome.Add(metric["arm"], metric["name"], metric["unit"], metric["value"]);
  }
  return outcome;
}

double Quantile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = fraction * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  if (low + 1 >= values.size()) return values.back();
  return values[low] + (at - static_cast<double>(low)) * (values[low + 1] - values[low]);
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double JainIndex(const std::vector<double>& values) {
  double sum = 0;
  double squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  return squares == 0 ? 0 : sum * sum / (static_cast<double>(values.size()) * squares);
}

}  // namespace sluice::scenario
