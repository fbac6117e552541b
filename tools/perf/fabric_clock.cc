#include "tools/perf/fabric_clock.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tools/perf/clock.h"
#include "verbs/soft/ipc/protocol.h"
#include "verbs/soft/ipc/socket.h"

namespace sluice::perf {
namespace {

// Model time of the fabric process that this program's library uses; nullopt without one.
std::optional<int64_t> ModelTimeNs() {
  const char* name = getenv("SLUICE_FABRIC");
  const Result<std::string> instance = soft::InstanceName(name);
  if (name == nullptr || !instance.ok()) return std::nullopt;
  const soft::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const timeval patience{2, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_un address;
  const socklen_t length = soft::FabricAddress(*instance, &address);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return std::nullopt;
  soft::TextMessage question{};
  question.type = soft::SocketMessage::kControl;
  strncpy(question.text, "time", sizeof question.text - 1);
  if (!soft::SendMessage(fd.get(), &question, sizeof question, {})) return std::nullopt;
  char answer[256];
  const ssize_t size = recv(fd.get(), answer, sizeof answer - 1, 0);
  if (size <= 0) return std::nullopt;
  answer[size] = '\0';
  int64_t model_ns = 0;
  if (sscanf(answer, "model_ns=%" SCNd64, &model_ns) != 1) return std::nullopt;
  return model_ns;
}

}  // namespace

FabricClock::FabricClock() : model_start_ns_(ModelTimeNs()), wall_start_ns_(WallClock::Get().NowNs()) {}

double FabricClock::Dilation() const {
  const std::optional<int64_t> model_ns = ModelTimeNs();
  if (!model_start_ns_.has_value() || !model_ns.has_value() || *model_ns <= *model_start_ns_) return 1;
  const int64_t wall_ns = WallClock::Get().NowNs() - wall_start_ns_;
  return static_cast<double>(wall_ns) / static_cast<double>(*model_ns - *model_start_ns_);
}

}  // namespace sluice::perf
