#include "tools/perf/lanes_report.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "tools/perf/fabric_control.h"
#include "tools/statistics/reader.h"

namespace sluice::perf {
namespace {

double Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// What left the ports of the software fabric, headers included.
void AppendFabric(bool json, std::string* text) {
  const std::optional<FabricBytes> fabric = AskFabricBytes();
  if (!fabric.has_value()) return;
  nlohmann::ordered_json line;
  for (const auto& [what, bytes] :
       {std::pair{"sl", &fabric->by_sl}, std::pair{"traffic_class", &fabric->by_traffic_class}}) {
    for (const auto& [index, count] : *bytes) {
      line["fabric_wire_bytes"][what][std::to_string(index)] = count;
      if (json) continue;
      char row[128];
      snprintf(row, sizeof row, "# fabric: %llu wire bytes with %s %d\n",
               static_cast<unsigned long long>(count), *what == 's' ? "service level" : "traffic class",
               index);
      *text += row;
    }
  }
  if (json) *text += line.dump() + "\n";
}

}  // namespace

void MixedOutcome::Add(const MixedOutcome& other) {
  wrong_values += other.wrong_values;
  claims.messages += other.claims.messages;
  claims.right += other.claims.right;
  claims.kind_only += other.claims.kind_only;
  claims.wrong += other.claims.wrong;
  for (int i = 0; i < kOperationSources; ++i) claims.by_source[i] += other.claims.by_source[i];
  claims.disagreed += other.claims.disagreed;
  claims.compared += other.claims.compared;
  claims.bytes_known += other.claims.bytes_known;
}

std::string DescribeMixed(const MixedOutcome& sum, const PluginHalves& halves, int net_version, bool json) {
  const ClaimTotals& claims = sum.claims;
  const int profiler = halves.profiler == nullptr ? 0 : halves.profiler->version();
  const int tuner = halves.tuner == nullptr ? 0 : halves.tuner->version();
  if (json) {
    nlohmann::ordered_json line;
    line["op"] = "mixed";
    line["net"] = net_version;
    line["profiler"] = profiler;
    line["tuner"] = tuner;
    line["wrong"] = sum.wrong_values;
    line["messages"] = claims.messages;
    line["right"] = claims.right;
    line["kind_only"] = claims.kind_only;
    line["misclassified"] = claims.wrong;
    line["compared"] = claims.compared;
    line["disagreed"] = claims.disagreed;
    line["bytes_known"] = claims.bytes_known;
    for (int i = 0; i < kOperationSources; ++i)
      line["sources"][std::string(Name(static_cast<OperationSource>(i)))] = claims.by_source[i];
    return line.dump();
  }
  char text[1024];
  snprintf(text, sizeof text,
           "# NET v%d, PROFILER %s, TUNER %s: %llu messages\n"
           "# operation and class right         : %llu (%.2f %%)\n"
           "# only kind and protocol right      : %llu (%.2f %%)\n"
           "# wrong                             : %llu (%.2f %%)\n"
           "# named by both sources, differently: %llu of %llu\n"
           "# Out of bounds values : %llu %s",
           net_version, profiler == 0 ? "none" : ("v" + std::to_string(profiler)).c_str(),
           tuner == 0 ? "none" : ("v" + std::to_string(tuner)).c_str(),
           static_cast<unsigned long long>(claims.messages), static_cast<unsigned long long>(claims.right),
           Percent(claims.right, claims.messages), static_cast<unsigned long long>(claims.kind_only),
           Percent(claims.kind_only, claims.messages), static_cast<unsigned long long>(claims.wrong),
           Percent(claims.wrong, claims.messages), static_cast<unsigned long long>(claims.disagreed),
           static_cast<unsigned long long>(claims.compared),
           static_cast<unsigned long long>(sum.wrong_values), sum.wrong_values == 0 ? "OK" : "FAILED");
  return text;
}

Result<std::string> SerializeLanes(pid_t pid) {
  Result<std::vector<StatisticsReader>> readers = StatisticsReader::OpenProcess(pid);
  if (!readers.ok()) return readers.status();
  nlohmann::json rows = nlohmann::json::array();
  for (const StatisticsReader& reader : *readers) {
    for (const ClaimedMessages& row : reader.Messages()) {
      rows.push_back({row.direction == Direction::kSend, Name(row.function), Name(row.protocol),
                      reader.ClassName(row.service_class), Name(row.source), row.messages, row.bytes});
    }
  }
  return rows.dump();
}

std::string DescribeLanes(const std::vector<std::string>& ranks, bool json) {
  using Key = std::tuple<bool, std::string, std::string, std::string, std::string>;
  std::map<Key, std::pair<uint64_t, uint64_t>> sums;
  for (const std::string& rank : ranks) {
    for (const auto& row : nlohmann::json::parse(rank)) {
      auto& [messages, bytes] = sums[{!row[0].get<bool>(), row[3], row[1], row[2], row[4]}];
      messages += row[5].get<uint64_t>();
      bytes += row[6].get<uint64_t>();
    }
  }
  std::string text;
  if (!json) {
    char line[160];
    snprintf(line, sizeof line, "# %-8s %-14s %-15s %-9s %-11s %12s %16s\n", "", "class", "operation",
             "protocol", "known from", "messages", "bytes");
    text += line;
  }
  for (const auto& [key, sum] : sums) {
    const auto& [received, service_class, function, protocol, source] = key;
    if (json) {
      nlohmann::ordered_json line;
      line["direction"] = received ? "received" : "sent";
      line["class"] = service_class;
      line["operation"] = function;
      line["protocol"] = protocol;
      line["source"] = source;
      line["messages"] = sum.first;
      line["bytes"] = sum.second;
      text += line.dump() + "\n";
    } else {
      char line[256];
      snprintf(line, sizeof line, "  %-8s %-14s %-15s %-9s %-11s %12llu %16llu\n",
               received ? "received" : "sent", service_class.c_str(), function.c_str(), protocol.c_str(),
               source.c_str(), static_cast<unsigned long long>(sum.first),
               static_cast<unsigned long long>(sum.second));
      text += line;
    }
  }
  AppendFabric(json, &text);
  return text;
}

}  // namespace sluice::perf
