// `sluice perf --fabric virtual --workload`: several jobs at the same time, each with right results and times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/fabric/perf_run.h"
#include "tools/workload/workload.h"

namespace sluice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using workload::Job;
using workload::Results;
using workload::Workload;

PerfResult RunText(const std::string& text, std::vector<std::string> more = {}) {
  const std::string path = testing::TempDir() + "workload-" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << text;
  std::vector<std::string> arguments = {"--fabric", "virtual", "--workload", path};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const PerfResult ran = RunPerf(arguments);
  unlink(path.c_str());
  return ran;
}

Results RunJobs(const Workload& workload, const std::vector<std::string>& more = {}) {
  const PerfResult ran = RunText(workload.ToJson(), more);
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  Result<Results> results = Results::FromJson(ran.out);
  EXPECT_TRUE(results.ok()) << ran.out;
  return results.ok() ? *results : Results();
}

std::vector<std::string> On(const char* topology) {
  return {"--topology", topology};
}

TEST(PerfWorkloadTest, DifferentJobsAtTheSameTime) {
  Workload workload;
  workload.check = true;
  Job tensor{.name = "tensor", .hosts = {0, 2}};
  tensor.calls = {{.bytes = 64 << 10, .proto = "ll128"}, {.bytes = 1 << 20, .proto = "simple"}};
  tensor.iterations = 10;
  tensor.traffic_class = 96;
  Job data{.name = "data", .hosts = {0, 1, 2, 3}};
  data.calls = {{.bytes = 2 << 20}};
  data.iterations = 0;
  Job gather{.name = "gather", .hosts = {3, 1, 0}};
  gather.calls = {{.op = "all_gather", .bytes = 30000}, {.op = "reduce_scatter", .bytes = 30000}};
  gather.channels = 2;
  gather.iterations = 3;
  gather.compute_us = 20;
  gather.start_us = 5;
  // Two ranks on one host, and a rank that sends and receives.
  Job transfers{.name = "transfers", .hosts = {1, 1, 2}};
  transfers.calls = {{.op = "sendrecv", .bytes = 300000}};
  transfers.transfers = {{0, 2}, {1, 2}, {2, 0}};
  transfers.registered = true;
  workload.jobs = {tensor, data, gather, transfers};
  for (const char* host : {"ideal", "typical"}) {
    SCOPED_TRACE(host);
    std::vector<std::string> arguments = On("hosts=4,rate=400G");
    arguments.insert(arguments.end(), {"--host", host});
    const Results results = RunJobs(workload, arguments);
    ASSERT_EQ(results.jobs.size(), 4U);
    for (const workload::JobResult& job : results.jobs) {
      EXPECT_EQ(job.wrong, 0U) << job.name;
      double before_us = 0;
      for (const workload::CallTimes& call : job.calls) {
        EXPECT_LE(call.first_begin_us, call.last_begin_us);
        EXPECT_LE(call.first_end_us, call.last_end_us);
        EXPECT_LT(before_us, call.last_end_us);
        before_us = call.last_end_us;
      }
    }
    EXPECT_EQ(results.Find("tensor")->calls.size(), 20U);
    EXPECT_GE(results.Find("data")->calls.size(), 1U);
    ASSERT_EQ(results.Find("gather")->calls.size(), 6U);
    EXPECT_GE(results.Find("gather")->calls[0].first_begin_us, 25);
    EXPECT_GE(results.Find("gather")->calls[2].first_begin_us - results.Find("gather")->calls[1].first_end_us,
              20);
    for (const workload::ConnectionResult& c : results.Find("transfers")->connections)
      EXPECT_EQ(c.bytes, 300000U);
    EXPECT_EQ(RunJobs(workload, arguments).ToJson(), results.ToJson());
  }
}

