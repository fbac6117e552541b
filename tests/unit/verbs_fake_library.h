// A libibverbs for unit tests: linked into a test program in place of the real one, it answers from a
// description and counts what is open. No data moves.
//
//   FakeVerbs& verbs = ResetFakeVerbs();
//   verbs.devices.push_back(MakeFakeDevice("mlx5_0", IBV_LINK_LAYER_ETHERNET));
//   verbs.modify_error = ETIMEDOUT;
//
// Not thread safe.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <list>
#include <string>
#include <vector>

namespace sluice {

struct FakePort {
  ibv_port_attr attributes{};
  std::vector<ibv_gid_entry> gids;
};

struct FakeDevice {
  std::string name;
  std::string ibdev_path;
  ibv_node_type node_type = IBV_NODE_CA;
  ibv_transport_type transport = IBV_TRANSPORT_IB;
  int open_error = 0;
  int query_error = 0;
  ibv_device_attr attributes{};
  std::vector<FakePort> ports;
};

struct FakeVerbs {
  std::vector<FakeDevice> devices;
  bool list_fails = false;

  // Errors to answer with; 0: success.
  int alloc_pd_error = 0;
  int create_cq_error = 0;
  int create_srq_error = 0;
  int create_qp_error = 0;
  int destroy_qp_error = 0;
  int modify_error = 0;
  ibv_qp_state modify_error_state = IBV_QPS_RTR;  // which transition fails
  int ece_error = 0;
  int gid_table_error = 0;
  uint32_t largest_inline = 1024;    // more is refused with EINVAL
  uint32_t largest_send_wr = 16384;  // more is refused with ENOMEM

  // What is open now, and what was asked last.
  int contexts = 0;
  int pds = 0;
  int cqs = 0;
  int srqs = 0;
  int mrs = 0;
  int qps = 0;
  int opened = 0;  // ever
  int created_qps = 0;
  int last_cqe = 0;
  ibv_srq_init_attr last_srq{};
  ibv_qp_init_attr last_qp{};
  ibv_qp_attr last_attr{};
  int last_mask = 0;
  ibv_ece last_ece{};

  // Filled when the device list is made; addresses stay valid.
  std::list<ibv_device> handles;
};

FakeVerbs& ResetFakeVerbs();
FakeVerbs& GetFakeVerbs();

// One active port, 4X EDR, MTU 4096, generous limits.
FakeDevice MakeFakeDevice(const std::string& name, uint8_t link_layer, int port_count = 1);

}  // namespace sluice
