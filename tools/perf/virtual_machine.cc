#include "tools/perf/virtual_machine.h"

#include <algorithm>
#include <array>
#include <sstream>

namespace sluice::perf {
namespace {

using soft::kNever;
using soft::kPicosPerMs;
using soft::kPicosPerSecond;
using soft::kPicosPerUs;

constexpr uint64_t kEventsPerLook = 65536;  // at the job's state
// Looks of a proxy without a reason: first after, at most every.
constexpr Picos kFirstVainLook = 20 * kPicosPerUs;
constexpr Picos kLastVainLook = 10 * kPicosPerMs;
// Nothing has moved for so long: with no event to come, and in any case.
constexpr Picos kStuckWithoutEvents = 20 * kPicosPerMs;
constexpr Picos kStuckAnyway = 120 * kPicosPerSecond;
// Ports bring their counters up to date this often.
constexpr Picos kCounterRefresh = 10 * kPicosPerMs;

}  // namespace

size_t VirtualMachine::Add(uint32_t process, int rank, CommunicatorCore* core,
                           const HostProcessor& processor) {
  actors_.push_back({.process = process, .rank = rank, .core = core, .processor = processor});
  if (of_process_.size() <= process) of_process_.resize(process + 1);
  of_process_[process].push_back(actors_.size() - 1);
  return actors_.size() - 1;
}

void VirtualMachine::Launch(size_t index, const Shape& shape, std::byte* input, std::byte* output,
                            SyntheticPayload* payload) {
  Actor& actor = actors_[index];
  Operation op = actor.core->MakeOperation(shape, input, output);
  op.payload = payload;
  actor.core->progress().Post(op);
  actor.core->gpu().Launch(std::move(op));
  if (!actor.open) ++open_;
  actor.open = true;
  Wake(index, fabric_->Now());
}

void VirtualMachine::Wake(size_t index, Picos at) {
  Actor& actor = actors_[index];
  if (actor.wake != kNever) wakes_.erase({actor.wake, index});
  actor.wake = at;
  if (at != kNever) wakes_.insert({at, index});
}

Status VirtualMachine::Run() {
  last_move_ = fabric_->Now();
  std::array<soft::Touch, 64> touches;
  stopped_ = false;
  while (!stopped_ && (open_ != 0 || !calls_.empty())) {
    if (job_->aborted()) return job_->status();
    const Picos next = std::min(wakes_.empty() ? kNever : wakes_.begin()->first,
                                calls_.empty() ? kNever : calls_.begin()->first);
    const bool reached = fabric_->Run(next, kEventsPerLook);
    for (size_t n; (n = fabric_->TakeTouched(touches.data(), touches.size())) != 0;) {
      for (size_t i = 0; i < n; ++i) Touched(touches[i]);
    }
    if (!reached) continue;
    if (next >= next_refresh_) {
      fabric_->RefreshCounters();
      next_refresh_ = next + kCounterRefresh;
    }
    while (!stopped_ && !calls_.empty() && calls_.begin()->first <= next) {
      const auto call = calls_.extract(calls_.begin());
      last_move_ = std::max(last_move_, next);
      call.mapped()();
    }
    while (!stopped_ && !wakes_.empty() && wakes_.begin()->first <= next) {
      const size_t index = wakes_.begin()->second;
      if (Status status = Pass(index); !status.ok()) {
        job_->Abort(status.message(), actors_[index].rank);
        return status;
      }
    }
  }
  return Status::Ok();
}

void VirtualMachine::Touched(const soft::Touch& touch) {
  if (touch.process >= of_process_.size()) return;
  for (const size_t index : of_process_[touch.process]) {
    Actor& actor = actors_[index];
    if (!actor.open) continue;
    bool wakes = (touch.kinds & soft::kTouchedControl) != 0;
    // What the GPU finds, it tells its proxy through memory.
    if ((touch.kinds & soft::kTouchedData) != 0 && actor.core->gpu().polls_memory()) wakes |= StepGpu(index);
    if (!wakes || !actor.asleep) continue;
    const Picos at =
        actor.processor.AfterStall(std::max(fabric_->Now() + actor.processor.PollGap(), actor.busy_until));
    if (at >= actor.wake) continue;
    actor.asleep = false;
    Wake(index, at);
  }
}

bool VirtualMachine::StepGpu(size_t index) {
  GpuEngine& gpu = actors_[index].core->gpu();
  bool moved = false;
  for (uint64_t finished = gpu.finished(); gpu.Step() == GpuEngine::Outcome::kMoved;) {
    moved = true;
    if (gpu.finished() == finished) continue;
    finished = gpu.finished();
    if (on_finished_) on_finished_(index);
  }
  if (moved) last_move_ = fabric_->Now();
  return moved;
}

Status VirtualMachine::Pass(size_t index) {
  Actor& actor = actors_[index];
  const Picos now = fabric_->Now();
  if (const Picos paused = fabric_->PausedUntil(actor.process); paused > now) {
    actor.busy_until = std::max(actor.busy_until, paused);
    last_move_ = std::max(last_move_, paused);  // nobody is stuck who waits for this host
    Wake(index, paused);
    return Status::Ok();
  }
  const bool in_vain = actor.asleep;
  fabric_->BeginPass();
  bool moved = StepGpu(index);
  const Result<ProgressEngine::Outcome> outcome = actor.core->progress().Step();
  actor.busy_until = now + fabric_->EndPass();
  if (!outcome.ok()) return outcome.status();
  moved |= *outcome == ProgressEngine::Outcome::kMoved;
  if (moved) {
    last_move_ = now;
    actor.asleep = false;
    actor.vain_interval = 0;
    Wake(index, actor.processor.AfterStall(actor.busy_until));
    return Status::Ok();
  }
  if (*outcome == ProgressEngine::Outcome::kEmpty && actor.core->gpu().Step() == GpuEngine::Outcome::kEmpty) {
    actor.open = actor.asleep = false;
    --open_;
    Wake(index, kNever);
    return Status::Ok();
  }
  if (in_vain) SLUICE_RETURN_IF_ERROR(CheckStuck());
  actor.asleep = true;
  actor.vain_interval = std::clamp(2 * actor.vain_interval, kFirstVainLook, kLastVainLook);
  Wake(index, actor.processor.AfterStall(actor.busy_until + actor.vain_interval));
  return Status::Ok();
}

Status VirtualMachine::CheckStuck() {
  const Picos still = fabric_->Now() - last_move_;
  const bool more_to_come = fabric_->NextEventTime() != kNever;
  if (still < (more_to_come ? kStuckAnyway : kStuckWithoutEvents)) return Status::Ok();
  size_t waiting = 0;
  for (const Actor& actor : actors_) {
    if (!actor.open) continue;
    ++waiting;
    const std::string rank = "rank " + std::to_string(actor.rank) + ": ";
    const std::vector<std::string> lines = actor.core->progress().DescribeOpen();
    for (const std::string& line : lines) stuck_.push_back(rank + line);
    if (const std::string gpu = actor.core->gpu().DescribeOpen(); !gpu.empty())
      stuck_.push_back(rank + "GPU in " + gpu);
  }
  std::istringstream queues(fabric_->DescribeQueues());
  for (std::string line; std::getline(queues, line);) stuck_.push_back(line);
  std::string text = "deadlock at " + std::to_string(fabric_->Now() / kPicosPerUs) +
                     " us of virtual time: nothing has moved for " + std::to_string(still / kPicosPerUs) +
                     " us";
  if (!more_to_come) text += ", no event is left";
  text += ", and " + std::to_string(waiting) + " of " + std::to_string(actors_.size()) +
          " proxies have operations open";
  return RemoteError(text);
}

}  // namespace sluice::perf
