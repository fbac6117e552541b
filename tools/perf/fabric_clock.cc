#include "tools/perf/fabric_clock.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "verbs/soft/ipc/protocol.h"

namespace sluice::perf {

FabricClock::FabricClock() {
  const char* name = getenv("SLUICE_FABRIC");
  const Result<std::string> instance = soft::InstanceName(name);
  if (name == nullptr || !instance.ok()) return;
  soft::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const timeval patience{10, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_un address;
  const socklen_t length = soft::FabricAddress(*instance, &address);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return;
  if (!soft::CheckOwner(fd.get(), geteuid(), *instance).ok()) return;
  socket_ = std::move(fd);
}

std::optional<FabricTime> FabricClock::Read() const {
  if (!socket_.valid()) return std::nullopt;
  soft::TextMessage question{};
  question.type = soft::SocketMessage::kControl;
  strncpy(question.text, "time", sizeof question.text - 1);
  if (!soft::SendMessage(socket_.get(), &question, sizeof question, {})) return std::nullopt;
  char answer[256];
  const ssize_t size = soft::ReceiveMessage(socket_.get(), answer, sizeof answer - 1, nullptr);
  if (size <= 0) return std::nullopt;
  answer[size] = '\0';
  FabricTime time;
  if (sscanf(answer, "model_ns=%" SCNd64 " wall_ns=%" SCNd64, &time.model_ns, &time.wall_ns) != 2) {
    return std::nullopt;
  }
  return time;
}

double Dilation(const std::optional<FabricTime>& begin, const std::optional<FabricTime>& end) {
  if (!begin.has_value() || !end.has_value() || end->model_ns <= begin->model_ns) return 1;
  // Model time never runs ahead of the wall clock.
  return std::max(1.0, static_cast<double>(end->wall_ns - begin->wall_ns) /
                           static_cast<double>(end->model_ns - begin->model_ns));
}

}  // namespace sluice::perf
