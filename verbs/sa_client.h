// Asks the subnet administrator of one port for paths: retries, deadline, answers kept for a while. Has no thread and no
// timer of its own; whoever drives it watches fd() and next().
//
//   SaClient client(std::move(*port), options);
//   client.Ask({.slid = 4, .dlid = 9}, sa, now, [](const Result<SaPath>& path) { ... });
//   ... client.fd() is readable: client.OnReadable(now); ... *client.next() has come: client.OnTime(now);
//
// A question is sent again after first_wait, 2 x first_wait, ... longest_wait, also when the administrator says that it
// is busy. At most `in_flight` questions are open at it at a time: a whole cluster asks when a job starts.
//
// Thread rule: one thread at a time. A callback runs once, inside Ask, OnReadable or OnTime, and may ask again.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/sa_mad.h"
#include "verbs/umad_port.h"

namespace sluice {

struct SaPath {
  bool found = false;  // false: the administrator knows no path like that
  uint8_t sl = 0;
};

class SaClient {
 public:
  using Clock = std::chrono::steady_clock;
  using Callback = std::function<void(const Result<SaPath>&)>;
  struct Options {
    std::chrono::milliseconds deadline{30000};  // of a question, from Ask
    std::chrono::milliseconds first_wait{500};
    std::chrono::milliseconds longest_wait{8000};
    std::chrono::milliseconds keep{60000};  // of an answer
    size_t in_flight = 8;
  };

  SaClient(UmadPort port, const Options& options) : port_(std::move(port)), options_(options) {}
  SaClient(const SaClient&) = delete;
  SaClient& operator=(const SaClient&) = delete;

  void Ask(const PathQuestion& question, const SaAddress& sa, Clock::time_point now, Callback callback);
  void OnReadable(Clock::time_point now);
  void OnTime(Clock::time_point now);

  int fd() const { return port_.fd(); }
  // When OnTime has something to do.
  std::optional<Clock::time_point> next() const;
  // The device went away; every question fails, and fd() must not be watched any more.
  bool dead() const { return !failure_.ok(); }
  uint64_t sent() const { return sent_; }  // datagrams

 private:
  struct Entry {
    std::vector<Callback> waiting;
    bool done = false;
    SaPath path;  // when done
    Clock::time_point until;
    // While in flight.
    uint32_t transaction = 0;  // 0: in queue_
    Clock::time_point again;
    std::chrono::milliseconds wait{0};
    int tries = 0;
    std::string last = "no answer";
  };

  void Send(const PathQuestion& question, Entry& entry, Clock::time_point now);
  void SendQueued(Clock::time_point now);
  void Finish(const PathQuestion& question, const Result<SaPath>& result, Clock::time_point now);
  void FailAll(const Status& cause, Clock::time_point now);
  Status TimedOut(const PathQuestion& question, const Entry& entry) const;

  UmadPort port_;
  const Options options_;
  SaAddress sa_;
  Status failure_;
  std::map<PathQuestion, Entry> entries_;
  std::map<uint32_t, PathQuestion> in_flight_;  // by transaction
  std::deque<PathQuestion> queue_;
  uint32_t next_transaction_ = 1;
  uint64_t sent_ = 0;
};

}  // namespace sluice