TEST(PerfWorkloadTest, StopsAndMarks) {
  Workload workload;
  Job job{.name = "flow", .hosts = {0, 1}};
  job.calls = {{.op = "sendrecv", .bytes = 256 << 20, .proto = "simple"}};
  job.transfers = {{0, 1}};
  workload.jobs = {job};
  workload.marks_us = {50, 100};
  workload.stop_us = 150;
  workload.tracked = {1};
  const Results results = RunJobs(workload, On("hosts=2,rate=400G"));
  ASSERT_EQ(results.jobs.size(), 1U);
  EXPECT_TRUE(results.jobs[0].calls.empty());
  EXPECT_EQ(results.time_us, 150);
  ASSERT_EQ(results.jobs[0].connections.size(), 1U);
  const workload::ConnectionResult& c = results.jobs[0].connections[0];
  ASSERT_EQ(c.marks.size(), 2U);
  // 400 Gb/s less the headers, in messages of 128 KiB.
  EXPECT_NEAR(static_cast<double>(c.bytes - c.marks[1]), 50e-6 * 400e9 / 8 * 4096 / 4178, 2 * (128 << 10));
  EXPECT_GT(results.tracked_peak_bytes.at(0), 0U);
}

TEST(PerfWorkloadTest, ChangesOfTheNetwork) {
  Workload workload;
  Job job{.name = "flow", .hosts = {0, 1}};
  job.calls = {{.op = "sendrecv", .bytes = 16 << 20, .proto = "simple"}};
  job.transfers = {{0, 1}};
  workload.jobs = {job};
  const double fast_us = RunJobs(workload, On("hosts=2,rate=400G")).jobs.at(0).calls.at(0).last_end_us;
  workload.overrides = "nics.pcie_read_rate=100G,nics.pcie_read=1us";
  const double slow_us = RunJobs(workload, On("hosts=2,rate=400G")).jobs.at(0).calls.at(0).last_end_us;
  EXPECT_GT(slow_us, 3 * fast_us);
  workload.overrides = "";
  workload.background = "storage:hosts=host0,targets=host1,read_share=0,load=0.9,stop=1ms";
  EXPECT_GT(RunJobs(workload, On("hosts=2,rate=400G")).jobs.at(0).calls.at(0).last_end_us, 1.2 * fast_us);
  workload.background = "";
  workload.faults = "link-down:link=host1-switch0,at=20us,for=50us";
  const PerfResult ran = RunText(workload.ToJson(), On("hosts=2,rate=400G"));
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_GT(Results::FromJson(ran.out)->dropped_packets, 0U);
}

TEST(PerfWorkloadTest, BadDescriptionsAreOneLine) {
  const auto complaint = [](const std::string& text) {
    const PerfResult ran = RunText(text, On("hosts=4"));
    EXPECT_NE(ran.exit_code, 0);
    EXPECT_EQ(ran.out, "");
    return ran.complaints();
  };
  EXPECT_THAT(complaint("{"), ElementsAre(HasSubstr("parse error")));
  EXPECT_THAT(complaint("{}"), ElementsAre(HasSubstr("no jobs")));
  EXPECT_THAT(complaint(R"({"job": []})"), ElementsAre(HasSubstr("no key job; there are: ")));
  EXPECT_THAT(complaint(R"({"jobs": [{"name": "a", "hosts": [0, 1], "calls": [{"size": 8}]}]})"),
              ElementsAre(HasSubstr("job a: calls: no key size")));
  EXPECT_THAT(complaint(R"({"jobs": [{"name": "a", "hosts": [0, 4], "calls": [{"bytes": 8}]}]})"),
              ElementsAre(HasSubstr("no host 4; the topology has 4")));
  EXPECT_THAT(
      complaint(R"({"jobs": [{"name": "a", "hosts": [0, 1], "calls": [{"op": "sum", "bytes": 8}]}]})"),
      ElementsAre(HasSubstr("job a: op sum: unknown; use one of all_reduce")));
  EXPECT_THAT(
      complaint(R"({"jobs": [{"name": "a", "hosts": [0, 1], "iterations": 0, "calls": [{"bytes": 8}]}]})"),
      ElementsAre(HasSubstr("it never ends")));
  EXPECT_THAT(
      complaint(
          R"({"overrides": "switches.colour=red", "jobs": [{"name": "a", "hosts": [0, 1], "calls": [{"bytes": 8}]}]})"),
      ElementsAre(HasSubstr("switches.colour")));
  const PerfResult none = RunPerf({"--fabric", "virtual", "--workload", "/nowhere.json"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.complaints(), ElementsAre(HasSubstr("--workload /nowhere.json: No such file")));
  const PerfResult both = RunPerf({"--fabric", "virtual", "--workload", "x", "--op", "reduce"});
  EXPECT_EQ(both.exit_code, 2);
}

}  // namespace
}  // namespace sluice::test
