#include "tools/fabric_config/writers.h"

namespace sluice::fabric_config {
namespace {

std::string Table(const std::vector<std::pair<int, int>>& entries) {
  if (entries.empty()) return "0:0";  // an entry without weight is skipped
  std::string text;
  for (const auto& [vl, weight] : entries)
    text += (text.empty() ? "" : ",") + std::to_string(vl) + ":" + std::to_string(weight);
  return text;
}

std::string List(const std::vector<int>& values) {
  std::string text;
  for (const int value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text;
}

}  // namespace

std::string OpenSmText(const InfiniBandPlan& plan, const std::string& policy_name, const Options& options) {
  std::string text = "# OpenSM options for the service classes of " + policy_name +
                     ", written by sluice fabric-config --for opensm --vls " + std::to_string(options.vls) +
                     "\n";
  for (const std::string& warning : plan.warnings) text += "# WARNING: " + warning + "\n";
  if (plan.nothing) return text;
  text +=
      "# Merge into opensm.conf, then make OpenSM read it again (SIGHUP), or start it with -F. Check one "
      "port of each kind with\n"
      "#   smpquery sl2vl LID PORT; smpquery vlarb LID PORT\n"
      "# Not for routing engines that use service levels against deadlock (torus-2QoS, dfsssp, lash, nue): "
      "there the route\n"
      "# dictates the service level. No QoS policy file (-Y) is needed: jobs choose their service levels "
      "themselves.\n"
      "\nqos TRUE\n"
      "\n# Data virtual lanes. Every link must have them: smpquery portinfo, OperVLs.\n"
      "qos_max_vls " +
      std::to_string(options.vls) +
      "\n\n# Service levels that are not listed share virtual lane 0, so that nothing is dropped.\n";
  for (const Group& group : plan.groups) {
    text += "#   sl " + List(group.marks) + " -> VL " + std::to_string(group.lane) + ": " + group.Name() +
            (group.strict ? ", before all others\n" : ", weight " + std::to_string(group.weight) + "\n");
  }
  text += "qos_sl2vl ";
  for (size_t sl = 0; sl < plan.vl_of_sl.size(); ++sl)
    text += (sl == 0 ? "" : ",") + std::to_string(plan.vl_of_sl[sl]);
  text +=
      "\n\n# VL:weight, in units of 64 bytes; 64 is one packet of 4 KiB. The high table is served first.\n"
      "qos_vlarb_high " +
      Table(plan.high) + "\nqos_vlarb_low " + Table(plan.low) +
      "\n\n# After this many times 4 KiB of the high table, one packet of the low table goes: it keeps at "
      "least " +
      std::to_string(options.floor_percent) + " % of a link.\nqos_high_limit " +
      std::to_string(plan.high_limit) + "\n";
  return text;
}

}  // namespace sluice::fabric_config
