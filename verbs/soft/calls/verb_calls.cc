#include "verbs/soft/calls/verb_calls.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice::soft {
namespace {

uint64_t QpKey(uint32_t nic, uint32_t qp_num) {
  return static_cast<uint64_t>(nic) << 32 | qp_num;
}

}  // namespace

int VerbCalls::Dispatch(uint32_t nic_index, Call call, CallArguments* a) {
  Nic* nic = fabric_->nic(host_, nic_index);
  if (nic == nullptr) return ENODEV;
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

int VerbCalls::DispatchQueuePair(Nic* nic, Call call, CallArguments* a) {
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
      if (error == 0) qps_[QpKey(nic->info().index, a->id)] = {a->cookie, init.send_cq, init.recv_cq};
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
      if (error == 0) qps_.erase(QpKey(nic->info().index, a->id));
      return error;
    }
    default:
      return EOPNOTSUPP;
  }
}

int VerbCalls::PostSend(const PostSendRequest& request) {
  Nic* nic = fabric_->nic(host_, request.nic);
  if (nic == nullptr || !qps_.contains(QpKey(request.nic, request.qp_num))) return 0;
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
  return error == 0 ? 0 : Refuse(request.nic, request.qp_num, request.wr_id, true, error);
}

int VerbCalls::PostRecv(const PostRecvRequest& request) {
  Nic* nic = fabric_->nic(host_, request.nic);
  if (nic == nullptr || !qps_.contains(QpKey(request.nic, request.id))) return 0;
  RecvWork work;
  work.wr_id = request.wr_id;
  work.sges = {reinterpret_cast<const ibv_sge*>(&request + 1), request.header.count};
  const int error = nic->PostRecv(request.id, work);
  return error == 0 ? 0 : Refuse(request.nic, request.id, request.wr_id, false, error);
}

int VerbCalls::PostSrqRecv(const PostRecvRequest& request) {
  Nic* nic = fabric_->nic(host_, request.nic);
  if (nic == nullptr || !srqs_.contains(request.id)) return 0;
  RecvWork work;
  work.wr_id = request.wr_id;
  work.sges = {reinterpret_cast<const ibv_sge*>(&request + 1), request.header.count};
  return nic->PostSrqRecv(request.id, work);
}

int VerbCalls::Refuse(uint32_t nic, uint32_t qp_num, uint64_t wr_id, bool send, int error) {
  const QpRecord& record = qps_[QpKey(nic, qp_num)];
  Completion completion;
  completion.wr_id = wr_id;
  completion.timestamp = fabric_->Now();
  completion.status = IBV_WC_LOC_QP_OP_ERR;
  completion.qp_num = qp_num;
  completion.full = false;
  memory_->PushCompletion(send ? record.send_cq : record.recv_cq, completion);
  return error;
}

bool VerbCalls::Translate(CqId cq, const Completion& completion, CompletionCommand* command) const {
  const CqRecord* record = FindCq(cq);
  if (record == nullptr) return false;
  command->cq_cookie = record->cookie;
  command->wr_id = completion.wr_id;
  command->timestamp_ps = completion.timestamp;
  command->status = completion.status;
  command->opcode = completion.opcode;
  command->vendor_err = completion.vendor_err;
  command->qp_num = completion.qp_num;
  command->byte_len = completion.byte_len;
  command->imm_data = completion.imm_data;
  command->src_qp = completion.src_qp;
  command->wc_flags = completion.wc_flags;
  command->slid = completion.slid;
  command->sl = completion.sl;
  command->full = completion.full;
  command->solicited = completion.solicited;
  return true;
}

bool VerbCalls::Translate(const AsyncEvent& event, EventCommand* command) const {
  command->type = event.type;
  command->nic = event.nic;
  command->element = event.element;
  switch (event.type) {
    case IBV_EVENT_CQ_ERR: {
      const auto found = cqs_.find(event.element);
      if (found == cqs_.end()) return false;
      command->element = found->second.cookie;
      return true;
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      const auto found = srqs_.find(event.element);
      if (found == srqs_.end()) return false;
      command->element = found->second;
      return true;
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      const auto found = qps_.find(QpKey(event.nic, event.element));
      if (found == qps_.end()) return false;
      command->element = found->second.cookie;
      return true;
    }
    default:
      return true;
  }
}

void DescribeHost(Fabric* fabric, uint32_t host, const char* sysfs_root, WelcomeMessage* welcome) {
  welcome->host = host;
  strncpy(welcome->host_name, fabric->topology().hosts[host].name.c_str(), sizeof(welcome->host_name) - 1);
  strncpy(welcome->sysfs_root, sysfs_root, sizeof(welcome->sysfs_root) - 1);
  welcome->device_count = std::min(fabric->nic_count(host), kMaxDevices);
  for (uint32_t index = 0; index < welcome->device_count; ++index) {
    const Nic* nic = fabric->nic(host, index);
    DeviceDescription& device = welcome->devices[index];
    strncpy(device.name, nic->info().name.c_str(), sizeof(device.name) - 1);
    device.node_guid = nic->info().node_guid;
    device.vendor_id = nic->info().vendor_id;
    device.device_id = nic->info().device_id;
    device.port_count = nic->port_count();
    device.max_inline = nic->max_inline();
  }
}

}  // namespace sluice::soft
