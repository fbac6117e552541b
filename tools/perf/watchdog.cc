#include "tools/perf/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::perf {
namespace {
constexpr std::chrono::seconds kGrace{10};
constexpr std::chrono::seconds kGraceAfterLimit{1};
// Of a rank that waits for others: until it asks who is missing, then until it takes rank 0, which would have
// answered, for the one.
constexpr std::chrono::milliseconds kPatience{1000};
constexpr std::chrono::milliseconds kPatienceForAnswer{500};
}  // namespace

Watchdog::Watchdog(JobState* job, int rank, std::chrono::duration<double> limit,
                   std::function<void()> last_words)
    : job_(job), rank_(rank), last_words_(std::move(last_words)) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit);
  thread_ = std::thread([this, deadline, limit] { Loop(deadline, limit.count()); });
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::Loop(std::chrono::steady_clock::time_point deadline, double limit_s) {
  using std::chrono::steady_clock;
  std::optional<steady_clock::time_point> end, asked;
  const std::string timeout =
      absl::StrCat("timed out after ", static_cast<long>(limit_s), " s (--timeout) while ");
  std::unique_lock lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, std::chrono::milliseconds(100));
    if (stop_) return;
    const auto now = steady_clock::now();
    if (!job_->aborted() && now >= deadline) {
      if (!job_->waiting_for_others()) {
        job_->Abort(timeout + job_->activity(), rank_);
      } else if (!asked.has_value() && now >= deadline + kPatience) {
        job_->AskWhoIsMissing(timeout);
        asked = now;
      } else if (asked.has_value() && now >= *asked + kPatienceForAnswer) {
        job_->Abort(
            absl::StrCat(timeout, "waiting for rank 0, which does not answer (", job_->activity(), ")"),
            rank_);
      }
    }
    if (!job_->aborted()) continue;
    if (!end.has_value()) end = std::min(now + kGrace, std::max(now, deadline) + kGraceAfterLimit);
    if (now < *end) continue;
    last_words_();
    _exit(EXIT_FAILURE);
  }
}

}  // namespace sluice::perf
