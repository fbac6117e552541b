#include <nlohmann/json.hpp>

#include "tools/fabric_config/writers.h"

namespace sluice::fabric_config {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMap = "SLUICE";
// Marking thresholds of an egress queue per 25 Gb/s of the link, as DCQCN's authors scale them.
constexpr int kBytesMinPer25G = 100'000;
constexpr int kBytesMaxPer25G = 400'000;
constexpr int kMarkPercent = 20;

int PerRate(int bytes_per_25g, const Options& options) {
  return static_cast<int>(int64_t{bytes_per_25g} * options.rate_gbps / 25);
}

std::string Scheduler(const RocePlan& plan, size_t queue) {
  return plan.strict[queue] ? "sluice.strict" : "sluice.queue" + std::to_string(queue);
}

std::string Joined(const std::vector<int>& values) {
  std::string text;
  for (const int value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

}  // namespace

std::string SonicJson(const RocePlan& plan, const Options& options) {
  if (plan.nothing) return "{}\n";
  Json db;
  for (size_t dscp = 0; dscp < plan.priority_of_dscp.size(); ++dscp)
    db["DSCP_TO_TC_MAP"][kMap][std::to_string(dscp)] = std::to_string(plan.priority_of_dscp[dscp]);
  for (int i = 0; i < kPriorities; ++i) {
    const std::string same = std::to_string(i);
    db["TC_TO_QUEUE_MAP"][kMap][same] = same;
    // Lossy traffic shares priority group 0; each lossless priority has its own, whose headroom takes what arrives after a pause.
    db["TC_TO_PRIORITY_GROUP_MAP"][kMap][same] = plan.pfc[static_cast<size_t>(i)] ? same : "0";
    db["MAP_PFC_PRIORITY_TO_QUEUE"][kMap][same] = same;
  }
  db["SCHEDULER"]["sluice.strict"]["type"] = "STRICT";
  for (size_t i = 0; i < kPriorities; ++i) {
    if (plan.percent[i] == 0) continue;
    db["SCHEDULER"][Scheduler(plan, i)] = {{"type", "DWRR"}, {"weight", std::to_string(plan.percent[i])}};
  }
  const std::string min = std::to_string(PerRate(kBytesMinPer25G, options));
  const std::string max = std::to_string(PerRate(kBytesMaxPer25G, options));
  Json& wred = db["WRED_PROFILE"]["SLUICE"];
  wred["ecn"] = "ecn_all";
  for (const char* color : {"green", "yellow", "red"}) {
    const std::string name = color;
    wred["wred_" + name + "_enable"] = "true";
    wred[name + "_min_threshold"] = min;
    wred[name + "_max_threshold"] = max;
    wred[name + "_drop_probability"] = std::to_string(kMarkPercent);
  }
  const std::string lossless = Joined(plan.LosslessPriorities());
  for (const std::string& port : options.ports) {
    for (size_t i = 0; i < kPriorities; ++i) {
      if (!plan.strict[i] && plan.percent[i] == 0) continue;
      Json& queue = db["QUEUE"][port + "|" + std::to_string(i)];
      queue["scheduler"] = Scheduler(plan, i);
      if (plan.pfc[i]) queue["wred_profile"] = "SLUICE";
    }
    Json& map = db["PORT_QOS_MAP"][port];
    map["dscp_to_tc_map"] = kMap;
    map["tc_to_queue_map"] = kMap;
    map["tc_to_pg_map"] = kMap;
    map["pfc_to_queue_map"] = kMap;
    if (lossless.empty()) continue;
    map["pfc_enable"] = lossless;
    map["pfcwd_sw_enable"] = lossless;
    db["PFC_WD"][port] = {{"action", "drop"}, {"detection_time", "200"}, {"restoration_time", "200"}};
  }
  if (!lossless.empty()) db["PFC_WD"]["GLOBAL"]["POLL_INTERVAL"] = "200";
  return db.dump(2) + "\n";
}

std::string SonicNotes(const RocePlan& plan, const Options& options) {
  if (plan.nothing) return {};
  std::string text;
  for (const Group& group : plan.groups) {
    text += "priority " + std::to_string(group.lane) + ": " + group.Name() + ", ";
    text += group.strict ? "strict" : std::to_string(plan.percent[static_cast<size_t>(group.lane)]) + " %";
    text += group.lossless ? ", lossless\n" : "\n";
  }
  text += "priority " + std::to_string(kCnpPriority) + ": congestion notifications, strict\n";
  text += "ECN marks from " + std::to_string(PerRate(kBytesMinPer25G, options)) + " to " +
          std::to_string(PerRate(kBytesMaxPer25G, options)) + " bytes of an egress queue, for ports of " +
          std::to_string(options.rate_gbps) + " Gb/s\n";
  text +=
      "headroom of the lossless priority groups (BUFFER_PG) depends on the platform and the cables: add it "
      "for " +
      std::string("each port, as in the platform's buffers.json\n");
  return text + "the PFC watchdog drops what is stuck for 200 ms, so that a pause storm stays on its link\n";
}

}  // namespace sluice::fabric_config
