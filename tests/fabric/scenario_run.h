// Runs `sluice scenario` of the build under test (SLUICE_BUILD_DIR).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sluice {

struct Ran {
  int exit_code = -1;
  std::string out;
  std::string err;

  // The mean of a metric of --json; a test failure and NaN when it is not there.
  double Metric(const std::string& arm, const std::string& name) const;
};

// `arguments` as a shell takes them.
Ran RunScenario(const std::string& arguments);

// Empty when there is none.
std::string ReadFile(const std::string& path);

}  // namespace sluice
