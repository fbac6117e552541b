// The verbs calls and posted work of one process, executed on the NICs of its host: what a request of the
// library means to the model. The fabric process has one per program, the virtual-time library one per rank.
//
//   VerbCalls calls(fabric, host, process, memory);
//   int error = calls.Dispatch(nic, Call::kCreateCq, &arguments);      // an errno value
//   calls.PostSend(request);                                           // a PostSendRequest with what follows
//   it if (calls.Translate(cq, completion, &command)) ...                 // for the library that made the
//   queue
//
// Objects of other processes are refused. Thread rule: the thread that drives the Fabric.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "verbs/soft/ipc/protocol.h"
#include "verbs/soft/model/fabric.h"

namespace sluice::soft {

class VerbCalls {
 public:
  struct CqRecord {
    uint64_t cookie = 0;  // the library's queue
    uint32_t slot = 0;    // the library's number for it
    uint32_t nic = 0;
  };

  VerbCalls(Fabric* fabric, uint32_t host, ProcessId process, ProcessMemory* memory)
      : fabric_(fabric), host_(host), process_(process), memory_(memory) {}

  int Dispatch(uint32_t nic, Call call, CallArguments* arguments);

  // 0, or why the NIC refuses the request. The library has checked what it can see and has accepted it; so a
  // refused one ends as an error completion, which these push. An unknown queue is ignored: it is gone.
  int PostSend(const PostSendRequest& request);
  int PostRecv(const PostRecvRequest& request);
  int PostSrqRecv(const PostRecvRequest& request);

  // False: the object is gone.
  bool Translate(CqId cq, const Completion& completion, CompletionCommand* command) const;
  bool Translate(const AsyncEvent& event, EventCommand* command) const;

  // nullptr: no such queue.
  const CqRecord* FindCq(CqId cq) const {
    const auto found = cqs_.find(cq);
    return found == cqs_.end() ? nullptr : &found->second;
  }

 private:
  struct QpRecord {
    uint64_t cookie = 0;
    CqId send_cq = 0, recv_cq = 0;
  };

  int DispatchQueuePair(Nic* nic, Call call, CallArguments* arguments);
  int Refuse(uint32_t nic, uint32_t qp_num, uint64_t wr_id, bool send, int error);

  Fabric* fabric_;
  uint32_t host_;
  ProcessId process_;
  ProcessMemory* memory_;
  std::unordered_map<CqId, CqRecord> cqs_;
  std::unordered_map<SrqId, uint64_t> srqs_;
  std::unordered_map<uint64_t, QpRecord> qps_;  // by NIC << 32 | number
};

// Fills in what a library learns of its host when it joins; `sysfs_root` stands for its /sys.
void DescribeHost(Fabric* fabric, uint32_t host, const char* sysfs_root, WelcomeMessage* welcome);

}  // namespace sluice::soft
