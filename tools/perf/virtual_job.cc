#include "tools/perf/virtual_job.h"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <set>

#include "tools/perf/descriptors.h"

namespace sluice::perf {
namespace {

// What NCCL draws at random; plugins use it as a name only.
constexpr uint64_t kFirstCommunicatorId = 0x5669727475616c00;

// An edge that does not come about: attempts between two looks for a cause.
constexpr uint32_t kTriesBetweenLooks = 4096;

}  // namespace

Status VirtualJob::AtRank(int rank, Status status) {
  if (!status.ok()) state_->Abort(status.message(), rank);
  return status;
}

Result<size_t> VirtualJob::AddProcess(uint32_t host, const std::string& label) {
  if (file_.empty()) {
    Result<std::string> file = FindPlugin(options_.plugin);
    if (!file.ok()) return file.status();
    file_ = std::move(*file);
  }
  state_->SetActivity("loading the plugin of " + label);
  Process process;
  process.label = label;
  if (const char* error = fabric_->AddProcess(host, &process.number)) return SystemError(error);
  fabric_->Enter(process.number);
  Result<PluginCopy> copy = PluginCopy::Make(file_, label);
  if (!copy.ok()) return copy.status();
  process.copy = std::make_unique<PluginCopy>(std::move(*copy));
  Result<std::unique_ptr<NetPlugin>> loaded = NetPlugin::Load(process.copy->path(), options_.api);
  if (!loaded.ok()) {
    // The copy has a name that means nothing to anybody.
    std::string cause = loaded.status().message();
    if (const size_t at = cause.find(process.copy->path()); at != std::string::npos)
      cause.replace(at, process.copy->path().size(), options_.plugin);
    return SystemError(cause);
  }
  process.plugin = std::make_unique<VirtualPlugin>(std::move(*loaded), fabric_, process.number,
                                                   *FindHostPreset(options_.host_preset.c_str()));
  Result<PluginHalves> halves = PluginHalves::Load(process.copy->path(), options_, process.plugin->api());
  if (!halves.ok()) return halves.status();
  process.halves = std::move(*halves);
  processes_.push_back(std::move(process));
  return processes_.size() - 1;
}

Status VirtualJob::Initialise(Communicator* communicator, size_t number, const CommunicatorSpec& spec,
                              std::vector<Contexts>* contexts) {
  sluice::Communicator known;
  known.hash = kFirstCommunicatorId + number;
  known.name = spec.name;
  known.ranks = static_cast<int>(contexts->size());
  known.nodes = static_cast<int>(std::set(spec.processes.begin(), spec.processes.end()).size());
  for (size_t r = 0; r < contexts->size(); ++r) {
    Process& process = processes_[communicator->processes[r]];
    const int rank = static_cast<int>(r);
    known.rank = rank;
    state_->SetActivity("initialising communicator " + std::to_string(number) + " of " + process.label);
    SLUICE_RETURN_IF_ERROR(
        AtRank(rank, process.plugin->Init(&(*contexts)[r].net, known.hash, spec.traffic_class)));
    if (process.halves.profiler != nullptr) {
      SLUICE_RETURN_IF_ERROR(AtRank(rank, process.halves.profiler->Init(known, &(*contexts)[r].profiler)));
    }
    void*& tuner = communicator->tuner_contexts.emplace_back();
    if (process.halves.tuner != nullptr)
      SLUICE_RETURN_IF_ERROR(AtRank(rank, process.halves.tuner->Init(known, &tuner)));
    if (process.devices.has_value()) continue;
    Result<DeviceChoice> choice = ChooseDevices(options_, process.plugin.get(), [] { return std::string(); });
    if (!choice.ok()) return AtRank(rank, choice.status());
    process.devices = *choice;
  }
  return Status::Ok();
}

Result<size_t> VirtualJob::OpenCommunicator(const CommunicatorSpec& spec) {
  const size_t number = communicators_.size();
  Communicator& communicator = communicators_.emplace_back();
  communicator.processes = spec.processes;
  std::vector<Contexts> contexts(spec.processes.size());
  SLUICE_RETURN_IF_ERROR(Initialise(&communicator, number, spec, &contexts));
  if (IsPointToPoint(spec.shape.op)) {
    communicator.max_recvs = INT_MAX;
    for (const size_t process : spec.processes) {
      communicator.max_recvs = std::min(communicator.max_recvs, processes_[process].devices->max_recvs);
    }
  }
  const HostPreset& preset = *FindHostPreset(options_.host_preset.c_str());
  for (size_t r = 0; r < spec.processes.size(); ++r) {
    const Process& process = processes_[spec.processes[r]];
    const int rank = static_cast<int>(r);
    CommunicatorConfig config;
    config.shape = spec.shape;
    config.shape.rank = rank;
    config.net_context = contexts[r].net;
    if (contexts[r].profiler != nullptr) {
      config.profiler = process.halves.profiler.get();
      config.profiler_context = contexts[r].profiler;
    }
    config.traffic_class = spec.traffic_class;
    config.first_device = process.devices->first;
    config.device_count = process.devices->count;
    config.max_recvs = communicator.max_recvs;
    config.flush = process.devices->properties.force_flush;
    communicator.cores.push_back(std::make_unique<CommunicatorCore>(config, process.plugin.get(), &clock_));
    CommunicatorCore* core = communicator.cores.back().get();
    for (const PageBuffer* buffer : core->buffers()) DeclareData(number, rank, *buffer);
    const uint64_t thread = uint64_t{number} << 32 | uint64_t{r};
    communicator.actors.push_back(
        machine_.Add(process.number, rank, core, HostProcessor(preset, options_.seed, thread)));
  }
  SLUICE_RETURN_IF_ERROR(Connect(communicator));
  return number;
}

Status VirtualJob::Connect(Communicator& communicator) {
  const int ranks = static_cast<int>(communicator.cores.size());
  std::vector<std::string> handles(communicator.cores.size());
  for (int r = 0; r < ranks; ++r) {
    state_->SetActivity("listening at rank " + std::to_string(r));
    SLUICE_RETURN_IF_ERROR(AtRank(r, communicator.cores[Index(r)]->ListenAll(&handles[Index(r)])));
  }
  for (int r = 0; r < ranks; ++r) {
    SLUICE_RETURN_IF_ERROR(AtRank(r, communicator.cores[Index(r)]->TakeHandles(handles)));
  }
  for (int r = 0; r < ranks; ++r) {
    for (const auto& c : communicator.cores[Index(r)]->send()) {
      if (CommunicatorCore::IsPending(*c)) SLUICE_RETURN_IF_ERROR(ConnectEdge(communicator, r, *c));
    }
  }
  for (int r = 0; r < ranks; ++r) {
    SLUICE_RETURN_IF_ERROR(AtRank(r, communicator.cores[Index(r)]->ShareConnections()));
  }
  return Status::Ok();
}

Status VirtualJob::ConnectEdge(Communicator& communicator, int sender, Connection& sending) {
  const int receiver = sending.edge.peer;
  state_->SetActivity("connecting rank " + std::to_string(sender) + " to rank " + std::to_string(receiver) +
                      ", channel " + std::to_string(sending.edge.channel));
  const Connections& candidates = communicator.cores[Index(receiver)]->receive();
  const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const auto& c) {
    return c->edge == Edge{sender, sending.edge.channel};
  });
  if (found == candidates.end())
    return InternalError("no end for a connection of rank " + std::to_string(sender));
  Connection& receiving = **found;
  for (uint32_t tries = 0; CommunicatorCore::IsPending(sending) || CommunicatorCore::IsPending(receiving);
       ++tries) {
    if (state_->aborted()) return state_->status();
    if (tries % kTriesBetweenLooks == kTriesBetweenLooks - 1) {
      SLUICE_RETURN_IF_ERROR(AtRank(sender, CheckDescriptorsLeft()));
    }
    if (CommunicatorCore::IsPending(sending)) {
      SLUICE_RETURN_IF_ERROR(AtRank(sender, communicator.cores[Index(sender)]->TryConnect(sending)));
    }
    if (CommunicatorCore::IsPending(receiving)) {
      SLUICE_RETURN_IF_ERROR(AtRank(receiver, communicator.cores[Index(receiver)]->TryAccept(receiving)));
    }
    sched_yield();  // to threads of the plugins
  }
  return Status::Ok();
}

