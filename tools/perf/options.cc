#include "tools/perf/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "tools/perf/host_processor.h"

namespace sluice::perf {
namespace {

template <typename T>
Status Pick(const std::string& option, const std::string& value,
            std::initializer_list<std::pair<const char*, T>> names, T* out) {
  std::string known;
  for (const auto& [name, meaning] : names) {
    if (value == name) {
      *out = meaning;
      return Status::Ok();
    }
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  return InvalidArgument(option + " " + value + ": unknown; use one of " + known);
}

Status InRange(const char* option, double value, double low, double high) {
  if (value >= low && value <= high) return Status::Ok();
  auto text = [](double v) {
    std::string s = std::to_string(v);
    s.erase(s.find_last_not_of('0') + 1);
    if (s.back() == '.') s.pop_back();
    return s;
  };
  return InvalidArgument(std::string(option) + " " + text(value) + ": out of range; use " + text(low) +
                         " to " + text(high));
}

// What was typed, if it lies in the range. Nothing typed: `out` stays.
Status Take(const char* option, const std::optional<int64_t>& given, int low, int high, int* out) {
  if (!given.has_value()) return Status::Ok();
  if (*given < low || *given > high) {
    return InvalidArgument(std::string(option) + " " + std::to_string(*given) + ": out of range; use " +
                           std::to_string(low) + " to " + std::to_string(high));
  }
  *out = static_cast<int>(*given);
  return Status::Ok();
}

}  // namespace

Result<size_t> ParseBytes(const std::string& text) {
  size_t at = 0;
  size_t value = 0;
  while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0) {
    const auto digit = static_cast<size_t>(text[at++] - '0');
    if (value > (std::numeric_limits<size_t>::max() - digit) / 10)
      return InvalidArgument(text + ": too large");
    value = value * 10 + digit;
  }
  std::string suffix = text.substr(at);
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  int shift = -1;
  for (const auto& [unit, bits] : {std::pair{"K", 10}, std::pair{"M", 20}, std::pair{"G", 30}}) {
    if (suffix == unit || suffix == std::string(unit) + "B" || suffix == std::string(unit) + "IB")
      shift = bits;
  }
  if (suffix.empty() || suffix == "B") shift = 0;
  if (at == 0 || shift < 0) return InvalidArgument(text + ": not a size; write for example 8, 64K, 1M or 2G");
  if (value > (size_t{1} << 40 >> shift)) return InvalidArgument(text + ": too large; at most 1024G");
  return value << shift;
}

void AddOptions(CLI::App* app, Options* o) {
  app->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app->add_option(
         "--op", o->op_name,
         "all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, sendrecv, or mixed: all "
         "of them in one communicator, and what the plugin says of each message is checked")
      ->capture_default_str();
  app->add_option("--algo", o->algo_name,
                  "ring or tree (all_reduce; other operations have no tree and use the ring)")
      ->capture_default_str();
  app->add_option("--proto", o->proto_name, "simple, ll, ll128 or auto (by size)")->capture_default_str();
  app->add_option("-b,--minbytes", o->min_text, "smallest size, for example 8 or 64K")->capture_default_str();
  app->add_option("-e,--maxbytes", o->max_text, "largest size")->capture_default_str();
  app->add_option("-f,--stepfactor", o->factor, "multiply the size by this from row to row")
      ->capture_default_str();
  app->add_option("-i,--stepbytes", o->step_text,
                  "add this many bytes from row to row instead of multiplying");
  GivenNumbers& given = o->given;
  app->add_option("-n,--iters", given.iterations, "timed iterations per row; default 20, in virtual time 2");
  app->add_option("-w,--warmup_iters", given.warmup,
                  "iterations before, not timed; default 5, in virtual time 1");
  app->add_option("-c,--check", given.checks,
                  "iterations whose result is checked element by element; default 1");
  app->add_option("--channels", given.channels,
                  "channels, that is connections per pair of neighbours; default 1");
  app->add_option("--ranks", given.ranks,
                  "ranks to start on this host; default 2, or WORLD_SIZE when RANK is set");
  app->add_option("--multi-comm", given.communicators,
                  "communicators that run the operation at the same time; default 1");
  app->add_option("--root", given.root, "root of broadcast and reduce; default 0");
  app->add_option("--plugin", o->plugin,
                  "NET plugin: a path or a name as in NCCL_NET_PLUGIN; default: the one installed "
                  "with this program");
  app->add_option("--api", given.api,
                  "version of the NET interface, 7 to 12; default: the highest that the plugin has");
  app->add_option(
         "--profiler", o->profiler_text,
         "version of the PROFILER interface, 1 to 6, that is loaded from the same library, 0 for none; auto: "
         "that of the NCCL release with the NET version, where the plugin has it")
      ->capture_default_str();
  app->add_option("--tuner", o->tuner_text, "version of the TUNER interface, likewise")
      ->capture_default_str();
  app->add_flag(
      "--show-lanes", o->show_lanes,
      "behind the table: operations, service classes, messages and bytes as the plugin counts them");
  app->add_option(
         "--fabric", o->fabric_name,
         "soft (the software fabric), virtual (the same in virtual time, all ranks in one process), verbs "
         "(this host's devices) or auto (verbs where there are devices)")
      ->capture_default_str();
  app->add_option("--topology", o->topology,
                  "topology of the software fabric: a TOML file, or one line such as hosts=4,nics=2");
  const auto lines = [app](const char* option, std::vector<std::string>* out, const char* text) {
    app->add_option(option, *out, text)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false);
  };
  lines("--fault", &o->faults,
        "software fabric: a fault, such as loss:probability=1e-4 or "
        "link-down:link=leaf0-spine1,at=2ms,for=5ms; may "
        "be repeated");
  lines(
      "--background", &o->background,
      "software fabric: traffic of others, such as storage:hosts=host0..host5,targets=host7,load=0.3; may be "
      "repeated");
  app->add_option(
      "--ranks-per-host", given.ranks_per_host,
      "ranks on each host of the topology; default: one, more where there are more ranks than hosts");
  app->add_option(
         "--host", o->host_preset,
         "virtual time: how fast and how regular processors are, ideal (calls cost nothing) or typical")
      ->capture_default_str();
  app->add_option("--seed", o->seed_text, "virtual time: of everything that is drawn at random; default 1");
  app->add_option(
         "--payload", o->payload_name,
         "virtual time: stored (the user's buffers are memory), synthetic (made when read, checked when "
         "written) or auto (synthetic above 64 ranks)")
      ->capture_default_str();
  app->add_flag("--json", o->json, "one JSON object per row instead of the table");
  app->add_flag("--register", o->registered,
                "register the user's buffers: the network reads and writes them directly");
  app->add_option("--max-recvs", given.max_recvs,
                  "receives to group in one irecv (point-to-point operations); default: what "
                  "the plugin reports");
  app->add_option("--device", given.device,
                  "use only this device of the plugin; default: all, channel by channel");
  app->add_option("--merge", given.merge, "merge the first N devices into one virtual device (makeVDevice)");
  app->add_option("--traffic-class", given.traffic_class,
                  "traffic class of the communicator, as in ncclConfig_t; default -1: none");
  CLI::Option* workload = app->add_option(
      "--workload", o->workload,
      "virtual time: run the jobs that this JSON file describes and print what each call took as JSON");
  for (const char* other :
       {"--op", "--algo", "--proto", "-b", "-e", "-f", "-i", "-n", "-w", "-c", "--channels", "--ranks",
        "--multi-comm", "--root", "--ranks-per-host", "--json", "--register", "--traffic-class", "--payload"})
    workload->excludes(other);
  app->add_option("--timeout", o->timeout_s, "seconds after which the whole run fails")
      ->capture_default_str();
}

