#include "verbs/soft/ipc/socket.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/hash.h"

namespace sluice::soft {
namespace {

constexpr size_t kMaxInstanceBytes = 48;
constexpr size_t kMaxFds = 8;
constexpr size_t kMaxTopologyBytes = 16 * 1024 * 1024;

std::string Variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

Result<std::string> InstanceName(const char* value) {
  const std::string name = value == nullptr || *value == '\0' ? "default" : value;
  const bool clean = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
  if (!clean || name.size() > kMaxInstanceBytes) {
    return InvalidArgument("SLUICE_FABRIC=\"" + name + "\" cannot name a fabric; use at most " +
                           std::to_string(kMaxInstanceBytes) + " letters, digits, '.', '_' and '-'");
  }
  return name;
}

socklen_t FabricAddress(std::string_view instance, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const std::string name = "sluice-fabric/" + std::to_string(geteuid()) + "/" + std::string(instance);
  // The leading zero byte makes the name abstract: no file, gone with its process.
  memcpy(address->sun_path + 1, name.data(), std::min(name.size(), sizeof(address->sun_path) - 1));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Status CheckOwner(int socket, uid_t user, std::string_view instance) {
  ucred owner{};
  socklen_t length = sizeof(owner);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &owner, &length) != 0) {
    return SystemError(
        "cannot find out whose the fabric process of SLUICE_FABRIC=\"" + std::string(instance) + "\" is",
        errno);
  }
  if (owner.uid == user) return Status::Ok();
  return SystemError("the name of SLUICE_FABRIC=\"" + std::string(instance) + "\" is taken by process " +
                     std::to_string(owner.pid) + " of user " + std::to_string(owner.uid) +
                     "; set SLUICE_FABRIC to another name");
}

bool SendMessage(int socket, const void* bytes, size_t size, std::span<const int> fds) {
  iovec data{const_cast<void*>(bytes), size};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFds)> control{};
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(size);
}

ssize_t ReceiveMessage(int socket, void* bytes, size_t size, std::vector<UniqueFd>* fds) {
  iovec data{bytes, size};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFds)> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t received = 0;
  do {
    received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      UniqueFd owned(fd);
      if (fds != nullptr) fds->push_back(std::move(owned));
    }
  }
  return received;
}

Result<TopologySource> ReadTopologySource(const char* value) {
  TopologySource source;
  source.faults = Variable("SLUICE_FABRIC_FAULTS");
  source.background = Variable("SLUICE_FABRIC_BACKGROUND");
  const std::string additions = source.faults.empty() && source.background.empty()
                                    ? ""
                                    : "\n" + source.faults + "\n" + source.background;
  source.named = (value != nullptr && *value != '\0') || !additions.empty();
  if (value == nullptr || *value == '\0') {
    source.name = "(the default)";
    if (!additions.empty()) source.hash = Fnv1a(additions);
    return source;
  }
  const std::string text = value;
  struct stat status {};
  source.is_file = text.ends_with(".toml") || stat(text.c_str(), &status) == 0;
  source.name = text;
  source.content = text;
  if (source.is_file) {
    UniqueFd file(open(text.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) {
      return SystemError("SLUICE_FABRIC_TOPOLOGY: cannot open the topology file \"" + text + "\"", errno,
                         "name a readable TOML file or a line such as \"hosts=2,nics=1,link=roce\"");
    }
    char* absolute = realpath(text.c_str(), nullptr);
    if (absolute != nullptr) source.name = absolute;
    free(absolute);
    source.content.clear();
    std::array<char, 65536> buffer;
    ssize_t got = 0;
    while ((got = read(file.get(), buffer.data(), buffer.size())) > 0 || (got < 0 && errno == EINTR)) {
      if (got > 0) source.content.append(buffer.data(), static_cast<size_t>(got));
      if (source.content.size() > kMaxTopologyBytes) {
        return InvalidArgument("SLUICE_FABRIC_TOPOLOGY: the topology file \"" + text + "\" is longer than " +
                               std::to_string(kMaxTopologyBytes) + " bytes");
      }
    }
    if (got < 0) {
      return SystemError("SLUICE_FABRIC_TOPOLOGY: cannot read the topology file \"" + text + "\"", errno);
    }
  }
  source.hash = Fnv1a(source.content + additions);
  return source;
}

}  // namespace sluice::soft
