#include "tools/scenario/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/scenario/svg.h"

namespace sluice::scenario {

const char* SizeName(Size size) {
  switch (size) {
    case Size::kCi:
      return "ci";
    case Size::kDefault:
      return "default";
    case Size::kFull:
      return "full";
  }
  return "";
}

std::vector<Summary> Summarise(const std::vector<Outcome>& outcomes) {
  std::vector<Summary> summaries;
  for (const Outcome& outcome : outcomes) {
    for (const Metric& metric : outcome.metrics) {
      auto found = std::find_if(summaries.begin(), summaries.end(), [&](const Summary& s) {
        return s.arm == metric.arm && s.name == metric.name;
      });
      if (found == summaries.end()) {
        summaries.push_back({metric.arm, metric.name, metric.unit, {}});
        found = summaries.end() - 1;
      }
      found->values.push_back(metric.value);
    }
  }
  return summaries;
}

std::string Number(double value) {
  const double size = std::fabs(value);
  char text[64];
  if (value == std::floor(value) && size < 1e15) {
    snprintf(text, sizeof text, "%.0f", value);
  } else if (size >= 1000) {
    snprintf(text, sizeof text, "%.1f", value);
  } else if (size >= 0.001) {
    snprintf(text, sizeof text, "%.4g", value);
  } else {
    snprintf(text, sizeof text, "%.3e", value);
  }
  return text;
}

void PrintTable(FILE* out, const Scenario& scenario, const RunConfig& config,
                const std::vector<Outcome>& outcomes) {
  fprintf(out, "# %s: %s\n", scenario.name, scenario.line);
  if (config.engine == Engine::kPlugin) {
    fprintf(out, "# engine plugin%s%s, host %s\n", config.plugin.empty() ? "" : " ", config.plugin.c_str(),
            config.host.c_str());
  }
  const std::vector<Summary> summaries = Summarise(outcomes);
  size_t arm_width = 3;
  size_t name_width = 6;
  size_t unit_width = 4;
  for (const Summary& s : summaries) {
    arm_width = std::max(arm_width, s.arm.size());
    name_width = std::max(name_width, s.name.size());
    unit_width = std::max(unit_width, s.unit.size());
  }
  const auto row = [&](const std::string& arm, const std::string& name, const std::string& unit,
                       std::initializer_list<std::string> numbers) {
    fprintf(out, "%-*s  %-*s  %-*s", static_cast<int>(arm_width), arm.c_str(), static_cast<int>(name_width),
            name.c_str(), static_cast<int>(unit_width), unit.c_str());
    for (const std::string& number : numbers) fprintf(out, "  %10s", number.c_str());
    fprintf(out, "\n");
  };
  if (outcomes.size() == 1) {
    row("arm", "metric", "unit", {"value"});
    for (const Summary& s : summaries) row(s.arm, s.name, s.unit, {Number(s.values[0])});
  } else {
    row("arm", "metric", "unit", {"mean", "min", "median", "max"});
    for (const Summary& s : summaries) {
      row(s.arm, s.name, s.unit,
          {Number(Mean(s.values)), Number(Quantile(s.values, 0)), Number(Quantile(s.values, 0.5)),
           Number(Quantile(s.values, 1))});
    }
  }
  uint64_t hops = 0;
  for (const Outcome& outcome : outcomes) hops += outcome.packet_hops;
  fprintf(out, "# %zu seed(s), %.2f M packet-hops\n", outcomes.size(), static_cast<double>(hops) * 1e-6);
}

void PrintSpeed(FILE* out, const std::vector<Outcome>& outcomes) {
  uint64_t hops = 0;
  double processor_s = 0;
  uint64_t peak_bytes = 0;
  for (const Outcome& outcome : outcomes) {
    hops += outcome.packet_hops;
    processor_s += outcome.processor_s;
    peak_bytes = std::max(peak_bytes, outcome.peak_bytes);
  }
  if (processor_s <= 0) return;
  fprintf(out,
          "sluice scenario: %.1f s of processor time, %.2f million packet-hops per second and core, at most "
          "%.2f GiB "
          "of memory a seed\n",
          processor_s, static_cast<double>(hops) * 1e-6 / processor_s,
          static_cast<double>(peak_bytes) / (1 << 30));
}

std::string ToJson(const Scenario& scenario, const RunConfig& config, const std::vector<Outcome>& outcomes,
                   const std::vector<std::string>& failures) {
  nlohmann::ordered_json out;
  out["scenario"] = scenario.name;
  out["size"] = SizeName(config.size);
  out["topology"] = config.topology;
  out["engine"] = EngineName(config.engine);
  if (config.engine == Engine::kPlugin) {
    out["host"] = config.host;
    out["plugin"] = config.plugin;
  }
  if (!config.faults.empty()) out["faults"] = config.faults;
  if (!config.background.empty()) out["background"] = config.background;
  for (const Outcome& outcome : outcomes) out["seeds"].push_back(outcome.seed);
  out["metrics"] = nlohmann::ordered_json::array();
  for (const Summary& s : Summarise(outcomes)) {
    out["metrics"].push_back(
        {{"arm", s.arm}, {"name", s.name}, {"unit", s.unit}, {"mean", Mean(s.values)}, {"values", s.values}});
  }
  out["failures"] = failures;
  return out.dump();
}

Status WritePlot(const std::string& path, const Scenario& scenario, const std::vector<Outcome>& outcomes) {
  std::map<std::string, std::vector<double>> samples;
  for (const Outcome& outcome : outcomes) {
    for (const auto& [arm, values] : outcome.samples) {
      samples[arm].insert(samples[arm].end(), values.begin(), values.end());
    }
  }
  SvgPlot plot;
  plot.title = std::string(scenario.name) + ": " + scenario.line;
  plot.x_label = scenario.sample_name;
  plot.y_label = "share of samples at or below";
  for (auto& [arm, values] : samples) {
    std::sort(values.begin(), values.end());
    SvgCurve curve;
    curve.name = arm;
    for (size_t i = 0; i < values.size(); ++i) {
      curve.points.push_back({values[i], static_cast<double>(i + 1) / static_cast<double>(values.size())});
    }
    plot.curves.push_back(std::move(curve));
  }
  return WriteSvg(path, plot);
}

}  // namespace sluice::scenario
