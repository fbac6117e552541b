// Verbs objects of a NIC: state transitions, attributes, limits, ownership, description.
#include <endian.h>

#include "soft_model_rig.h"

namespace sluice::soft {
namespace {

class SoftModelObjects : public ::testing::Test {
 protected:
  Rig rig{"hosts=2,ports=2,max_qp=3,max_cq=3,max_mr=2,max_qp_wr=100,max_sge=3,max_cqe=65536,max_srq_wr=10"};
  Node& a = rig.AddNode(0);
  Node& b = rig.AddNode(1);
  QpOptions options{.send_wr = 10, .recv_wr = 10, .sge = 3};

  int Modify(uint32_t qp, const ibv_qp_attr& attr, int mask) {
    return a.nic->ModifyQp(a.process, qp, attr, mask);
  }
};

TEST_F(SoftModelObjects, EachMandatoryAttributeIsMandatory) {
  const uint32_t qp = rig.CreateQp(a, options);
  const auto check = [&](const ibv_qp_attr& attr, int mask) {
    for (int bit = 1; bit <= mask; bit <<= 1) {
      if ((mask & bit) == 0) continue;
      EXPECT_EQ(EINVAL, Modify(qp, attr, mask & ~bit)) << "without attribute bit " << bit;
    }
    EXPECT_EQ(EINVAL, Modify(qp, attr, mask | IBV_QP_QKEY)) << "with an attribute that RC does not have";
    EXPECT_EQ(0, Modify(qp, attr, mask));
    EXPECT_EQ(attr.qp_state, a.State(qp));
  };
  check(Rig::InitAttr(options), Rig::kInitMask);
  check(Rig::RtrAttr(options, b, 77, 5), Rig::kRtrMask);
  check(Rig::RtsAttr(options, 6), Rig::kRtsMask);
}

TEST_F(SoftModelObjects, ImpossibleTransitions) {
  const uint32_t qp = rig.CreateQp(a, options);
  const auto to = [&](ibv_qp_state state) {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    return Modify(qp, attr, IBV_QP_STATE);
  };
  for (const ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE})
    EXPECT_EQ(EINVAL, to(state));
  ASSERT_EQ(0, Modify(qp, Rig::InitAttr(options), Rig::kInitMask));
  EXPECT_EQ(0, Modify(qp, Rig::InitAttr(options), Rig::kInitMask)) << "INIT to INIT";
  for (const ibv_qp_state state : {IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE}) EXPECT_EQ(EINVAL, to(state));
  ibv_qp_attr wrong = Rig::RtrAttr(options, b, 77, 5);
  wrong.cur_qp_state = IBV_QPS_RTS;
  EXPECT_EQ(EINVAL, Modify(qp, wrong, Rig::kRtrMask | IBV_QP_CUR_STATE));
  EXPECT_EQ(0, to(IBV_QPS_ERR));
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) EXPECT_EQ(EINVAL, to(state));
  EXPECT_EQ(0, to(IBV_QPS_RESET));
  EXPECT_EQ(0, Modify(qp, Rig::InitAttr(options), Rig::kInitMask));
}

