// Management datagrams of one InfiniBand port through the kernel's user_mad device, /dev/infiniband/umadN. The kernel's
// interface is used directly: libibumad would be one more library that every host of a job must have.
//
//   Result<UmadPort> port = UmadPort::Open("/sys/class/infiniband_mad", "mlx5_0", 1);
//   if (Status status = port->Send(mad, {.lid = attributes.sm_lid, .sl = attributes.sm_sl}, 500); !status.ok()) ...
//   ... port->fd() is readable:
//   std::optional<UmadPort::Received> received = port->Receive();
//
// Thread rule: one thread at a time. No call blocks once fd() is readable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/sa_mad.h"

namespace sluice {

// Where the subnet administrator of a port sits: ibv_port_attr.sm_lid and sm_sl.
struct SaAddress {
  uint16_t lid = 0;
  uint8_t sl = 0;
  bool operator==(const SaAddress&) const = default;
};

class UmadPort {
 public:
  struct Received {
    bool unanswered = false;  // one of our own came back: nobody answered in time
    int error = 0;            // errno of the read; `mad` is then empty
    std::vector<std::byte> mad;
  };

  UmadPort() = default;
  // An open device with an agent registered. `name` is for messages.
  UmadPort(int fd, uint32_t agent, std::string name) : fd_(fd), agent_(agent), name_(std::move(name)) {}
  UmadPort(UmadPort&& other) noexcept;
  UmadPort& operator=(UmadPort&& other) noexcept;
  ~UmadPort();

  // `class_directory` holds a directory for each umad device. Registers for answers of the subnet administrator.
  static Result<UmadPort> Open(const std::string& class_directory, const std::string& device, int port);

  // The kernel gives up after `timeout_ms` and returns the datagram.
  Status Send(const Mad& mad, const SaAddress& to, uint32_t timeout_ms);
  // Empty: nothing there.
  std::optional<Received> Receive();

  int fd() const { return fd_; }
  const std::string& name() const { return name_; }  // "mlx5_0:1"

 private:
  int fd_ = -1;
  uint32_t agent_ = 0;
  std::string name_;
};

}  // namespace sluice
