// The tuner half: joins the communicator, counts questions, decides nothing.
#include "plugin/tuner.h"

#include <deque>
#include <mutex>

#include "plugin/classify/communicator.h"
#include "plugin/classify/statistics.h"
#include "plugin/log.h"
#include "plugin/params.h"

namespace sluice {
namespace {

struct TunerState final : TunerContext {
  CommunicatorState* communicator = nullptr;
};

}  // namespace

TunerContext* TunerContext::Create(const Communicator& communicator, DebugLogger logger) {
  SetLogger(logger);
  const Result<Params>& params = GetParams();
  if (!params.ok() || !params->tuner) return nullptr;  // NET has reported what is wrong with the parameters
  Statistics::Get().Start();
  static std::mutex mutex;
  static auto* const contexts = new std::deque<TunerState>;
  std::lock_guard lock(mutex);
  TunerState& state = contexts->emplace_back();
  state.communicator = &CommunicatorState::Join(PluginHalf::kTuner, communicator);
  Statistics::Get().process().tuner_contexts.fetch_add(1, std::memory_order_relaxed);
  return &state;
}

void TunerContext::Asked(const TunerQuestion& question) noexcept {
  ProcessRow& process = Statistics::Get().process();
  process.tuner_questions.fetch_add(1, std::memory_order_relaxed);
  process.questions[static_cast<size_t>(question.function)].fetch_add(1, std::memory_order_relaxed);
}

void TunerContext::Finalize() {
  static_cast<TunerState*>(this)->communicator->Leave(PluginHalf::kTuner);
}

}  // namespace sluice
