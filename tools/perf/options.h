// The command line of `sluice perf`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/perf/schedule.h"

namespace CLI {
class App;
}

namespace sluice::perf {

enum class FabricKind : uint8_t { kAuto, kSoft, kVerbs, kVirtual };

// Numbers as they were typed; empty: not given, and Validate puts the default in its place.
struct GivenNumbers {
  std::optional<int64_t> iterations, warmup, checks, channels, ranks, communicators, root, api,
      ranks_per_host, max_recvs, device, merge, traffic_class;
};

struct Options {
  GivenNumbers given;
  std::string op_name = "all_reduce";
  std::string algo_name = "ring";
  std::string proto_name = "auto";
  std::string fabric_name = "auto";
  std::string min_text = "8";
  std::string max_text = "64M";
  std::string step_text;  // empty: multiply
  double factor = 2;
  int iterations = 20;  // in virtual time 2: equal iterations take equal time
  int warmup = 5;       // in virtual time 1
  int checks = 1;
  int channels = 1;
  int ranks = 0;  // 0: WORLD_SIZE, or 2
  int communicators = 1;
  int root = 0;
  std::string plugin;  // empty: the one beside the program
  int api = 0;
  std::string profiler_text = "auto";
  std::string tuner_text = "auto";
  std::string topology;
  std::vector<std::string> faults;      // lines as in a topology, each perhaps several separated by ";"
  std::vector<std::string> background;  // likewise
  int ranks_per_host = 0;               // 0: one, more where there are more ranks than hosts
  std::string host_preset = "ideal";
  std::string seed_text;  // empty: 1
  std::string payload_name = "auto";
  bool json = false;
  bool registered = false;
  int max_recvs = 0;  // 0: as many as the plugin reports
  int device = -1;    // -1: all, channel by channel
  int merge = 0;      // merge that many devices into one; 0: none
  int traffic_class = -1;
  std::string workload;  // a file; empty: one operation, size by size
  double timeout_s = 600;
  bool show_lanes = false;

  // Set by Validate.
  Op op = Op::kAllReduce;
  bool mixed = false;  // every operation in one communicator; op is one of them
  int profiler = -1;   // version of the interface; 0: none, -1: of the NET version's release
  int tuner = -1;
  Algo algo = Algo::kRing;
  std::optional<Proto> proto;  // nullopt: chosen by size
  FabricKind fabric = FabricKind::kAuto;
  uint64_t seed = 1;
  bool has_seed = false;
  bool synthetic = false;  // virtual time: the user's buffers are not stored, see synthetic.h
  size_t min_bytes = 0;
  size_t max_bytes = 0;
  size_t step_bytes = 0;

  // One line that is equal on two ranks only if they measure the same thing.
  std::string Fingerprint() const;
};

void AddOptions(CLI::App* app, Options* options);
// Checks what the parser cannot; the message names option, value and range.
Status Validate(Options* options);
// One of the names that the option takes; a failure lists them.
Status ParseOp(const std::string& option, const std::string& name, Op* op);
Status ParseAlgo(const std::string& option, const std::string& name, Algo* algo);
Status ParseProto(const std::string& option, const std::string& name, std::optional<Proto>* proto);

// "8", "64K", "1M", "2G", also with a "B" or "iB" at the end.
Result<size_t> ParseBytes(const std::string& text);

// The protocol that `--proto auto` takes for an operation of this size.
Proto ChooseProto(const Shape& shape, size_t bytes);

}  // namespace sluice::perf
