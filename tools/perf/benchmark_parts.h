// What a benchmark is, whether its ranks are processes in real time (rank.h) or simulated
// (virtual_benchmark.h): the shapes it runs, the devices it uses, the words it prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/perf/net_plugin.h"
#include "tools/perf/options.h"
#include "tools/perf/report.h"
#include "tools/perf/schedule.h"

namespace sluice::perf {

// The shape of rank `rank` but for its size.
Shape BaseShape(const Options& options, int rank);
// With a size, and the protocol that goes with it.
Shape ShapeFor(const Options& options, const Shape& base, size_t bytes);
Shape SizedShape(const Shape& base, bool choose_proto, size_t bytes);
// The size of the row after that of `bytes`.
size_t NextSize(const Options& options, size_t bytes);

// Directed pairs of ranks that the connections of a shape join.
size_t PathsOf(const Shape& shape);

// The devices of a plugin that a rank uses: channel c uses device first + c modulo count.
struct DeviceChoice {
  int first = 0;
  int count = 1;
  DeviceProperties properties;  // of the first
  int max_recvs = 1;            // that this rank would group
};
// `library_message` gives what the verbs library said last, or nothing: the cause when there is no device.
Result<DeviceChoice> ChooseDevices(const Options& options, NetPlugin* plugin,
                                   const std::function<std::string()>& library_message);

// One line on what is run; `fabric` names it, or is empty. `max_recvs` is what all ranks agreed on.
std::string DescribeRun(const Options& options, const Shape& base, const NetPlugin& plugin,
                        const DeviceChoice& devices, int max_recvs, const std::string& fabric);

// What one rank measured of one size.
struct Outcome {
  double time_us = 0;  // mean of an iteration
  double p50_us = 0;
  double p99_us = 0;
  uint64_t wrong = 0;
};
Row MakeRow(const Options& options, const Shape& shape, const std::vector<Outcome>& outcomes);

}  // namespace sluice::perf
