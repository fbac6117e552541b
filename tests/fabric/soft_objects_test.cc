// Verbs that one process can judge alone: queries, objects and their limits, registration, names, sysfs.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/fabric/soft_pair.h"

namespace sluice::soft {
namespace {

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

TEST_F(SoftFabricTest, DeviceList) {
  setenv("SLUICE_FABRIC_TOPOLOGY", "hosts=2,nics=3,ports=2", 1);
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(count, 3);
  EXPECT_EQ(list[3], nullptr);
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(ibv_get_device_name(list[i]), "soft" + std::to_string(i));
    EXPECT_EQ(ibv_get_device_index(list[i]), i);
    EXPECT_EQ(list[i]->node_type, IBV_NODE_CA);
    EXPECT_EQ(list[i]->transport_type, IBV_TRANSPORT_IB);
  }
  EXPECT_NE(ibv_get_device_guid(list[0]), ibv_get_device_guid(list[1]));
  // An opened device outlives the list, also the one of another list.
  ibv_context* context = ibv_open_device(list[1]);
  ASSERT_NE(context, nullptr);
  ibv_free_device_list(list);
  EXPECT_STREQ(context->device->name, "soft1");
  ibv_device_attr attr{};
  ASSERT_EQ(ibv_query_device(context, &attr), 0);
  EXPECT_EQ(attr.phys_port_cnt, 2);
  EXPECT_EQ(attr.node_guid, ibv_get_device_guid(context->device));
  ibv_device_attr_ex extended{};
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &extended), 0);
  EXPECT_EQ(extended.orig_attr.max_qp, attr.max_qp);
  EXPECT_NE(extended.completion_timestamp_mask, 0u);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(SoftFabricTest, PortsInBothForms) {
  setenv("SLUICE_FABRIC_TOPOLOGY", "hosts=1,link=infiniband,rate=200G,mtu=2048", 1);
  ibv_context* context = OpenFirst();
  ASSERT_NE(context, nullptr);
  ibv_port_attr attr{};
  ASSERT_EQ(ibv_query_port(context, 1, &attr), 0);
  EXPECT_EQ(attr.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(attr.link_layer, IBV_LINK_LAYER_INFINIBAND);
  EXPECT_EQ(attr.active_mtu, IBV_MTU_2048);
  EXPECT_NE(attr.lid, 0);
  EXPECT_EQ(ibv_query_port(context, 2, &attr), EINVAL);
  EXPECT_EQ(ibv_query_port(context, 0, &attr), EINVAL);
  // Programs built against old headers call the exported function and own no bytes behind `flags`.
  struct {
    ibv_port_attr attr;
    char behind[16];
  } old;
  memset(&old, 0x77, sizeof(old));
  using OldQueryPort = int (*)(ibv_context*, uint8_t, ibv_port_attr*);
  const auto query = reinterpret_cast<OldQueryPort>(dlvsym(RTLD_DEFAULT, "ibv_query_port", "IBVERBS_1.1"));
  ASSERT_NE(query, nullptr);
  ASSERT_EQ(query(context, 1, &old.attr), 0);
  EXPECT_EQ(old.attr.lid, attr.lid);
  EXPECT_EQ(old.attr.link_layer, IBV_LINK_LAYER_INFINIBAND);
  EXPECT_EQ(old.attr.port_cap_flags2, 0x7777);
  uint16_t pkey = 0;
  EXPECT_EQ(ibv_query_pkey(context, 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, 0xffff);
  EXPECT_EQ(ibv_get_pkey_index(context, 1, pkey), 0);
  EXPECT_EQ(ibv_get_pkey_index(context, 1, htobe16(0x1234)), -1);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(SoftFabricTest, GidTable) {
  ibv_context* context = OpenFirst();
  ASSERT_NE(context, nullptr);
  ibv_gid_entry entries[64];
  const ssize_t count = ibv_query_gid_table(context, entries, 64, 0);
  ASSERT_EQ(count, 4);
  for (ssize_t i = 0; i < count; ++i) {
    ibv_gid gid;
    EXPECT_EQ(ibv_query_gid(context, 1, static_cast<int>(entries[i].gid_index), &gid), 0);
    EXPECT_EQ(memcmp(&gid, &entries[i].gid, sizeof(gid)), 0);
    ibv_gid_entry one{};
    EXPECT_EQ(ibv_query_gid_ex(context, 1, entries[i].gid_index, &one, 0), 0);
    EXPECT_EQ(one.gid_type, entries[i].gid_type);
  }
  EXPECT_EQ(entries[0].gid_type, IBV_GID_TYPE_ROCE_V1);
  EXPECT_EQ(entries[3].gid_type, IBV_GID_TYPE_ROCE_V2);
  ibv_gid_entry none{};
  EXPECT_EQ(ibv_query_gid_ex(context, 1, 5, &none, 0), ENODATA);
  ibv_gid gid;
  EXPECT_EQ(ibv_query_gid(context, 1, 5, &gid), 0) << "an empty place reads as zero";
  EXPECT_EQ(gid.global.interface_id, 0u);
  EXPECT_EQ(ibv_query_gid(context, 1, 1000, &gid), -1);
  EXPECT_EQ(ibv_query_gid(context, 9, 0, &gid), -1);
  EXPECT_EQ(ibv_query_gid_table(context, entries, 2, 0), -EINVAL);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(SoftFabricTest, SysfsTree) {
  ibv_context* context = OpenFirst();
  ASSERT_NE(context, nullptr);
  const std::string device = context->device->ibdev_path;
  EXPECT_EQ(ReadLine(device + "/node_type"), "1: CA");
  EXPECT_EQ(ReadLine(device + "/node_guid").size(), 19u);
  EXPECT_EQ(ReadLine(device + "/ports/1/state"), "4: ACTIVE");
  EXPECT_EQ(ReadLine(device + "/ports/1/phys_state"), "5: LinkUp");
  EXPECT_EQ(ReadLine(device + "/ports/1/rate"), "100 Gb/sec (4X EDR)");
  EXPECT_EQ(ReadLine(device + "/ports/1/link_layer"), "Ethernet");
  EXPECT_EQ(ReadLine(device + "/ports/1/gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001");
  EXPECT_EQ(ReadLine(device + "/ports/1/gid_attrs/types/3"), "RoCE v2");
  EXPECT_FALSE(ReadLine(device + "/ports/1/gid_attrs/ndevs/3").empty());
  EXPECT_EQ(ReadLine(device + "/ports/1/pkeys/0"), "0xffff");
  EXPECT_EQ(ReadLine(device + "/ports/1/counters/port_xmit_data"), "0");
  EXPECT_EQ(ReadLine(device + "/ports/1/hw_counters/out_of_sequence"), "0");
  char* pci = realpath((device + "/device").c_str(), nullptr);
  ASSERT_NE(pci, nullptr);
  const std::string pci_path = pci;
  free(pci);
  EXPECT_EQ(ReadLine(pci_path + "/class").substr(0, 6), "0x0207");
  EXPECT_EQ(ReadLine(pci_path + "/max_link_speed"), "32.0 GT/s PCIe");
  EXPECT_EQ(ReadLine(pci_path + "/max_link_width"), "16");
  EXPECT_EQ(ReadLine(pci_path + "/numa_node"), "0");
  // "0000:41:00.0"
  EXPECT_EQ(pci_path.substr(pci_path.rfind('/') + 1).size(), 12u);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(SoftFabricTest, DevicesWithoutPci) {
  setenv("SLUICE_FABRIC_TOPOLOGY", "hosts=1,pci=false", 1);
  ibv_context* context = OpenFirst();
  ASSERT_NE(context, nullptr);
  const std::string device = context->device->ibdev_path;
  EXPECT_EQ(ReadLine(device + "/ports/1/state"), "4: ACTIVE");
  EXPECT_FALSE(std::filesystem::exists(device + "/device"));
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(SoftFabricTest, CountersReachTheTree) {
  Endpoint e;
  e.ToInit();
  e.Connect(e.address());
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 100'000, 200'000), 0);
    ASSERT_EQ(e.Wait().status, IBV_WC_SUCCESS);
  }
  RunFabricTool("--status");  // brings the tree up to date at once
  const std::string port = std::string(e.context->device->ibdev_path) + "/ports/1/";
  EXPECT_GE(std::stoull(ReadLine(port + "hw_counters/rx_write_requests")), 10u);
}

TEST_F(SoftFabricTest, CountersComeByThemselves) {
  Endpoint e;
  e.ToInit();
  e.Connect(e.address());
  ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 100'000, 200'000), 0);
  ASSERT_EQ(e.Wait().status, IBV_WC_SUCCESS);
  const std::string port = std::string(e.context->device->ibdev_path) + "/ports/1/";
  while (ReadLine(port + "hw_counters/rx_write_requests") != "1")
    usleep(1000);  // the test's own time limit ends a failure
  EXPECT_EQ(ReadLine(port + "hw_counters/lifespan"), "10");
  EXPECT_EQ(ReadLine(port + "counters/port_xmit_wait"), "0");
  EXPECT_EQ(ReadLine(port + "hw_counters/rx_icrc_encapsulated"), "0");
}

TEST_F(SoftFabricTest, Registration) {
  Endpoint e;
  const long page = sysconf(_SC_PAGESIZE);
  const auto bytes = static_cast<size_t>(page) * 3;
  auto* memory =
      static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const auto refuses = [&](void* address, size_t length, int access, int error) {
    errno = 0;
    ibv_mr* mr = ibv_reg_mr(e.pd, address, length, access);
    EXPECT_EQ(mr, nullptr);
    EXPECT_EQ(errno, error);
    if (mr != nullptr) ibv_dereg_mr(mr);
  };
  const auto accepts = [&](void* address, size_t length, int access) {
    ibv_mr* mr = ibv_reg_mr(e.pd, address, length, access);
    ASSERT_NE(mr, nullptr) << errno;
    EXPECT_EQ(mr->addr, address);
    EXPECT_EQ(mr->length, length);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  };
  accepts(memory, bytes, IBV_ACCESS_LOCAL_WRITE);
  accepts(memory + 1, bytes - 2, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  accepts(memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
  refuses(memory, bytes, IBV_ACCESS_REMOTE_WRITE, EINVAL);
  ASSERT_EQ(mprotect(memory + page, static_cast<size_t>(page), PROT_READ), 0);
  refuses(memory, bytes, IBV_ACCESS_LOCAL_WRITE, EFAULT);
  accepts(memory, bytes, IBV_ACCESS_REMOTE_READ);
  ASSERT_EQ(mprotect(memory + page, static_cast<size_t>(page), PROT_NONE), 0);
  refuses(memory, bytes, 0, EFAULT);
  ASSERT_EQ(munmap(memory + page, static_cast<size_t>(page)), 0);
  refuses(memory, bytes, IBV_ACCESS_REMOTE_READ, EFAULT);
  accepts(memory, static_cast<size_t>(page), IBV_ACCESS_LOCAL_WRITE);
  refuses(nullptr, 100, 0, EFAULT);
  munmap(memory, bytes);

  // A region may be addressed from anywhere.
  ibv_mr* mr =
      ibv_reg_mr_iova(e.pd, e.buffer, 4096, 0x5000, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  ASSERT_NE(mr, nullptr);
  e.ToInit();
  e.Connect(e.address());
  memcpy(e.at(8192), "somewhere", 9);
  ibv_sge sge{reinterpret_cast<uint64_t>(e.at(8192)), 9, e.mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = 0x5010;
  wr.wr.rdma.rkey = mr->rkey;
  ASSERT_EQ(e.PostSend(wr), 0);
  EXPECT_EQ(e.Wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(e.at(16), "somewhere", 9), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);

  EXPECT_EQ(ibv_reg_dmabuf_mr(e.pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  setenv("SLUICE_FABRIC_DMABUF_ERRNO", "524", 1);
  EXPECT_EQ(ibv_reg_dmabuf_mr(e.pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE), nullptr);
  EXPECT_EQ(errno, 524);
  unsetenv("SLUICE_FABRIC_DMABUF_ERRNO");
}

TEST_F(SoftFabricTest, ObjectsInUseStay) {
  Endpoint::Options options;
  options.srq = true;
  Endpoint e(options);
  EXPECT_EQ(ibv_destroy_cq(e.cq), EBUSY);
  EXPECT_EQ(ibv_destroy_srq(e.srq), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(e.pd), EBUSY);
  ibv_port_attr port{};
  EXPECT_EQ(ibv_query_port(e.context, 1, &port), 0);
}

TEST_F(SoftFabricTest, LimitsAreErrors) {
  const std::string file = directory_ + "/log";
  unsetenv("SLUICE_FABRIC_LOG");
  std::ofstream(file) << "[fabric]\nhosts = 2\n[limits]\nmax_qp = 2\nmax_cq = 3\nmax_mr = 2\nmax_qp_wr = 63\n"
                         "max_cqe = 128\nmax_sge = 4\nmax_inline = 64\n";
  setenv("SLUICE_FABRIC_TOPOLOGY", file.c_str(), 1);
  Endpoint::Options options;
  options.cqe = 128;
  options.send_wr = options.recv_wr = 63;
  Endpoint e(options);
  const auto create_qp = [&](uint32_t send_wr, uint32_t sge, uint32_t inline_bytes) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = e.cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {send_wr, 1, sge, 1, inline_bytes};
    errno = 0;
    return ibv_create_qp(e.pd, &init);
  };
  EXPECT_EQ(create_qp(64, 1, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(create_qp(1, 5, 0), nullptr);
  EXPECT_EQ(create_qp(1, 1, 65), nullptr);
  ibv_qp* second = create_qp(1, 1, 0);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(create_qp(1, 1, 0), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(ibv_destroy_qp(second), 0);
  EXPECT_EQ(ibv_create_cq(e.context, 129, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_create_cq(e.context, 0, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(ibv_create_cq(e.context, 1, nullptr, nullptr, 1000), nullptr);
  ibv_cq* more[2] = {ibv_create_cq(e.context, 1, nullptr, nullptr, 0),
                     ibv_create_cq(e.context, 1, nullptr, nullptr, 0)};
  ASSERT_NE(more[0], nullptr);
  ASSERT_NE(more[1], nullptr);
  EXPECT_EQ(ibv_create_cq(e.context, 1, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  for (ibv_cq* cq : more) EXPECT_EQ(ibv_destroy_cq(cq), 0);
  ibv_mr* mr = ibv_reg_mr(e.pd, e.buffer, 64, 0);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_reg_mr(e.pd, e.buffer, 64, 0), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  ibv_qp_init_attr ud{};
  ud.send_cq = ud.recv_cq = e.cq;
  ud.qp_type = IBV_QPT_UD;
  ud.cap = {1, 1, 1, 1, 0};
  EXPECT_EQ(ibv_create_qp(e.pd, &ud), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(SoftFabricTest, PostsThatADeviceRefuses) {
  Endpoint e;
  EXPECT_EQ(e.Send(IBV_WR_SEND, 0, 8), EINVAL) << "RESET";
  EXPECT_EQ(e.Recv(0, 8), EINVAL);
  e.ToInit();
  EXPECT_EQ(e.Send(IBV_WR_SEND, 0, 8), EINVAL) << "INIT";
  EXPECT_EQ(e.Recv(0, 8), 0);
  e.Connect(e.address());
  EXPECT_EQ(e.Send(IBV_WR_SEND, 0, 4096, 0, IBV_SEND_INLINE), ENOMEM);
  EXPECT_EQ(e.Send(IBV_WR_RDMA_READ, 0, 8, 0, IBV_SEND_INLINE), EINVAL);
  EXPECT_EQ(e.Send(static_cast<ibv_wr_opcode>(99), 0, 8), EINVAL);
  // A list: what comes before the bad one is posted, the bad one is named.
  ibv_sge sge{reinterpret_cast<uint64_t>(e.buffer), 8, e.mr->lkey};
  ibv_send_wr list[3] = {};
  for (int i = 0; i < 3; ++i) {
    list[i].wr_id = static_cast<uint64_t>(i);
    list[i].sg_list = &sge;
    list[i].num_sge = i == 1 ? 100 : 1;
    list[i].opcode = IBV_WR_RDMA_WRITE;
    list[i].send_flags = IBV_SEND_SIGNALED;
    list[i].wr.rdma.remote_addr = e.remote.buffer + 4096;
    list[i].wr.rdma.rkey = e.remote.rkey;
    list[i].next = i < 2 ? &list[i + 1] : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(e.qp, list, &bad), EINVAL);
  EXPECT_EQ(bad, &list[1]);
  EXPECT_EQ(e.Wait().wr_id, 0u);
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(e.cq, 1, &wc), 0);
}

TEST_F(SoftFabricTest, QueuePairAttributes) {
  Endpoint e;
  EXPECT_EQ(e.State(), IBV_QPS_RESET);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  EXPECT_EQ(ibv_modify_qp(e.qp, &attr, IBV_QP_STATE), EINVAL);
  e.ToInit();
  e.Connect(e.address());
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(e.qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_TIMEOUT, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.timeout, 10);
  EXPECT_EQ(attr.ah_attr.grh.traffic_class, 104);
  EXPECT_EQ(attr.dest_qp_num, e.qp->qp_num);
  EXPECT_EQ(init.send_cq, e.cq);
  EXPECT_GE(init.cap.max_send_wr, 64u);
  EXPECT_EQ(init.qp_type, IBV_QPT_RC);
  // Back to RESET: completions of the queue pair are gone, and it works again.
  ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 8, 4096), 0);
  attr = {};
  attr.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(ibv_modify_qp(e.qp, &attr, IBV_QP_STATE), 0);
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(e.cq, 1, &wc), 0);
  e.ToInit();
  e.Connect(e.address());
  ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 8, 4096, IBV_SEND_SIGNALED, 9), 0);
  EXPECT_EQ(e.Wait().wr_id, 9u);
  ibv_ece ece{};
  ASSERT_EQ(ibv_query_ece(e.qp, &ece), 0);
  EXPECT_NE(ece.vendor_id, 0u);
  ece.options |= 0xff00;
  ASSERT_EQ(ibv_set_ece(e.qp, &ece), 0);
  ASSERT_EQ(ibv_query_ece(e.qp, &ece), 0);
  EXPECT_EQ(ece.options & 0xff00, 0u) << "reduced to what both know";
  EXPECT_EQ(ibv_query_qp_data_in_order(e.qp, IBV_WR_RDMA_WRITE, 0), 1);
}

TEST_F(SoftFabricTest, DestroyedQueuePairsTakeTheirCompletionsAlong) {
  Endpoint e;
  e.ToInit();
  e.Connect(e.address());
  for (int i = 0; i < 8; ++i) ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 8, 4096, IBV_SEND_SIGNALED, i), 0);
  EXPECT_EQ(e.Wait().wr_id, 0u);
  ASSERT_EQ(ibv_destroy_qp(std::exchange(e.qp, nullptr)), 0);
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(e.cq, 1, &wc), 0);
}

TEST_F(SoftFabricTest, ResizedCompletionQueueKeepsItsEntries) {
  Endpoint::Options options;
  options.cqe = 8;
  Endpoint e(options);
  e.ToInit();
  e.Connect(e.address());
  for (int i = 0; i < 8; ++i) ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 8, 4096, IBV_SEND_SIGNALED, i), 0);
  EXPECT_EQ(e.Wait().wr_id, 0u);
  ASSERT_EQ(ibv_resize_cq(e.cq, 64), 0);
  EXPECT_GE(e.cq->cqe, 64);
  for (int i = 8; i < 32; ++i) ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 8, 4096, IBV_SEND_SIGNALED, i), 0);
  for (uint64_t i = 1; i < 32; ++i) {
    const ibv_wc wc = e.Wait();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, i);
  }
}

TEST_F(SoftFabricTest, WhatAProgramLeavesIsFreedWithItsDevice) {
  const std::string before = [] {
    Endpoint warm;
    return RunFabricTool("--status");
  }();
  for (int i = 0; i < 4; ++i) {
    ibv_context* context = OpenFirst();
    ASSERT_NE(context, nullptr);
    ibv_pd* pd = ibv_alloc_pd(context);
    ibv_cq* cq = ibv_create_cq(context, 16, nullptr, nullptr, 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {1, 1, 1, 1, 0};
    ASSERT_NE(ibv_create_qp(pd, &init), nullptr);
    static char memory[4096];
    ASSERT_NE(ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE), nullptr);
    EXPECT_EQ(ibv_close_device(context), 0);
  }
}

TEST_F(SoftFabricTest, NamesAndRates) {
  EXPECT_STREQ(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded");
  EXPECT_STREQ(ibv_wc_status_str(static_cast<ibv_wc_status>(1000)), "unknown");
  EXPECT_STREQ(ibv_event_type_str(IBV_EVENT_PORT_ACTIVE), "port active");
  EXPECT_STREQ(ibv_port_state_str(IBV_PORT_ACTIVE), "active");
  EXPECT_STREQ(ibv_node_type_str(IBV_NODE_CA), "InfiniBand channel adapter");
  EXPECT_EQ(ibv_rate_to_mbps(IBV_RATE_400_GBPS), 425000);
  EXPECT_EQ(mbps_to_ibv_rate(103125), IBV_RATE_100_GBPS);
  EXPECT_EQ(ibv_rate_to_mult(IBV_RATE_10_GBPS), 4);
  EXPECT_EQ(mult_to_ibv_rate(4), IBV_RATE_10_GBPS);
}

TEST_F(SoftFabricTest, PrivateAndOldSymbolsFailCleanly) {
  // As providers and programs of other days import them.
  for (const char* name : {"ibv_cmd_create_qp", "execute_ioctl", "__verbs_log"}) {
    EXPECT_NE(dlsym(RTLD_DEFAULT, name), nullptr) << name;
  }
  using Function = long (*)();
  const auto old = reinterpret_cast<Function>(dlvsym(RTLD_DEFAULT, "ibv_get_device_list", "IBVERBS_1.0"));
  ASSERT_NE(old, nullptr);
  errno = 0;
  EXPECT_EQ(old(), 0);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
}  // namespace sluice::soft
