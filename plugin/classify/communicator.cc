#include "plugin/classify/communicator.h"

#include <deque>

#include "plugin/classify/thread_state.h"
#include "plugin/lanes.h"

namespace sluice {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<CommunicatorState*> states;  // oldest first
};

Registry& GetRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

// Fields of `from` that say something replace those of `to`. True if anything changed.
bool Merge(const Communicator& from, Communicator* to) {
  bool changed = false;
  auto take = [&](auto& field, const auto& value, const auto& unknown) {
    if (value == unknown || field == value) return;
    field = value;
    changed = true;
  };
  take(to->hash, from.hash, uint64_t{0});
  take(to->name, from.name, std::string());
  take(to->rank, from.rank, -1);
  take(to->ranks, from.ranks, -1);
  take(to->nodes, from.nodes, -1);
  take(to->traffic_class, from.traffic_class, -1);
  return changed;
}

}  // namespace

void CommunicatorState::Bind() {
  const Result<std::shared_ptr<const Policy>>& policy = GetPolicy();
  // A policy that cannot be read has failed the init of NET; meanwhile everything is bulk.
  auto bound = policy.ok() ? std::make_unique<const ClassMap>((*policy)->Bind(communicator_))
                           : std::make_unique<const ClassMap>();
  classes_.store(bound.get(), std::memory_order_release);
  bound_.push_back(std::move(bound));
}

CommunicatorState& CommunicatorState::Join(PluginHalf half, const Communicator& known) {
  const auto bit = static_cast<unsigned>(half);
  Registry& registry = GetRegistry();
  CommunicatorState* joined = nullptr;
  {
    std::lock_guard lock(registry.mutex);
    auto fits = [&](const CommunicatorState* state) {
      if (state == nullptr || state->ended_ || (state->halves_ & bit) != 0) return false;
      const uint64_t hash = state->communicator().hash;
      return known.hash == 0 || hash == 0 || hash == known.hash;
    };
    // NET comes first: it opens a communicator, and its hash alone would find another rank's.
    if (half != PluginHalf::kNet) {
      if (fits(this_thread.last_communicator)) {
        joined = this_thread.last_communicator;
      } else if (known.hash != 0) {
        for (CommunicatorState* state : registry.states) {
          if (fits(state) && state->communicator().hash == known.hash) {
            joined = state;
            break;
          }
        }
      }
    }
    if (joined == nullptr) {
      joined = new CommunicatorState;
      joined->Bind();
      registry.states.push_back(joined);
    }
    joined->halves_ |= bit;
  }
  this_thread.last_communicator = joined;
  joined->Learn(known);
  return *joined;
}

CommunicatorState& CommunicatorState::MakeShared() {
  auto* const state = new CommunicatorState;
  state->ended_ = true;
  state->Bind();
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  registry.states.push_back(state);
  return *state;
}

void CommunicatorState::Learn(const Communicator& known) {
  std::lock_guard lock(mutex_);
  if (Merge(known, &communicator_)) Bind();
}

void CommunicatorState::Leave(PluginHalf half) {
  (void)half;  // halves_ keeps it: an object joins once
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  ended_ = true;
}

Communicator CommunicatorState::communicator() const {
  std::lock_guard lock(mutex_);
  return communicator_;
}

}  // namespace sluice
