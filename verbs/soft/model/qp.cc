#include "verbs/soft/model/qp.h"

#include <cerrno>

#include "verbs/soft/model/nic_impl.h"

namespace sluice::soft {

Qp::Qp(NicImpl* owner, FabricCore* fabric_core, ProcessId owner_process, uint32_t qp_number)
    : nic(*owner),
      core(*fabric_core),
      process(owner_process),
      memory(fabric_core->FindProcess(owner_process)->memory),
      number(qp_number),
      port(owner->port(1)),
      requester(this),
      responder(this) {
  data_hook_.client = this;
  ack_hook_.client = this;
}

Qp::~Qp() {
  Disconnect();
  requester.Clear();
  responder.Clear();
}

void Qp::Disconnect() {
  if (data_hook_.linked()) data_hook_.Unlink();
  if (ack_hook_.linked()) ack_hook_.Unlink();
  egress = nullptr;
  remote_endpoint = kNoEndpoint;
}

int Qp::PostSend(const SendWork& work) {
  if (state != IBV_QPS_RTS && state != IBV_QPS_SQD && state != IBV_QPS_ERR) return EINVAL;
  return requester.Post(work);
}

int Qp::PostRecv(const RecvWork& work) {
  if (state == IBV_QPS_RESET || srq != nullptr) return EINVAL;
  const int error = receive_queue.Post(work);
  if (error == 0 && state == IBV_QPS_ERR) responder.Flush();
  return error;
}

Packet* Qp::NextPacket() {
  response_turn_ = !response_turn_;
  if (response_turn_) {
    Packet* packet = responder.NextPacket();
    return packet != nullptr ? packet : requester.NextPacket();
  }
  Packet* packet = requester.NextPacket();
  return packet != nullptr ? packet : responder.NextPacket();
}

void Qp::OnPacket(const Packet& packet) {
  // A queue pair listens to its peer only.
  if (!responds() || packet.source != remote_endpoint) {
    ++counters().dropped_packets;
    return;
  }
  if (packet.ecn == kEcnCongestion) Notify();
  switch (packet.kind) {
    case PacketKind::kCnp:
      if (rate_ == nullptr) {
        ++counters().rp_cnp_ignored;
      } else {
        ++counters().rp_cnp_handled;
        rate_->OnCnp(core.Now());
      }
      return;
    case PacketKind::kAck:
      if (requests()) requester.OnAck(packet);
      return;
    case PacketKind::kReadResponse:
    case PacketKind::kAtomicResponse:
      if (requests()) requester.OnResponse(packet);
      return;
    default:
      responder.OnRequest(packet);
  }
}

void Qp::Notify() {
  ++counters().np_ecn_marked_roce_packets;
  if (rate_ == nullptr || egress == nullptr) return;
  if (!notifier_.Due(core.Now(), port->host()->settings().dcqcn.cnp_interval)) return;
  Packet* cnp = NewPacket(PacketKind::kCnp, 0);
  cnp->lane = port->host()->settings().cnp_priority;
  AddBytes(cnp, 0, kCnpExtensionBytes);
  ++counters().np_cnp_sent;
  egress->SendNow(cnp);
}

void Qp::RetryPayload() {
  requester.RetryPayload();
  responder.RetryPayload();
}

void Qp::Activate() {
  if (egress == nullptr) return;
  egress->AddData(&data_hook_);
  egress->Kick();
}

void Qp::ActivateAck() {
  if (egress == nullptr) return;
  egress->AddAck(&ack_hook_);
  egress->Kick();
}

void Qp::EnterError() {
  if (state == IBV_QPS_ERR || state == IBV_QPS_RESET) return;
  state = IBV_QPS_ERR;
  attr.qp_state = IBV_QPS_ERR;
  requester.Flush();
  responder.Flush();
  if (srq != nullptr) PushEvent(IBV_EVENT_QP_LAST_WQE_REACHED);
}

Packet* Qp::NewPacket(PacketKind kind, uint64_t psn) {
  Packet* packet = core.network.packets.New();
  packet->kind = kind;
  packet->psn = static_cast<uint32_t>(psn & 0xFFFFFF);
  packet->source = port->endpoint();
  packet->destination = remote_endpoint;
  packet->destination_qp = attr.dest_qp_num;
  packet->flow = flow;
  packet->lane = lane;
  packet->sl = attr.ah_attr.sl;
  packet->traffic_class = attr.ah_attr.is_global != 0 ? attr.ah_attr.grh.traffic_class : 0;
  packet->wire_bytes = header_bytes;
  // Data of a rate-controlled queue pair can be marked; else the program decides by its traffic class.
  if (kind != PacketKind::kAck && kind != PacketKind::kCnp) {
    packet->ecn = rate_ != nullptr || (packet->traffic_class & 3) != 0 ? kEcnCapable : kEcnNotCapable;
  }
  return packet;
}

void Qp::AddBytes(Packet* packet, uint32_t payload_bytes, uint32_t extension_bytes) {
  packet->payload_bytes += payload_bytes;
  packet->wire_bytes += ((payload_bytes + 3) & ~3U) + extension_bytes;
}

void Qp::PushCompletion(CompletionQueue* cq, Completion completion) {
  completion.qp_num = number;
  if (completion.status != IBV_WC_SUCCESS) {
    completion.full = false;
    completion.solicited = true;
    completion.vendor_err = static_cast<uint32_t>(completion.status);
  }
  nic.PushCompletion(cq, memory, &completion);
}

void Qp::PushEvent(ibv_event_type type) {
  memory->PushAsyncEvent({type, nic.info().index, number});
}

}  // namespace sluice::soft