void VirtualJob::DeclareData(size_t communicator, int rank, const PageBuffer& buffer) {
  if (buffer.size() == 0) return;
  const size_t process = communicators_[communicator].processes[Index(rank)];
  fabric_->DeclareData(processes_[process].number, buffer.data(), buffer.size());
}

Status VirtualJob::Register(size_t communicator, int rank, const PageBuffer& buffer) {
  return AtRank(rank, core(communicator, rank).Register(buffer.data(), buffer.size()));
}

void VirtualJob::Launch(size_t communicator, int rank, const Shape& shape, std::byte* input,
                        std::byte* output, SyntheticPayload* payload) {
  machine_.Launch(actor(communicator, rank), shape, input, output, payload);
}

Status VirtualJob::Close() {
  for (Communicator& communicator : communicators_) {
    for (int r = 0; r < static_cast<int>(communicator.cores.size()); ++r) {
      state_->SetActivity("closing the connections of rank " + std::to_string(r));
      CommunicatorCore& core = *communicator.cores[Index(r)];
      SLUICE_RETURN_IF_ERROR(AtRank(r, core.CloseAll()));
      PluginHalves& halves = processes_[communicator.processes[Index(r)]].halves;
      if (halves.tuner != nullptr)
        SLUICE_RETURN_IF_ERROR(AtRank(r, halves.tuner->Finalize(communicator.tuner_contexts[Index(r)])));
      if (core.config().profiler_context != nullptr)
        SLUICE_RETURN_IF_ERROR(AtRank(r, halves.profiler->Finalize(core.config().profiler_context)));
      SLUICE_RETURN_IF_ERROR(AtRank(r, PluginOf(communicator, r)->Finalize(core.config().net_context)));
    }
  }
  return Status::Ok();
}

}  // namespace sluice::perf
