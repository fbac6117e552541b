#include "tools/perf/communicator_core.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "tools/perf/schedule_parts.h"

namespace sluice::perf {
namespace {

// What a rank publishes for each connection that it will accept.
struct PublishedHandle {
  int32_t peer;
  int32_t channel;
  int32_t shared;
  Handle handle;
};

}  // namespace

CommunicatorCore::CommunicatorCore(const CommunicatorConfig& config, NetPlugin* plugin, const Clock* clock)
    : config_(config), plugin_(plugin), clock_(clock), gpu_(clock) {
  MakeConnections();
  progress_ = std::make_unique<ProgressEngine>(ProgressContext{.plugin = plugin_,
                                                               .doorbell = doorbell_.get(),
                                                               .net_context = config_.net_context,
                                                               .max_recvs = config_.max_recvs,
                                                               .flush = config_.flush,
                                                               .shared_send = shared_send_.data(),
                                                               .shared_receive = shared_receive_.data(),
                                                               .foreign_attributes = &service_attributes_,
                                                               .profiler = config_.profiler,
                                                               .profiler_context = config_.profiler_context,
                                                               .claims = config_.claims});
}

std::vector<const PageBuffer*> CommunicatorCore::buffers() const {
  std::vector<const PageBuffer*> all;
  for (const Connections* list : {&send_, &receive_}) {
    for (const auto& c : *list) all.push_back(&c->memory);
  }
  for (const PageBuffer* shared : {&shared_send_, &shared_receive_}) {
    if (shared->data() != nullptr) all.push_back(shared);
  }
  return all;
}

void CommunicatorCore::MakeConnections() {
  // What all shapes of a kind need, once.
  std::set<Edge> needed[2][2];  // by kind (point-to-point) and direction (sending)
  auto need = [&](const Shape& shape) {
    const Edges edges = ConnectionsOf(shape);
    needed[IsPointToPoint(shape.op)][0].insert(edges.receive.begin(), edges.receive.end());
    needed[IsPointToPoint(shape.op)][1].insert(edges.send.begin(), edges.send.end());
  };
  need(config_.shape);
  for (const Shape& shape : config_.more) need(shape);
  auto make = [&](const std::set<Edge>& list, bool shared, bool send, Connections* out) {
    std::set<int>
        owned;  // peers whose plugin connection exists; all channels share it when receives are grouped
    for (const Edge& edge : list) {
      auto c = std::make_unique<Connection>();
      c->edge = edge;
      c->device = config_.first_device + edge.channel % config_.device_count;
      c->shared = shared;
      const bool grouped = shared && config_.max_recvs > 1;
      if (grouped) c->device = config_.first_device;
      c->owns_comm = !grouped || owned.insert(edge.peer).second;
      // The sender's rank; grouped, one number per sender and channel.
      const int sender = send ? config_.shape.rank : edge.peer;
      c->tag = grouped ? sender + edge.channel * config_.shape.ranks : sender;
      if (shared && send) c->head.store(-kSteps);  // no credit before the progress thread has given a slot
      size_t bytes = 0;
      for (int p = 0; p < kProtocols; ++p) {
        if (!shared || p == static_cast<int>(Proto::kLl)) bytes += kBufferBytes[p];
      }
      c->memory = PageBuffer(bytes);
      std::byte* at = c->memory.data();
      for (size_t p = 0; p < kProtocols; ++p) {
        if (shared && p != static_cast<size_t>(Proto::kLl)) continue;
        c->buffers[p] = at;
        at += kBufferBytes[p];
      }
      if (shared) {
        PageBuffer& slots = send ? shared_send_ : shared_receive_;
        if (slots.data() == nullptr) {
          slots = PageBuffer(static_cast<size_t>(config_.shape.channels) * kSharedSteps *
                             kPointToPointChunkBytes);
        }
      }
      out->push_back(std::move(c));
    }
  };
  for (const bool shared : {false, true}) {
    make(needed[shared][1], shared, true, &send_);
    make(needed[shared][0], shared, false, &receive_);
  }
}

Status CommunicatorCore::ListenAll(std::string* handles) {
  DeviceProperties ignored;
  for (const auto& c : receive_) {
    SLUICE_RETURN_IF_ERROR(plugin_->Properties(c->device, &ignored));
    if (!c->owns_comm) continue;
    PublishedHandle published{c->edge.peer, c->edge.channel, c->shared, {}};
    SLUICE_RETURN_IF_ERROR(plugin_->Listen(config_.net_context, c->device, &published.handle, &c->listen));
    if (c->listen == nullptr) return InternalError("listen succeeded without a listen communicator");
    handles->append(reinterpret_cast<const char*>(&published), sizeof published);
  }
  for (const auto& c : send_) SLUICE_RETURN_IF_ERROR(plugin_->Properties(c->device, &ignored));
  return Status::Ok();
}

Status CommunicatorCore::TakeHandles(const std::vector<std::string>& all) {
  for (const auto& c : send_) {
    if (!c->owns_comm) continue;
    const std::string& theirs = all[static_cast<size_t>(c->edge.peer)];
    bool found = false;
    for (size_t at = 0; at + sizeof(PublishedHandle) <= theirs.size(); at += sizeof(PublishedHandle)) {
      PublishedHandle published;
      std::memcpy(&published, theirs.data() + at, sizeof published);
      if (published.peer != config_.shape.rank || published.channel != c->edge.channel ||
          published.shared != static_cast<int32_t>(c->shared)) {
        continue;
      }
      c->handle = published.handle;
      found = true;
      break;
    }
    if (!found) {
      return InternalError("rank " + std::to_string(c->edge.peer) +
                           " does not expect a connection on channel " + std::to_string(c->edge.channel) +
                           "; do all ranks use the same options?");
    }
  }
  return Status::Ok();
}

Status CommunicatorCore::AnnounceConnecting(bool p2p) {
  if (!plugin_->has_set_attr()) return Status::Ok();
  nccl::NetAttr attr{};
  attr.op = p2p ? 1u << nccl::kFuncSend | 1u << nccl::kFuncRecv | 1u << nccl::kFuncAllToAll |
                      1u << nccl::kFuncScatter | 1u << nccl::kFuncGather
                : 0xffffffffu;
  attr.algo = attr.proto = 0xffffffffu;
  const int peers = p2p ? std::max(1, config_.shape.ranks - 1) : 1;
  for (nccl::NetCommAttr* half : {&attr.sendCommAttr, &attr.recvCommAttr}) {
    *half = {peers, 1, config_.shape.channels, 1};
  }
  service_attributes_.fetch_add(1, std::memory_order_relaxed);
  return plugin_->SetAttr(config_.net_context, attr);
}

Status CommunicatorCore::TryConnect(Connection& c) {
  SLUICE_RETURN_IF_ERROR(AnnounceConnecting(c.shared));
  if (Status status =
          plugin_->Connect(config_.net_context, c.device, config_.traffic_class, &c.handle, &c.comm);
      !status.ok()) {
    return RemoteError("connecting to rank " + std::to_string(c.edge.peer) + ": " + status.message());
  }
  return c.comm == nullptr ? Status::Ok() : RegisterBuffers(c, true);
}

Status CommunicatorCore::TryAccept(Connection& c) {
  SLUICE_RETURN_IF_ERROR(AnnounceConnecting(c.shared));
  if (Status status = plugin_->Accept(c.listen, &c.comm); !status.ok()) {
    return RemoteError("accepting from rank " + std::to_string(c.edge.peer) + ": " + status.message());
  }
  if (c.comm == nullptr) return Status::Ok();
  SLUICE_RETURN_IF_ERROR(plugin_->CloseListen(std::exchange(c.listen, nullptr)));
  return RegisterBuffers(c, false);
}

Status CommunicatorCore::ShareConnections() {
  for (Connections* list : {&send_, &receive_}) {
    std::map<int, void*> comms;  // of point-to-point connections, the only ones that share
    for (const auto& c : *list) {
      if (!c->shared) continue;
      if (c->owns_comm) {
        comms[c->edge.peer] = c->comm;
        continue;
      }
      c->comm = comms[c->edge.peer];
      SLUICE_RETURN_IF_ERROR(RegisterBuffers(*c, list == &send_));
    }
  }
  return Status::Ok();
}

Status CommunicatorCore::RegisterBuffers(Connection& c, bool send) {
  for (size_t p = 0; p < kProtocols; ++p) {
    if (c.buffers[p] != nullptr)
      SLUICE_RETURN_IF_ERROR(plugin_->RegMr(c.comm, c.buffers[p], kBufferBytes[p], &c.mhandles[p]));
  }
  if (c.shared) {
    const PageBuffer& slots = send ? shared_send_ : shared_receive_;
    SLUICE_RETURN_IF_ERROR(
        plugin_->RegMr(c.comm, slots.data(), slots.size(), &c.mhandles[static_cast<size_t>(Proto::kSimple)]));
  }
  return Status::Ok();
}

Status CommunicatorCore::Register(std::byte* data, size_t bytes) {
  for (Connections* list : {&send_, &receive_}) {
    for (const auto& c : *list) {
      UserMemory memory{data, bytes, nullptr};
      SLUICE_RETURN_IF_ERROR(plugin_->RegMr(c->comm, data, bytes, &memory.mhandle));
      c->user.push_back(memory);
    }
  }
  return Status::Ok();
}

std::shared_ptr<const Plan> CommunicatorCore::MakePlan(const Shape& shape) const {
  auto plan = std::make_shared<Plan>();
  plan->schedule = BuildSchedule(shape);
  const bool shared = IsPointToPoint(shape.op);
  auto find = [shared](const Connections& list, int peer, int channel) {
    const auto it = std::find_if(list.begin(), list.end(), [&](const auto& c) {
      return c->edge == Edge{peer, channel} && c->shared == shared;
    });
    return it->get();
  };
  std::set<int> peers, channels;
  for (const Strand& strand : plan->schedule.strands) {
    auto& receive = plan->receive.emplace_back();
    auto& send = plan->send.emplace_back();
    auto& received = plan->received_slices.emplace_back();
    for (int peer : strand.receive_from) receive.push_back(find(receive_, peer, strand.channel));
    for (int peer : strand.send_to) {
      send.push_back(find(send_, peer, strand.channel));
      peers.insert(peer);
    }
    for (size_t i = 0; i < strand.slices.size(); ++i) {
      if (strand.slices[i].receives) received.push_back(i);
    }
    channels.insert(strand.channel);
  }
  plan->peers = std::max<int>(1, static_cast<int>(peers.size()));
  plan->channels = std::max<int>(1, static_cast<int>(channels.size()));
  return plan;
}

std::shared_ptr<const Plan> CommunicatorCore::PlanFor(const Shape& shape) {
  constexpr size_t kKept = 8;
  for (const std::shared_ptr<const Plan>& plan : plans_) {
    const Shape& kept = plan->schedule.shape;
    if (kept.op == shape.op && kept.algo == shape.algo && kept.block_elements == shape.block_elements &&
        kept.proto == shape.proto && kept.registered == shape.registered && kept.root == shape.root)
      return plan;
  }
  if (plans_.size() == kKept) plans_.erase(plans_.begin());
  return plans_.emplace_back(MakePlan(shape));
}

Operation CommunicatorCore::MakeOperation(const Shape& shape, std::byte* input, std::byte* output) {
  std::shared_ptr<const Plan> plan = PlanFor(shape);
  std::shared_ptr<const TaskEvents> events = StartTasks(*plan);
  return {.id = ++launched_,
          .plan = std::move(plan),
          .input = input,
          .output = output,
          .launched_ns = clock_->NowNs(),
          .events = std::move(events)};
}

// One task per collective, one per direction and peer of point-to-point calls.
std::shared_ptr<const TaskEvents> CommunicatorCore::StartTasks(const Plan& plan) {
  ProfilerPlugin* const profiler = config_.profiler;
  if (profiler == nullptr) return nullptr;
  void* const context = config_.profiler_context;
  auto events = std::make_shared<TaskEvents>();
  ProfilerTaskInfo info{
      .shape = plan.schedule.shape, .count = plan.schedule.shape.block_elements, .sequence = launched_};
  if (!IsPointToPoint(info.shape.op)) {
    events->collective = profiler->StartTask(context, info, nullptr);
    return events;
  }
  info.point_to_point = true;
  for (const Strand& strand : plan.schedule.strands) {
    for (const bool send : {false, true}) {
      for (const int peer : send ? strand.send_to : strand.receive_from) {
        void*& event = events->point_to_point[{send, peer}];
        if (event != nullptr) continue;
        info.send = send;
        info.peer = peer;
        void* const call = profiler->StartCall(context, info);
        event = profiler->StartTask(context, info, call);
        profiler->Stop(call);
      }
    }
  }
  return events;
}

void CommunicatorCore::EndTasks(const Operation& operation) {
  if (operation.events == nullptr) return;
  config_.profiler->Stop(operation.events->collective);
  for (const auto& [key, event] : operation.events->point_to_point) config_.profiler->Stop(event);
}

Status CommunicatorCore::CloseAll() {
  Status first;
  auto keep = [&](Status status) {
    if (first.ok() && !status.ok()) first = std::move(status);
  };
  for (Connections* list : {&send_, &receive_}) {
    const bool send = list == &send_;
    for (const auto& c : *list) {  // handles on a shared connection go before the connection itself
      if (c->comm == nullptr) continue;
      for (const UserMemory& memory : c->user) keep(plugin_->DeregMr(c->comm, memory.mhandle));
      for (void* mhandle : c->mhandles) {
        if (mhandle != nullptr) keep(plugin_->DeregMr(c->comm, mhandle));
      }
      if (c->owns_comm && config_.max_recvs == 1)
        keep(send ? plugin_->CloseSend(c->comm) : plugin_->CloseRecv(c->comm));
    }
    for (const auto& c : *list) {
      if (c->comm == nullptr || !c->owns_comm || config_.max_recvs == 1) continue;
      keep(send ? plugin_->CloseSend(c->comm) : plugin_->CloseRecv(c->comm));
    }
  }
  return first;
}

}  // namespace sluice::perf
