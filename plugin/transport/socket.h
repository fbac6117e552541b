// TCP sockets for links: which interface to use, non-blocking listen, accept and connect.
//
// Threads: any; nothing here keeps state.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "base/status.h"
#include "plugin/params.h"

namespace sluice {

// An IPv4 or IPv6 endpoint.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  std::string ToString() const;  // "192.168.1.2:41000", "[fe80::1%eth0]:41000"
};

// The address that peers shall connect to, with port 0. NCCL's order: NCCL_SOCKET_IFNAME if set, else
// interfaces whose name starts with "ib", then anything but docker, lo and virbr, then docker, lo, virbr.
// Link-local IPv6 is used only when nothing else is there. Errors name the filter and the interfaces that
// exist.
Result<SocketAddress> ChooseInterface(const Params& params);

// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Non-blocking, close-on-exec. `bound` receives the address with the port that the kernel chose.
Result<Socket> ListenOn(const SocketAddress& address, SocketAddress* bound);
// Starts to connect; writable when the outcome is known (ConnectOutcome).
Result<Socket> StartConnect(const SocketAddress& peer);
Status ConnectOutcome(const Socket& socket, const SocketAddress& peer);
// The next pending connection, or an empty Socket and errno in *error (0: none pending).
Socket AcceptFrom(const Socket& listener, std::string* peer, int* error);

}  // namespace sluice
