// The hub of a job's bootstrap: a thread of rank 0 that collects what the ranks give and answers with
// everybody's, and that spreads the first failure. See bootstrap.h.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tools/perf/socket.h"

namespace sluice::perf {

// What a rank presents first.
struct Hello {
  uint32_t rank = 0;
  uint32_t world = 0;
  std::string token;
  std::string host;

  std::string Encode() const;
  static bool Decode(std::string_view text, Hello* out);
};

class Coordinator {
 public:
  Coordinator(FileDescriptor listener, int world, std::string token, std::chrono::milliseconds timeout);
  ~Coordinator();  // stops the thread

  // Waits until all ranks have said goodbye or were lost, at most `limit`.
  void Drain(std::chrono::milliseconds limit);

 private:
  using Clock = std::chrono::steady_clock;
  struct Member {
    FrameChannel channel;
    std::string host;
    std::optional<std::string> given;  // for the exchange under way
    bool joined = false;
    bool gone = false;  // said goodbye, or lost
  };
  struct Stranger {
    FrameChannel channel;
    Clock::time_point deadline;
    bool refused = false;  // told why; kept until it hangs up, or what it was told might be lost
  };

  void Loop();
  void AcceptAll();
  // True when the stranger was dealt with and must be removed.
  bool Greet(Stranger& stranger);
  void Serve(size_t rank);
  void Lose(size_t rank, const std::string& how);
  void AnswerIfComplete();
  void AbortAll(int origin, const std::string& cause);
  std::string MissingRanks() const;

  FileDescriptor listener_;
  FileDescriptor stop_;     // eventfd: end now
  FileDescriptor drained_;  // eventfd: the loop has ended
  std::string token_;
  Clock::time_point arrival_deadline_;
  std::vector<Member> members_;
  std::vector<Stranger> strangers_;
  bool aborted_ = false;
  std::thread thread_;
};

}  // namespace sluice::perf
