// Requests of a program, executed on the NICs of its host.
#include <cerrno>
#include <cstring>

#include "verbs/soft/daemon/client.h"
#include "verbs/soft/daemon/log.h"

namespace sluice::soft {
namespace {

uint64_t QpKey(const Nic* nic, uint32_t qp_num) {
  return static_cast<uint64_t>(nic->info().index) << 32 | qp_num;
}

}  // namespace

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
  Nic* nic = fabric_->nic(host_, request.nic);
  const int result = nic == nullptr ? ENODEV : Dispatch(nic, request.call, &arguments);
  if (result != 0)
    Log("pid %d: call %u on NIC %u: %s", pid_, static_cast<unsigned>(request.call), request.nic,
        strerror(result));
  AnswerCommand answer{};
  answer.result = result;
  answer.cookie = request.cookie;
  memcpy(&answer.arguments, &arguments, sizeof(arguments));
  EmitInOrder(kCommandAnswer, answer);
}

int Client::Dispatch(Nic* nic, Call call, CallArguments* a) {
  switch (call) {
    case Call::kQueryDevice: {
      ibv_device_attr attr{};
      nic->QueryDevice(&attr);
      a->device = attr;
      return 0;
    }
    case Call::kQueryPort: {
      ibv_port_attr attr{};
      const int error = nic->QueryPort(a->port, &attr);
      a->port_attr = attr;
      return error;
    }
    case Call::kQueryGid: {  // out: gid, number = type, index = valid
      GidEntry entry;
      const int error = nic->QueryGid(a->port, a->index, &entry);
      a->gid = entry.gid;
      a->number = static_cast<uint32_t>(entry.type);
      a->index = entry.valid ? 1 : 0;
      return error;
    }
    case Call::kQueryPkey: {  // out: number
      uint16_t pkey = 0;
      const int error = nic->QueryPkey(a->port, a->index, &pkey);
      a->number = pkey;
      return error;
    }
    case Call::kModelTime:
      a->value = static_cast<uint64_t>(fabric_->Now());
      return 0;
    case Call::kAllocPd:
      return nic->AllocPd(process_, &a->id);
    case Call::kDeallocPd:
      return nic->DeallocPd(process_, a->id);
    case Call::kRegMr: {  // in: id = PD, port = access
      uint32_t key = 0;
      const int error = nic->RegMr(process_, a->id, a->address, a->length, a->iova, a->port, &key);
      a->id = key;
      return error;
    }
    case Call::kDeregMr:
      return nic->DeregMr(process_, a->id);
    case Call::kCreateCq: {  // in: number = entries, index = slot, cookie
      if (a->index >= kMaxCqSlots) return EINVAL;
      const int error = nic->CreateCq(process_, a->number, &a->id, &a->number);
      if (error == 0) cqs_[a->id] = {a->cookie, a->index, nic->info().index};
      return error;
    }
    case Call::kResizeCq:
      return nic->ResizeCq(process_, a->id, a->number, &a->number);
    case Call::kDestroyCq: {
      const int error = nic->DestroyCq(process_, a->id);
      if (error == 0) cqs_.erase(a->id);
      return error;
    }
    case Call::kCreateSrq: {  // in: index = PD, srq, cookie
      const ibv_srq_attr wanted = a->srq;
      ibv_srq_attr actual{};
      const int error = nic->CreateSrq(process_, a->index, wanted, &a->id, &actual);
      a->srq = actual;
      if (error == 0) srqs_[a->id] = a->cookie;
      return error;
    }
    case Call::kModifySrq: {  // in: index = mask
      const ibv_srq_attr attr = a->srq;
      return nic->ModifySrq(process_, a->id, attr, static_cast<int>(a->index));
    }
    case Call::kQuerySrq: {
      ibv_srq_attr attr{};
      const int error = nic->QuerySrq(process_, a->id, &attr);
      a->srq = attr;
      return error;
    }
    case Call::kDestroySrq: {
      const int error = nic->DestroySrq(process_, a->id);
      if (error == 0) srqs_.erase(a->id);
      return error;
    }
    default:
      return DispatchQueuePair(nic, call, a);
  }
}

