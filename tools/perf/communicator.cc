#include "tools/perf/communicator.h"

#include <sched.h>

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
  Handle handle;
};

std::string Describe(const Connections& connections, const char* verb, bool (*pending)(const Connection&)) {
  std::set<int> ranks;
  for (const auto& c : connections) {
    if (pending(*c)) ranks.insert(c->edge.peer);
  }
  if (ranks.empty()) return "";
  std::string text = std::string(verb) + " rank";
  int listed = 0;
  for (int rank : ranks) {
    if (listed++ == 4) return text + " and others";
    text += (listed > 1 ? ", " : " ") + std::to_string(rank);
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::Create(const CommunicatorConfig& config,
                                                           NetPlugin* plugin, Bootstrap* bootstrap,
                                                           JobState* job) {
  std::unique_ptr<Communicator> self(new Communicator(config, plugin, job));
  SLUICE_RETURN_IF_ERROR(self->Open(bootstrap));
  return self;
}

Communicator::Communicator(const CommunicatorConfig& config, NetPlugin* plugin, JobState* job)
    : config_(config), plugin_(plugin), job_(job) {}

Communicator::~Communicator() {
  (void)Close();
}

Status Communicator::Open(Bootstrap* bootstrap) {
  service_ = std::make_unique<ServiceThread>();
  gpu_ = std::make_unique<GpuThread>(job_);
  progress_ = std::make_unique<ProgressThread>();
  MakeConnections();
  progress_->Start({.plugin = plugin_,
                    .job = job_,
                    .doorbell = gpu_->doorbell(),
                    .net_context = config_.net_context,
                    .rank = config_.shape.rank,
                    .max_recvs = config_.max_recvs,
                    .flush = config_.flush,
                    .shared_send = shared_send_.data(),
                    .shared_receive = shared_receive_.data(),
                    .foreign_attributes = &service_attributes_});
  std::string handles;
  SLUICE_RETURN_IF_ERROR(service_->Call([&] { return ListenAll(&handles); }));
  Result<std::vector<std::string>> all = bootstrap->AllGather(handles);
  if (!all.ok()) return all.status();
  SLUICE_RETURN_IF_ERROR(TakeHandles(*all));
  SLUICE_RETURN_IF_ERROR(service_->Call([&] { return ConnectAll(); }));
  return bootstrap->Barrier();
}

void Communicator::MakeConnections() {
  const bool shared = IsPointToPoint(config_.shape.op);
  const Edges edges = ConnectionsOf(config_.shape);
  auto make = [&](const std::vector<Edge>& list, bool send, Connections* out) {
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
  make(edges.send, true, &send_);
  make(edges.receive, false, &receive_);
}

Status Communicator::ListenAll(std::string* handles) {
  DeviceProperties ignored;
  for (const auto& c : receive_) {
    SLUICE_RETURN_IF_ERROR(plugin_->Properties(c->device, &ignored));
    if (!c->owns_comm) continue;
    PublishedHandle published{c->edge.peer, c->edge.channel, {}};
    SLUICE_RETURN_IF_ERROR(plugin_->Listen(config_.net_context, c->device, &published.handle, &c->listen));
    if (c->listen == nullptr) return InternalError("listen succeeded without a listen communicator");
    handles->append(reinterpret_cast<const char*>(&published), sizeof published);
  }
  for (const auto& c : send_) SLUICE_RETURN_IF_ERROR(plugin_->Properties(c->device, &ignored));
  return Status::Ok();
}

Status Communicator::TakeHandles(const std::vector<std::string>& all) {
  for (const auto& c : send_) {
    if (!c->owns_comm) continue;
    const std::string& theirs = all[static_cast<size_t>(c->edge.peer)];
    bool found = false;
    for (size_t at = 0; at + sizeof(PublishedHandle) <= theirs.size(); at += sizeof(PublishedHandle)) {
      PublishedHandle published;
      std::memcpy(&published, theirs.data() + at, sizeof published);
      if (published.peer != config_.shape.rank || published.channel != c->edge.channel) continue;
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

Status Communicator::AnnounceConnecting() {
  if (!plugin_->has_set_attr()) return Status::Ok();
  nccl::NetAttr attr{};
  const bool p2p = IsPointToPoint(config_.shape.op);
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

// Every connect and accept is tried in turn until all have succeeded: neither may wait for the other.
Status Communicator::ConnectAll() {
  auto pending = [](const Connection& c) { return c.owns_comm && c.comm == nullptr; };
  size_t left = static_cast<size_t>(
      std::count_if(send_.begin(), send_.end(), [&](auto& c) { return pending(*c); }) +
      std::count_if(receive_.begin(), receive_.end(), [&](auto& c) { return pending(*c); }));
  for (unsigned pass = 0; left > 0; ++pass) {
    if (job_->aborted()) return job_->status();
    if (pass % 1024 == 0) {
      const std::string to = Describe(send_, "connecting to", pending);
      const std::string from = Describe(receive_, "accepting from", pending);
      job_->SetActivity(to + (!to.empty() && !from.empty() ? " and " : "") + from);
    }
    for (size_t i = 0; i < std::max(send_.size(), receive_.size()); ++i) {
      if (i < send_.size() && pending(*send_[i])) {
        Connection& c = *send_[i];
        SLUICE_RETURN_IF_ERROR(AnnounceConnecting());
        if (Status status =
                plugin_->Connect(config_.net_context, c.device, config_.traffic_class, &c.handle, &c.comm);
            !status.ok()) {
          return RemoteError("connecting to rank " + std::to_string(c.edge.peer) + ": " + status.message());
        }
        if (c.comm != nullptr) {
          --left;
          SLUICE_RETURN_IF_ERROR(RegisterBuffers(c, true));
        }
      }
      if (i < receive_.size() && pending(*receive_[i])) {
        Connection& c = *receive_[i];
        SLUICE_RETURN_IF_ERROR(AnnounceConnecting());
        if (Status status = plugin_->Accept(c.listen, &c.comm); !status.ok()) {
          return RemoteError("accepting from rank " + std::to_string(c.edge.peer) + ": " + status.message());
        }
        if (c.comm != nullptr) {
          --left;
          SLUICE_RETURN_IF_ERROR(plugin_->CloseListen(std::exchange(c.listen, nullptr)));
          SLUICE_RETURN_IF_ERROR(RegisterBuffers(c, false));
        }
      }
    }
    sched_yield();
  }
  for (Connections* list :
       {&send_, &receive_}) {  // those that share the connection of their peer's first channel
    std::map<int, void*> comms;
    for (const auto& c : *list) {
      if (c->owns_comm) {
        comms[c->edge.peer] = c->comm;
        continue;
      }
      c->comm = comms[c->edge.peer];
      SLUICE_RETURN_IF_ERROR(RegisterBuffers(*c, list == &send_));
    }
  }
  job_->SetActivity("waiting for the other ranks to connect");
  return Status::Ok();
}

Status Communicator::RegisterBuffers(Connection& c, bool send) {
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

Status Communicator::Register(std::byte* data, size_t bytes) {
  return service_->Call([&]() -> Status {
    for (Connections* list : {&send_, &receive_}) {
      for (const auto& c : *list) {
        UserMemory memory{data, bytes, nullptr};
        SLUICE_RETURN_IF_ERROR(plugin_->RegMr(c->comm, data, bytes, &memory.mhandle));
        c->user.push_back(memory);
      }
    }
    return Status::Ok();
  });
}

std::shared_ptr<const Plan> Communicator::MakePlan(const Shape& shape) const {
  auto plan = std::make_shared<Plan>();
  plan->schedule = BuildSchedule(shape);
  auto find = [](const Connections& list, int peer, int channel) {
    const auto it = std::find_if(list.begin(), list.end(), [&](const auto& c) {
      return c->edge == Edge{peer, channel};
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

Status Communicator::Launch(const Shape& shape, std::byte* input, std::byte* output) {
  const Shape* last = plan_ == nullptr ? nullptr : &plan_->schedule.shape;
  if (last == nullptr || last->block_elements != shape.block_elements || last->proto != shape.proto ||
      last->registered != shape.registered || last->root != shape.root) {
    plan_ = MakePlan(shape);
  }
  Operation op{.id = ++launched_, .plan = plan_, .input = input, .output = output, .launched_ns = NowNs()};
  progress_->Post(op);
  gpu_->Launch(std::move(op));
  return Status::Ok();
}

Status Communicator::Wait() {
  return gpu_->Wait(launched_);
}

Status Communicator::CloseAll() {
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

Status Communicator::Close() {
  if (closed_) return Status::Ok();
  closed_ = true;
  if (progress_ != nullptr) progress_->Stop();
  if (gpu_ != nullptr) gpu_->Stop();
  Status status;
  if (service_ != nullptr) status = service_->Call([&] { return CloseAll(); });
  service_.reset();
  Status finalized = plugin_->Finalize(config_.net_context);
  return status.ok() ? finalized : status;
}

}  // namespace sluice::perf
