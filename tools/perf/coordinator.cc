#include "tools/perf/coordinator.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace sluice::perf {
namespace {

constexpr std::chrono::seconds kHelloLimit{5};
constexpr size_t kMaxStrangers = 256;
constexpr uint32_t kMaxHelloBytes = 4096;

void Signal(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(fd, &one, sizeof one);
}

std::string AbortPayload(int origin, const std::string& cause) {
  const auto rank = static_cast<int32_t>(origin);
  return std::string(reinterpret_cast<const char*>(&rank), sizeof rank) + cause;
}

}  // namespace

std::string Hello::Encode() const {
  std::string out(reinterpret_cast<const char*>(&rank), sizeof rank);
  out.append(reinterpret_cast<const char*>(&world), sizeof world);
  const auto length = static_cast<uint32_t>(token.size());
  out.append(reinterpret_cast<const char*>(&length), sizeof length);
  return out + token + host;
}

bool Hello::Decode(std::string_view text, Hello* out) {
  uint32_t fields[3];
  if (text.size() < sizeof fields) return false;
  std::memcpy(fields, text.data(), sizeof fields);
  if (fields[2] > text.size() - sizeof fields) return false;
  out->rank = fields[0];
  out->world = fields[1];
  out->token = text.substr(sizeof fields, fields[2]);
  out->host = text.substr(sizeof fields + fields[2]);
  return true;
}

Result<std::unique_ptr<Coordinator>> Coordinator::Start(FileDescriptor listener, int world, std::string token,
                                                        std::chrono::milliseconds timeout, JobState* job) {
  std::unique_ptr<Coordinator> self(
      new Coordinator(std::move(listener), world, std::move(token), timeout, job));
  if (!self->stop_.valid() || !self->drained_.valid()) {
    return SystemError("the rendezvous of the ranks: no event descriptor", errno, kResourcesRemedy);
  }
  self->thread_ = std::thread([raw = self.get()] { raw->Loop(); });
  return self;
}

Coordinator::Coordinator(FileDescriptor listener, int world, std::string token,
                         std::chrono::milliseconds timeout, JobState* job)
    : listener_(std::move(listener)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      drained_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      token_(std::move(token)),
      arrival_deadline_(Clock::now() + timeout),
      members_(static_cast<size_t>(world)),
      job_(job) {}

Coordinator::~Coordinator() {
  if (!thread_.joinable()) return;
  Signal(stop_.get());
  thread_.join();
}

void Coordinator::Drain(std::chrono::milliseconds limit) {
  pollfd done{drained_.get(), POLLIN, 0};
  while (poll(&done, 1, static_cast<int>(limit.count())) < 0 && errno == EINTR) {
  }
}

void Coordinator::Loop() {
  bool all_joined = false;
  for (;;) {
    std::vector<pollfd> fds{{stop_.get(), POLLIN, 0}, {all_joined ? -1 : listener_.get(), POLLIN, 0}};
    for (const Member& m : members_) {
      const bool live = m.joined && !m.gone;
      fds.push_back({live ? m.channel.fd() : -1,
                     static_cast<short>(POLLIN | (m.channel.has_output() ? POLLOUT : 0)), 0});
    }
    for (const Stranger& s : strangers_) fds.push_back({s.channel.fd(), POLLIN, 0});
    poll(fds.data(), fds.size(), all_joined && strangers_.empty() ? -1 : 200);
    if (fds[0].revents != 0) break;

    const size_t known_strangers = strangers_.size();
    const size_t first_stranger = 2 + members_.size();
    for (size_t r = 0; r < members_.size(); ++r) {
      if (fds[2 + r].revents != 0) Serve(r);
    }
    std::vector<Stranger> kept;
    for (size_t i = 0; i < known_strangers; ++i) {
      const bool ready = fds[first_stranger + i].revents != 0;
      if (ready ? !Greet(strangers_[i]) : Clock::now() < strangers_[i].deadline)
        kept.push_back(std::move(strangers_[i]));
    }
    strangers_ = std::move(kept);
    if (fds[1].revents != 0) AcceptAll();

    all_joined = std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.joined; });
    if (!all_joined && !aborted_ && Clock::now() > arrival_deadline_) {
      AbortAll(-1, "the job never became complete: " + Ranks([](const Member& m) { return !m.joined; }) +
                       " did not arrive; check that every rank was started "
                       "with the same MASTER_ADDR, MASTER_PORT, WORLD_SIZE and options");
    }
    const bool all_gone = std::all_of(members_.begin(), members_.end(),
                                      [&](const Member& m) { return m.gone || (aborted_ && !m.joined); });
    if (all_gone) break;
  }
  Signal(drained_.get());
}

void Coordinator::AcceptAll() {
  for (;;) {
    const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (!IsLackOfResources(errno)) return;
      const std::string cause =
          SystemError("rank 0 cannot accept the link of another rank", errno, kResourcesRemedy).message();
      AbortAll(0, cause);
      job_->Abort(cause, 0);  // its own link may be among those that wait
      return;
    }
    FileDescriptor owned(fd);
    if (strangers_.size() >= kMaxStrangers) continue;
    SetLinkOptions(fd);
    strangers_.push_back({FrameChannel(std::move(owned)), Clock::now() + kHelloLimit});
  }
}

