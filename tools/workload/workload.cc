#include "tools/workload/workload.h"

#include <nlohmann/json.hpp>
#include <set>

namespace sluice::workload {

using Json = nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Call, op, bytes, proto)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Job, name, hosts, calls, algo, channels, root, traffic_class,
                                                transfers, iterations, compute_us, start_us, rank_start_us,
                                                registered)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Workload, jobs, stop_us, marks_us, tracked, overrides,
                                                background, faults, check)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(CallTimes, call, first_begin_us, last_begin_us, first_end_us,
                                                last_end_us)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ConnectionResult, from, to, channel, bytes, end_us, marks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(JobResult, name, calls, connections, wrong)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Results, jobs, time_us, packet_hops, dropped_packets, pauses,
                                                switch_pauses, busiest_link_us, switch_transmit_wait_us,
                                                tracked_peak_bytes)

namespace {

// Keys that a `T` does not have are misspelled ones.
template <typename T>
Status CheckKeys(const Json& json, const std::string& where) {
  const Json known = T();
  for (const auto& [key, value] : json.items()) {
    if (known.contains(key)) continue;
    std::string keys;
    for (const auto& [name, ignored] : known.items()) keys += (keys.empty() ? "" : ", ") + name;
    return InvalidArgument(where + ": no key " + key + "; there are: " + keys);
  }
  return Status::Ok();
}

Status CheckAllKeys(const Json& json) {
  SLUICE_RETURN_IF_ERROR(CheckKeys<Workload>(json, "workload"));
  if (!json.contains("jobs")) return Status::Ok();
  for (const Json& job : json["jobs"]) {
    const std::string where = "workload: job " + job.value("name", std::string("without a name"));
    SLUICE_RETURN_IF_ERROR(CheckKeys<Job>(job, where));
    if (!job.contains("calls")) continue;
    for (const Json& call : job["calls"]) SLUICE_RETURN_IF_ERROR(CheckKeys<Call>(call, where + ": calls"));
  }
  return Status::Ok();
}

Status CheckJob(const Job& job) {
  const std::string where = "workload: job " + job.name;
  const auto ranks = static_cast<int>(job.hosts.size());
  if (job.name.empty()) return InvalidArgument("workload: a job has no name; give each its own");
  if (ranks < 1 || ranks > 256) {
    return InvalidArgument(where + ": " + std::to_string(ranks) +
                           " hosts: name the host of each rank, 1 to 256 of them");
  }
  if (job.calls.empty()) return InvalidArgument(where + ": no calls; name at least one");
  if (job.channels < 1 || job.channels > 64) {
    return InvalidArgument(where + ": channels " + std::to_string(job.channels) + ": use 1 to 64");
  }
  if (job.traffic_class < -1 || job.traffic_class > 255) {
    return InvalidArgument(where + ": traffic_class " + std::to_string(job.traffic_class) +
                           ": use 0 to 255, or -1 for none");
  }
  if (job.root < 0 || job.root >= ranks) {
    return InvalidArgument(where + ": root " + std::to_string(job.root) + ": its ranks are 0 to " +
                           std::to_string(ranks - 1));
  }
  if (!job.rank_start_us.empty() && job.rank_start_us.size() != job.hosts.size()) {
    return InvalidArgument(where + ": rank_start_us has " + std::to_string(job.rank_start_us.size()) +
                           " times for " + std::to_string(ranks) + " ranks");
  }
  if (!(job.compute_us >= 0) || !(job.start_us >= 0)) {
    return InvalidArgument(where + ": compute_us and start_us are times from 0 on");
  }
  for (const std::vector<int>& transfer : job.transfers) {
    if (transfer.size() == 2 && transfer[0] != transfer[1] && transfer[0] >= 0 && transfer[0] < ranks &&
        transfer[1] >= 0 && transfer[1] < ranks)
      continue;
    return InvalidArgument(where + ": transfers are pairs of two different ranks, 0 to " +
                           std::to_string(ranks - 1));
  }
  for (const Call& call : job.calls) {
    if (call.bytes < 4) return InvalidArgument(where + ": a call of less than 4 bytes; give it `bytes`");
    const bool p2p = call.op == "sendrecv" || call.op == "all_to_all";
    if (call.op != job.calls[0].op &&
        (p2p || job.calls[0].op == "sendrecv" || job.calls[0].op == "all_to_all")) {
      return InvalidArgument(where + ": " + call.op + " beside " + job.calls[0].op +
                             ": the calls of a job use the same connections; give it a job of its own");
    }
    if (!job.transfers.empty() && call.op != "sendrecv") {
      return InvalidArgument(where + ": transfers belong to sendrecv, not to " + call.op);
    }
    if (job.algo == "tree" && call.op != "all_reduce") {
      return InvalidArgument(where + ": " + call.op + " has no tree; use algo ring");
    }
  }
  return Status::Ok();
}

Status Check(const Workload& workload) {
  if (workload.jobs.empty()) return InvalidArgument("workload: no jobs; describe at least one");
  std::set<std::string> names;
  bool ends = workload.stop_us > 0;
  for (const Job& job : workload.jobs) {
    SLUICE_RETURN_IF_ERROR(CheckJob(job));
    if (!names.insert(job.name).second)
      return InvalidArgument("workload: two jobs are named " + job.name + "; name them apart");
    ends |= job.iterations != 0;
  }
  if (!ends) return InvalidArgument("workload: it never ends: give stop_us, or a job a number of iterations");
  return Status::Ok();
}

}  // namespace

std::string Workload::ToJson() const {
  return Json(*this).dump();
}

Result<Workload> Workload::FromJson(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    if (!json.is_object()) return InvalidArgument("workload: not a JSON object");
    SLUICE_RETURN_IF_ERROR(CheckAllKeys(json));
    Workload workload = json.get<Workload>();
    SLUICE_RETURN_IF_ERROR(Check(workload));
    return workload;
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument(std::string("workload: ") + error.what());
  }
}

uint64_t JobResult::bytes() const {
  uint64_t sum = 0;
  for (const ConnectionResult& connection : connections) sum += connection.bytes;
  return sum;
}

const JobResult* Results::Find(const std::string& name) const {
  for (const JobResult& job : jobs) {
    if (job.name == name) return &job;
  }
  return nullptr;
}

std::string Results::ToJson() const {
  return Json(*this).dump();
}

Result<Results> Results::FromJson(const std::string& text) {
  try {
    return Json::parse(text).get<Results>();
  } catch (const nlohmann::json::exception& error) {
    return InternalError(std::string("results of a workload: ") + error.what());
  }
}

}  // namespace sluice::workload