TEST_F(SoftModelObjects, ValuesOutOfRange) {
  const uint32_t qp = rig.CreateQp(a, options);
  ibv_qp_attr init = Rig::InitAttr(options, 3);
  EXPECT_EQ(EINVAL, Modify(qp, init, Rig::kInitMask)) << "no port 3";
  init = Rig::InitAttr(options);
  init.pkey_index = 1;
  EXPECT_EQ(EINVAL, Modify(qp, init, Rig::kInitMask));
  ASSERT_EQ(0, Modify(qp, Rig::InitAttr(options), Rig::kInitMask));
  const ibv_qp_attr good = Rig::RtrAttr(options, b, 77, 5);
  const auto rtr = [&](auto change) {
    ibv_qp_attr attr = good;
    change(attr);
    return Modify(qp, attr, Rig::kRtrMask);
  };
  EXPECT_EQ(EINVAL, rtr([](auto& x) { x.path_mtu = static_cast<ibv_mtu>(6); }));
  EXPECT_EQ(EINVAL, rtr([](auto& x) { x.ah_attr.is_global = 0; })) << "RoCE needs a GRH";
  EXPECT_EQ(EINVAL, rtr([](auto& x) { x.ah_attr.grh.sgid_index = 4; })) << "an empty GID";
  EXPECT_EQ(EINVAL, rtr([](auto& x) { x.ah_attr.sl = 16; }));
  EXPECT_EQ(EINVAL, rtr([](auto& x) { x.dest_qp_num = 1 << 24; }));
  EXPECT_EQ(EINVAL, rtr([](auto& x) { x.max_dest_rd_atomic = 17; }));
  EXPECT_EQ(EINVAL, rtr([](auto& x) { x.min_rnr_timer = 32; }));
  ASSERT_EQ(0, rtr([](auto&) {}));
  ibv_qp_attr rts = Rig::RtsAttr(options, 6);
  rts.timeout = 32;
  EXPECT_EQ(EINVAL, Modify(qp, rts, Rig::kRtsMask));
  rts = Rig::RtsAttr(options, 6);
  rts.retry_cnt = 8;
  EXPECT_EQ(EINVAL, Modify(qp, rts, Rig::kRtsMask));
}

TEST_F(SoftModelObjects, PathMtuAboveThePort) {
  Rig small("hosts=2,mtu=1024");
  Node& x = small.AddNode(0);
  Node& y = small.AddNode(1);
  const uint32_t qp = small.CreateQp(x);
  ASSERT_EQ(0, x.nic->ModifyQp(x.process, qp, Rig::InitAttr({}), Rig::kInitMask));
  QpOptions mtu;
  mtu.mtu = IBV_MTU_2048;
  EXPECT_EQ(EINVAL, x.nic->ModifyQp(x.process, qp, Rig::RtrAttr(mtu, y, 1, 0), Rig::kRtrMask));
  mtu.mtu = IBV_MTU_1024;
  EXPECT_EQ(0, x.nic->ModifyQp(x.process, qp, Rig::RtrAttr(mtu, y, 1, 0), Rig::kRtrMask));
}

TEST_F(SoftModelObjects, PostingInTheWrongState) {
  const uint32_t qp = rig.CreateQp(a, options);
  EXPECT_EQ(EINVAL, a.Post(qp, 1, IBV_WR_SEND, {}));
  EXPECT_EQ(EINVAL, a.Recv(qp, 1, {}));
  ASSERT_EQ(0, Modify(qp, Rig::InitAttr(options), Rig::kInitMask));
  EXPECT_EQ(EINVAL, a.Post(qp, 1, IBV_WR_SEND, {}));
  EXPECT_EQ(0, a.Recv(qp, 1, {}));
  ASSERT_EQ(0, Modify(qp, Rig::RtrAttr(options, b, 77, 5), Rig::kRtrMask));
  EXPECT_EQ(EINVAL, a.Post(qp, 1, IBV_WR_SEND, {}));
  ibv_qp_attr attr{};
  ASSERT_EQ(0, Modify(qp, attr, IBV_QP_STATE));
  EXPECT_TRUE(a.Completions().empty()) << "RESET forgets silently";
}

TEST_F(SoftModelObjects, QueuesAreAsLargeAsAsked) {
  QpOptions silent = options;
  silent.timeout = 0;  // no answer, and no end of patience
  const uint32_t qp = rig.CreateQp(a, silent);
  Rig::Establish(a, qp, b, 0x777, silent, 0, 0);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(0, a.Post(qp, 1, IBV_WR_SEND, {}));
  EXPECT_EQ(ENOMEM, a.Post(qp, 1, IBV_WR_SEND, {}));
  for (int i = 0; i < 10; ++i) ASSERT_EQ(0, a.Recv(qp, 1, {}));
  EXPECT_EQ(ENOMEM, a.Recv(qp, 1, {}));
  EXPECT_EQ(EINVAL, a.Recv(qp, 1, std::vector<ibv_sge>(4)));
  rig.Run(kPicosPerSecond);
  EXPECT_EQ(IBV_QPS_RTS, a.State(qp));
}

