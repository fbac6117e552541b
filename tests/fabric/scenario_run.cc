#include "tests/fabric/scenario_run.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace sluice {
std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Ran RunScenario(const std::string& arguments) {
  const std::string base = testing::TempDir() + "scenario_command_" + std::to_string(getpid());
  const std::string command = std::string(getenv("SLUICE_BUILD_DIR")) + "/bin/sluice scenario " + arguments +
                              " >" + base + ".out 2>" + base + ".err";
  const int status = system(command.c_str());
  Ran ran;
  ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  ran.out = ReadFile(base + ".out");
  ran.err = ReadFile(base + ".err");
  unlink((base + ".out").c_str());
  unlink((base + ".err").c_str());
  return ran;
}

double Ran::Metric(const std::string& arm, const std::string& name) const {
  const nlohmann::json json = nlohmann::json::parse(out, nullptr, false);
  if (json.is_object()) {
    for (const auto& metric : json["metrics"]) {
      if (metric["arm"] == arm && metric["name"] == name) return metric["mean"].get<double>();
    }
  }
  ADD_FAILURE() << "no metric " << arm << ", " << name << " in " << out << err;
  return std::nan("");
}

}  // namespace sluice
