#include "tools/perf/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace sluice::perf {
namespace {

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

Status Resolve(const std::string& host, int port, bool passive, AddressList* list) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  const int error =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &list->first);
  if (error == 0) return Status::Ok();
  if (error == EAI_MEMORY || (error == EAI_SYSTEM && IsLackOfResources(errno))) {
    return SystemError("cannot resolve the address '" + host + "'", error == EAI_MEMORY ? ENOMEM : errno,
                       kResourcesRemedy);
  }
  return RemoteError("cannot resolve the address '" + host + "': " + gai_strerror(error));
}

}  // namespace

bool IsLackOfResources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = other.Release();
  }
  return *this;
}

void FileDescriptor::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void SetLinkOptions(int fd) {
  const int one = 1, idle_s = 5, interval_s = 3, probes = 5, user_timeout_ms = 20000;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void FrameChannel::Queue(FrameType type, std::string_view payload) {
  if (sent_ == output_.size()) {
    output_.clear();
    sent_ = 0;
  }
  const FrameHeader header{kFrameMagic, type, static_cast<uint32_t>(payload.size())};
  output_.append(reinterpret_cast<const char*>(&header), sizeof header);
  output_.append(payload);
}

Status FrameChannel::Flush() {
  while (has_output()) {
    const ssize_t n = send(fd_.get(), output_.data() + sent_, output_.size() - sent_, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Status::Ok();
      return SystemError("send", errno);
    }
    sent_ += static_cast<size_t>(n);
  }
  return Status::Ok();
}

Status FrameChannel::Read() {
  char buffer[65536];
  for (;;) {
    const ssize_t n = recv(fd_.get(), buffer, sizeof buffer, 0);
    if (n == 0) return RemoteError("the link was closed by the other end");
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Status::Ok();
      return SystemError("recv", errno);
    }
    input_.append(buffer, static_cast<size_t>(n));
    if (static_cast<size_t>(n) < sizeof buffer) return Status::Ok();
  }
}

Result<bool> FrameChannel::Next(Frame* frame, uint32_t max_bytes) {
  FrameHeader header;
  if (input_.size() < sizeof header) return false;
  std::memcpy(&header, input_.data(), sizeof header);
  if (header.magic != kFrameMagic || header.length > max_bytes)
    return RemoteError("bytes of another protocol");
  if (input_.size() < sizeof header + header.length) return false;
  frame->type = header.type;
  frame->payload.assign(input_, sizeof header, header.length);
  input_.erase(0, sizeof header + header.length);
  return true;
}

Result<FileDescriptor> ListenTcp(const std::string& address, int* port) {
  AddressList list;
  SLUICE_RETURN_IF_ERROR(Resolve(address, *port, true, &list));
  int last_errno = 0;
  for (int family : {AF_INET6, AF_INET}) {  // IPv6 first: its wildcard takes IPv4 as well
    for (const addrinfo* a = list.first; a != nullptr; a = a->ai_next) {
      if (a->ai_family != family) continue;
      FileDescriptor fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int one = 1, zero = 0;
      if (fd.valid()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
      if (fd.valid() && family == AF_INET6)
        setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
      if (!fd.valid() || bind(fd.get(), a->ai_addr, a->ai_addrlen) != 0 || listen(fd.get(), 1024) != 0) {
        last_errno = errno;
        continue;
      }
      sockaddr_storage bound{};
      socklen_t length = sizeof bound;
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length);
      *port = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                       : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
      fcntl(fd.get(), F_SETFL, O_NONBLOCK);
      return fd;
    }
  }
  return SystemError("cannot listen on TCP port " + std::to_string(*port), last_errno,
                     IsLackOfResources(last_errno) ? kResourcesRemedy : "choose another MASTER_PORT");
}

Result<FileDescriptor> ConnectTcp(const std::string& host, int port, int timeout_ms) {
  AddressList list;
  SLUICE_RETURN_IF_ERROR(Resolve(host, port, false, &list));
  int error = ECONNREFUSED;
  for (const addrinfo* a = list.first; a != nullptr; a = a->ai_next) {
    FileDescriptor fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) {
      error = errno;
      continue;
    }
    if (connect(fd.get(), a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
      error = errno;
      continue;
    }
    pollfd ready{fd.get(), POLLOUT, 0};
    if (poll(&ready, 1, timeout_ms) != 1) {
      error = ETIMEDOUT;
      continue;
    }
    socklen_t length = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) continue;
    SetLinkOptions(fd.get());
    return fd;
  }
  const std::string what = "cannot connect to " + host + ":" + std::to_string(port);
  if (IsLackOfResources(error)) return SystemError(what, error, kResourcesRemedy);
  return RemoteError(SystemError(what, error).message());
}

}  // namespace sluice::perf
