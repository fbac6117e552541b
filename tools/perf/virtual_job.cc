#include "tools/perf/virtual_job.h"

#include <sched.h>

#include <algorithm>

#include "tools/perf/launcher.h"

namespace sluice::perf {
namespace {

// What NCCL draws at random; plugins use it as a name only.
constexpr uint64_t kFirstCommunicatorId = 0x5669727475616c00;

}  // namespace

Result<std::unique_ptr<VirtualJob>> VirtualJob::Open(const Options& options, soft::VirtualFabric* fabric,
                                                     JobState* state) {
  std::unique_ptr<VirtualJob> job(new VirtualJob(options, fabric, state));
  SLUICE_RETURN_IF_ERROR(job->AddRanks());
  job->base_ = BaseShape(options, 0);
  for (int i = 0; i < options.communicators; ++i) SLUICE_RETURN_IF_ERROR(job->OpenCommunicator(i));
  return job;
}

Status VirtualJob::AtRank(int rank, Status status) {
  if (!status.ok()) state_->Abort(status.message(), rank);
  return status;
}

Status VirtualJob::AddRanks() {
  const HostPreset& preset = *FindHostPreset(options_.host_preset.c_str());
  Result<std::vector<uint32_t>> places =
      PlaceOnHosts(options_.ranks, fabric_->host_count(), options_.ranks_per_host);
  if (!places.ok()) return places.status();
  Result<std::string> file = FindPlugin(options_.plugin);
  if (!file.ok()) return file.status();
  for (int r = 0; r < options_.ranks; ++r) {
    const std::string label = "rank " + std::to_string(r);
    state_->SetActivity("loading the plugin of " + label);
    Rank rank;
    if (const char* error = fabric_->AddProcess((*places)[Index(r)], &rank.process))
      return SystemError(error);
    fabric_->Enter(rank.process);
    Result<PluginCopy> copy = PluginCopy::Make(*file, label);
    if (!copy.ok()) return copy.status();
    rank.copy = std::make_unique<PluginCopy>(std::move(*copy));
    Result<std::unique_ptr<NetPlugin>> loaded = NetPlugin::Load(rank.copy->path(), options_.api);
    if (!loaded.ok()) {
      // The copy has a name that means nothing to anybody.
      std::string cause = loaded.status().message();
      if (const size_t at = cause.find(rank.copy->path()); at != std::string::npos) {
        cause.replace(at, rank.copy->path().size(), options_.plugin);
      }
      return SystemError(cause);
    }
    rank.plugin = std::make_unique<VirtualPlugin>(std::move(*loaded), fabric_, rank.process, preset);
    ranks_.push_back(std::move(rank));
  }
  return Status::Ok();
}

Status VirtualJob::OpenCommunicator(int number) {
  std::vector<void*> contexts(ranks_.size());
  for (int r = 0; r < options_.ranks; ++r) {
    NetPlugin* plugin = ranks_[Index(r)].plugin.get();
    state_->SetActivity("initialising communicator " + std::to_string(number) + " of rank " +
                        std::to_string(r));
    SLUICE_RETURN_IF_ERROR(AtRank(
        r, plugin->Init(&contexts[Index(r)], kFirstCommunicatorId + Index(number), options_.traffic_class)));
    if (number > 0) continue;
    Result<DeviceChoice> choice = ChooseDevices(options_, plugin, [] { return std::string(); });
    if (!choice.ok()) return AtRank(r, choice.status());
    if (r == 0) devices_ = *choice;
    choices_.push_back(*choice);
  }
  if (number == 0 && IsPointToPoint(options_.op)) {
    max_recvs_ = std::min_element(choices_.begin(), choices_.end(), [](const auto& a, const auto& b) {
                   return a.max_recvs < b.max_recvs;
                 })->max_recvs;
  }
  const HostPreset& preset = *FindHostPreset(options_.host_preset.c_str());
  Member& member = communicators_.emplace_back();
  for (int r = 0; r < options_.ranks; ++r) {
    const DeviceChoice& choice = choices_[Index(r)];
    CommunicatorConfig config;
    config.shape = BaseShape(options_, r);
    config.net_context = contexts[Index(r)];
    config.traffic_class = options_.traffic_class;
    config.first_device = choice.first;
    config.device_count = choice.count;
    config.max_recvs = max_recvs_;
    config.flush = choice.properties.force_flush;
    const Rank& rank = ranks_[Index(r)];
    member.cores.push_back(std::make_unique<CommunicatorCore>(config, rank.plugin.get(), &clock_));
    CommunicatorCore* core = member.cores.back().get();
    for (const PageBuffer* buffer : core->buffers()) DeclareData(r, *buffer);
    const auto thread = static_cast<uint64_t>(number) << 32 | static_cast<uint64_t>(r);
    member.indices.push_back(
        machine_.Add(rank.process, r, core, HostProcessor(preset, options_.seed, thread)));
  }
  return Connect(member);
}

Status VirtualJob::Connect(Member& member) {
  std::vector<std::string> handles(ranks_.size());
  for (int r = 0; r < options_.ranks; ++r) {
    state_->SetActivity("listening at rank " + std::to_string(r));
    SLUICE_RETURN_IF_ERROR(AtRank(r, member.cores[Index(r)]->ListenAll(&handles[Index(r)])));
  }
  for (int r = 0; r < options_.ranks; ++r) {
    SLUICE_RETURN_IF_ERROR(AtRank(r, member.cores[Index(r)]->TakeHandles(handles)));
  }
  for (int r = 0; r < options_.ranks; ++r) {
    for (const auto& c : member.cores[Index(r)]->send()) {
      if (CommunicatorCore::IsPending(*c)) SLUICE_RETURN_IF_ERROR(ConnectEdge(member, r, *c));
    }
  }
  for (int r = 0; r < options_.ranks; ++r) {
    SLUICE_RETURN_IF_ERROR(AtRank(r, member.cores[Index(r)]->ShareConnections()));
  }
  return Status::Ok();
}

Status VirtualJob::ConnectEdge(Member& member, int sender, Connection& sending) {
  const int receiver = sending.edge.peer;
  state_->SetActivity("connecting rank " + std::to_string(sender) + " to rank " + std::to_string(receiver) +
                      ", channel " + std::to_string(sending.edge.channel));
  const Connections& candidates = member.cores[Index(receiver)]->receive();
  const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const auto& c) {
    return c->edge == Edge{sender, sending.edge.channel};
  });
  if (found == candidates.end())
    return InternalError("no end for a connection of rank " + std::to_string(sender));
  Connection& receiving = **found;
  while (CommunicatorCore::IsPending(sending) || CommunicatorCore::IsPending(receiving)) {
    if (state_->aborted()) return state_->status();
    if (CommunicatorCore::IsPending(sending)) {
      SLUICE_RETURN_IF_ERROR(AtRank(sender, member.cores[Index(sender)]->TryConnect(sending)));
    }
    if (CommunicatorCore::IsPending(receiving)) {
      SLUICE_RETURN_IF_ERROR(AtRank(receiver, member.cores[Index(receiver)]->TryAccept(receiving)));
    }
    sched_yield();  // to threads of the plugins
  }
  return Status::Ok();
}

void VirtualJob::DeclareData(int rank, const PageBuffer& buffer) {
  if (buffer.size() != 0) fabric_->DeclareData(ranks_[Index(rank)].process, buffer.data(), buffer.size());
}

Status VirtualJob::Register(int communicator, int rank, const PageBuffer& buffer) {
  return AtRank(rank, core(communicator, rank).Register(buffer.data(), buffer.size()));
}

void VirtualJob::Launch(int communicator, int rank, const Shape& shape, std::byte* input, std::byte* output,
                        SyntheticPayload* payload) {
  machine_.Launch(communicators_[Index(communicator)].indices[Index(rank)], shape, input, output, payload);
}

Status VirtualJob::Close() {
  for (Member& member : communicators_) {
    for (int r = 0; r < options_.ranks; ++r) {
      state_->SetActivity("closing the connections of rank " + std::to_string(r));
      SLUICE_RETURN_IF_ERROR(AtRank(r, member.cores[Index(r)]->CloseAll()));
      void* context = member.cores[Index(r)]->config().net_context;
      SLUICE_RETURN_IF_ERROR(AtRank(r, ranks_[Index(r)].plugin->Finalize(context)));
    }
  }
  return Status::Ok();
}

}  // namespace sluice::perf
