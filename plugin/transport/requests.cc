// Requests of connections, recycled through one pool of the process.
#include <deque>
#include <map>

#include "plugin/transport/control.h"

namespace sluice {
namespace {

// Oldest first, so that a late call with a request of a closed connection rarely meets its next owner. Event
// thread only.
struct Pool {
  std::map<uint32_t, std::deque<std::unique_ptr<SendRequest[]>>> sends;  // by count
  std::deque<std::unique_ptr<RecvGroup[]>> groups;
  std::deque<std::unique_ptr<FlushRequest[]>> flushes;
};

Pool& FreeRequests() {
  static auto* const pool = new Pool;
  return *pool;
}

template <typename T>
std::unique_ptr<T[]> TakeOr(std::deque<std::unique_ptr<T[]>>& free, uint32_t count) {
  if (free.empty()) return std::make_unique<T[]>(count);
  std::unique_ptr<T[]> taken = std::move(free.front());
  free.pop_front();
  for (uint32_t i = 0; i < count; ++i) taken[i] = T();
  return taken;
}

}  // namespace

void ResetConnection(SendConnection& connection, Engine& engine) {
  connection.engine = &engine;
  const uint32_t count = kSlots * connection.max_recvs;
  connection.requests = TakeOr(FreeRequests().sends[count], count);
  for (uint32_t i = 0; i < count; ++i) {
    SendRequest& request = connection.requests[i];
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
    if (send->requests != nullptr) pool.sends[kSlots * send->max_recvs].push_back(std::move(send->requests));
    return;
  }
  auto& receive = static_cast<RecvConnection&>(connection);
  if (receive.groups != nullptr) pool.groups.push_back(std::move(receive.groups));
  if (receive.flushes != nullptr) pool.flushes.push_back(std::move(receive.flushes));
}

}  // namespace sluice
