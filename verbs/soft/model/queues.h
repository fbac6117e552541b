// Completion queues and receive queues (of a queue pair, or shared).
//
// Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <vector>

#include "verbs/soft/model/memory.h"
#include "verbs/soft/model/nic.h"
#include "verbs/soft/model/ring.h"

namespace sluice::soft {

struct CompletionQueue {
  CqId id = 0;
  ProcessId process = 0;
  uint32_t depth = 0;
  uint32_t users = 0;  // send and receive sides of queue pairs
  uint64_t pushed = 0;
  uint64_t taken = 0;  // last answer of the process
  bool overrun = false;
};

struct ReceiveWqe {
  uint64_t wr_id = 0;
  std::vector<ibv_sge> sges;
};

struct ReceiveQueue {
  uint32_t max_wr = 0;
  uint32_t max_sge = 0;
  Ring<ReceiveWqe> wqes;

  // 0, ENOMEM when full, EINVAL for too many elements.
  int Post(const RecvWork& work);
  // Swaps the oldest entry into `wqe`, so that neither allocates. False: empty.
  bool Take(ReceiveWqe* wqe);
};

struct SharedReceiveQueue {
  SrqId id = 0;
  ProcessId process = 0;
  PdId pd = 0;
  uint32_t limit = 0;  // 0: not armed
  uint32_t users = 0;
  ReceiveQueue queue;
};

}  // namespace sluice::soft
