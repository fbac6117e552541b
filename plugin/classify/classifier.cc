#include "plugin/classify/classifier.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <deque>
#include <mutex>

#include "plugin/classify/communicator.h"
#include "plugin/classify/events.h"
#include "plugin/classify/profiler_state.h"
#include "plugin/transport/biased_lock.h"

namespace sluice {
namespace {

std::atomic<AskNccl> ask_nccl{nullptr};
// Stands in ThreadState::next_send on threads whose isends may be asked for.
constinit OpenProxyOp ask_for_it;

AttributeLatch* FindLatch(const CommunicatorState* communicator) noexcept {
  AttributeLatch** link = &this_thread.latches;
  while (*link != nullptr && (*link)->communicator != communicator) link = &(*link)->next;
  AttributeLatch* const found = *link;
  if (found != nullptr && link != &this_thread.latches) {  // most recent first
    *link = found->next;
    found->next = this_thread.latches;
    this_thread.latches = found;
  }
  return found;
}

AttributeLatch& GetLatch(const CommunicatorState* communicator) {
  if (AttributeLatch* const found = FindLatch(communicator)) return *found;
  static std::mutex mutex;
  static auto* const latches = new std::deque<AttributeLatch>;
  std::lock_guard lock(mutex);
  AttributeLatch& latch = latches->emplace_back();
  latch.communicator = communicator;
  latch.next = this_thread.latches;
  this_thread.latches = &latch;
  return latch;
}

// NCCL_BUFFSIZE and its kin change what is registered; in bytes.
size_t BufferBytes(const char* variable, size_t by_default) {
  const char* const text = getenv(variable);
  const long long value = text == nullptr ? -1 : strtoll(text, nullptr, 0);
  return value > 0 ? static_cast<size_t>(value) : by_default;
}
size_t LlBytes() {
  static const size_t bytes = BufferBytes("NCCL_LL_BUFFSIZE", 524288);
  return bytes;
}
size_t Ll128Bytes() {
  static const size_t bytes = BufferBytes("NCCL_LL128_BUFFSIZE", 4915200);
  return bytes;
}

Operation FromConnection(MemoryHint hint) {
  Operation operation;
  if (hint.kind() == ConnectionKind::kCollective) operation.function = Function::kCollective;
  if (hint.kind() == ConnectionKind::kPointToPoint) operation.function = Function::kPointToPoint;
  operation.protocol = hint.protocol();
  return operation;
}

// Where NCCL can be asked, an isend of which nobody has told takes the slower way and asks.
const OpenProxyOp* WhenNobodyTells() {
  return ask_nccl.load(std::memory_order_relaxed) != nullptr && ProfilerAnswers() ? &ask_for_it : nullptr;
}

uint32_t BitIndexOr(uint32_t mask, uint32_t otherwise) {
  return std::has_single_bit(mask) ? std::min(static_cast<uint32_t>(std::countr_zero(mask)), otherwise)
                                   : otherwise;
}

}  // namespace

void SetAskNccl(AskNccl ask) {
  ask_nccl.store(ask, std::memory_order_relaxed);
}

MemoryHint RegistrationPattern::Register(size_t bytes, bool* earlier) {
  *earlier = false;
  switch (stage_) {
    case Stage::kEmpty:
      if (bytes == LlBytes()) {
        stage_ = Stage::kLl;
        return {kind_, Protocol::kLl};
      }
      stage_ = Stage::kComplete;
      kind_ = ConnectionKind::kPointToPoint;
      return {kind_, Protocol::kSimple};
    case Stage::kLl:
      *earlier = true;
      if (bytes == Ll128Bytes()) {
        stage_ = Stage::kLl128;
        kind_ = ConnectionKind::kCollective;
        return {kind_, Protocol::kLl128};
      }
      stage_ = Stage::kComplete;
      kind_ = ConnectionKind::kPointToPoint;
      return {kind_, Protocol::kSimple};
    case Stage::kLl128:
      stage_ = Stage::kComplete;
      break;
    case Stage::kComplete:
      break;
  }
  return {kind_, Protocol::kSimple};
}

void Announce(const CommunicatorState& communicator, const NetAttributes& attributes) {
  if (!std::has_single_bit(attributes.op)) return;
  Operation operation;
  operation.function =
      static_cast<Function>(BitIndexOr(attributes.op, static_cast<uint32_t>(Function::kUnknown)));
  // Of point-to-point calls the other bits are left over from the last collective.
  if (IsCollective(operation.function)) {
    operation.algorithm =
        static_cast<Algorithm>(BitIndexOr(attributes.algo, static_cast<uint32_t>(Algorithm::kUnknown)));
    operation.protocol =
        static_cast<Protocol>(BitIndexOr(attributes.proto, static_cast<uint32_t>(Protocol::kUnknown)));
  }
  AttributeLatch& latch = GetLatch(&communicator);
  if (latch.operation.function == operation.function && latch.operation.algorithm == operation.algorithm &&
      latch.operation.protocol == operation.protocol) {
    return;
  }
  latch.operation = operation;
  ++latch.version;
  for (EngineClassifier* engine : latch.engines) {
    DataGuard guard(*engine->lock_);
    engine->Refill(latch);
  }
}

void EngineClassifier::Open(CommunicatorState& communicator, BiasedLock& lock, std::string_view device,
                            uint64_t uid) {
  communicator_ = &communicator;
  lock_ = &lock;
  statistics_ = Statistics::Get().AddEngine(device, uid, communicator.communicator().hash);
  Refill(AttributeLatch{});
  bound_ = nullptr;
}

Claim EngineClassifier::Make(const Operation& operation, OperationSource source,
                             uint8_t service_class) const {
  return {statistics_.messages->sent +
              MessageRow::Index(source, operation.function, operation.protocol, service_class),
          PackOpHint(operation, source, service_class), service_class, source};
}

void EngineClassifier::Refill(const AttributeLatch& latch) {
  bound_ = &latch;
  bound_version_ = latch.version;
  const ClassMap& classes = communicator_->classes();
  const bool announced = latch.operation.function != Function::kUnknown;
  for (const ConnectionKind kind :
       {ConnectionKind::kUnknown, ConnectionKind::kCollective, ConnectionKind::kPointToPoint}) {
    for (int p = 0; p < kProtocols; ++p) {
      const MemoryHint hint(kind, static_cast<Protocol>(p));
      Operation operation = announced ? latch.operation : FromConnection(hint);
      if (announced && IsPointToPoint(operation.function)) operation.protocol = hint.protocol();
      OperationSource source = OperationSource::kAttributes;
      if (!announced) {
        const bool nothing = kind == ConnectionKind::kUnknown && hint.protocol() == Protocol::kUnknown;
        source = nothing ? OperationSource::kNone : OperationSource::kConnection;
      }
      claims_[hint.index()] = Make(operation, source, classes.Of(operation));
    }
  }
}

void EngineClassifier::Rebind() noexcept {
  try {
    AttributeLatch& latch = GetLatch(communicator_);
    if (std::find(latch.engines.begin(), latch.engines.end(), this) == latch.engines.end())
      latch.engines.push_back(this);
    if (bound_ != &latch || bound_version_ != latch.version) Refill(latch);
  } catch (...) {  // no memory: the message goes with the claims that are there
  }
  if (this_thread.next_send == nullptr) this_thread.next_send = WhenNobodyTells();
}

std::string EngineClassifier::Summary() const {
  uint64_t by_source[kOperationSources] = {};
  uint64_t messages = 0, bytes = 0;
  for (const MessageCounter* cells : {statistics_.messages->sent, statistics_.messages->received}) {
    for (size_t i = 0; i < MessageRow::kCells; ++i) {
      const uint64_t count = cells[i].messages.load(std::memory_order_relaxed);
      messages += count;
      bytes += cells[i].bytes.load(std::memory_order_relaxed);
      by_source[i / (MessageRow::kCells / kOperationSources)] += count;
    }
  }
  constexpr const char* kSources[kOperationSources] = {"setNetAttr", "the profiler",
                                                       "the profiler's callback", "connections", "nothing"};
  std::string text = std::string(statistics_.engine->device) + ": " + std::to_string(messages) +
                     " messages, " + std::to_string(bytes) + " bytes";
  for (int i = 0; i < kOperationSources; ++i) {
    if (by_source[i] != 0) text += ", " + std::to_string(by_source[i]) + " known from " + kSources[i];
  }
  const EngineRow& row = *statistics_.engine;
  text += "; size known of " + std::to_string(row.bytes_known.load(std::memory_order_relaxed)) + ", " +
          std::to_string(row.compared.load(std::memory_order_relaxed)) + " named by both sources, " +
          std::to_string(row.disagreed.load(std::memory_order_relaxed)) + " differently, " +
          std::to_string(row.mixed_groups.load(std::memory_order_relaxed)) + " in mixed groups, " +
          std::to_string(row.without_operation.load(std::memory_order_relaxed)) + " of other processes";
  return text;
}

const Claim& EngineClassifier::Merge(MemoryHint hint, const OpenProxyOp& told) noexcept {
  const Claim& announced = At(hint);
  if (!told.known) {
    AddRelaxed(statistics_.engine->without_operation, 1);
    return announced;
  }
  Operation operation = told.operation;
  if (!IsCollective(operation.function)) operation.protocol = hint.protocol();
  OperationSource source = OperationSource::kProfiler;
  if (announced.source == OperationSource::kAttributes) {
    source = OperationSource::kAttributes;
    AddRelaxed(statistics_.engine->compared, 1);
    const Function said = FunctionOfHint(announced.op_hint);
    if (said != operation.function) {
      if (!IsPointToPoint(said) || !IsPointToPoint(operation.function)) {
        AddRelaxed(statistics_.engine->disagreed, 1);
        return announced;
      }
      if (told.is_call) {
        AddRelaxed(statistics_.engine->mixed_groups, 1);
      } else {
        operation.function = said;
      }
    } else if (IsCollective(said) && (AlgorithmOfHint(announced.op_hint) != operation.algorithm ||
                                      ProtocolOfHint(announced.op_hint) != operation.protocol)) {
      AddRelaxed(statistics_.engine->disagreed, 1);
      return announced;
    }
  }
  if (operation.bytes != kUnknownBytes) AddRelaxed(statistics_.engine->bytes_known, 1);
  const uint32_t key =
      static_cast<uint32_t>(operation.function) << 8 | static_cast<uint32_t>(operation.protocol);
  if (told.cached_for != key) {
    told.cached_class = told.communicator->classes().Of(operation);
    told.cached_for = key;
  }
  merged_ = Make(operation, source, told.cached_class);
  return merged_;
}

const Claim& EngineClassifier::OfToldSend(MemoryHint hint, void* phandle) noexcept {
  const OpenProxyOp* const told = this_thread.next_send;
  this_thread.next_send = WhenNobodyTells();
  if (told != &ask_for_it) return Merge(hint, *told);
  if (At(hint).source < OperationSource::kConnection || !MayAskProfiler(phandle)) return At(hint);
  const AskNccl ask = ask_nccl.load(std::memory_order_relaxed);
  ProfilerQuery query = MakeQuery();
  const OpenProxyOp* const answer = ask != nullptr && ask(phandle, &query) ? ResolveQuery(query) : nullptr;
  if (answer == nullptr) return At(hint);
  const Claim& claim = Merge(hint, *answer);
  if (&claim != &merged_) return claim;
  Operation operation = {FunctionOfHint(claim.op_hint), AlgorithmOfHint(claim.op_hint),
                         ProtocolOfHint(claim.op_hint), kUnknownBytes};
  merged_ = Make(operation, OperationSource::kProfilerCallback, claim.service_class);
  return merged_;
}

const Claim& EngineClassifier::OfToldReceive(MemoryHint hint) noexcept {
  const OpenProxyOp* const told = this_thread.next_receive;
  this_thread.next_receive = nullptr;
  return Merge(hint, *told);
}

}  // namespace sluice
