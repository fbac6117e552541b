#include "tools/fabric_config/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <sstream>

#include "base/words.h"
#include "tools/fabric_config/writers.h"
#include "tools/output.h"
#include "tools/policy/chosen_policy.h"

namespace sluice::fabric_config {
namespace {

constexpr int kBadUsage = 2;
constexpr std::string_view kTargets[] = {"opensm", "mlnx_qos", "dcb", "sonic"};

int Complain(const std::string& message, int code) {
  fprintf(stderr, "sluice fabric-config: %s\n", message.c_str());
  return code;
}

struct Range {
  const char* option;
  int value;
  int low;
  int high;
};

std::string OutOfRange(const Options& o) {
  for (const auto& [option, value, low, high] :
       {Range{"--vls", o.vls, 1, 15}, Range{"--arbitration-entries", o.arbitration_entries, 8, 64},
        Range{"--floor-percent", o.floor_percent, 1, 50}, Range{"--cnp-dscp", o.cnp_dscp, 1, 63},
        Range{"--other-percent", o.other_percent, 1, 50}, Range{"--rate", o.rate_gbps, 1, 3200}}) {
    if (value >= low && value <= high) continue;
    return std::string(option) + " " + std::to_string(value) + ": out of range; use " + std::to_string(low) +
           " to " + std::to_string(high);
  }
  return {};
}

}  // namespace

void AddOptions(CLI::App* app, CommandOptions* o) {
  app->add_option("--policy", o->policy, "policy in TOML; default: SLUICE_POLICY");
  app->add_option(
         "--for", o->target,
         "opensm (InfiniBand subnet manager), mlnx_qos or dcb (host ports, RoCE), sonic (switch ports, RoCE)")
      ->required();
  app->add_option("--vls", o->options.vls, "opensm: data virtual lanes of the fabric")->capture_default_str();
  app->add_option("--arbitration-entries", o->options.arbitration_entries,
                  "opensm: entries of a VL arbitration table")
      ->capture_default_str();
  app->add_option("--floor-percent", o->options.floor_percent,
                  "opensm: share of a link that strict classes leave to the others")
      ->capture_default_str();
  app->add_option("--cnp-dscp", o->options.cnp_dscp, "RoCE: DSCP of congestion notifications")
      ->capture_default_str();
  app->add_option("--other-percent", o->options.other_percent, "RoCE: share of a port for unmarked traffic")
      ->capture_default_str();
  app->add_option("--lossy", o->options.lossy, "RoCE: a class that needs no PFC; may be repeated");
  app->add_option("--rate", o->options.rate_gbps, "sonic: Gb/s of the ports, which scales ECN thresholds")
      ->capture_default_str();
  app->add_option("--ports", o->ports, "sonic: names of the ports, separated by commas; default Ethernet0");
}

int Run(CommandOptions o) {
  const std::string_view target = o.target;
  if (std::find(std::begin(kTargets), std::end(kTargets), target) == std::end(kTargets))
    return Complain("--for " + OneLine(target) + ": unknown; use " + WordList(kTargets), kBadUsage);
  if (const std::string why = OutOfRange(o.options); !why.empty()) return Complain(why, kBadUsage);
  if (!o.ports.empty()) {
    o.options.ports.clear();
    std::istringstream list(o.ports);
    for (std::string port; std::getline(list, port, ',');) {
      if (port.empty() ||
          port.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") !=
              std::string::npos)
        return Complain("--ports " + OneLine(o.ports) + ": not names of ports, as in Ethernet0,Ethernet8",
                        kBadUsage);
      o.options.ports.push_back(port);
    }
  }
  const Result<std::shared_ptr<const Policy>> policy = ChosenPolicy(o.policy);
  if (!policy.ok()) return Complain(policy.status().message(), 1);
  const std::string name = "the policy " + (*policy)->origin();
  std::string text;
  std::vector<std::string> warnings = (*policy)->notes();
  const auto warn = [&](const std::vector<std::string>& more) {
    warnings.insert(warnings.end(), more.begin(), more.end());
  };
  std::string notes;
  if (target == "opensm") {
    const InfiniBandPlan plan = PlanInfiniBand(**policy, o.options);
    text = OpenSmText(plan, name, o.options);
    warn(plan.warnings);
  } else {
    const Result<RocePlan> plan = PlanRoce(**policy, o.options);
    if (!plan.ok()) return Complain(plan.status().message(), kBadUsage);
    warn(plan->warnings);
    text = target == "mlnx_qos" ? MlnxQosText(*plan, name, o.options)
           : target == "dcb"    ? DcbText(*plan, name)
                                : SonicJson(*plan, o.options);
    if (target == "sonic") notes = SonicNotes(*plan, o.options);
  }
  fputs(notes.c_str(), stderr);
  for (const std::string& warning : warnings)
    fprintf(stderr, "sluice fabric-config: warning: %s\n", warning.c_str());
  fputs(text.c_str(), stdout);
  return OutputWritten("fabric-config") ? 0 : 1;
}

}  // namespace sluice::fabric_config
