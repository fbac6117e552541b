// One rank of a benchmark job.
#pragma once

#include <string>

#include "tools/perf/options.h"

namespace sluice::perf {

// Where a rank stands in its job: from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
struct Place {
  int rank = 0;
  int world = 1;
  std::string host = "127.0.0.1";
  int port = 0;
  // Set by a launcher of this program only.
  std::string secret;
  int listen_fd = -1;
  int report_fd = -1;  // where the cause of a failure is written for the launcher; -1: to stderr
};

// Runs the whole benchmark and returns the exit code. Rank 0 prints.
int RunRank(const Options& options, const Place& place);

// What a rank tells its launcher about the end of the job: one record per write.
struct FailureRecord {
  int rank = -1;
  int origin = -1;  // the rank where it began; -1: unknown
  long long time_ns = 0;
  std::string text;

  std::string Encode() const;  // one line
  static bool Decode(const std::string& line, FailureRecord* out);
};

}  // namespace sluice::perf
