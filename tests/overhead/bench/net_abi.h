// The binary interface of NCCL net plugins v8 to v12, as far as the bench needs it. Every version lays out
// its function table in the same order; only signatures and the length of the table differ. Kept apart from
// the plugin's own declarations: the bench judges any plugin, ours included, by an independent reading of the
// interface.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace net_abi {

constexpr int kHandleBytes = 128;
constexpr int kPtrHost = 1;
constexpr int kOldest = 8;
constexpr int kNewest = 12;

using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
using ProfilerCallback = int (*)(void** handle, int type, void* parent, int64_t plugin, void* data);

struct CommConfig {
  int traffic_class;
};
struct CommAttr {
  int32_t max_peers, min_peers, max_flows, min_flows;
};
struct NetAttr {
  CommAttr send, recv;
  uint32_t op, algo, proto;
};

struct PropertiesHead {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_types, reg_is_global;
};
// Follows the head at once in v8; v9 and later put one int (force flush) between them.
struct PropertiesTail {
  int speed, port;
  float latency;
  int max_comms, max_recvs;
};

struct Table {
  const char* name;
  void *init, *devices, *get_properties, *listen, *connect, *accept, *reg_mr, *reg_mr_dmabuf, *dereg_mr;
  void *isend, *irecv, *iflush, *test, *close_send, *close_recv, *close_listen;
  void *get_device_mr, *irecv_consumed;
  void* make_vdevice;             // v9
  void *finalize, *set_net_attr;  // v11
};

}  // namespace net_abi