TEST_F(SoftModelObjects, Limits) {
  QpInit init;
  init.pd = a.pd;
  init.send_cq = init.recv_cq = a.cq;
  uint32_t qp = 0;
  init.cap = {101, 1, 1, 1, 0};
  EXPECT_EQ(EINVAL, a.nic->CreateQp(a.process, &init, &qp));
  init.cap = {1, 1, 4, 1, 0};
  EXPECT_EQ(EINVAL, a.nic->CreateQp(a.process, &init, &qp));
  init.cap = {1, 1, 1, 1, a.nic->max_inline() + 1};
  EXPECT_EQ(EINVAL, a.nic->CreateQp(a.process, &init, &qp));
  init.cap = {1, 1, 1, 1, 0};
  init.type = IBV_QPT_UD;
  EXPECT_EQ(EOPNOTSUPP, a.nic->CreateQp(a.process, &init, &qp));
  init.type = IBV_QPT_RC;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(0, a.nic->CreateQp(a.process, &init, &qp));
  EXPECT_EQ(ENOMEM, a.nic->CreateQp(a.process, &init, &qp));
  CqId cq = 0;
  uint32_t depth = 0;
  EXPECT_EQ(EINVAL, a.nic->CreateCq(a.process, 65537, &cq, &depth));
  EXPECT_EQ(EINVAL, a.nic->CreateCq(a.process, 0, &cq, &depth));
  EXPECT_EQ(0, a.nic->CreateCq(a.process, 5, &cq, &depth));
  EXPECT_EQ(0, a.nic->CreateCq(a.process, 5, &cq, &depth));
  EXPECT_EQ(ENOMEM, a.nic->CreateCq(a.process, 5, &cq, &depth));
  uint32_t key = 0;
  EXPECT_EQ(0, a.nic->RegMr(a.process, a.pd, 4096, 10, 4096, 0, &key));
  EXPECT_EQ(0, a.nic->RegMr(a.process, a.pd, 4096, 10, 4096, 0, &key));
  EXPECT_EQ(ENOMEM, a.nic->RegMr(a.process, a.pd, 4096, 10, 4096, 0, &key));
  EXPECT_EQ(0, a.nic->DeregMr(a.process, key));
  EXPECT_EQ(EINVAL, a.nic->DeregMr(a.process, key));
  EXPECT_EQ(EINVAL, a.nic->RegMr(a.process, a.pd, 4096, 10, 4096, IBV_ACCESS_REMOTE_WRITE, &key))
      << "remote write needs local write";
  EXPECT_EQ(EINVAL, a.nic->RegMr(a.process, a.pd, UINT64_MAX - 4, 10, 0, 0, &key));
  ibv_srq_attr srq{11, 1, 0};
  SrqId id = 0;
  EXPECT_EQ(EINVAL, a.nic->CreateSrq(a.process, a.pd, srq, &id, &srq));
}

TEST_F(SoftModelObjects, ObjectsInUseAndObjectsOfOthers) {
  const uint32_t qp = rig.CreateQp(a, options);
  EXPECT_EQ(EBUSY, a.nic->DeallocPd(a.process, a.pd));
  EXPECT_EQ(EBUSY, a.nic->DestroyCq(a.process, a.cq));
  Node& stranger = rig.AddNode(0);
  EXPECT_EQ(EINVAL, a.nic->DestroyQp(stranger.process, qp));
  EXPECT_EQ(EINVAL, a.nic->DestroyCq(stranger.process, a.cq));
  QpInit init;
  init.pd = stranger.pd;
  init.send_cq = init.recv_cq = a.cq;
  uint32_t other = 0;
  EXPECT_EQ(EINVAL, a.nic->CreateQp(stranger.process, &init, &other));
  EXPECT_EQ(0, a.nic->DestroyQp(a.process, qp));
  EXPECT_EQ(0, a.nic->DestroyCq(a.process, a.cq));
  EXPECT_EQ(0, a.nic->DeallocPd(a.process, a.pd));
}

