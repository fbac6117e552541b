// Drives one net plugin the way NCCL's proxy progress thread does, over connections between two communicators
// of this process.
//
// One thread drives sender and receiver. Each pass: the receiver posts one irecv if fewer than 8 are posted,
// else tests the oldest; the sender tries one isend if fewer than --depth are in flight, and tests its oldest
// if it sent nothing. After warm-up the pipeline stays full at both ends of the measured span, so that
// results do not depend on the number of messages.
#pragma once

#include <string>
#include <vector>

#include "tests/overhead/bench/plugin.h"
#include "tests/overhead/nullverbs/stats.h"

constexpr int kSlots = 8;  // receive groups posted ahead, and slots of a buffer
constexpr int kMaxGroup = 8;

struct Options {
  const char* plugin = nullptr;
  int abi = 0;
  size_t size = 8;
  long messages = 4096, warmup = 1024;
  int depth = kSlots;  // isends in flight per member of a group
  int group = 1;       // buffers per irecv
  int connections = 1;
  int devices = 1;
  std::string attr = "off";  // off, fixed, rotate
  std::string phase = "steady";
  bool verify = false;
  bool optional_recv = false;
};

struct Calls {
  uint64_t isend, refused, irecv, test_send, test_recv, empty_send, empty_recv, attr;
};

// One thread.
class Bench {
 public:
  explicit Bench(const Options& options);

  void SetUp();
  void TearDown();

  // Progresses every connection until `target` messages have completed at both ends of each.
  void Pump(long target);

  // Completes what is posted and posts no more; Reopen lifts the limit.
  void Drain();
  void Reopen() { limit_ = -1; }

  void PostReceives();
  void SendOne();
  void HoldCompletions(bool hold);  // needs the fake verbs library

  void RefusedSends(long n);
  void EmptyTests(bool send, long n);

  Calls calls = {};
  NullverbsStats verbs() const { return verbs_ ? *verbs_ : NullverbsStats{}; }
  const Plugin& plugin() const { return plugin_; }
  const Options& options() const { return options_; }

 private:
  struct Rank {
    void* ctx = nullptr;
    long attr_op = -1;
  };
  struct Connection {
    void *listen = nullptr, *send = nullptr, *recv = nullptr;
    alignas(16) char handle[net_abi::kHandleBytes] = {};
    char *send_buffer = nullptr, *recv_buffer = nullptr;
    void *send_mh = nullptr, *recv_mh = nullptr;
    void* recv_requests[kSlots] = {};
    void* send_requests[kSlots * kMaxGroup] = {};
    long posted = 0, received = 0;  // groups
    long sent = 0, send_done = 0;   // messages
  };

  void Open(Connection& c, int dev);
  size_t Stride() const { return (options_.size + 63) & ~size_t{63}; }
  size_t Offset(long message) const {
    return static_cast<size_t>(message % (kSlots * options_.group)) * Stride();
  }
  void Announce(Rank& rank, long message);
  void Post(Connection& c);
  bool TrySend(Connection& c);
  void ProgressSend(Connection& c);
  void ProgressRecv(Connection& c);
  void Fill(char* p, long message) const;
  void CheckPayload(char* p, long message) const;

  Options options_;
  Plugin plugin_;
  const NullverbsStats* verbs_ = nullptr;
  void (*set_delay_)(int) = nullptr;
  Rank ranks_[2];  // sender, receiver
  std::vector<Connection> connections_;
  long limit_ = -1;  // groups; -1: no end
  char phandle_[64] = {};
};
