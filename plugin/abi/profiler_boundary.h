// What every version table of the profiler shares: from NCCL's descriptors to plugin/profiler.h.
//
// Contract towards NCCL: *event is written on every path that NCCL reads it; null events, contexts and
// descriptors are tolerated (NCCL calls startEvent with a null context when init has failed); nothing is thrown,
// and every call after init succeeds.
#pragma once

#include "plugin/abi/nccl_profiler.h"
#include "plugin/profiler.h"

namespace sluice::profiler_boundary {

using nccl::NcclResult;

// `mask` is one word for the whole process. A failure clears it: NCCL goes on without us, yet would call.
NcclResult Init(int version, void** context, int* mask, const Communicator& communicator, DebugLogger logger);
NcclResult StopEvent(void* event);
NcclResult Finalize(void* context);

Communicator CommunicatorFrom(uint64_t hash, const char* name, int nodes, int ranks, int rank);

// NCCL's names and numbers; anything else is unknown.
Function FunctionFrom(const char* name);
Algorithm AlgorithmFrom(const char* name);
Protocol ProtocolFrom(const char* name);
Function FunctionFrom(uint8_t number);
Algorithm AlgorithmFrom(uint8_t number);
Protocol ProtocolFrom(uint8_t number);
// Bytes of one element by ncclDataType_t and by its name; 0: unknown.
size_t ElementBytes(uint8_t datatype);
size_t ElementBytes(const char* datatype);

inline ProfilerEvent EventFrom(void* event) {
  return static_cast<ProfilerEvent>(reinterpret_cast<uintptr_t>(event));
}
inline void* ToNccl(ProfilerEvent event) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(event));
}

inline uint64_t BytesFrom(size_t count, size_t element_bytes) {
  return element_bytes == 0 ? kUnknownBytes : count * element_bytes;
}

// Coll and P2p. The members have the same names in every version, not the same places.
template <typename Descr>
ProfilerTask CollectiveFrom(const Descr& descr) {
  const auto& coll = descr.coll;
  ProfilerTask task;
  task.operation = {FunctionFrom(coll.func), AlgorithmFrom(coll.algo), ProtocolFrom(coll.proto),
                    BytesFrom(coll.count, ElementBytes(coll.datatype))};
  task.sequence = coll.seqNumber;
  task.rank = descr.rank;
  return task;
}
template <typename Descr>
ProfilerTask PointToPointFrom(const Descr& descr) {
  ProfilerTask task;
  task.operation.function = FunctionFrom(descr.p2p.func);
  task.operation.bytes = BytesFrom(descr.p2p.count, ElementBytes(descr.p2p.datatype));
  if constexpr (requires { descr.p2pApi; }) task.call = EventFrom(descr.parentObj);
  task.rank = descr.rank;
  return task;
}
template <typename Task>
void NameCommunicator(const Task& from, ProfilerTask* task) {
  if constexpr (requires { from.commHash; }) {
    task->communicator_hash = from.commHash;
    task->communicator_name = from.name;
  }
}

template <typename Descr>
NcclResult StartEvent(void* context, void** event, Descr* descr) {
  if (event == nullptr) return nccl::kSuccess;
  if (descr == nullptr) {
    *event = nullptr;
    return nccl::kSuccess;
  }
  ProfilerEvent started = ProfilerEvent::kNone;
  switch (static_cast<uint64_t>(descr->type)) {
    case nccl::kProfileProxyStep:  // first: every message
      started = StartStep(EventFrom(descr->parentObj));
      break;
    case nccl::kProfileProxyOp:
      // The context and parent of another process are its pointers: neither is looked at.
      started = StartProxyOp({EventFrom(descr->parentObj), descr->proxyOp.pid, descr->proxyOp.isSend != 0});
      break;
    case nccl::kProfileColl: {
      if (context == nullptr) break;
      ProfilerTask task = CollectiveFrom(*descr);
      NameCommunicator(descr->coll, &task);
      started = static_cast<ProfilerContext*>(context)->StartTask(task);
      break;
    }
    case nccl::kProfileP2p: {
      if (context == nullptr) break;
      ProfilerTask task = PointToPointFrom(*descr);
      NameCommunicator(descr->p2p, &task);
      started = static_cast<ProfilerContext*>(context)->StartTask(task);
      break;
    }
    case nccl::kProfileNetPlugin:
      if constexpr (requires { descr->netPlugin; }) {
        AnswerQuery(EventFrom(descr->parentObj), static_cast<ProfilerQuery*>(descr->netPlugin.data));
      }
      break;
    case nccl::kProfileP2pApi:
      if constexpr (requires { descr->p2pApi; }) {
        if (context != nullptr)
          started = static_cast<ProfilerContext*>(context)->StartCall(FunctionFrom(descr->p2pApi.func));
      }
      break;
    default:  // groups, API calls, kernels: not wanted
      break;
  }
  *event = ToNccl(started);
  return nccl::kSuccess;
}

}  // namespace sluice::profiler_boundary