bool Coordinator::Greet(Stranger& stranger) {
  const Status read = stranger.channel.Read();
  if (stranger.refused) return !read.ok();
  Frame frame;
  const Result<bool> next = stranger.channel.Next(&frame, kMaxHelloBytes);
  if (!next.ok()) return true;
  if (!*next) return !read.ok();
  Hello hello;
  if (frame.type != FrameType::kHello || !Hello::Decode(frame.payload, &hello)) return true;
  auto refuse = [&](const std::string& why) {
    stranger.channel.Queue(FrameType::kAbort, AbortPayload(0, why));
    (void)stranger.channel.Flush();
    shutdown(stranger.channel.fd(), SHUT_WR);
    stranger.refused = true;
    return false;
  };
  if (hello.token != token_) {
    return refuse(
        "rank 0 runs another job at this address, or the same one with other options; use the same options "
        "on "
        "every rank");
  }
  if (hello.world != members_.size() || hello.rank >= members_.size()) {
    return refuse("WORLD_SIZE differs between the ranks");
  }
  Member& member = members_[hello.rank];
  if (member.joined)
    return refuse(absl::StrCat("rank ", hello.rank, " is in the job already; set RANK differently"));
  member.joined = true;
  member.host = hello.host;
  member.channel = std::move(stranger.channel);
  Serve(hello.rank);  // frames that came along with the hello
  return true;
}

void Coordinator::Serve(size_t rank) {
  Member& member = members_[rank];
  if (Status flushed = member.channel.Flush(); !flushed.ok()) return Lose(rank, flushed.message());
  const Status read = member.channel.Read();
  for (;;) {
    Frame frame;
    const Result<bool> next = member.channel.Next(&frame);
    if (!next.ok()) return Lose(rank, next.status().message());
    if (!*next) break;
    switch (frame.type) {
      case FrameType::kExchange:
        member.given = std::move(frame.payload);
        AnswerIfComplete();
        break;
      case FrameType::kFail:
        AbortAll(static_cast<int>(rank), frame.payload);
        break;
      case FrameType::kWhoIsMissing:
        AnswerWhoIsMissing(frame.payload);
        break;
      case FrameType::kBye:
        member.gone = true;
        member.channel.Close();
        return;
      default:
        return Lose(rank, "it sent a frame of an unexpected type");
    }
    if (member.gone) return;
  }
  if (!read.ok()) Lose(rank, read.message());
}

void Coordinator::Lose(size_t rank, const std::string& how) {
  Member& member = members_[rank];
  if (member.gone) return;
  member.gone = true;
  member.channel.Close();
  AbortAll(static_cast<int>(rank), absl::StrCat("rank ", rank, " on ", member.host,
                                                " ended without goodbye (killed or crashed): ", how));
}

void Coordinator::AnswerIfComplete() {
  for (const Member& m : members_) {
    if (!m.given.has_value()) return;
  }
  std::string result;
  for (Member& m : members_) {
    const auto length = static_cast<uint32_t>(m.given->size());
    result.append(reinterpret_cast<const char*>(&length), sizeof length);
    result.append(*m.given);
    m.given.reset();
  }
  for (Member& m : members_) {
    if (m.gone) continue;
    m.channel.Queue(FrameType::kResult, result);
    (void)m.channel.Flush();  // a lost link shows at the next read
  }
}

void Coordinator::AnswerWhoIsMissing(const std::string& question) {
  const size_t middle = std::min(question.find('\n'), question.size());
  const std::string missing = Ranks([](const Member& m) { return !m.gone && !m.given.has_value(); });
  if (missing.empty()) return;
  AbortAll(-1, absl::StrCat(question.substr(0, middle), "waiting for ", missing, " (",
                            question.substr(std::min(middle + 1, question.size())), ")"));
}

void Coordinator::AbortAll(int origin, const std::string& cause) {
  if (aborted_) return;
  aborted_ = true;
  for (size_t r = 0; r < members_.size(); ++r) {
    Member& m = members_[r];
    if (!m.joined || m.gone) continue;
    m.channel.Queue(FrameType::kAbort, AbortPayload(origin, cause));
    (void)m.channel.Flush();
  }
}

std::string Coordinator::Ranks(const std::function<bool(const Member&)>& missing) const {
  constexpr size_t kNamed = 8;
  std::vector<size_t> ranks;
  for (size_t r = 0; r < members_.size(); ++r) {
    if (missing(members_[r])) ranks.push_back(r);
  }
  if (ranks.empty()) return "";
  const auto named = absl::MakeConstSpan(ranks).subspan(0, kNamed);
  const size_t unnamed = ranks.size() - named.size();
  return absl::StrCat("rank ", absl::StrJoin(named, ", "),
                      unnamed == 0 ? "" : absl::StrCat(" and ", unnamed, " more"));
}

}  // namespace sluice::perf
