#include "tools/perf/bootstrap.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/perf/coordinator.h"

namespace sluice::perf {
namespace {

using Clock = std::chrono::steady_clock;

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown host";
}

Result<std::vector<std::string>> Split(const std::string& joined, int world) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (int r = 0; r < world; ++r) {
    uint32_t length = 0;
    if (joined.size() - at < sizeof length) return InternalError("the coordinator sent a short result");
    std::memcpy(&length, joined.data() + at, sizeof length);
    at += sizeof length;
    if (joined.size() - at < length) return InternalError("the coordinator sent a short result");
    parts.push_back(joined.substr(at, length));
    at += length;
  }
  return parts;
}

}  // namespace

Bootstrap::Bootstrap(const BootstrapOptions& options, JobState* job) : options_(options), job_(job) {}

Result<std::unique_ptr<Bootstrap>> Bootstrap::Join(const BootstrapOptions& options, JobState* job) {
  std::unique_ptr<Bootstrap> self(new Bootstrap(options, job));
  if (options.rank == 0) {
    FileDescriptor listener(options.listen_fd);
    if (!listener.valid()) {
      int port = options.port;
      Result<FileDescriptor> own = ListenTcp("", &port);
      if (!own.ok()) return own.status();
      listener = std::move(*own);
    }
    Result<std::unique_ptr<Coordinator>> coordinator =
        Coordinator::Start(std::move(listener), options.world, options.token, options.timeout, job);
    if (!coordinator.ok()) return coordinator.status();
    self->coordinator_ = std::move(*coordinator);
  }
  self->wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!self->wake_.valid())
    return SystemError("the rendezvous: no event descriptor", errno, kResourcesRemedy);
  const Clock::time_point deadline = Clock::now() + options.timeout;
  const std::string host = options.rank == 0 ? "127.0.0.1" : options.host;
  job->SetActivity("connecting to rank 0 at " + host + ":" + std::to_string(options.port) +
                   " (MASTER_ADDR and MASTER_PORT)");
  for (;;) {  // rank 0 may start later than the others
    if (job->aborted()) return job->status();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    Result<FileDescriptor> link =
        ConnectTcp(host, options.port, static_cast<int>(std::clamp<int64_t>(left, 1, 2000)));
    if (link.ok()) {
      self->channel_ = FrameChannel(std::move(*link));
      break;
    }
    if (link.status().code() == Code::kSystem) return link.status();
    if (Clock::now() > deadline) {
      return RemoteError("rank 0 is not reachable: " + link.status().message() +
                         "; check MASTER_ADDR, MASTER_PORT and that rank 0 runs");
    }
    poll(nullptr, 0, 50);
  }
  const Hello hello{static_cast<uint32_t>(options.rank), static_cast<uint32_t>(options.world), options.token,
                    HostName()};
  self->channel_.Queue(FrameType::kHello, hello.Encode());
  SLUICE_RETURN_IF_ERROR(self->channel_.Flush());
  self->reader_ = std::thread([raw = self.get()] { raw->ReadLoop(); });
  job->SetActivity("waiting for all ranks to start");
  job->SetAskWhoIsMissing([raw = self.get()](const std::string& timeout) {
    raw->Send(FrameType::kWhoIsMissing, timeout + "\n" + raw->job_->activity());
  });
  SLUICE_RETURN_IF_ERROR(self->Barrier());
  return self;
}

Bootstrap::~Bootstrap() {
  job_->SetAskWhoIsMissing(nullptr);
  Leave();
}

void Bootstrap::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof one);
}

void Bootstrap::ReadLoop() {
  for (;;) {
    short events = POLLIN;
    {
      std::lock_guard lock(mutex_);
      if (leaving_ && !channel_.has_output()) return;
      if (channel_.has_output()) events |= POLLOUT;
    }
    pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {channel_.fd(), events, 0}};
    bool saying_goodbye;
    {
      std::lock_guard lock(mutex_);
      saying_goodbye = leaving_;
    }
    if (poll(fds, 2, saying_goodbye ? 3000 : -1) == 0) return;
    uint64_t ignored;
    if (fds[0].revents != 0) {
      [[maybe_unused]] const ssize_t n = read(wake_.get(), &ignored, sizeof ignored);
    }
    std::string lost;
    std::vector<Frame> frames;
    bool leaving;
    {
      std::lock_guard lock(mutex_);
      leaving = leaving_;
      if (Status flushed = channel_.Flush(); !flushed.ok()) lost = flushed.message();
      if (fds[1].revents != 0) {
        if (Status read = channel_.Read(); !read.ok()) lost = read.message();
      }
      for (;;) {
        Frame frame;
        const Result<bool> next = channel_.Next(&frame);
        if (!next.ok()) lost = next.status().message();
        if (!next.ok() || !*next) break;
        frames.push_back(std::move(frame));
      }
    }
    for (Frame& frame : frames) {
      if (frame.type == FrameType::kResult) {
        std::lock_guard lock(mutex_);
        results_.push_back(std::move(frame.payload));
        changed_.notify_all();
      } else if (frame.type == FrameType::kAbort && frame.payload.size() >= sizeof(int32_t)) {
        int32_t origin;
        std::memcpy(&origin, frame.payload.data(), sizeof origin);
        job_->Abort(frame.payload.substr(sizeof origin), origin);
      }
    }
    if (!lost.empty()) {
      if (!leaving) job_->Abort("rank 0 ended without goodbye (killed or crashed): " + lost, 0);
      return;
    }
  }
}

Result<std::vector<std::string>> Bootstrap::AllGather(std::string_view mine) {
  if (job_->aborted()) return job_->status();
  {
    std::lock_guard lock(mutex_);
    channel_.Queue(FrameType::kExchange, mine);
  }
  Wake();
  std::string joined;
  {
    job_->SetWaitingForOthers(true);
    std::unique_lock lock(mutex_);
    while (results_.empty()) {
      if (job_->aborted()) return job_->status();
      changed_.wait_for(lock, std::chrono::milliseconds(50));  // an abort does not notify
    }
    joined = std::move(results_.front());
    results_.erase(results_.begin());
  }
  job_->SetWaitingForOthers(false);
  return Split(joined, options_.world);
}

Status Bootstrap::Barrier() {
  return AllGather("").status();
}

void Bootstrap::Fail(std::string_view cause) {
  Send(FrameType::kFail, cause);
}

void Bootstrap::Send(FrameType type, std::string_view payload) {
  {
    std::lock_guard lock(mutex_);
    if (leaving_) return;
    channel_.Queue(type, payload);
  }
  Wake();
}

void Bootstrap::Leave() {
  {
    std::lock_guard lock(mutex_);
    if (!leaving_ && channel_.fd() >= 0) channel_.Queue(FrameType::kBye, "");
    leaving_ = true;
  }
  if (wake_.valid()) Wake();
  if (reader_.joinable()) reader_.join();
  if (coordinator_ != nullptr) {
    coordinator_->Drain(std::chrono::seconds(5));
    coordinator_.reset();
  }
}

}  // namespace sluice::perf
