// Requests of connections, recycled through one pool of the process.
#include "plugin/transport/control.h"

namespace sluice {
namespace {

// Event thread only.
struct Pool {
  std::vector<std::pair<uint32_t, std::unique_ptr<SendRequest[]>>> sends;  // by count
  std::vector<std::unique_ptr<RecvGroup[]>> groups;
  std::vector<std::unique_ptr<FlushRequest[]>> flushes;
};

Pool& FreeRequests() {
  static auto* const pool = new Pool;
  return *pool;
}

template <typename T>
std::unique_ptr<T[]> TakeOr(std::vector<std::unique_ptr<T[]>>& free, uint32_t count) {
  if (free.empty()) return std::make_unique<T[]>(count);
  std::unique_ptr<T[]> taken = std::move(free.back());
  free.pop_back();
  for (uint32_t i = 0; i < count; ++i) taken[i] = T();
  return taken;
}

}  // namespace

void ResetConnection(SendConnection& connection, Engine& engine) {
  connection.engine = &engine;
  const uint32_t count = kSlots * connection.max_recvs;
  auto& free = FreeRequests().sends;
  for (auto it = free.rbegin(); it != free.rend() && connection.requests == nullptr; ++it) {
    if (it->first != count) continue;
    connection.requests = std::move(it->second);
    free.erase(std::next(it).base());
    break;
  }
  if (connection.requests == nullptr) connection.requests = std::make_unique<SendRequest[]>(count);
  for (uint32_t i = 0; i < count; ++i) {
    SendRequest& request = connection.requests[i];
    request = SendRequest();
    request.engine = &engine;
    request.connection = &connection;
    request.kind = RequestKind::kSend;
    request.slot_sub = static_cast<uint8_t>(i);
  }
}

void ResetConnection(RecvConnection& connection, Engine& engine) {
  connection.engine = &engine;
  connection.groups = TakeOr(FreeRequests().groups, kSlots);
  connection.flushes = TakeOr(FreeRequests().flushes, kSlots);
  for (uint32_t i = 0; i < kSlots; ++i) {
    for (RequestBase* request : {static_cast<RequestBase*>(&connection.groups[i]),
                                 static_cast<RequestBase*>(&connection.flushes[i])}) {
      request->engine = &engine;
      request->connection = &connection;
    }
    connection.groups[i].kind = RequestKind::kReceive;
    connection.flushes[i].kind = RequestKind::kFlush;
  }
}

void RecycleRequests(Connection& connection) {
  Pool& pool = FreeRequests();
  if (auto* send = dynamic_cast<SendConnection*>(&connection)) {
    if (send->requests != nullptr)
      pool.sends.emplace_back(kSlots * send->max_recvs, std::move(send->requests));
    return;
  }
  auto& receive = static_cast<RecvConnection&>(connection);
  if (receive.groups != nullptr) pool.groups.push_back(std::move(receive.groups));
  if (receive.flushes != nullptr) pool.flushes.push_back(std::move(receive.flushes));
}

}  // namespace sluice