Status ParseOp(const std::string& option, const std::string& name, Op* op) {
  return Pick<Op>(option, name,
                  {{"all_reduce", Op::kAllReduce},
                   {"all_gather", Op::kAllGather},
                   {"reduce_scatter", Op::kReduceScatter},
                   {"broadcast", Op::kBroadcast},
                   {"reduce", Op::kReduce},
                   {"all_to_all", Op::kAllToAll},
                   {"alltoall", Op::kAllToAll},
                   {"sendrecv", Op::kSendRecv}},
                  op);
}

Status ParseAlgo(const std::string& option, const std::string& name, Algo* algo) {
  return Pick<Algo>(option, name, {{"ring", Algo::kRing}, {"tree", Algo::kTree}}, algo);
}

Status ParseProto(const std::string& option, const std::string& name, std::optional<Proto>* proto) {
  return Pick<std::optional<Proto>>(
      option, name,
      {{"simple", Proto::kSimple}, {"ll", Proto::kLl}, {"ll128", Proto::kLl128}, {"auto", std::nullopt}},
      proto);
}

Status Validate(Options* o) {
  o->mixed = o->op_name == "mixed";
  if (!o->mixed) SLUICE_RETURN_IF_ERROR(ParseOp("--op", o->op_name, &o->op));
  SLUICE_RETURN_IF_ERROR(ParseAlgo("--algo", o->algo_name, &o->algo));
  SLUICE_RETURN_IF_ERROR(ParseProto("--proto", o->proto_name, &o->proto));
  SLUICE_RETURN_IF_ERROR(Pick<FabricKind>("--fabric", o->fabric_name,
                                          {{"auto", FabricKind::kAuto},
                                           {"soft", FabricKind::kSoft},
                                           {"verbs", FabricKind::kVerbs},
                                           {"virtual", FabricKind::kVirtual}},
                                          &o->fabric));
  const bool is_virtual = o->fabric == FabricKind::kVirtual;
  if (is_virtual) {
    o->iterations = 2;
    o->warmup = 1;
  }
  auto size = [](const char* option, const std::string& text, size_t* out) -> Status {
    const Result<size_t> bytes = ParseBytes(text);
    if (!bytes.ok()) return InvalidArgument(std::string(option) + " " + bytes.status().message());
    *out = *bytes;
    return Status::Ok();
  };
  SLUICE_RETURN_IF_ERROR(size("-b", o->min_text, &o->min_bytes));
  SLUICE_RETURN_IF_ERROR(size("-e", o->max_text, &o->max_bytes));
  if (!o->step_text.empty()) {
    SLUICE_RETURN_IF_ERROR(size("-i", o->step_text, &o->step_bytes));
    if (o->step_bytes == 0) return InvalidArgument("-i 0: the size would never grow; use at least 1");
  }
  if (o->min_bytes < kElementBytes)
    return InvalidArgument("-b " + o->min_text + ": out of range; the smallest size is 4 bytes");
  if (o->max_bytes < o->min_bytes)
    return InvalidArgument("-e " + o->max_text + ": smaller than -b " + o->min_text);
  if (!(o->factor > 1) || !std::isfinite(o->factor)) {
    return InvalidArgument("-f " + std::to_string(o->factor) +
                           ": the factor must be greater than 1, so that the size grows; use for "
                           "example 2");
  }
  const GivenNumbers& given = o->given;
  const int max_ranks = is_virtual ? 256 : 4096;
  SLUICE_RETURN_IF_ERROR(Take("-n", given.iterations, 1, 1000000, &o->iterations));
  SLUICE_RETURN_IF_ERROR(Take("-w", given.warmup, 0, 1000000, &o->warmup));
  SLUICE_RETURN_IF_ERROR(Take("-c", given.checks, 0, 1000, &o->checks));
  SLUICE_RETURN_IF_ERROR(Take("--channels", given.channels, 1, 64, &o->channels));
  SLUICE_RETURN_IF_ERROR(Take("--ranks", given.ranks, 1, max_ranks, &o->ranks));
  SLUICE_RETURN_IF_ERROR(Take("--multi-comm", given.communicators, 1, 64, &o->communicators));
  SLUICE_RETURN_IF_ERROR(Take("--root", given.root, 0, max_ranks - 1, &o->root));
  SLUICE_RETURN_IF_ERROR(Take("--api", given.api, 7, 12, &o->api));
  SLUICE_RETURN_IF_ERROR(Take("--max-recvs", given.max_recvs, 1, 64, &o->max_recvs));
  SLUICE_RETURN_IF_ERROR(Take("--device", given.device, 0, 1023, &o->device));
  SLUICE_RETURN_IF_ERROR(Take("--merge", given.merge, 2, 8, &o->merge));
  SLUICE_RETURN_IF_ERROR(Take("--traffic-class", given.traffic_class, -1, 255, &o->traffic_class));
  SLUICE_RETURN_IF_ERROR(Take("--ranks-per-host", given.ranks_per_host, 1, 256, &o->ranks_per_host));
  for (const auto& [option, text, version] : {std::tuple{"--profiler", &o->profiler_text, &o->profiler},
                                              std::tuple{"--tuner", &o->tuner_text, &o->tuner}}) {
    if (*text == "auto") continue;
    const char* const end = text->data() + text->size();
    const auto parsed = std::from_chars(text->data(), end, *version);
    if (parsed.ec != std::errc() || parsed.ptr != end)
      return InvalidArgument(std::string(option) + " " + *text + ": not a version; use 0 to 6 or auto");
    SLUICE_RETURN_IF_ERROR(InRange(option, *version, 0, 6));
  }
  SLUICE_RETURN_IF_ERROR(InRange("--timeout", o->timeout_s, 1, 1000000));
  if (o->merge != 0 && o->device >= 0) return InvalidArgument("--merge and --device exclude each other");
  if (o->ranks_per_host != 0 && o->topology.empty()) {
    return InvalidArgument("--ranks-per-host " + std::to_string(o->ranks_per_host) +
                           ": hosts are those of a topology; give one with --topology");
  }
  if (FindHostPreset(o->host_preset.c_str()) == nullptr) {
    return InvalidArgument("--host " + o->host_preset + ": unknown; use ideal or typical");
  }
  if (!o->seed_text.empty()) {
    const char* end = o->seed_text.data() + o->seed_text.size();
    const auto parsed = std::from_chars(o->seed_text.data(), end, o->seed);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      return InvalidArgument("--seed " + o->seed_text + ": not a number; use 0 to 18446744073709551615");
    }
    o->has_seed = true;
  }
  if (!is_virtual && !o->workload.empty()) {
    return InvalidArgument("--workload " + o->workload + ": only virtual time runs it; use --fabric virtual");
  }
  if (!is_virtual && (o->has_seed || o->host_preset != "ideal")) {
    return InvalidArgument("--host and --seed are for simulated hosts; use them with --fabric virtual");
  }
  if (is_virtual && (o->mixed || o->show_lanes)) {
    return InvalidArgument(
        "--op mixed and --show-lanes look at one plugin per process; use them with --fabric soft or verbs");
  }
  if (o->mixed && (o->communicators != 1 || o->registered)) {
    return InvalidArgument(
        "--op mixed runs in one communicator with NCCL's own buffers; leave --multi-comm and "
        "--register out");
  }
  std::optional<bool> synthetic;
  SLUICE_RETURN_IF_ERROR(Pick<std::optional<bool>>(
      "--payload", o->payload_name, {{"auto", std::nullopt}, {"stored", false}, {"synthetic", true}},
      &synthetic));
  if (synthetic.has_value() && !is_virtual) {
    return InvalidArgument("--payload " + o->payload_name +
                           " is for virtual time; use it with --fabric virtual");
  }
  if (synthetic.value_or(false) && o->registered) {
    return InvalidArgument(
        "--payload synthetic: the network reads registered buffers itself; leave --register out");
  }
  constexpr int kStoredRanks = 64;
  o->synthetic = synthetic.value_or(is_virtual && o->ranks > kStoredRanks && !o->registered);
  if (!o->topology.empty() && o->fabric == FabricKind::kVerbs) {
    return InvalidArgument("--topology describes the software fabric; use it with --fabric soft");
  }
  if (o->fabric == FabricKind::kVerbs && !(o->faults.empty() && o->background.empty())) {
    return InvalidArgument(
        "--fault and --background happen on the software fabric; use them with --fabric soft or virtual");
  }
  return Status::Ok();
}

std::string Options::Fingerprint() const {
  std::string text;
  for (const std::string& part :
       {op_name, algo_name, proto_name, std::to_string(min_bytes), std::to_string(max_bytes),
        std::to_string(step_bytes), std::to_string(factor), std::to_string(iterations),
        std::to_string(warmup), std::to_string(checks), std::to_string(channels),
        std::to_string(communicators), std::to_string(root), std::to_string(registered),
        std::to_string(max_recvs), std::to_string(merge), std::to_string(show_lanes)}) {
    text += part + "/";
  }
  return text;
}

Proto ChooseProto(const Shape& shape, size_t bytes) {
  const bool p2p = IsPointToPoint(shape.op);
  if (bytes <= (p2p ? size_t{16} << 10 : size_t{64} << 10)) return Proto::kLl;
  if (!p2p && bytes <= size_t{1} << 20) return Proto::kLl128;
  return Proto::kSimple;
}

}  // namespace sluice::perf
