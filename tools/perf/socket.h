// Small TCP helpers of the bootstrap: framed messages over a non-blocking socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sluice::perf {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { Reset(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void Reset();

 private:
  int fd_ = -1;
};

enum class FrameType : uint32_t {
  kHello = 1,
  kExchange,
  kResult,
  kFail,
  kAbort,
  kBye,
  kWhoIsMissing,
};

struct FrameHeader {
  uint32_t magic;
  FrameType type;
  uint32_t length;  // of the payload that follows
};
inline constexpr uint32_t kFrameMagic = 0x53504631;
inline constexpr uint32_t kMaxFrameBytes = 256u << 20;

struct Frame {
  FrameType type = FrameType::kBye;
  std::string payload;
};

// One end of a link. Reads and writes whatever the socket takes; keeps partial frames. One thread at a time.
class FrameChannel {
 public:
  FrameChannel() = default;
  explicit FrameChannel(FileDescriptor fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  void Queue(FrameType type, std::string_view payload);
  bool has_output() const { return sent_ < output_.size(); }
  // Writes what it can. Error: the link is lost.
  Status Flush();
  // Reads what is there. Error: the peer closed the link, or it was lost. Frames read before stay available.
  Status Read();
  // Takes the next whole frame. False: none yet. Error: bytes that are not of this protocol.
  Result<bool> Next(Frame* frame, uint32_t max_bytes = kMaxFrameBytes);
  void Close() { fd_.Reset(); }

 private:
  FileDescriptor fd_;
  std::string input_;
  std::string output_;
  size_t sent_ = 0;
};

// Listens on `port` (0: any) of `address` ("" : all addresses). *port is set to the port.
Result<FileDescriptor> ListenTcp(const std::string& address, int* port);
// One attempt; blocks at most timeout_ms, and as long as the resolver takes. Code::kSystem: this process
// lacks descriptors or memory, so that another attempt is of no use.
Result<FileDescriptor> ConnectTcp(const std::string& host, int port, int timeout_ms);
// Errors of calls that make descriptors which do not go away by trying again, and what helps.
bool IsLackOfResources(int error);
inline constexpr char kResourcesRemedy[] = "raise the limit of open files (ulimit -n) or free memory";
// Non-blocking, no delay, and dead peers are noticed within about 20 s.
void SetLinkOptions(int fd);

}  // namespace sluice::perf
