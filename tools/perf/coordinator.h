// The hub of a job's bootstrap: a thread of rank 0 that collects what the ranks give and answers with
// everybody's, and that spreads the first failure. See bootstrap.h.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "tools/perf/abort.h"
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
  // `timeout`: for everybody to arrive. `job` is rank 0's own, told directly when no link can be made.
  static Result<std::unique_ptr<Coordinator>> Start(FileDescriptor listener, int world, std::string token,
                                                    std::chrono::milliseconds timeout, JobState* job);
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

  Coordinator(FileDescriptor listener, int world, std::string token, std::chrono::milliseconds timeout,
              JobState* job);
  void Loop();
  void AcceptAll();
  // True when the stranger was dealt with and must be removed.
  bool Greet(Stranger& stranger);
  void Serve(size_t rank);
  void Lose(size_t rank, const std::string& how);
  void AnswerIfComplete();
  // A rank waits for an exchange and its time is up. `question`: the beginning of the sentence that tells it,
  // end of line, what the rank does.
  void AnswerWhoIsMissing(const std::string& question);
  void AbortAll(int origin, const std::string& cause);
  // "rank 1, 5 and 3 more"; "" when nobody is missing.
  std::string Ranks(const std::function<bool(const Member&)>& missing) const;

  FileDescriptor listener_;
  FileDescriptor stop_;     // eventfd: end now
  FileDescriptor drained_;  // eventfd: the loop has ended
  std::string token_;
  Clock::time_point arrival_deadline_;
  std::vector<Member> members_;
  std::vector<Stranger> strangers_;
  JobState* job_;
  bool aborted_ = false;
  std::thread thread_;
};

}  // namespace sluice::perf
