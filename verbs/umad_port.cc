#include "verbs/umad_port.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <rdma/ib_user_mad.h>
#include <rdma/rdma_user_ioctl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "verbs/link.h"

namespace sluice {
namespace {

// The general services interface and its well known key.
constexpr uint32_t kGsiQueuePair = 1;
constexpr uint32_t kGsiKey = 0x80010000;
constexpr size_t kHeaderBytes = sizeof(ib_user_mad_hdr);
static_assert(kHeaderBytes == 64);

// "umad3", or empty when the port has none.
std::string FindUmad(const std::string& class_directory, const std::string& device, int port) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(class_directory.c_str()), closedir);
  if (directory == nullptr) return {};
  while (const dirent* entry = readdir(directory.get())) {
    const std::string name = entry->d_name;
    if (!name.starts_with("umad")) continue;
    const std::string path = class_directory + "/" + name;
    if (ReadTextFile(path + "/ibdev", 128) == device &&
        ReadTextFile(path + "/port", 16) == std::to_string(port))
      return name;
  }
  return {};
}

}  // namespace

UmadPort::UmadPort(UmadPort&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), agent_(other.agent_), name_(std::move(other.name_)) {}

UmadPort& UmadPort::operator=(UmadPort&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(agent_, other.agent_);
  std::swap(name_, other.name_);
  return *this;
}

UmadPort::~UmadPort() {
  if (fd_ >= 0) close(fd_);
}

Result<UmadPort> UmadPort::Open(const std::string& class_directory, const std::string& device, int port) {
  const std::string name = device + ":" + std::to_string(port);
  const std::string umad = FindUmad(class_directory, device, port);
  if (umad.empty()) {
    return SystemError("port " + name + " has no umad device in " + class_directory +
                       "; load the module (modprobe ib_umad)");
  }
  const std::string path = "/dev/infiniband/" + umad;
  const int fd = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    return SystemError("port " + name + ": cannot open " + path, error,
                       error == EACCES || error == EPERM
                           ? "give the user read and write access to it, by a udev rule or a group"
                           : "in a container, pass the device in");
  }
  UmadPort opened(fd, 0, name);
  // Headers with a partition key index, as all kernels since 2.6.24 have them.
  if (ioctl(fd, IB_USER_MAD_ENABLE_PKEY, nullptr) != 0)
    return SystemError("port " + name + ": " + path + " refuses the present datagram format", errno);
  ib_user_mad_reg_req request{};
  request.qpn = kGsiQueuePair;
  request.mgmt_class = 0x03;  // subnet administration
  request.mgmt_class_version = 2;
  request.rmpp_version = 1;
  if (ioctl(fd, IB_USER_MAD_REGISTER_AGENT, &request) != 0)
    return SystemError(
        "port " + name + ": cannot register for answers of the subnet administrator on " + path, errno);
  opened.agent_ = request.id;
  return opened;
}

Status UmadPort::Send(const Mad& mad, const SaAddress& to, uint32_t timeout_ms) {
  std::byte buffer[kHeaderBytes + kMadBytes] = {};
  ib_user_mad_hdr header{};
  header.id = agent_;
  header.timeout_ms = timeout_ms;
  header.qpn = htonl(kGsiQueuePair);
  header.qkey = htonl(kGsiKey);
  header.lid = htons(to.lid);
  header.sl = to.sl;
  memcpy(buffer, &header, sizeof(header));
  memcpy(buffer + kHeaderBytes, mad.data(), mad.size());
  const ssize_t sent = write(fd_, buffer, sizeof(buffer));
  if (sent == static_cast<ssize_t>(sizeof(buffer))) return Status::Ok();
  return SystemError(
      "port " + name_ + ": cannot send to the subnet administrator at LID " + std::to_string(to.lid),
      sent < 0 ? errno : EIO);
}

std::optional<UmadPort::Received> UmadPort::Receive() {
  std::byte buffer[kHeaderBytes + kMadBytes];
  const ssize_t got = read(fd_, buffer, sizeof(buffer));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  Received received;
  if (got < 0) {
    received.error = errno;
  } else if (static_cast<size_t>(got) >= kHeaderBytes) {
    ib_user_mad_hdr header;
    memcpy(&header, buffer, sizeof(header));
    received.unanswered = header.status != 0;
    received.mad.assign(buffer + kHeaderBytes, buffer + got);
  } else if (got == 0) {
    received.error = ENODEV;
  }
  return received;
}

}  // namespace sluice
