#include "verbs/soft/model/core.h"

#include "verbs/soft/model/nic_impl.h"
#include "verbs/soft/model/qp.h"

namespace sluice::soft {

DmaId DmaTable::Open(const DmaRecord& record) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot.record = record;
  slot.open = true;
  ++slot.use;
  ++pending_;
  return slot.use << kSlotBits | index;
}

bool DmaTable::Close(DmaId id, DmaRecord* record) {
  const uint64_t index = id & ((1 << kSlotBits) - 1);
  if (index >= slots_.size()) return false;
  Slot& slot = slots_[index];
  if (!slot.open || slot.use != id >> kSlotBits) return false;
  *record = slot.record;
  slot.open = false;
  free_.push_back(static_cast<uint32_t>(index));
  --pending_;
  return true;
}

void DmaTable::Forget(ProcessId process) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].open || slots_[i].record.process != process) continue;
    slots_[i].open = false;
    free_.push_back(i);
    --pending_;
  }
}

void PayloadWaiters::Add(NicImpl* nic, uint32_t qp_num) {
  waiters_.push_back({nic, qp_num});
  if (scheduled_) return;
  scheduled_ = true;
  core_->network.scheduler.At(core_->Now() + kPicosPerUs, this, 0);
}

void PayloadWaiters::OnEvent(uint32_t, uint64_t) {
  scheduled_ = false;
  std::deque<Waiter> waiters;
  waiters.swap(waiters_);
  for (const Waiter& waiter : waiters) {
    if (Qp* qp = waiter.nic->FindQp(waiter.qp_num)) qp->RetryPayload();
  }
}

}  // namespace sluice::soft
