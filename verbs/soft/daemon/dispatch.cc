// Requests of a program, executed on the NICs of its host.
#include <cerrno>
#include <cstring>

#include "verbs/soft/daemon/client.h"
#include "verbs/soft/daemon/log.h"

namespace sluice::soft {

bool Client::ServeRequests(int budget) {
  int served = 0;
  for (; served < budget; ++served) {
    const RecordHeader* record = requests_.Front();
    if (record == nullptr) break;
    Execute(record);
    requests_.Pop();
  }
  if (served > 0) requests_.PublishHead();
  return served > 0;
}

void Client::Execute(const RecordHeader* record) {
  const size_t size = record->size_bytes;
  switch (record->type) {
    case kRequestCall:
      if (size < sizeof(CallRequest)) break;
      ExecuteCall(*reinterpret_cast<const CallRequest*>(record));
      return;
    case kRequestPostSend: {
      if (size < sizeof(PostSendRequest)) break;
      const auto& request = *reinterpret_cast<const PostSendRequest*>(record);
      const size_t tail =
          (request.flags & IBV_SEND_INLINE) != 0 ? request.inline_bytes : record->count * sizeof(ibv_sge);
      if (size < sizeof(PostSendRequest) + tail) break;
      ExecutePostSend(request);
      return;
    }
    case kRequestPostRecv:
    case kRequestPostSrqRecv:
      if (size < sizeof(PostRecvRequest) + record->count * sizeof(ibv_sge)) break;
      ExecutePostRecv(*reinterpret_cast<const PostRecvRequest*>(record), record->type == kRequestPostSrqRecv);
      return;
    default:
      break;
  }
  broken_ = true;
}

void Client::ExecuteCall(const CallRequest& request) {
  CallArguments arguments;
  memcpy(&arguments, &request.arguments, sizeof(arguments));
  const bool bad_slot = request.call == Call::kCreateCq && arguments.index >= kMaxCqSlots;
  const int result = bad_slot ? EINVAL : calls_->Dispatch(request.nic, request.call, &arguments);
  if (result != 0)
    Log("pid %d: call %u on NIC %u: %s", pid_, static_cast<unsigned>(request.call), request.nic,
        strerror(result));
  AnswerCommand answer{};
  answer.result = result;
  answer.cookie = request.cookie;
  memcpy(&answer.arguments, &arguments, sizeof(arguments));
  EmitInOrder(kCommandAnswer, answer);
}

void Client::ExecutePostSend(const PostSendRequest& request) {
  if (const int error = calls_->PostSend(request); error != 0) {
    Log("pid %d: send on NIC %u queue pair %u refused: %s", pid_, request.nic, request.qp_num,
        strerror(error));
  }
}

void Client::ExecutePostRecv(const PostRecvRequest& request, bool shared) {
  const int error = shared ? calls_->PostSrqRecv(request) : calls_->PostRecv(request);
  if (error != 0) {
    Log("pid %d: receive on NIC %u, %s %u refused: %s", pid_, request.nic,
        shared ? "shared queue" : "queue pair", request.id, strerror(error));
  }
}

}  // namespace sluice::soft
