#include "tools/perf/gpu_engine.h"

#include <algorithm>
#include <utility>

#include "tools/perf/lines.h"
#include "tools/perf/reduce.h"
#include "tools/perf/schedule_parts.h"

namespace sluice::perf {
namespace {

constexpr int kSlicesPerTurn = 4;  // of one strand before the others get their turn

int64_t NextMultiple(int64_t step, int multiple) {
  return (step + multiple - 1) / multiple * multiple;
}

}  // namespace

GpuEngine::Outcome GpuEngine::Step() {
  if (queue_.empty()) return Outcome::kEmpty;
  const bool began = !begun_;
  if (began) Begin();
  bool moved = AdvanceAll() || began;
  const Operation& op = queue_.front();
  if (running_.empty() && (!op.plan->schedule.shape.registered || RegisteredSendsDone(op))) {
    End();
    moved = true;
  }
  return moved ? Outcome::kMoved : Outcome::kBlocked;
}

void GpuEngine::Begin() {
  begun_ = true;
  const Operation& op = queue_.front();
  const Schedule& schedule = op.plan->schedule;
  if (schedule.shape.registered) {
    for (const auto& connections : op.plan->receive) {
      for (Connection* c : connections) c->opened.store(op.id, std::memory_order_release);
    }
  }
  waiting_.resize(schedule.strands.size());
  for (size_t i = 0; i < waiting_.size(); ++i) waiting_[i] = i;
  StartReady();
}

void GpuEngine::StartReady() {
  const Operation& op = queue_.front();
  const Schedule& schedule = op.plan->schedule;
  std::vector<size_t> still_waiting;
  for (size_t i : waiting_) {
    const Strand& s = schedule.strands[i];
    auto blocks = [&](const Strand& other) { return other.channel == s.channel && other.batch < s.batch; };
    const bool blocked = std::any_of(running_.begin(), running_.end(),
                                     [&](const StrandRun& r) { return blocks(*r.strand); }) ||
                         std::any_of(still_waiting.begin(), still_waiting.end(),
                                     [&](size_t j) { return blocks(schedule.strands[j]); });
    if (blocked) {
      still_waiting.push_back(i);
    } else {
      running_.push_back(Start(op, i));
    }
  }
  waiting_ = std::move(still_waiting);
}

bool GpuEngine::AdvanceAll() {
  const Operation& op = queue_.front();
  bool moved = false;
  bool finished = false;
  for (StrandRun& run : running_) {
    for (int turn = 0; turn < kSlicesPerTurn && run.next < run.strand->slices.size(); ++turn) {
      if (!Advance(op, run)) break;
      moved = true;
    }
    if (run.next == run.strand->slices.size()) {
      Finish(run);
      finished = true;
    }
  }
  if (!finished) return moved;
  std::erase_if(running_, [](const StrandRun& r) { return r.next == r.strand->slices.size(); });
  if (!waiting_.empty()) StartReady();
  return true;
}

void GpuEngine::End() {
  const int64_t now_ns = clock_->NowNs();
  const Operation& op = queue_.front();
  last_begin_ns_ = std::max(op.launched_ns, last_end_ns_);
  durations_.push_back(static_cast<double>(now_ns - last_begin_ns_));
  last_end_ns_ = now_ns;
  finished_ = op.id;
  queue_.pop_front();
  begun_ = false;
}

bool GpuEngine::polls_memory() const {
  return !queue_.empty() && queue_.front().plan->schedule.shape.proto != Proto::kSimple;
}

std::string GpuEngine::DescribeOpen() const {
  if (queue_.empty()) return "";
  const Operation& op = queue_.front();
  const Shape& shape = op.plan->schedule.shape;
  std::string text =
      std::string(Name(shape.op)) + " " + std::string(Name(shape.proto)) + " #" + std::to_string(op.id);
  size_t total = 0, done = 0;
  for (const Strand& strand : op.plan->schedule.strands) total += strand.slices.size();
  done = total;
  for (const StrandRun& run : running_) done -= run.strand->slices.size() - run.next;
  for (size_t i : waiting_) done -= op.plan->schedule.strands[i].slices.size();
  return text + ": slice " + std::to_string(done) + " of " + std::to_string(total);
}

bool GpuEngine::RegisteredSendsDone(const Operation& op) const {
  for (const auto& connections : op.plan->send) {
    for (Connection* c : connections) {
      const int64_t last = c->gpu_step - op.plan->schedule.slice_steps;
      if (last < 0) continue;
      if (c->slots[static_cast<size_t>(last % kSteps)].size.load(std::memory_order_acquire) != -1)
        return false;
    }
  }
  return true;
}

GpuEngine::StrandRun GpuEngine::Start(const Operation& op, size_t index) {
  const Schedule& schedule = op.plan->schedule;
  StrandRun run{.strand = &schedule.strands[index]};
  for (Connection* c : op.plan->receive[index]) {
    const int64_t step = NextMultiple(c->gpu_step, schedule.chunk_steps);
    run.receive.push_back({.connection = c, .step = step});
  }
  for (Connection* c : op.plan->send[index]) {
    run.send.push_back({.connection = c, .step = NextMultiple(c->gpu_step, schedule.chunk_steps)});
  }
  return run;
}

void GpuEngine::Finish(StrandRun& run) {
  for (Lane& lane : run.receive) {
    lane.connection->gpu_step = lane.step;
    lane.connection->taken_all_ns = clock_->NowNs();
  }
  for (Lane& lane : run.send) lane.connection->gpu_step = lane.step;
}

bool GpuEngine::Advance(const Operation& op, StrandRun& run) {
  const Slice& slice = run.strand->slices[run.next];
  const int steps = op.plan->schedule.slice_steps;
  if (slice.sends) {
    for (const Lane& lane : run.send) {  // credit
      if (lane.connection->head.load(std::memory_order_acquire) + kSteps < lane.step + steps) return false;
    }
  }
  const bool simple = op.plan->schedule.shape.proto == Proto::kSimple;
  if (!(simple ? AdvanceSimple(op, run, slice) : AdvanceLines(op, run, slice))) return false;
  Post(op, run, slice);
  ++run.next;
  return true;
}

void GpuEngine::AddLocal(const Operation& op, const Slice& slice, Operands* operands) {
  if (op.payload != nullptr) {
    if (slice.source == Operand::kInput) {
      made_input_.resize(std::max(made_input_.size(), slice.bytes));
      op.payload->Fill(slice.source_offset, made_input_.data(), slice.bytes);
      operands->AddSource(made_input_.data());
    }
    if (slice.target == Operand::kOutput) {
      made_output_.resize(std::max(made_output_.size(), slice.bytes));
      operands->AddTarget(made_output_.data());
    }
    return;
  }
  if (slice.source == Operand::kInput) operands->AddSource(op.input + slice.source_offset);
  if (slice.source == Operand::kOutput) operands->AddSource(op.output + slice.source_offset);
  if (slice.target == Operand::kOutput) operands->AddTarget(op.output + slice.target_offset);
}

void GpuEngine::CheckLocal(const Operation& op, const Slice& slice) {
  if (op.payload == nullptr || slice.target != Operand::kOutput) return;
  op.payload->Check(slice.target_offset, made_output_.data(), slice.bytes);
}

bool GpuEngine::AdvanceSimple(const Operation& op, StrandRun& run, const Slice& slice) {
  const Schedule& schedule = op.plan->schedule;
  Operands operands;
  if (slice.receives) {
    for (Lane& lane : run.receive) {
      Connection* c = lane.connection;
      if (c->tail.load(std::memory_order_acquire) < lane.step + schedule.slice_steps) return false;
      operands.AddSource(c->slots[static_cast<size_t>(lane.step % kSteps)].address);
    }
  }
  AddLocal(op, slice, &operands);
  if (slice.sends) {
    for (Lane& lane : run.send) {
      Connection* c = lane.connection;
      Connection::Slot& slot = c->slots[static_cast<size_t>(lane.step % kSteps)];
      if (schedule.shape.registered) {
        slot.address = WireAddress(op, slice);
        if (slice.receives || slice.target == Operand::kOutput) operands.AddTarget(slot.address);
      } else {
        if (!c->shared) {
          slot.address = c->buffers[static_cast<int>(Proto::kSimple)] +
                         static_cast<size_t>(lane.step % kSteps) * schedule.step_bytes;
        }
        operands.AddTarget(slot.address);
      }
    }
  }
  Combine({operands.sources.data(), operands.source_count}, {operands.targets.data(), operands.target_count},
          slice.bytes);
  CheckLocal(op, slice);
  return true;
}

bool GpuEngine::AdvanceLines(const Operation& op, StrandRun& run, const Slice& slice) {
  const Schedule& schedule = op.plan->schedule;
  const Proto proto = schedule.shape.proto;
  Operands operands;
  if (slice.receives) {
    const size_t lines = LinesFor(proto, slice.bytes);
    bool complete = true;
    for (Lane& lane : run.receive) {
      const std::byte* wire = lane.connection->buffers[static_cast<int>(proto)] +
                              static_cast<size_t>(lane.step % kSteps) * schedule.step_bytes;
      lane.staging.resize(std::max(lane.staging.size(), lines * LineDataBytes(proto)));
      lane.lines = UnpackLines(proto, static_cast<uint64_t>(lane.step), wire, lane.lines, slice.bytes,
                               lane.staging.data());
      complete = complete && lane.lines == lines;
      operands.AddSource(lane.staging.data());
    }
    if (!complete) return false;
  }
  AddLocal(op, slice, &operands);
  if (!slice.sends) {
    Combine({operands.sources.data(), operands.source_count},
            {operands.targets.data(), operands.target_count}, slice.bytes);
    CheckLocal(op, slice);
    return true;
  }
  const std::byte* result = operands.sources[0];
  if (operands.target_count == 0 && operands.source_count > 1) {
    run.packed.resize(std::max(run.packed.size(), slice.bytes));
    operands.AddTarget(run.packed.data());
  }
  if (operands.target_count != 0) {
    Combine({operands.sources.data(), operands.source_count},
            {operands.targets.data(), operands.target_count}, slice.bytes);
    CheckLocal(op, slice);
    result = operands.targets[0];
  }
  for (Lane& lane : run.send) {
    Connection* c = lane.connection;
    const auto index = static_cast<size_t>(lane.step % kSteps);
    c->slots[index].address = c->buffers[static_cast<int>(proto)] + index * schedule.step_bytes;
    PackLines(proto, static_cast<uint64_t>(lane.step), result, slice.bytes, c->slots[index].address);
  }
  return true;
}

void GpuEngine::Post(const Operation& op, StrandRun& run, const Slice& slice) {
  const Schedule& schedule = op.plan->schedule;
  if (slice.sends) {
    const auto wire = static_cast<int64_t>(WireBytes(schedule.shape.proto, slice.bytes));
    for (Lane& lane : run.send) {
      Connection* c = lane.connection;
      c->slots[static_cast<size_t>(lane.step % kSteps)].size.store(wire, std::memory_order_release);
      lane.step += schedule.slice_steps;
      c->tail.store(lane.step, std::memory_order_release);
    }
  }
  if (slice.receives) {
    for (Lane& lane : run.receive) {
      lane.lines = 0;
      lane.step += schedule.slice_steps;
      lane.connection->taken_bytes += slice.bytes;
      lane.connection->head.store(lane.step, std::memory_order_release);
    }
  }
}

}  // namespace sluice::perf
