// Output: the nccl-tests table, or one JSON object per row.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/perf/options.h"
#include "tools/perf/schedule.h"

namespace sluice::perf {

struct Row {
  Shape shape;  // as it was run
  int communicators = 1;
  size_t bytes = 0;    // of one communicator, as nccl-tests counts them
  double time_us = 0;  // mean over iterations and ranks
  double p50_us = 0;
  double p99_us = 0;
  size_t wrong = 0;
  bool checked = true;
  double dilation = 1;  // software fabric in real time: by how much the times were divided
};

// Bytes per second over all communicators, in GB/s: of the algorithm, and as if by one bus (see nccl-tests).
double AlgBandwidth(const Row& row);
double BusBandwidth(const Row& row);

std::string JsonLine(const Row& row);

class Table {
 public:
  explicit Table(FILE* out) : out_(out) {}
  // `what`: one line on what is run; printed as a comment. `place`: "out-of-place" or "in-place".
  void Header(const std::string& what, const char* place = "out-of-place");
  void Print(const Row& row);
  void Footer();

 private:
  FILE* out_;
  double bus_sum_ = 0;
  size_t rows_ = 0;
  size_t wrong_ = 0;
};

// values need not be sorted; fraction 0 to 1. 0 without values.
double Percentile(std::vector<double> values, double fraction);

}  // namespace sluice::perf
