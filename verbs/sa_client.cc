#include "verbs/sa_client.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace sluice {

void SaClient::Ask(const PathQuestion& question, const SaAddress& sa, Clock::time_point now,
                   Callback callback) {
  if (dead()) return callback(failure_);
  if (!(sa == sa_)) {
    // Another subnet manager may have other routes.
    std::erase_if(entries_, [](const auto& entry) { return entry.second.done; });
    sa_ = sa;
  }
  const auto found = entries_.find(question);
  if (found != entries_.end() && found->second.done) {
    if (found->second.until > now) return callback(found->second.path);
    entries_.erase(found);
  }
  Entry& entry = entries_[question];
  entry.waiting.push_back(std::move(callback));
  if (entry.waiting.size() > 1) return;
  entry.until = now + options_.deadline;
  entry.wait = options_.first_wait;
  queue_.push_back(question);
  SendQueued(now);
}

void SaClient::SendQueued(Clock::time_point now) {
  while (!queue_.empty() && in_flight_.size() < options_.in_flight) {
    const PathQuestion question = queue_.front();
    queue_.pop_front();
    if (const auto found = entries_.find(question); found != entries_.end() && !found->second.done)
      Send(question, found->second, now);
  }
}

void SaClient::Send(const PathQuestion& question, Entry& entry, Clock::time_point now) {
  if (entry.transaction != 0) in_flight_.erase(entry.transaction);
  // A late answer to the previous try is dropped: its number is gone.
  entry.transaction = next_transaction_++;
  if (next_transaction_ == 0) next_transaction_ = 1;
  in_flight_[entry.transaction] = question;
  entry.again = std::min(now + entry.wait, entry.until);
  const auto wait_ms = static_cast<uint32_t>(entry.wait.count());
  entry.wait = std::min(entry.wait * 2, options_.longest_wait);
  ++entry.tries;
  ++sent_;
  const Status status = port_.Send(EncodePathQuestion(question, entry.transaction), sa_, wait_ms);
  if (!status.ok()) entry.last = status.message();
}

void SaClient::Finish(const PathQuestion& question, const Result<SaPath>& result, Clock::time_point now) {
  const auto found = entries_.find(question);
  Entry& entry = found->second;
  const std::vector<Callback> waiting = std::move(entry.waiting);
  if (entry.transaction != 0) in_flight_.erase(entry.transaction);
  if (result.ok()) {
    entry.done = true;
    entry.path = *result;
    entry.until = now + options_.keep;
    entry.waiting.clear();
    entry.transaction = 0;
  } else {
    std::erase(queue_, question);
    entries_.erase(found);
  }
  SendQueued(now);
  for (const Callback& callback : waiting) callback(result);
}

void SaClient::FailAll(const Status& cause, Clock::time_point now) {
  failure_ = cause;
  queue_.clear();
  std::vector<PathQuestion> open;
  for (const auto& [question, entry] : entries_) {
    if (!entry.done) open.push_back(question);
  }
  for (const PathQuestion& question : open) Finish(question, cause, now);
  entries_.clear();
}

void SaClient::OnReadable(Clock::time_point now) {
  const std::optional<UmadPort::Received> received = port_.Receive();
  if (!received) return;
  if (received->error != 0) {
    return FailAll(SystemError("port " + port_.name() + ": reading from the subnet administrator",
                               received->error, "the device was removed; restart the job"),
                   now);
  }
  if (received->unanswered) return;  // it is time to send it again, and OnTime does
  const std::optional<SaReply> reply = DecodeSaReply(received->mad);
  if (!reply) {
    for (const auto& [transaction, question] : in_flight_)
      entries_[question].last =
          "malformed answers, the last of " + std::to_string(received->mad.size()) + " bytes";
    return;
  }
  const auto asked = in_flight_.find(reply->transaction);
  if (asked == in_flight_.end()) return;
  const PathQuestion question = asked->second;
  if (reply->status == kSaOk) return Finish(question, SaPath{true, reply->sl}, now);
  if (reply->status == kSaNoRecords) return Finish(question, SaPath{}, now);
  if ((reply->status & kMadBusy) != 0 || reply->status == kSaNoResources) {
    entries_[question].last = "the answer " + DescribeSaStatus(reply->status);
    return;
  }
  Finish(question,
         RemoteError("port " + port_.name() + ": the subnet administrator at LID " + std::to_string(sa_.lid) +
                     " refuses to tell the path " + question.Describe() + ": status " +
                     DescribeSaStatus(reply->status) + "; see the log of the subnet manager"),
         now);
}

Status SaClient::TimedOut(const PathQuestion& question, const Entry& entry) const {
  return RemoteError("port " + port_.name() + ": the subnet administrator at LID " + std::to_string(sa_.lid) +
                     " told no path " + question.Describe() + " within " +
                     std::to_string(options_.deadline.count()) + " ms, asked " + std::to_string(entry.tries) +
                     " times (" + entry.last +
                     "); check that the subnet manager runs (sminfo) and is not overloaded");
}

void SaClient::OnTime(Clock::time_point now) {
  std::vector<PathQuestion> due;
  for (const auto& [question, entry] : entries_) {
    if (!entry.done && (entry.until <= now || (entry.transaction != 0 && entry.again <= now)))
      due.push_back(question);
  }
  for (const PathQuestion& question : due) {
    const auto found = entries_.find(question);
    if (found == entries_.end() || found->second.done) continue;
    if (found->second.until <= now) {
      Finish(question, TimedOut(question, found->second), now);
    } else {
      Send(question, found->second, now);
    }
  }
}

std::optional<SaClient::Clock::time_point> SaClient::next() const {
  std::optional<Clock::time_point> first;
  for (const auto& [question, entry] : entries_) {
    if (entry.done) continue;
    const Clock::time_point at = entry.transaction != 0 ? std::min(entry.again, entry.until) : entry.until;
    if (!first || at < *first) first = at;
  }
  return first;
}

}  // namespace sluice