TEST_F(SoftModelObjects, DetachFreesEverything) {
  for (int round = 0; round < 5; ++round) {
    auto memory = std::make_unique<DirectMemory>(rig.fabric());
    Node& node = rig.AddNode(0);
    Buffer buffer = node.MakeBuffer(100, 1);
    Buffer second = node.MakeBuffer(100, 1);
    for (int i = 0; i < 3; ++i) rig.CreateQp(node, options);
    rig.fabric()->DetachProcess(node.process);
  }
  // All limits are as free as before: three queue pairs, two regions.
  Buffer one = a.MakeBuffer(10, 1);
  Buffer two = a.MakeBuffer(10, 1);
  for (int i = 0; i < 3; ++i) rig.CreateQp(a, options);
}

TEST_F(SoftModelObjects, QueuePairNumbersAreNotReusedAtOnce) {
  const uint32_t first = rig.CreateQp(a, options);
  ASSERT_EQ(0, a.nic->DestroyQp(a.process, first));
  EXPECT_NE(first, rig.CreateQp(a, options));
  const uint32_t other = rig.CreateQp(b, options);
  EXPECT_NE(first >> 12, other >> 12) << "numbers of different NICs differ";
}

TEST_F(SoftModelObjects, ResizeCompletionQueue) {
  uint32_t depth = 0;
  EXPECT_EQ(0, a.nic->ResizeCq(a.process, a.cq, 100, &depth));
  EXPECT_EQ(100u, depth);
  EXPECT_EQ(EINVAL, a.nic->ResizeCq(a.process, a.cq, 70000, &depth));
}

