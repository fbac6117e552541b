#include "tools/perf/fabric_control.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "verbs/soft/ipc/protocol.h"
#include "verbs/soft/ipc/socket.h"

namespace sluice::perf {

FabricControl::FabricControl() {
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

std::optional<std::string> FabricControl::Ask(const std::string& command) const {
  constexpr size_t kMaxAnswerBytes = 256 * 1024;
  if (!socket_.valid()) return std::nullopt;
  soft::TextMessage question{};
  question.type = soft::SocketMessage::kControl;
  strncpy(question.text, command.c_str(), sizeof question.text - 1);
  if (!soft::SendMessage(socket_.get(), &question, sizeof question, {})) return std::nullopt;
  std::string answer(kMaxAnswerBytes, '\0');
  const ssize_t size = recv(socket_.get(), answer.data(), answer.size(), 0);
  if (size <= 0) return std::nullopt;
  answer.resize(static_cast<size_t>(size));
  return answer;
}

std::optional<FabricBytes> AskFabricBytes() {
  const std::optional<std::string> status = FabricControl().Ask("status");
  if (!status.has_value()) return std::nullopt;
  FabricBytes bytes;
  std::istringstream words(*status);
  for (std::string word; words >> word;) {
    int index = 0;
    uint64_t count = 0;
    if (sscanf(word.c_str(), "sl%d=%" SCNu64, &index, &count) == 2) bytes.by_sl[index] += count;
    if (sscanf(word.c_str(), "tc%d=%" SCNu64, &index, &count) == 2) bytes.by_traffic_class[index] += count;
  }
  return bytes;
}

}  // namespace sluice::perf
