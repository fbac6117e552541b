// plugbench PLUGIN.so [options]: one benchmark run; prints one JSON object. Under callgrind with
// --instr-atstart=no only the calls of the measured phase are counted. measure.py runs it and reads the
// profile.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

#include <string>
#include <utility>

#include "tests/overhead/bench/bench.h"

namespace {

constexpr char kUsage[] =
    "usage: plugbench PLUGIN.so [--abi 8..12] [--size BYTES] [--messages N] [--warmup N] [--depth 1..8] "
    "[--group 1..8]"
    " [--connections N] [--devices 1|2] [--attr off|fixed|rotate] [--phase "
    "steady|refused|empty-recv|empty-send] [--verify]"
    " [--optional-recv]";

double NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

void* SleepForever(void*) {
  for (;;) pause();
}

Options Parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    auto value = [&]() -> const char* {
      if (i + 1 >= argc) Die("%s needs a value", a.c_str());
      return argv[++i];
    };
    if (a == "--abi") {
      o.abi = atoi(value());
    } else if (a == "--size") {
      o.size = strtoull(value(), nullptr, 0);
    } else if (a == "--messages") {
      o.messages = atol(value());
    } else if (a == "--warmup") {
      o.warmup = atol(value());
    } else if (a == "--depth") {
      o.depth = atoi(value());
    } else if (a == "--group") {
      o.group = atoi(value());
    } else if (a == "--connections") {
      o.connections = atoi(value());
    } else if (a == "--devices") {
      o.devices = atoi(value());
    } else if (a == "--attr") {
      o.attr = value();
    } else if (a == "--phase") {
      o.phase = value();
    } else if (a == "--verify") {
      o.verify = true;
    } else if (a == "--optional-recv") {
      o.optional_recv = true;
    } else if (a[0] != '-' && !o.plugin) {
      o.plugin = argv[i];
    } else {
      Die("unknown argument %s; %s", a.c_str(), kUsage);
    }
  }
  if (!o.plugin) Die("%s", kUsage);
  if (o.group < 1 || o.group > kMaxGroup) Die("--group is %d: 1 to %d", o.group, kMaxGroup);
  if (o.depth < 1 || o.depth > kSlots) Die("--depth is %d: 1 to %d", o.depth, kSlots);
  if (o.connections < 1 || o.devices < 1) Die("--connections and --devices start at 1");
  if (o.attr != "off" && o.attr != "fixed" && o.attr != "rotate")
    Die("--attr is %s: off, fixed, rotate", o.attr.c_str());
  if (o.phase != "steady" && o.phase != "refused" && o.phase != "empty-recv" && o.phase != "empty-send") {
    Die("--phase is %s: steady, refused, empty-recv, empty-send", o.phase.c_str());
  }
  return o;
}

void Prepare(Bench& b) {
  const std::string& phase = b.options().phase;
  b.Pump(b.options().warmup);
  if (phase == "steady") return;
  b.Drain();
  b.Reopen();
  if (phase == "empty-recv" || phase == "empty-send") b.PostReceives();
  if (phase == "empty-send") {
    b.HoldCompletions(true);
    b.SendOne();
  }
}

void Measured(Bench& b, long n) {
  const std::string& phase = b.options().phase;
  CALLGRIND_START_INSTRUMENTATION;
  if (phase == "steady") b.Pump(b.options().warmup + n);
  if (phase == "refused") b.RefusedSends(n);
  if (phase == "empty-recv") b.EmptyTests(false, n);
  if (phase == "empty-send") b.EmptyTests(true, n);
  CALLGRIND_STOP_INSTRUMENTATION;
}

void Print(const Bench& bench, const Calls& calls, const NullverbsStats& before, const NullverbsStats& after,
           double ns) {
  const Options& o = bench.options();
  const long messages = o.messages * o.connections;
  const double n = static_cast<double>(messages);
  printf(
      "{\"plugin\": \"%s\", \"abi\": %d, \"phase\": \"%s\", \"size\": %zu, \"group\": %d, \"messages\": %ld, "
      "\"connections\": %d, \"ns_per_msg\": %.1f, \"n_isend\": %lu, \"n_irecv\": %lu, \"n_test_send\": %lu, "
      "\"n_test_recv\": %lu",
      bench.plugin().name(), bench.plugin().version(), o.phase.c_str(), o.size, o.group, messages,
      o.connections, ns / n, calls.isend, calls.irecv, calls.test_send, calls.test_recv);
  const std::pair<const char*, uint64_t> per_message[] = {
      {"isend", calls.isend},
      {"isend_refused", calls.refused},
      {"irecv", calls.irecv},
      {"test", calls.test_send + calls.test_recv},
      {"test_empty", calls.empty_send + calls.empty_recv},
      {"setattr", calls.attr},
      {"post_send", after.post_send_calls - before.post_send_calls},
      {"send_wr", after.send_wrs - before.send_wrs},
      {"post_recv", after.post_recv_calls - before.post_recv_calls},
      {"recv_wr", after.recv_wrs - before.recv_wrs},
      {"poll_cq", after.poll_calls - before.poll_calls},
      {"poll_empty", after.empty_polls - before.empty_polls},
      {"cqe", after.cqes - before.cqes},
      {"rnr", after.rnr_waits - before.rnr_waits}};
  for (const auto& [key, value] : per_message) printf(", \"%s\": %.4f", key, static_cast<double>(value) / n);
  printf("}\n");
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(Parse(argc, argv));
  pthread_t idle;  // NCCL processes are never single-threaded, and glibc is cheaper in those that are
  pthread_create(&idle, nullptr, SleepForever, nullptr);
  bench.SetUp();
  Prepare(bench);

  bench.calls = {};
  const NullverbsStats before = bench.verbs();
  const double start_ns = NowNs();
  Measured(bench, bench.options().messages);
  const double ns = NowNs() - start_ns;
  const Calls calls = bench.calls;
  const NullverbsStats after = bench.verbs();

  if (bench.options().phase == "empty-send") bench.HoldCompletions(false);
  bench.Drain();
  bench.TearDown();
  Print(bench, calls, before, after, ns);
}
