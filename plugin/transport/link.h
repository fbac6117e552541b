// One TCP link: whole frames in both directions over a non-blocking socket. It survives any split of reads
// and writes.
//
// Threads: event thread only.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugin/transport/event_loop.h"
#include "plugin/transport/frames.h"
#include "plugin/transport/socket.h"

namespace sluice {

class Link {
 public:
  // Called with each frame; returns an error to close the link.
  using FrameHandler = std::function<Status(FrameType type, std::span<const std::byte> payload)>;
  // Called once, when the link ended for any reason but Close(). The handler may destroy the link.
  using CloseHandler = std::function<void(const Status& cause)>;

  // `peer` is for messages. Handlers may be replaced until the first frame is read.
  Link(EventLoop& loop, Socket socket, std::string peer);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  Status Start(FrameHandler on_frame, CloseHandler on_close);
  void SetHandlers(FrameHandler on_frame, CloseHandler on_close);

  // Queues a frame; written at once as far as the socket takes it. Ignored after Close.
  template <typename Frame>
  void Send(FrameType type, const Frame& frame) {
    SendBytes(type, Encode(frame));
  }
  // Writes what is queued as far as possible, then closes. No handler is called.
  void Close();
  bool open() const { return static_cast<bool>(socket_); }
  const std::string& peer() const { return peer_; }

 private:
  void SendBytes(FrameType type, const std::vector<std::byte>& payload);
  void OnEvents(uint32_t epoll_events);
  Status ReadFrames();
  Status Flush();
  void Fail(const Status& cause);

  EventLoop& loop_;
  Socket socket_;
  const std::string peer_;
  FrameHandler on_frame_;
  CloseHandler on_close_;
  std::vector<std::byte> input_;
  std::vector<std::byte> output_;
  size_t output_sent_ = 0;
  bool wants_write_ = false;
  // Tells a member function on the stack that a handler destroyed this link.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace sluice
