#include "tests/abi/fake_halves.h"

#include <memory>

namespace sluice {
namespace fake {
namespace {
std::unique_ptr<Halves> g_halves;
}
Halves& GetHalves() {
  if (g_halves == nullptr) ResetHalves();
  return *g_halves;
}
void ResetHalves() {
  g_halves = std::make_unique<Halves>();
}
}  // namespace fake

Result<ProfilerContext*> ProfilerContext::Create(int version, const Communicator& communicator,
                                                 DebugLogger /*logger*/) {
  fake::Halves& halves = fake::GetHalves();
  if (!halves.error.ok()) return halves.error;
  halves.version = version;
  halves.communicator = communicator;
  return static_cast<ProfilerContext*>(halves.off ? nullptr : &halves.profiler);
}
ProfilerEvent ProfilerContext::StartCall(Function function) noexcept {
  fake::GetHalves().calls.push_back(function);
  return fake::kCall;
}
ProfilerEvent ProfilerContext::StartTask(const ProfilerTask& task) noexcept {
  fake::GetHalves().tasks.push_back(task);
  return fake::kTask;
}
Status ProfilerContext::Finalize() {
  ++fake::GetHalves().finalized;
  return Status::Ok();
}
uint32_t ProfilerMask(int version) {
  return 0x100u + static_cast<uint32_t>(version);
}
ProfilerEvent StartProxyOp(const ProfilerProxyOp& op) noexcept {
  fake::GetHalves().ops.push_back(op);
  return fake::kOp;
}
ProfilerEvent StartStep(ProfilerEvent proxy_op) noexcept {
  fake::GetHalves().steps.push_back(proxy_op);
  return fake::kStep;
}
void BeforeSend(ProfilerEvent event) noexcept {
  fake::GetHalves().sends.push_back(event);
}
void AnswerQuery(ProfilerEvent step, ProfilerQuery* /*query*/) noexcept {
  fake::GetHalves().queries.push_back(step);
}
void StopEvent(ProfilerEvent event) noexcept {
  fake::GetHalves().stopped.push_back(event);
}

TunerContext* TunerContext::Create(const Communicator& communicator, DebugLogger /*logger*/) {
  fake::Halves& halves = fake::GetHalves();
  halves.communicator = communicator;
  return halves.off ? nullptr : &halves.tuner;
}
void TunerContext::Asked(const TunerQuestion& question) noexcept {
  fake::GetHalves().questions.push_back(question);
}
void TunerContext::Finalize() {
  ++fake::GetHalves().finalized;
}

}  // namespace sluice