int Client::DispatchQueuePair(Nic* nic, Call call, CallArguments* a) {
  switch (call) {
    case Call::kCreateQp: {
      QpInit init;
      init.type = static_cast<ibv_qp_type>(a->qp_init.type);
      init.pd = a->qp_init.pd;
      init.send_cq = a->qp_init.send_cq;
      init.recv_cq = a->qp_init.recv_cq;
      init.srq = a->qp_init.srq;
      init.cap = a->qp_init.cap;
      init.sq_sig_all = a->qp_init.sq_sig_all;
      const int error = nic->CreateQp(process_, &init, &a->id);
      a->qp_init.cap = init.cap;
      if (error == 0) qps_[QpKey(nic, a->id)] = {a->cookie, init.send_cq, init.recv_cq};
      return error;
    }
    case Call::kModifyQp: {  // in: index = mask
      const ibv_qp_attr attr = a->qp;
      return nic->ModifyQp(process_, a->id, attr, static_cast<int>(a->index));
    }
    case Call::kQueryQp: {
      ibv_qp_attr attr{};
      const int error = nic->QueryQp(process_, a->id, &attr);
      a->qp = attr;
      return error;
    }
    case Call::kDestroyQp: {
      const int error = nic->DestroyQp(process_, a->id);
      if (error == 0) qps_.erase(QpKey(nic, a->id));
      return error;
    }
    default:
      return EOPNOTSUPP;
  }
}

void Client::ExecutePostSend(const PostSendRequest& request) {
  Nic* nic = fabric_->nic(host_, request.nic);
  // Another process's queue pair is none of this program's.
  if (nic == nullptr || !qps_.contains(QpKey(nic, request.qp_num))) return;
  SendWork work;
  work.wr_id = request.wr_id;
  work.opcode = static_cast<ibv_wr_opcode>(request.opcode);
  work.flags = request.flags;
  work.imm_data = request.imm_data;
  work.remote_address = request.remote_address;
  work.rkey = request.rkey;
  work.compare_or_add = request.compare_or_add;
  work.swap = request.swap;
  if ((request.flags & IBV_SEND_INLINE) != 0) {
    work.inline_data = {reinterpret_cast<const std::byte*>(&request + 1), request.inline_bytes};
  } else {
    work.sges = {reinterpret_cast<const ibv_sge*>(&request + 1), request.header.count};
  }
  const int error = nic->PostSend(request.qp_num, work);
  if (error != 0) RefusedPost(request.nic, request.qp_num, request.wr_id, true, error);
}

void Client::ExecutePostRecv(const PostRecvRequest& request, bool shared) {
  Nic* nic = fabric_->nic(host_, request.nic);
  if (nic == nullptr) return;
  RecvWork work;
  work.wr_id = request.wr_id;
  work.sges = {reinterpret_cast<const ibv_sge*>(&request + 1), request.header.count};
  if (shared) {
    if (!srqs_.contains(request.id)) return;
    const int error = nic->PostSrqRecv(request.id, work);
    if (error != 0) Log("pid %d: receive on shared queue %u refused: %s", pid_, request.id, strerror(error));
    return;
  }
  if (!qps_.contains(QpKey(nic, request.id))) return;
  const int error = nic->PostRecv(request.id, work);
  if (error != 0) RefusedPost(request.nic, request.id, request.wr_id, false, error);
}

// The library has checked what it can see and accepted the request; what the NIC refuses then ends as an
// error completion.
void Client::RefusedPost(uint32_t nic, uint32_t qp_num, uint64_t wr_id, bool send, int error) {
  Log("pid %d: %s on NIC %u queue pair %u refused: %s", pid_, send ? "send" : "receive", nic, qp_num,
      strerror(error));
  const QpRecord& record = qps_[static_cast<uint64_t>(nic) << 32 | qp_num];
  Completion completion;
  completion.wr_id = wr_id;
  completion.timestamp = fabric_->Now();
  completion.status = IBV_WC_LOC_QP_OP_ERR;
  completion.qp_num = qp_num;
  completion.full = false;
  PushCompletion(send ? record.send_cq : record.recv_cq, completion);
}

}  // namespace sluice::soft
