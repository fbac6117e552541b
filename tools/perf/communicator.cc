#include "tools/perf/communicator.h"

#include <sched.h>

#include <algorithm>
#include <set>
#include <utility>

namespace sluice::perf {
namespace {

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

Communicator::~Communicator() {
  (void)Close();
}

Status Communicator::Open(Bootstrap* bootstrap) {
  service_ = std::make_unique<ServiceThread>();
  gpu_ = std::make_unique<GpuThread>(&core_.gpu(), core_.doorbell(), job_);
  progress_ = std::make_unique<ProgressThread>(&core_.progress(), job_, core_.config().shape.rank);
  std::string handles;
  SLUICE_RETURN_IF_ERROR(service_->Call([&] { return core_.ListenAll(&handles); }));
  Result<std::vector<std::string>> all = bootstrap->AllGather(handles);
  if (!all.ok()) return all.status();
  SLUICE_RETURN_IF_ERROR(core_.TakeHandles(*all));
  SLUICE_RETURN_IF_ERROR(service_->Call([&] { return ConnectAll(); }));
  return bootstrap->Barrier();
}

// Every connect and accept is tried in turn until all have succeeded: neither may wait for the other.
Status Communicator::ConnectAll() {
  const Connections& send = core_.send();
  const Connections& receive = core_.receive();
  auto pending = [](const auto& c) { return CommunicatorCore::IsPending(*c); };
  auto left = std::count_if(send.begin(), send.end(), pending) +
              std::count_if(receive.begin(), receive.end(), pending);
  for (unsigned pass = 0; left > 0; ++pass) {
    if (job_->aborted()) return job_->status();
    if (pass % 1024 == 0) {
      const std::string to = Describe(send, "connecting to", CommunicatorCore::IsPending);
      const std::string from = Describe(receive, "accepting from", CommunicatorCore::IsPending);
      job_->SetActivity(to + (!to.empty() && !from.empty() ? " and " : "") + from);
    }
    for (size_t i = 0; i < std::max(send.size(), receive.size()); ++i) {
      if (i < send.size() && pending(send[i])) {
        SLUICE_RETURN_IF_ERROR(core_.TryConnect(*send[i]));
        if (!pending(send[i])) --left;
      }
      if (i < receive.size() && pending(receive[i])) {
        SLUICE_RETURN_IF_ERROR(core_.TryAccept(*receive[i]));
        if (!pending(receive[i])) --left;
      }
    }
    sched_yield();
  }
  SLUICE_RETURN_IF_ERROR(core_.ShareConnections());
  job_->SetActivity("waiting for the other ranks to connect");
  return Status::Ok();
}

Status Communicator::Register(std::byte* data, size_t bytes) {
  return service_->Call([&] { return core_.Register(data, bytes); });
}

Status Communicator::Launch(const Shape& shape, std::byte* input, std::byte* output) {
  Operation op = core_.MakeOperation(shape, input, output);
  progress_->Post(op);
  core_.EndTasks(op);
  gpu_->Launch(std::move(op));
  return Status::Ok();
}

Status Communicator::Wait() {
  return gpu_->Wait(core_.launched());
}

Status Communicator::Drain() {
  progress_->Stop();
  return job_->aborted() ? job_->status() : Status::Ok();
}

Status Communicator::Close() {
  if (closed_) return Status::Ok();
  closed_ = true;
  if (progress_ != nullptr) progress_->Stop();
  if (gpu_ != nullptr) gpu_->Stop();
  Status status;
  if (service_ != nullptr) status = service_->Call([&] { return core_.CloseAll(); });
  service_.reset();
  const CommunicatorConfig& config = core_.config();
  if (config.profiler_context != nullptr) {
    Status ended = config.profiler->Finalize(config.profiler_context);
    if (status.ok()) status = std::move(ended);
  }
  Status finalized = plugin_->Finalize(config.net_context);
  return status.ok() ? finalized : status;
}

}  // namespace sluice::perf
