#include "tools/perf/watchdog.h"

#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::perf {
namespace {
constexpr std::chrono::seconds kGrace{10};
constexpr std::chrono::seconds kPatience{2};  // of a rank that waits for others
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
  std::optional<std::chrono::steady_clock::time_point> end;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, std::chrono::milliseconds(100));
    if (stop_) return;
    const auto now = std::chrono::steady_clock::now();
    if (!job_->aborted() && now >= deadline + (job_->waiting_for_others() ? kPatience : kPatience.zero())) {
      job_->Abort(absl::StrCat("timed out after ", static_cast<long>(limit_s), " s (--timeout) while ",
                               job_->activity()),
                  rank_);
    }
    if (!job_->aborted()) continue;
    if (!end.has_value()) end = now + kGrace;
    if (now < *end) continue;
    last_words_();
    _exit(EXIT_FAILURE);
  }
}

}  // namespace sluice::perf
