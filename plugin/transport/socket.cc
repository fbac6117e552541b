#include "plugin/transport/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include <memory>
#include <vector>

namespace sluice {
namespace {

struct Interface {
  std::string name;
  SocketAddress address;
  bool link_local;
};

Result<std::vector<Interface>> ListInterfaces(AddressFamily family) {
  std::vector<Interface> found;
  ifaddrs* head = nullptr;
  if (getifaddrs(&head) != 0) {
    const int error = errno;
    return SystemError("cannot list the network interfaces for set-up", error,
                       error == EMFILE ? "raise the limit of open files (ulimit -n)" : "");
  }
  for (ifaddrs* entry = head; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    Interface interface { .name = entry->ifa_name, .address = {}, .link_local = false };
    if (entry->ifa_addr->sa_family == AF_INET && family != AddressFamily::kIpv6) {
      interface.address.length = sizeof(sockaddr_in);
    } else if (entry->ifa_addr->sa_family == AF_INET6 && family != AddressFamily::kIpv4) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      interface.link_local = IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
      interface.address.length = sizeof(sockaddr_in6);
    } else {
      continue;
    }
    memcpy(&interface.address.storage, entry->ifa_addr, interface.address.length);
    found.push_back(std::move(interface));
  }
  freeifaddrs(head);
  return found;
}

bool StartsWith(const std::string& text, std::string_view prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

bool IsVirtual(const std::string& name) {
  return StartsWith(name, "docker") || StartsWith(name, "lo") || StartsWith(name, "virbr");
}

// First by IPv4, then global IPv6, then link-local.
template <typename Matches>
const Interface* Pick(const std::vector<Interface>& interfaces, const Matches& matches) {
  for (int pass = 0; pass < 3; ++pass) {
    for (const Interface& interface : interfaces) {
      const bool v4 = interface.address.storage.ss_family == AF_INET;
      const int rank = v4 ? 0 : interface.link_local ? 2 : 1;
      if (rank == pass && matches(interface.name)) return &interface;
    }
  }
  return nullptr;
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // A host that loses power sends no FIN: keepalive tells within about 25 s, unacknowledged frames within 20
  // s.
  const int idle_s = 10, interval_s = 5, probes = 3, user_timeout_ms = 20'000;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof(user_timeout_ms));
}

constexpr char kDescriptorRemedy[] = "raise the limit of open files (ulimit -n)";

}  // namespace

std::string SocketAddress::ToString() const {
  char host[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
    inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
    return std::string(host) + ":" + std::to_string(ntohs(v4->sin_port));
  }
  if (storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
    inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
    return "[" + std::string(host) + "]:" + std::to_string(ntohs(v6->sin6_port));
  }
  return "unknown address";
}

Result<SocketAddress> ChooseInterface(const Params& params) {
  const Result<std::vector<Interface>> listed = ListInterfaces(params.socket_family);
  if (!listed.ok()) return listed.status();
  const std::vector<Interface>& interfaces = *listed;
  const Interface* chosen = nullptr;
  if (!params.socket_ifname.names.empty()) {
    chosen = Pick(interfaces, [&](const std::string& name) { return params.socket_ifname.Matches(name); });
  } else {
    chosen = Pick(interfaces, [](const std::string& name) { return StartsWith(name, "ib"); });
    if (chosen == nullptr)
      chosen = Pick(interfaces, [](const std::string& name) { return !IsVirtual(name); });
    for (std::string_view last_resort : {"docker", "lo", "virbr"}) {
      if (chosen == nullptr) {
        chosen = Pick(interfaces, [&](const std::string& name) { return StartsWith(name, last_resort); });
      }
    }
  }
  if (chosen != nullptr) {
    SocketAddress address = chosen->address;
    if (address.storage.ss_family == AF_INET) {
      reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = 0;
    } else {
      reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = 0;
    }
    return address;
  }
  std::string wanted = "any";
  if (!params.socket_ifname.names.empty()) {
    wanted = params.socket_ifname.exclude ? "^" : "";
    if (params.socket_ifname.exact) wanted += "=";
    for (const std::string& name : params.socket_ifname.names)
      wanted += (&name == &params.socket_ifname.names[0] ? "" : ",") + name;
  }
  std::string present;
  for (const Interface& interface : interfaces) {
    if (present.find(interface.name) == std::string::npos)
      present += (present.empty() ? "" : ",") + interface.name;
  }
  return SystemError("no network interface for set-up: NCCL_SOCKET_IFNAME=" + wanted +
                     " matches none of the interfaces that are up (" + (present.empty() ? "none" : present) +
                     "); correct NCCL_SOCKET_IFNAME or NCCL_SOCKET_FAMILY");
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Result<Socket> ListenOn(const SocketAddress& address, SocketAddress* bound) {
  Socket listener(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener) return SystemError("cannot create the set-up listener", errno, kDescriptorRemedy);
  bound->length = sizeof(bound->storage);
  if (bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 ||
      listen(listener.fd(), SOMAXCONN) != 0 ||
      getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&bound->storage), &bound->length) != 0) {
    return SystemError("cannot listen on " + address.ToString() + " for set-up", errno,
                       "choose another NCCL_SOCKET_IFNAME");
  }
  return listener;
}

Result<Socket> StartConnect(const SocketAddress& peer) {
  Socket link(socket(peer.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!link) return SystemError("cannot create a socket to " + peer.ToString(), errno, kDescriptorRemedy);
  SetNoDelay(link.fd());
  if (connect(link.fd(), reinterpret_cast<const sockaddr*>(&peer.storage), peer.length) != 0 &&
      errno != EINPROGRESS) {
    return RemoteError(SystemError("cannot connect to " + peer.ToString(), errno,
                                   "check NCCL_SOCKET_IFNAME on both hosts and the firewall between them")
                           .message());
  }
  return link;
}

Status ConnectOutcome(const Socket& socket, const SocketAddress& peer) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error == 0) return Status::Ok();
  return RemoteError(SystemError("cannot connect to " + peer.ToString(), error,
                                 "check NCCL_SOCKET_IFNAME on both hosts and the firewall between them")
                         .message());
}

Socket AcceptFrom(const Socket& listener, std::string* peer, int* error) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  Socket accepted(accept4(listener.fd(), reinterpret_cast<sockaddr*>(&address.storage), &address.length,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
  *error = 0;
  if (!accepted) {
    // ECONNABORTED, EPROTO and the like concern the connection, not the listener.
    const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    *error = exhausted ? errno : 0;
    return accepted;
  }
  SetNoDelay(accepted.fd());
  *peer = address.ToString();
  return accepted;
}

}  // namespace sluice
