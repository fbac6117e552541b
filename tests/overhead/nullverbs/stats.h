// Counters and the one run-time knob of the fake verbs library. A program finds both with dlsym on
// libibverbs.so.1, so that it also runs, without them, on a real one.
#pragma once
#include <stdint.h>

struct NullverbsStats {
  uint64_t post_send_calls, send_wrs;  // a call may carry a list of work requests
  uint64_t post_recv_calls, recv_wrs;
  uint64_t poll_calls, empty_polls, cqes;
  uint64_t bytes;      // payload and control bytes moved (or skipped)
  uint64_t rnr_waits;  // sends that found no receive work request
};

// Exact while one thread drives the data path.
extern "C" const NullverbsStats* nullverbs_stats();

// A non-empty completion queue answers this many polls with 0 first.
extern "C" void nullverbs_set_cqe_delay(int polls);
