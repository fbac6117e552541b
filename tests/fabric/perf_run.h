// Runs `sluice perf` as a user does and takes its output apart. For tests.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sluice::test {

struct PerfResult {
  int exit_code = -1;       // 128 + n: ended by signal n
  uint64_t peak_bytes = 0;  // of its memory
  std::string out;
  std::string err;
  std::vector<nlohmann::json> rows;  // of --json

  // Lines of err that are not comments.
  std::vector<std::string> complaints() const;
};

using Environment = std::map<std::string, std::string>;

// Path of an artefact of this build.
std::string Built(const std::string& name);

// A started run. Ended with SIGKILL if it is still there when this goes.
class PerfRun {
 public:
  PerfRun(const std::vector<std::string>& arguments, const Environment& environment);
  ~PerfRun();
  PerfRun(const PerfRun&) = delete;
  PerfRun& operator=(const PerfRun&) = delete;
  int pid() const { return pid_; }
  // The process of a rank, once it exists.
  int WaitForRank(int rank);
  // Waits until the output on stdout has this many lines.
  void WaitForOutput(size_t lines);
  PerfResult Finish();

 private:
  void Collect(bool to_end, size_t lines);
  int pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  PerfResult result_;
};

PerfResult RunPerf(const std::vector<std::string>& arguments, const Environment& environment = {});

// Processes that were started with this value of an environment variable.
std::vector<int> ProcessesWith(const std::string& variable, const std::string& value);

}  // namespace sluice::test
