// Abstract unix sockets between library and fabric process, and where the topology text comes from.
//
// Thread rule: free functions without state.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice::soft {

// Owns a descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

// SLUICE_FABRIC or "default". Refuses names that are too long or contain anything but letters, digits, '.',
// '_' and '-'.
Result<std::string> InstanceName(const char* value);

// The address at which the fabric process of this user and instance listens. Returns its length.
socklen_t FabricAddress(std::string_view instance, sockaddr_un* address);

// An error unless the process that listens at the other end of `socket` belongs to `user`. Anybody may take
// an abstract name, and who speaks to a fabric process lets it read and write this process's memory.
Status CheckOwner(int socket, uid_t user, std::string_view instance);

// One message with descriptors. False with errno set when it could not be sent.
bool SendMessage(int socket, const void* bytes, size_t size, std::span<const int> fds);
// Returns the size received, 0 at the end of the connection, -1 with errno. Surplus descriptors are closed.
ssize_t ReceiveMessage(int socket, void* bytes, size_t size, std::vector<UniqueFd>* fds);

// A topology as somebody named it: the text itself or the content of the file that it names. Faults and
// background traffic beside its own are lines separated by ";".
struct TopologySource {
  bool named = false;  // false: nothing was asked for
  bool is_file = false;
  std::string name;     // one line for messages: the text or the path
  std::string content;  // what has to be equal
  std::string faults;
  std::string background;
  uint64_t hash = 0;  // of content, faults and background
};
// `value` as in SLUICE_FABRIC_TOPOLOGY, with SLUICE_FABRIC_FAULTS and SLUICE_FABRIC_BACKGROUND.
Result<TopologySource> ReadTopologySource(const char* value);

}  // namespace sluice::soft