TEST_F(SoftModelObjects, DrainStopsNewWorkAndResumes) {
  const auto [qa, qb] = rig.Connect(a, b, options);
  Buffer from = a.MakeBuffer(500000, 1);
  Buffer to = b.MakeBuffer(500000, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run(5 * kPicosPerUs);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(0, Modify(qa, attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  ASSERT_EQ(0, a.nic->QueryQp(a.process, qa, &attr));
  EXPECT_EQ(1, attr.sq_draining);
  EXPECT_TRUE(a.Events().empty());
  rig.Run();
  EXPECT_EQ(1u, a.One().wr_id) << "what was begun is finished, nothing new is begun";
  EXPECT_EQ(std::vector{IBV_EVENT_SQ_DRAINED}, a.Events());
  attr.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(0, Modify(qa, attr, IBV_QP_STATE));
  rig.Run();
  EXPECT_EQ(2u, a.One().wr_id);
}

TEST_F(SoftModelObjects, ReconnectAfterReset) {
  const auto [qa, qb] = rig.Connect(a, b, options);
  Buffer from = a.MakeBuffer(100000, 1);
  Buffer to = b.MakeBuffer(100000, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run(9 * kPicosPerUs);
  ibv_qp_attr reset{};
  ASSERT_EQ(0, Modify(qa, reset, IBV_QP_STATE));
  ASSERT_EQ(0, b.nic->ModifyQp(b.process, qb, reset, IBV_QP_STATE));
  Rig::Establish(a, qa, b, qb, options, 1000, 2000);
  Rig::Establish(b, qb, a, qa, options, 2000, 1000);
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run();
  EXPECT_EQ(2u, a.One().wr_id);
  EXPECT_EQ(from.bytes, to.bytes);
}

TEST_F(SoftModelObjects, CommunicationEstablishedEvent) {
  const uint32_t qa = rig.CreateQp(a, options);
  const uint32_t qb = rig.CreateQp(b, options);
  Rig::Establish(a, qa, b, qb, options, 1, 2);
  ASSERT_EQ(0, b.nic->ModifyQp(b.process, qb, Rig::InitAttr(options), Rig::kInitMask));
  ASSERT_EQ(0, b.nic->ModifyQp(b.process, qb, Rig::RtrAttr(options, a, qa, 1), Rig::kRtrMask));
  ASSERT_EQ(0, b.Recv(qb, 1, {}));
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND, {}));
  rig.Run();
  EXPECT_EQ(std::vector{IBV_EVENT_COMM_EST}, b.Events());
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status) << "a queue pair in RTR receives and acknowledges";
}

TEST_F(SoftModelObjects, PortsAndIdentifiers) {
  ibv_port_attr port{};
  ASSERT_EQ(0, a.nic->QueryPort(2, &port));
  EXPECT_EQ(IBV_PORT_ACTIVE, port.state);
  EXPECT_EQ(IBV_LINK_LAYER_ETHERNET, port.link_layer);
  EXPECT_EQ(IBV_MTU_4096, port.active_mtu);
  EXPECT_EQ(2, port.active_width) << "4X";
  EXPECT_EQ(32, port.active_speed) << "EDR, 25 Gb/s a lane";
  EXPECT_EQ(EINVAL, a.nic->QueryPort(3, &port));
  GidEntry v1, v2, empty;
  ASSERT_EQ(0, a.nic->QueryGid(1, 2, &v1));
  ASSERT_EQ(0, a.nic->QueryGid(1, 3, &v2));
  ASSERT_EQ(0, a.nic->QueryGid(1, 7, &empty));
  EXPECT_EQ(GidType::kRoceV1, v1.type);
  EXPECT_EQ(GidType::kRoceV2, v2.type);
  EXPECT_FALSE(empty.valid);
  EXPECT_EQ(0x0A000001u, be32toh(*reinterpret_cast<const uint32_t*>(v2.gid.raw + 12))) << "10.0.0.1";
  ibv_device_attr device{};
  a.nic->QueryDevice(&device);
  EXPECT_EQ(3, device.max_qp);
  EXPECT_EQ(2, device.phys_port_cnt);
  EXPECT_EQ(a.nic->info().node_guid, be64toh(device.node_guid));
  EXPECT_NE(a.nic->info().node_guid, b.nic->info().node_guid);
  Rig infiniband("hosts=2,link=infiniband,rate=400G");
  ASSERT_EQ(0, infiniband.fabric()->nic(1, 0)->QueryPort(1, &port));
  EXPECT_EQ(2, port.lid);
  EXPECT_EQ(IBV_LINK_LAYER_INFINIBAND, port.link_layer);
  EXPECT_EQ(128, port.active_speed) << "NDR";
}

TEST_F(SoftModelObjects, PortDownAndUp) {
  options.retry_cnt = 7;
  options.timeout = 14;
  const auto [qa, qb] = rig.Connect(a, b, options);
  Buffer from = a.MakeBuffer(1 << 20, 1);
  Buffer to = b.MakeBuffer(1 << 20, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run(20 * kPicosPerUs);
  ASSERT_EQ(0, a.nic->SetPortUp(1, false));
  EXPECT_EQ(std::vector{IBV_EVENT_PORT_ERR}, a.Events());
  EXPECT_TRUE(b.Events().empty()) << "only the port that lost its link";
  ibv_port_attr port{};
  ASSERT_EQ(0, a.nic->QueryPort(1, &port));
  EXPECT_EQ(IBV_PORT_DOWN, port.state);
  rig.Run(100 * kPicosPerMs);
  EXPECT_TRUE(a.Completions().empty());
  ASSERT_EQ(0, a.nic->SetPortUp(1, true));
  EXPECT_EQ(std::vector{IBV_EVENT_PORT_ACTIVE}, a.Events());
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status) << "a short flap costs a retry, not the connection";
  EXPECT_EQ(from.bytes, to.bytes);
  EXPECT_EQ(1u, a.counters().link_downed);
}

TEST_F(SoftModelObjects, GidChangeAndDeviceDeath) {
  GidEntry entry;
  ASSERT_EQ(0, a.nic->QueryGid(1, 3, &entry));
  entry.gid.raw[15] = 200;
  ASSERT_EQ(0, a.nic->SetGid(1, 5, entry));
  EXPECT_EQ(std::vector{IBV_EVENT_GID_CHANGE}, a.Events());
  const auto [qa, qb] = rig.Connect(a, b, options);
  ASSERT_EQ(0, b.Recv(qb, 1, {}));
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND, {}));
  a.nic->Die();
  EXPECT_EQ(std::vector{IBV_EVENT_DEVICE_FATAL}, a.Events());
  EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, a.One().status);
  PdId pd = 0;
  EXPECT_EQ(EIO, a.nic->AllocPd(a.process, &pd));
}

}  // namespace
}  // namespace sluice::soft
