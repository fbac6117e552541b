#include "tools/perf/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace sluice::perf {

double AlgBandwidth(const Row& row) {
  return row.time_us > 0 ? static_cast<double>(row.bytes) * row.communicators / row.time_us * 1e-3 : 0;
}

double BusBandwidth(const Row& row) {
  const double n = row.shape.ranks;
  double factor = 1;
  if (row.shape.op == Op::kAllReduce) factor = 2 * (n - 1) / n;
  if (row.shape.op == Op::kAllGather || row.shape.op == Op::kReduceScatter || row.shape.op == Op::kAllToAll) {
    factor = (n - 1) / n;
  }
  return AlgBandwidth(row) * factor;
}

std::string JsonLine(const Row& row) {
  nlohmann::ordered_json json;
  json["op"] = Name(row.shape.op);
  json["algo"] = Name(row.shape.algo);
  json["proto"] = Name(row.shape.proto);
  json["channels"] = row.shape.channels;
  json["bytes"] = row.bytes;
  json["time_us"] = row.time_us;
  json["p50_us"] = row.p50_us;
  json["p99_us"] = row.p99_us;
  json["algbw_GBps"] = AlgBandwidth(row);
  json["busbw_GBps"] = BusBandwidth(row);
  if (row.checked) {
    json["wrong"] = row.wrong;
  } else {
    json["wrong"] = nullptr;
  }
  if (row.dilation > 1) json["dilation"] = row.dilation;
  return json.dump();
}

void Table::Header(const std::string& what, const char* place) {
  fprintf(out_, "# %s\n#\n", what.c_str());
  fprintf(out_, "# %56s\n", place);
  fprintf(out_, "# %10s %13s %9s %7s %7s %8s %7s %7s %6s %9s %9s\n", "size", "count", "type", "redop", "root",
          "time", "algbw", "busbw", "#wrong", "p50", "p99");
  fprintf(out_, "# %10s %13s %9s %7s %7s %8s %7s %7s %6s %9s %9s\n", "(B)", "(elements)", "", "", "", "(us)",
          "(GB/s)", "(GB/s)", "", "(us)", "(us)");
  fflush(out_);
}

void Table::Print(const Row& row) {
  const Shape& shape = row.shape;
  const bool rooted = shape.op == Op::kBroadcast || shape.op == Op::kReduce;
  const std::string wrong = row.checked ? std::to_string(row.wrong) : "N/A";
  fprintf(out_, "%12zu %13zu %9s %7s %7d %8.2f %7.2f %7.2f %6s %9.2f %9.2f\n", row.bytes,
          shape.block_elements, "float", Reduces(shape.op) ? "sum" : "none", rooted ? shape.root : -1,
          row.time_us, AlgBandwidth(row), BusBandwidth(row), wrong.c_str(), row.p50_us, row.p99_us);
  fflush(out_);
  bus_sum_ += BusBandwidth(row);
  wrong_ += row.wrong;
  ++rows_;
}

void Table::Footer() {
  fprintf(out_, "# Out of bounds values : %zu %s\n", wrong_, wrong_ == 0 ? "OK" : "FAILED");
  fprintf(out_, "# Avg bus bandwidth    : %.4g\n#\n",
          rows_ == 0 ? 0.0 : bus_sum_ / static_cast<double>(rows_));
  fflush(out_);
}

double Percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double position = std::ceil(fraction * static_cast<double>(values.size())) - 1;
  return values[static_cast<size_t>(std::clamp(position, 0.0, static_cast<double>(values.size() - 1)))];
}

}  // namespace sluice::perf
