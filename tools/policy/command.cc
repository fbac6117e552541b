#include "tools/policy/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/words.h"
#include "plugin/lanes.h"
#include "tools/output.h"
#include "tools/policy/chosen_policy.h"

namespace sluice::policy {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

int Complain(const std::string& message, int code) {
  fprintf(stderr, "sluice policy: %s\n", message.c_str());
  return code;
}

std::string Text(const std::string& value, const char* source) {
  return value + " (" + source + ")";
}

// "strict, priority 1" or "weight 50".
std::string Discipline(const ServiceClass& one) {
  return one.strict ? "strict, priority " + std::to_string(one.priority)
                    : "weight " + std::to_string(one.weight);
}

// The lanes on both kinds of fabric under this environment.
struct BothLanes {
  std::vector<LaneSpec> infiniband;
  std::vector<LaneSpec> roce;
};

Result<BothLanes> ResolveBoth(const Policy& policy, int traffic_class) {
  const Result<Params>& params = GetParams();
  if (!params.ok()) return params.status();
  BothLanes both;
  for (const bool infiniband : {true, false}) {
    // The one number must fit the fabric that the job runs on, not both.
    const bool fits = traffic_class <= 15 || !infiniband;
    Result<std::vector<LaneSpec>> lanes =
        ResolveLanes(*params, policy, fits ? traffic_class : -1, infiniband);
    if (!lanes.ok()) return lanes.status();
    (infiniband ? both.infiniband : both.roce) = std::move(*lanes);
  }
  return both;
}

const LaneSpec* Find(const std::vector<LaneSpec>& lanes, size_t service_class) {
  for (const LaneSpec& lane : lanes) {
    if (lane.service_class == service_class) return &lane;
  }
  return nullptr;
}

Json LaneJson(const LaneSpec& lane) {
  return {{"sl", lane.sl},
          {"sl_source", lane.sl_source},
          {"traffic_class", lane.traffic_class},
          {"traffic_class_source", lane.traffic_class_source}};
}

int Check(const Options& o) {
  const Result<std::shared_ptr<const Policy>> read = Policy::ReadFile(o.file);
  if (o.json) {
    Json json = {{"file", OneLine(o.file)}, {"valid", read.ok()}};
    if (read.ok()) {
      json["classes"] = (*read)->classes().size();
      json["rules"] = (*read)->rules().size();
      json["notes"] = (*read)->notes();
    } else {
      json["error"] = read.status().message();
    }
    printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else if (read.ok()) {
    printf("%s: sound: %zu classes, %zu rules\n", OneLine(o.file).c_str(), (*read)->classes().size(),
           (*read)->rules().size());
    for (const std::string& note : (*read)->notes()) printf("note: %s\n", note.c_str());
  } else {
    return Complain(read.status().message(), kFailed);
  }
  const bool written = OutputWritten("policy");
  return read.ok() && written ? 0 : kFailed;
}

void ShowText(const Policy& policy, const BothLanes& lanes) {
  printf("policy: %s\n\nclasses\n", policy.origin().c_str());
  for (size_t i = 0; i < policy.classes().size(); ++i) {
    const ServiceClass& one = policy.classes()[i];
    const LaneSpec* infiniband = Find(lanes.infiniband, i);
    const LaneSpec* roce = Find(lanes.roce, i);
    if (infiniband == nullptr) {
      printf("  %-12s %s; no rule leads to it\n", one.name.c_str(), Discipline(one).c_str());
      continue;
    }
    const std::string pairs = i == ClassIndex(BuiltInClass::kControl)
                                  ? "control queue pair"
                                  : std::to_string(infiniband->queue_pairs) + " queue pairs";
    printf("  %-12s %s; %s\n", one.name.c_str(), Discipline(one).c_str(), pairs.c_str());
    printf("  %-12s InfiniBand: sl %s, traffic class %s\n", "",
           Text(std::to_string(infiniband->sl), infiniband->sl_source).c_str(),
           Text(std::to_string(infiniband->traffic_class), infiniband->traffic_class_source).c_str());
    const std::string dscp =
        std::to_string(roce->traffic_class) + " = DSCP " + std::to_string(roce->traffic_class / 4);
    printf("  %-12s RoCE: traffic class %s, sl %s\n", "", Text(dscp, roce->traffic_class_source).c_str(),
           Text(std::to_string(roce->sl), roce->sl_source).c_str());
  }
  printf("\nrules, the first that matches wins\n");
  for (const RuleText& rule : policy.rules()) {
    printf("  %-12s if %s: %s (%s)\n", policy.classes()[rule.service_class].name.c_str(),
           rule.conditions.c_str(), rule.name.c_str(), rule.where.c_str());
  }
  printf("  %-12s otherwise\n", "bulk");
  for (const std::string& note : policy.notes()) printf("note: %s\n", note.c_str());
}

Json ShowJson(const Policy& policy, const BothLanes& lanes) {
  Json json = {{"policy", policy.origin()},
               {"classes", Json::array()},
               {"rules", Json::array()},
               {"notes", policy.notes()}};
  for (size_t i = 0; i < policy.classes().size(); ++i) {
    const ServiceClass& one = policy.classes()[i];
    Json entry = {{"name", one.name}, {"strict", one.strict}};
    entry[one.strict ? "priority" : "weight"] = one.strict ? one.priority : one.weight;
    const LaneSpec* lane = Find(lanes.infiniband, i);
    entry["reachable"] = lane != nullptr;
    if (lane != nullptr) {
      entry["queue_pairs"] = lane->queue_pairs;
      entry["infiniband"] = LaneJson(*lane);
      entry["roce"] = LaneJson(*Find(lanes.roce, i));
    }
    json["classes"].push_back(std::move(entry));
  }
  for (const RuleText& rule : policy.rules()) {
    json["rules"].push_back({{"name", rule.name},
                             {"where", rule.where},
                             {"conditions", rule.conditions},
                             {"class", policy.classes()[rule.service_class].name}});
  }
  return json;
}

// Names of the command line to an operation; empty: all is well.
std::string ParseOperation(const Options& o, Operation* operation) {
  const auto unknown = [](const char* option, const std::string& value, const char* example) {
    return std::string(option) + " " + OneLine(value) + ": unknown; write for example " + example;
  };
  if (!o.op.empty()) {
    const std::optional<Function> function = FunctionFromName(o.op);
    if (!function)
      return unknown("--op", o.op, "all_reduce, all_gather, reduce_scatter, broadcast, send or all_to_all");
    operation->function = *function;
  }
  if (!o.algo.empty()) {
    const std::optional<Algorithm> algorithm = AlgorithmFromName(o.algo);
    if (!algorithm) return unknown("--algo", o.algo, "ring, tree, nvls, nvls_tree or pat");
    operation->algorithm = *algorithm;
  }
  if (!o.proto.empty()) {
    const std::optional<Protocol> protocol = ProtocolFromName(o.proto);
    if (!protocol) return unknown("--proto", o.proto, "simple, ll or ll128");
    operation->protocol = *protocol;
  }
  if (!o.bytes.empty()) {
    const Result<uint64_t> bytes = BytesFromText(o.bytes);
    if (!bytes.ok()) return "--bytes " + bytes.status().message();
    operation->bytes = *bytes;
  }
  return {};
}

int ExplainOperation(const Options& o, const Policy& policy, const BothLanes& lanes) {
  Operation operation;
  if (const std::string why = ParseOperation(o, &operation); !why.empty()) return Complain(why, kBadUsage);
  const Communicator communicator{
      .hash = 0, .name = o.comm, .nodes = o.nodes, .traffic_class = o.traffic_class};
  const uint8_t index = policy.Bind(communicator).Of(operation);
  const LaneSpec& infiniband = *Find(lanes.infiniband, index);
  const LaneSpec& roce = *Find(lanes.roce, index);
  if (!o.json) {
    printf("%s", policy.Explain(communicator, operation).c_str());
    printf("on InfiniBand: sl %s\n", Text(std::to_string(infiniband.sl), infiniband.sl_source).c_str());
    printf("on RoCE: traffic class %s\n",
           Text(std::to_string(roce.traffic_class), roce.traffic_class_source).c_str());
    return 0;
  }
  Json json = {{"operation", DescribeOperation(operation)},
               {"communicator", DescribeCommunicator(communicator, policy.ParallelismOf(communicator))},
               {"class", policy.classes()[index].name},
               {"infiniband", LaneJson(infiniband)},
               {"roce", LaneJson(roce)},
               {"rules", Json::array()}};
  const std::vector<RuleText> rules = policy.rules();
  for (const RuleVerdict& verdict : policy.Trace(communicator, operation)) {
    json["rules"].push_back({{"name", rules[verdict.rule].name},
                             {"where", rules[verdict.rule].where},
                             {"matches", verdict.matches},
                             {"why", verdict.why}});
  }
  printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  return 0;
}

}  // namespace

void AddOptions(CLI::App* app, Options* o) {
  app->require_subcommand(1);
  o->check = app->add_subcommand("check", "says whether a policy is sound, and what is wrong with it");
  o->check->add_option("file", o->file, "policy in TOML")->required();
  o->explain = app->add_subcommand("explain", "says which class an operation gets, and why");
  o->show =
      app->add_subcommand("show", "prints classes, rules, and the marks that result under this environment");
  for (CLI::App* command : {o->explain, o->show}) {
    command->add_option("file", o->file, "policy in TOML; default: SLUICE_POLICY, else the built-in one");
    command->add_option("--traffic-class", o->traffic_class,
                        "trafficClass of the communicator (ncclConfig_t)");
  }
  for (CLI::App* command : {o->check, o->explain, o->show}) {
    command->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    command->add_flag("--json", o->json, "one JSON object");
  }
  o->explain->add_option("--op", o->op, "all_reduce, all_gather, reduce_scatter, send, all_to_all and so on");
  o->explain->add_option("--algo", o->algo,
                         "ring, tree, nvls, nvls_tree, collnet_direct, collnet_chain or pat");
  o->explain->add_option("--proto", o->proto, "simple, ll or ll128");
  o->explain->add_option("--bytes", o->bytes, "size of the call on one rank, such as 1M");
  o->explain->add_option("--comm", o->comm, "name of the communicator (ncclConfig_t.commName)");
  o->explain->add_option("--nodes", o->nodes, "nodes of the communicator");
}

int Run(const Options& o) {
  if (o.check->parsed()) return Check(o);
  const int traffic_class = o.traffic_class;
  if (traffic_class < -1 || traffic_class > 255)
    return Complain("--traffic-class " + std::to_string(traffic_class) + ": out of range; use 0 to 255",
                    kBadUsage);
  if (o.nodes < -1 || o.nodes == 0)
    return Complain("--nodes " + std::to_string(o.nodes) + ": out of range; use 1 or more", kBadUsage);
  const Result<std::shared_ptr<const Policy>> read = ChosenPolicy(o.file);
  if (!read.ok()) return Complain(read.status().message(), kFailed);
  const Policy& policy = **read;
  const Result<BothLanes> lanes = ResolveBoth(policy, traffic_class);
  if (!lanes.ok()) return Complain(lanes.status().message(), kFailed);
  int code = 0;
  if (o.explain->parsed()) {
    code = ExplainOperation(o, policy, *lanes);
  } else if (o.json) {
    printf("%s\n", ShowJson(policy, *lanes).dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    ShowText(policy, *lanes);
  }
  return OutputWritten("policy") ? code : kFailed;
}

}  // namespace sluice::policy
