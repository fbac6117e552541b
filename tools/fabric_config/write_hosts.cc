// Host ports: mlnx_qos (NVIDIA's drivers) and dcb (iproute2).
#include "tools/fabric_config/writers.h"

namespace sluice::fabric_config {
namespace {

std::string Head(const RocePlan& plan, const std::string& policy_name, const std::string& tool) {
  std::string text = "#!/bin/bash\n# Quality of service of one RoCE port for the service classes of " +
                     policy_name + ",\n# written by sluice fabric-config --for " + tool +
                     ". Run as root: FILE INTERFACE\n";
  for (const std::string& warning : plan.warnings) text += "# WARNING: " + warning + "\n";
  if (plan.nothing) return text;
  text += "# Switches need the same priorities (sluice fabric-config --for sonic).\n";
  for (const Group& group : plan.groups) {
    text += "#   priority " + std::to_string(group.lane) + ": " + group.Name() + ", ";
    text += group.strict ? "strict" : std::to_string(plan.percent[static_cast<size_t>(group.lane)]) + " %";
    text += group.lossless ? ", lossless\n" : "\n";
  }
  text += "#   priority " + std::to_string(kCnpPriority) + ": congestion notifications, strict\n";
  return text + "set -euo pipefail\ndev=${1:?interface, such as eth0}\n";
}

// "a0,a1,...,a7".
template <typename Text>
std::string PerPriority(Text text) {
  std::string list;
  for (size_t i = 0; i < kPriorities; ++i) list += (i == 0 ? "" : ",") + std::string(text(i));
  return list;
}

}  // namespace

std::string MlnxQosText(const RocePlan& plan, const std::string& policy_name, const Options& options) {
  std::string text = Head(plan, policy_name, "mlnx_qos");
  if (plan.nothing) return text;
  text +=
      "\n# Packets are sorted by their DSCP, which survives routing, and not by a VLAN tag.\n"
      "mlnx_qos -i \"$dev\" --trust dscp\n";
  for (size_t dscp = 0; dscp < plan.priority_of_dscp.size(); ++dscp) {
    const int priority = plan.priority_of_dscp[dscp];
    if (dscp != 0 && priority == 0) continue;
    text += "mlnx_qos -i \"$dev\" --dscp2prio set," + std::to_string(dscp) + "," + std::to_string(priority) +
            "\n";
  }
  text +=
      "# All other DSCPs keep the driver's default, priority = DSCP / 8; no other traffic should use "
      "priorities 1 to 5.\n"
      "\n# One queue per priority; strict ones first, the others share what is left.\n"
      "mlnx_qos -i \"$dev\" --prio_tc " +
      PerPriority([](size_t i) { return std::to_string(i); }) + " \\\n  --tsa " +
      PerPriority([&](size_t i) { return plan.strict[i] ? "strict" : "ets"; }) + " \\\n  --tcbw " +
      PerPriority([&](size_t i) { return std::to_string(plan.percent[i]); }) +
      "\n\n# RDMA must not lose packets: these priorities pause instead of dropping.\nmlnx_qos -i \"$dev\" "
      "--pfc " +
      PerPriority([&](size_t i) { return plan.pfc[i] ? "1" : "0"; }) +
      "\n\n# Congestion control of the NIC (DCQCN): answers marked packets, and slows down when told.\n";
  for (const Group& group : plan.groups) {
    if (group.unmarked) continue;
    for (const char* side : {"roce_np", "roce_rp"}) {
      text += "echo 1 > \"/sys/class/net/$dev/ecn/" + std::string(side) + "/enable/" +
              std::to_string(group.lane) + "\"\n";
    }
  }
  text += "echo " + std::to_string(options.cnp_dscp) + " > \"/sys/class/net/$dev/ecn/roce_np/cnp_dscp\"\n" +
          "echo " + std::to_string(plan.priority_of_dscp[static_cast<size_t>(options.cnp_dscp)]) +
          " > \"/sys/class/net/$dev/ecn/roce_np/cnp_802p_prio\"\n"
          "\n# A traffic class that the driver forces on every queue pair would undo all of this: it must be "
          "unset.\n"
          "for forced in /sys/class/net/\"$dev\"/device/infiniband/*/tc/*/traffic_class; do\n"
          "  if [ -e \"$forced\" ] && grep -q 'Global tclass' \"$forced\"; then\n"
          "    echo \"warning: $forced forces one traffic class on all queue pairs\" >&2\n"
          "  fi\n"
          "done\n";
  return text;
}

std::string DcbText(const RocePlan& plan, const std::string& policy_name) {
  std::string text = Head(plan, policy_name, "dcb");
  if (plan.nothing) return text;
  text +=
      "\n# Packets are sorted by their DSCP, which survives routing. Drivers trust the DSCP once such "
      "entries exist; where the\n"
      "# driver has a switch for it, also: dcb apptrust set dev \"$dev\" order dscp (iproute2 6.2).\n"
      "dcb app replace dev \"$dev\" dscp-prio";
  for (size_t dscp = 0; dscp < plan.priority_of_dscp.size(); ++dscp)
    text += (dscp % 8 == 0 ? " \\\n  " : " ") + std::to_string(dscp) + ":" +
            std::to_string(plan.priority_of_dscp[dscp]);
  text +=
      "\n\n# One queue per priority; strict ones first, the others share what is left. Not willing: a switch "
      "cannot change it.\n"
      "dcb ets set dev \"$dev\" willing off \\\n  prio-tc";
  for (int i = 0; i < kPriorities; ++i) text += " " + std::to_string(i) + ":" + std::to_string(i);
  text += " \\\n  tc-tsa";
  for (size_t i = 0; i < kPriorities; ++i)
    text += " " + std::to_string(i) + (plan.strict[i] ? ":strict" : ":ets");
  text += " \\\n  tc-bw";
  for (size_t i = 0; i < kPriorities; ++i)
    text += " " + std::to_string(i) + ":" + std::to_string(plan.percent[i]);
  text +=
      "\n\n# RDMA must not lose packets: these priorities pause instead of dropping.\ndcb pfc set dev "
      "\"$dev\" prio-pfc all:off";
  for (const int i : plan.LosslessPriorities()) text += " " + std::to_string(i) + ":on";
  return text + "\n";
}

}  // namespace sluice::fabric_config
