// What this thread has been told of the next isend and irecv: by our profiler half, and by setNetAttr.
//
// Thread-local storage of the initial-exec kind: reaching it costs one load on the data path. It takes a few dozen
// bytes of the reserve that the dynamic linker keeps for libraries opened later (1.6 KiB with glibc's defaults).
#pragma once

#include <cstdint>

namespace sluice {

class CommunicatorState;
struct AttributeLatch;
struct OpenProxyOp;

struct ThreadState {
  // Operation of the next isend, of the next irecv; null: nobody told. Set by the profiler half just before the call,
  // taken by the call.
  const OpenProxyOp* next_send = nullptr;
  const OpenProxyOp* next_receive = nullptr;
  // What setNetAttr said last, per context; the one used last is first.
  AttributeLatch* latches = nullptr;
  // The communicator whose halves are being initialised here.
  CommunicatorState* last_communicator = nullptr;
  uint32_t proxy_op_hint = 0;  // where a free slot for a proxy operation may be
};

extern thread_local constinit ThreadState this_thread __attribute__((tls_model("initial-exec")));

}  // namespace sluice
