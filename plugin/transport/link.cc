#include "plugin/transport/link.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstring>

namespace sluice {

Link::Link(EventLoop& loop, Socket socket, std::string peer)
    : loop_(loop), socket_(std::move(socket)), peer_(std::move(peer)) {}

Link::~Link() {
  *alive_ = false;
  if (socket_) loop_.Unwatch(socket_.fd());
}

Status Link::Start(FrameHandler on_frame, CloseHandler on_close) {
  SetHandlers(std::move(on_frame), std::move(on_close));
  return loop_.Watch(socket_.fd(), EPOLLIN | EPOLLRDHUP, [this](uint32_t events) { OnEvents(events); });
}

void Link::SetHandlers(FrameHandler on_frame, CloseHandler on_close) {
  on_frame_ = std::move(on_frame);
  on_close_ = std::move(on_close);
}

void Link::SendBytes(FrameType type, const std::vector<std::byte>& payload) {
  if (!socket_) return;
  const FrameHeader header{type, kFrameVersion, static_cast<uint32_t>(payload.size())};
  const auto* raw = reinterpret_cast<const std::byte*>(&header);
  output_.insert(output_.end(), raw, raw + sizeof(header));
  output_.insert(output_.end(), payload.begin(), payload.end());
  // A failed write is reported by the next event, so that Send never calls a handler.
  (void)Flush();
}

Status Link::Flush() {
  while (output_sent_ < output_.size()) {
    const ssize_t sent = send(socket_.fd(), output_.data() + output_sent_, output_.size() - output_sent_,
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      return RemoteError(SystemError("link to " + peer_ + " broke while writing", errno).message());
    }
    output_sent_ += static_cast<size_t>(sent);
  }
  if (output_sent_ == output_.size()) {
    output_.clear();
    output_sent_ = 0;
  }
  const bool wants_write = !output_.empty();
  if (wants_write != wants_write_) {
    wants_write_ = wants_write;
    loop_.Rearm(socket_.fd(), wants_write ? EPOLLIN | EPOLLRDHUP | EPOLLOUT : EPOLLIN | EPOLLRDHUP);
  }
  return Status::Ok();
}

void Link::Close() {
  if (!socket_) return;
  (void)Flush();
  loop_.Unwatch(socket_.fd());
  socket_ = Socket();
}

void Link::Fail(const Status& cause) {
  if (!socket_) return;
  loop_.Unwatch(socket_.fd());
  socket_ = Socket();
  if (on_close_) {
    const CloseHandler handler = on_close_;
    handler(cause);
  }
}

void Link::OnEvents(uint32_t epoll_events) {
  const std::shared_ptr<bool> alive = alive_;
  if ((epoll_events & EPOLLOUT) != 0) {
    if (Status status = Flush(); !status.ok()) return Fail(status);
  }
  if ((epoll_events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    const Status status = ReadFrames();
    if (*alive && !status.ok()) Fail(status);
  }
}

Status Link::ReadFrames() {
  const std::shared_ptr<bool> alive = alive_;
  std::byte buffer[16384];
  for (;;) {
    const ssize_t got = recv(socket_.fd(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::Ok();
    if (got < 0)
      return RemoteError(
          SystemError("link to " + peer_ + " broke", errno, "see the log of that host for the cause")
              .message());
    if (got == 0)
      return RemoteError(
          "link to " + peer_ +
          " was closed by the peer: its process ended or aborted; see the log of that host for the cause");
    input_.insert(input_.end(), buffer, buffer + got);
    size_t used = 0;
    while (input_.size() - used >= sizeof(FrameHeader)) {
      FrameHeader header;
      memcpy(&header, input_.data() + used, sizeof(header));
      if (header.length > kMaxFrameBytes) {
        return RemoteError("link to " + peer_ + ": a frame of " + std::to_string(header.length) +
                           " bytes exceeds " + std::to_string(kMaxFrameBytes) +
                           "; something else than Sluice is connected");
      }
      if (input_.size() - used < sizeof(header) + header.length) break;
      const FrameHandler handler = on_frame_;  // it may replace itself
      const Status status =
          handler(header.type, std::span(input_).subspan(used + sizeof(header), header.length));
      if (!*alive || !socket_) return Status::Ok();
      SLUICE_RETURN_IF_ERROR(status);
      used += sizeof(header) + header.length;
    }
    input_.erase(input_.begin(), input_.begin() + static_cast<ptrdiff_t>(used));
  }
}

}  // namespace sluice
