#include "tools/perf/claim_check.h"

#include <unistd.h>

#include <cstdlib>
#include <memory>

namespace sluice::perf {
namespace {

constexpr int kFirstVersionWithAllToAll = 11;  // NCCL 2.28; before, users made it of send and receive

Function FunctionOf(Op op, bool send, int net_version) {
  switch (op) {
    case Op::kAllReduce:
      return Function::kAllReduce;
    case Op::kAllGather:
      return Function::kAllGather;
    case Op::kReduceScatter:
      return Function::kReduceScatter;
    case Op::kBroadcast:
      return Function::kBroadcast;
    case Op::kReduce:
      return Function::kReduce;
    case Op::kAllToAll:
      if (net_version >= kFirstVersionWithAllToAll) return Function::kAllToAll;
      [[fallthrough]];
    case Op::kSendRecv:
      return send ? Function::kSend : Function::kRecv;
  }
  return Function::kUnknown;
}

}  // namespace

ClaimCheck::ClaimCheck(int net_version, bool with_bytes, const sluice::Communicator& communicator)
    : net_version_(net_version), with_bytes_(with_bytes), communicator_(communicator) {}

Status ClaimCheck::Attach() {
  const char* const text = getenv("SLUICE_POLICY");
  Result<std::shared_ptr<const Policy>> policy = Policy::Load(text == nullptr ? "" : text);
  if (!policy.ok()) return policy.status();
  classes_ = (*policy)->Bind(communicator_);
  Result<std::vector<StatisticsReader>> readers = StatisticsReader::OpenProcess(getpid());
  if (!readers.ok()) return readers.status();
  if (readers->empty()) {
    return SystemError("the plugin publishes no statistics in " + StatisticsReader::Directory() +
                       "; NCCL_DEBUG=INFO shows why");
  }
  readers_ = std::move(*readers);
  return Status::Ok();
}

Operation ClaimCheck::Truth(const Shape& shape, bool send, int peer) const {
  (void)peer;
  Operation truth;
  truth.function = FunctionOf(shape.op, send, net_version_);
  truth.protocol = static_cast<Protocol>(shape.proto);
  if (IsCollective(truth.function)) truth.algorithm = static_cast<Algorithm>(shape.algo);
  if (with_bytes_) truth.bytes = shape.block_elements * kElementBytes;
  return truth;
}

uint64_t ClaimCheck::Count(const Cell& cell) const {
  uint64_t sum = 0;
  const auto& [direction, function, protocol, service_class] = cell;
  for (const StatisticsReader& reader : readers_)
    sum += reader.Count(direction, function, protocol, service_class);
  return sum;
}

void ClaimCheck::Look(Direction direction, const Operation& truth, uint64_t messages) {
  totals_.messages += messages;
  const Cell right{direction, truth.function, truth.protocol, classes_.Of(truth)};
  uint64_t& seen = seen_[right];
  if (const uint64_t now = Count(right); now == seen + messages) {
    seen = now;
    totals_.right += messages;
    return;
  }
  const Function kind = IsPointToPoint(truth.function) ? Function::kPointToPoint : Function::kCollective;
  const Cell by_kind{direction, kind, truth.protocol, -1};
  uint64_t& kind_seen = seen_[by_kind];
  if (const uint64_t now = Count(by_kind); now == kind_seen + messages) {
    kind_seen = now;
    totals_.kind_only += messages;
    return;
  }
  totals_.wrong += messages;
  for (auto& [cell, count] : seen_) count = Count(cell);
}

void ClaimCheck::Sent(const Shape& shape, int peer, size_t /*bytes*/) {
  Look(Direction::kSend, Truth(shape, true, peer), 1);
}

void ClaimCheck::Received(const Shape& shape, int peer, int messages) {
  Look(Direction::kReceive, Truth(shape, false, peer), static_cast<uint64_t>(messages));
}

ClaimTotals ClaimCheck::Totals() const {
  ClaimTotals totals = totals_;
  for (const StatisticsReader& reader : readers_) {
    for (const ClaimedMessages& row : reader.Messages())
      totals.by_source[static_cast<size_t>(row.source)] += row.messages;
    for (uint32_t i = 0; i < reader.engines(); ++i) {
      totals.compared += reader.engine(i).compared.load(std::memory_order_relaxed);
      totals.disagreed += reader.engine(i).disagreed.load(std::memory_order_relaxed);
      totals.bytes_known += reader.engine(i).bytes_known.load(std::memory_order_relaxed);
    }
  }
  return totals;
}

}  // namespace sluice::perf
