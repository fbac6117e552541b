// Every error status of an RC queue pair: what both ends see, and that everything else is flushed.
#include "soft_model_rig.h"

namespace sluice::soft {
namespace {

class SoftModelErrors : public ::testing::Test {
 protected:
  Rig rig{"hosts=3"};
  Node& a = rig.AddNode(0);
  Node& b = rig.AddNode(1);

  // `a` fails with `status`; work behind is flushed; only wr_id, status, qp_num and vendor_err are defined.
  void ExpectFailure(uint32_t qp, uint64_t wr_id, ibv_wc_status status, uint64_t flushed) {
    const std::vector<Completion> all = a.Completions();
    ASSERT_EQ(1 + flushed, all.size());
    EXPECT_EQ(wr_id, all[0].wr_id);
    EXPECT_EQ(status, all[0].status);
    EXPECT_EQ(qp, all[0].qp_num);
    EXPECT_FALSE(all[0].full);
    EXPECT_NE(0u, all[0].vendor_err);
    for (size_t i = 1; i < all.size(); ++i) {
      EXPECT_EQ(wr_id + i, all[i].wr_id);
      EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, all[i].status);
    }
    EXPECT_EQ(IBV_QPS_ERR, a.State(qp));
  }
};

TEST_F(SoftModelErrors, LocalKeyErrors) {
  Buffer from = a.MakeBuffer(100, 1);
  Buffer to = b.MakeBuffer(100, 2);
  Buffer read_only = a.MakeBuffer(100, 1, 0);
  PdId other_pd = 0;
  ASSERT_EQ(0, a.nic->AllocPd(a.process, &other_pd));
  uint32_t other_key = 0;
  ASSERT_EQ(0,
            a.nic->RegMr(a.process, other_pd, from.address(), 100, from.address(), kAllAccess, &other_key));
  struct Case {
    const char* what;
    ibv_sge sge;
    ibv_wr_opcode opcode;
  };
  const Case cases[] = {
      {"unknown key", {from.address(), 10, from.key + 0x10000}, IBV_WR_RDMA_WRITE},
      {"beyond the end", from.Sge(95, 6), IBV_WR_RDMA_WRITE},
      {"before the start", {from.address() - 1, 10, from.key}, IBV_WR_RDMA_WRITE},
      {"another protection domain", {from.address(), 10, other_key}, IBV_WR_SEND},
      {"READ into memory without local write", read_only.Sge(0, 10), IBV_WR_RDMA_READ},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const auto [qa, qb] = rig.Connect(a, b);
    ASSERT_EQ(0, a.Post(qa, 1, c.opcode, {c.sge}, to.address(), to.key));
    rig.Run();
    ExpectFailure(qa, 1, IBV_WC_LOC_PROT_ERR, 0);
    EXPECT_EQ(IBV_QPS_RTS, b.State(qb)) << "nothing was sent";
  }
}

TEST_F(SoftModelErrors, LocalErrorIsReportedAfterEarlierWork) {
  const auto [qa, qb] = rig.Connect(a, b);
  Buffer from = a.MakeBuffer(100000, 1);
  Buffer to = b.MakeBuffer(100000, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_WRITE, {{from.address(), 8, 0}}, to.address(), to.key));
  ASSERT_EQ(0, a.Post(qa, 3, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key, 0));
  rig.Run();
  const std::vector<Completion> all = a.Completions();
  ASSERT_EQ(3u, all.size());
  EXPECT_EQ(IBV_WC_SUCCESS, all[0].status);
  EXPECT_EQ(IBV_WC_LOC_PROT_ERR, all[1].status);
  EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, all[2].status) << "flushed work completes even when unsignalled";
  EXPECT_EQ(from.bytes, to.bytes);
}

TEST_F(SoftModelErrors, RemoteAccessErrors) {
  Buffer from = a.MakeBuffer(100, 1);
  Buffer to = b.MakeBuffer(100, 2);
  Buffer local_only = b.MakeBuffer(100, 2, IBV_ACCESS_LOCAL_WRITE);
  Buffer gone = b.MakeBuffer(100, 2);
  ASSERT_EQ(0, b.nic->DeregMr(b.process, gone.key));
  struct Case {
    const char* what;
    ibv_wr_opcode opcode;
    uint64_t address;
    uint32_t key;
    unsigned qp_access;
  };
  const Case cases[] = {
      {"write with unknown key", IBV_WR_RDMA_WRITE, to.address(), 0x77777700, kAllAccess},
      {"write beyond the end", IBV_WR_RDMA_WRITE, to.address() + 96, to.key, kAllAccess},
      {"write before the start", IBV_WR_RDMA_WRITE, to.address() - 1, to.key, kAllAccess},
      {"write without right of the region", IBV_WR_RDMA_WRITE, local_only.address(), local_only.key,
       kAllAccess},
      {"write after deregistration", IBV_WR_RDMA_WRITE, gone.address(), gone.key, kAllAccess},
      {"write without right of the queue pair", IBV_WR_RDMA_WRITE, to.address(), to.key,
       IBV_ACCESS_REMOTE_READ},
      {"read without right of the region", IBV_WR_RDMA_READ, local_only.address(), local_only.key,
       kAllAccess},
      {"read without right of the queue pair", IBV_WR_RDMA_READ, to.address(), to.key,
       IBV_ACCESS_REMOTE_WRITE},
      {"read beyond the end", IBV_WR_RDMA_READ, to.address() + 93, to.key, kAllAccess},
      {"atomic without right", IBV_WR_ATOMIC_FETCH_AND_ADD, local_only.address(), local_only.key, kAllAccess},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    QpOptions options;
    options.access = c.qp_access;
    const auto [qa, qb] = rig.Connect(a, b, options);
    ASSERT_EQ(0, b.Recv(qb, 50, {}));
    ASSERT_EQ(0, a.Post(qa, 1, c.opcode, {from.Sge(0, 8)}, c.address, c.key));
    ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_SEND, {}));
    rig.Run();
    ExpectFailure(qa, 1, IBV_WC_REM_ACCESS_ERR, 1);
    EXPECT_EQ(IBV_QPS_ERR, b.State(qb));
    EXPECT_EQ(std::vector{IBV_EVENT_QP_ACCESS_ERR}, b.Events());
    EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, b.One().status);
  }
  EXPECT_GT(a.counters().req_remote_access_errors, 0u);
  EXPECT_GT(b.counters().resp_remote_access_errors, 0u);
}

TEST_F(SoftModelErrors, RefusedRequestBehindReadsLetsTheReadsFinish) {
  const auto [qa, qb] = rig.Connect(a, b);
  Buffer local = a.MakeBuffer(500000, 1);
  Buffer remote = b.MakeBuffer(500000, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_READ, {local.All()}, remote.address(), remote.key));
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_WRITE, {local.Sge(0, 8)}, remote.address(), 0));
  rig.Run();
  const std::vector<Completion> all = a.Completions();
  ASSERT_EQ(2u, all.size());
  EXPECT_EQ(IBV_WC_SUCCESS, all[0].status);
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, all[1].status);
  EXPECT_EQ(remote.bytes, local.bytes);
}

TEST_F(SoftModelErrors, MessageLongerThanTheReceive) {
  const auto [qa, qb] = rig.Connect(a, b);
  Buffer from = a.MakeBuffer(10000, 1);
  Buffer to = b.MakeBuffer(10000, 2);
  ASSERT_EQ(0, b.Recv(qb, 8, {to.Sge(0, 9999)}));
  ASSERT_EQ(0, b.Recv(qb, 9, {to.All()}));
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND, {from.All()}));
  rig.Run();
  ExpectFailure(qa, 1, IBV_WC_REM_INV_REQ_ERR, 0);
  const std::vector<Completion> received = b.Completions();
  ASSERT_EQ(2u, received.size());
  EXPECT_EQ(8u, received[0].wr_id);
  EXPECT_EQ(IBV_WC_LOC_LEN_ERR, received[0].status);
  EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, received[1].status);
}

TEST_F(SoftModelErrors, ReceiveWithBadKey) {
  const auto [qa, qb] = rig.Connect(a, b);
  Buffer from = a.MakeBuffer(100, 1);
  Buffer to = b.MakeBuffer(100, 2, 0);
  ASSERT_EQ(0, b.Recv(qb, 8, {to.All()}));
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND, {from.All()}));
  rig.Run();
  ExpectFailure(qa, 1, IBV_WC_REM_OP_ERR, 0);
  EXPECT_EQ(IBV_WC_LOC_PROT_ERR, b.One().status);
}

TEST_F(SoftModelErrors, ReceiverNotReadyRetriesThenFails) {
  QpOptions options;
  options.rnr_retry = 3;
  options.min_rnr_timer = 14;  // 1.28 ms
  const auto [qa, qb] = rig.Connect(a, b, options);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND, {}));
  rig.Run();
  const Completion failed = a.One();
  EXPECT_EQ(IBV_WC_RNR_RETRY_EXC_ERR, failed.status);
  EXPECT_EQ(IBV_QPS_ERR, a.State(qa));
  EXPECT_EQ(4u, b.counters().rnr_nak_sent) << "the first try and three more";
  EXPECT_EQ(4u, a.counters().rnr_nak_received);
  // Three waits, and four round trips of 4.1 us.
  EXPECT_NEAR(3 * 1280 + 4 * 4.03, static_cast<double>(failed.timestamp) / kPicosPerUs, 1.0);
}

TEST_F(SoftModelErrors, ReceiverNotReadyForeverThenReady) {
  QpOptions options;
  options.rnr_retry = 7;  // without end
  const auto [qa, qb] = rig.Connect(a, b, options);
  Buffer from = a.MakeBuffer(20000, 1);
  Buffer to = b.MakeBuffer(20000, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND, {from.All()}));
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_RDMA_WRITE_WITH_IMM, {from.All()}, to.address(), to.key));
  rig.Run(10 * kPicosPerMs);
  EXPECT_TRUE(a.Completions().empty());
  EXPECT_GT(a.counters().rnr_nak_received, 100u);
  ASSERT_EQ(0, b.Recv(qb, 1, {to.All()}));
  rig.Run(20 * kPicosPerMs);
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  ASSERT_EQ(0, b.Recv(qb, 2, {}));
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
  EXPECT_EQ(2u, b.Completions().size());
  EXPECT_EQ(from.bytes, to.bytes);
  EXPECT_EQ(0u, a.counters().local_ack_timeout_err);
}

TEST_F(SoftModelErrors, SilentPeerExhaustsRetries) {
  QpOptions options;
  options.timeout = 8;  // 1.05 ms
  options.retry_cnt = 2;
  const auto [qa, qb] = rig.Connect(a, b, options);
  ASSERT_EQ(0, b.nic->DestroyQp(b.process, qb));
  Buffer from = a.MakeBuffer(100000, 1);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, 0, 0));
  ASSERT_EQ(0, a.Post(qa, 2, IBV_WR_SEND, {}));
  rig.Run();
  const Picos failed_at = a.memory->Peek(a.cq).timestamp;
  ExpectFailure(qa, 1, IBV_WC_RETRY_EXC_ERR, 1);
  EXPECT_EQ(3u, a.counters().local_ack_timeout_err);
  // Each period starts with the first packet that asks for an answer, the 16th.
  EXPECT_NEAR(3 * (4.096 * 256 + 16 * 0.334), static_cast<double>(failed_at) / kPicosPerUs, 2.0);
}

TEST_F(SoftModelErrors, DeadProcessIsSilence) {
  QpOptions options;
  options.retry_cnt = 1;
  const auto [qa, qb] = rig.Connect(a, b, options);
  Buffer from = a.MakeBuffer(1 << 20, 1);
  Buffer to = b.MakeBuffer(1 << 20, 2);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run(20 * kPicosPerUs);
  rig.fabric()->DetachProcess(b.process);
  const std::vector<uint8_t> after = to.bytes;
  rig.Run();
  ExpectFailure(qa, 1, IBV_WC_RETRY_EXC_ERR, 0);
  EXPECT_EQ(after, to.bytes) << "memory of a dead process was touched";
  EXPECT_EQ(EINVAL, b.nic->PostSend(qb, {}));
  EXPECT_EQ(0u, rig.pool().bytes_in_use());
}

TEST_F(SoftModelErrors, UnknownAddressIsSilence) {
  QpOptions options;
  options.retry_cnt = 0;
  const uint32_t qa = rig.CreateQp(a, options);
  ASSERT_EQ(0, a.nic->ModifyQp(a.process, qa, Rig::InitAttr(options), Rig::kInitMask));
  ibv_qp_attr rtr = Rig::RtrAttr(options, b, 99, 0);
  rtr.ah_attr.grh.dgid.raw[15] = 0xEE;
  ASSERT_EQ(0, a.nic->ModifyQp(a.process, qa, rtr, Rig::kRtrMask));
  ASSERT_EQ(0, a.nic->ModifyQp(a.process, qa, Rig::RtsAttr(options, 0), Rig::kRtsMask));
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND, {}));
  rig.Run();
  ExpectFailure(qa, 1, IBV_WC_RETRY_EXC_ERR, 0);
}

TEST_F(SoftModelErrors, AQueuePairHearsOnlyItsPeer) {
  Node& c = rig.AddNode(2);
  const auto [qa, qb] = rig.Connect(a, b);
  QpOptions options;
  options.retry_cnt = 0;
  const uint32_t qc = rig.CreateQp(c, options);
  Rig::Establish(c, qc, b, qb, options, options.psn_a, options.psn_b);
  ASSERT_EQ(0, b.Recv(qb, 1, {}));
  ASSERT_EQ(0, c.Post(qc, 1, IBV_WR_SEND, {}));
  rig.Run();
  EXPECT_EQ(IBV_WC_RETRY_EXC_ERR, c.One().status);
  EXPECT_TRUE(b.Completions().empty());
  EXPECT_EQ(0, a.Post(qa, 2, IBV_WR_SEND, {}));
  rig.Run();
  EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
}

TEST_F(SoftModelErrors, MoreReadsThanThePeerAllows) {
  QpOptions options;
  options.max_rd_atomic = 8;
  options.max_dest_rd_atomic = 1;
  const auto [qa, qb] = rig.Connect(a, b, options);
  Buffer local = a.MakeBuffer(100000, 1);
  Buffer remote = b.MakeBuffer(100000, 2);
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_EQ(0, a.Post(qa, i, IBV_WR_RDMA_READ, {local.All()}, remote.address(), remote.key));
  }
  rig.Run();
  const std::vector<Completion> all = a.Completions();
  ASSERT_EQ(3u, all.size());
  EXPECT_EQ(IBV_WC_SUCCESS, all[0].status);
  EXPECT_EQ(IBV_WC_REM_INV_REQ_ERR, all[1].status);
  EXPECT_EQ(std::vector{IBV_EVENT_QP_REQ_ERR}, b.Events());
}

TEST_F(SoftModelErrors, LocalOperationErrors) {
  Buffer local = a.MakeBuffer(100, 1);
  Buffer remote = b.MakeBuffer(100, 2);
  QpOptions options;
  options.max_rd_atomic = 0;
  const auto [q1, r1] = rig.Connect(a, b, options);
  ASSERT_EQ(0, a.Post(q1, 1, IBV_WR_RDMA_READ, {local.All()}, remote.address(), remote.key));
  rig.Run();
  ExpectFailure(q1, 1, IBV_WC_LOC_QP_OP_ERR, 0);
  const auto [q2, r2] = rig.Connect(a, b);
  ASSERT_EQ(0, a.Post(q2, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, {local.Sge(0, 16)}, remote.address(), remote.key));
  rig.Run();
  ExpectFailure(q2, 1, IBV_WC_LOC_LEN_ERR, 0);
  const auto [q3, r3] = rig.Connect(a, b);
  ASSERT_EQ(0, a.Post(q3, 1, IBV_WR_RDMA_WRITE, {{0, 1U << 31, 1}, {0, 1, 1}}, remote.address(), remote.key));
  rig.Run();
  ExpectFailure(q3, 1, IBV_WC_LOC_LEN_ERR, 0);
  const auto [q4, r4] = rig.Connect(a, b);
  ASSERT_EQ(0, a.PostAtomic(q4, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, local.Sge(0, 8), remote.address() + 4,
                            remote.key, 1, 0));
  rig.Run();
  ExpectFailure(q4, 1, IBV_WC_REM_INV_REQ_ERR, 0);
}

TEST_F(SoftModelErrors, SendWithInvalidateOfAPlainRegion) {
  const auto [qa, qb] = rig.Connect(a, b);
  ASSERT_EQ(0, b.Recv(qb, 4, {}));
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND_WITH_INV, {}, 0, 0, IBV_SEND_SIGNALED, 77));
  rig.Run();
  ExpectFailure(qa, 1, IBV_WC_REM_ACCESS_ERR, 0);
  EXPECT_NE(IBV_WC_SUCCESS, b.One().status);
}

TEST_F(SoftModelErrors, MovingToErrorFlushesBothQueues) {
  ibv_srq_attr srq_attr{10, 1, 0};
  ASSERT_EQ(0, a.nic->CreateSrq(a.process, a.pd, srq_attr, &a.srq, &srq_attr));
  const auto [qa, qb] = rig.Connect(a, b);
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(0, a.Recv(qa, 100 + i, {}));
    ASSERT_EQ(0, a.Post(qa, i, IBV_WR_SEND, {}, 0, 0, 0));
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(0, a.nic->ModifyQp(a.process, qa, attr, IBV_QP_STATE));
  EXPECT_EQ(6u, a.Completions().size());
  // Work posted to a queue pair in error completes at once.
  ASSERT_EQ(0, a.Post(qa, 7, IBV_WR_SEND, {}));
  EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, a.One().status);
  ASSERT_EQ(0, a.Recv(qa, 8, {}));
  EXPECT_EQ(8u, a.One().wr_id);
  EXPECT_TRUE(a.Events().empty());

  QpOptions options;
  options.with_srq = true;
  const uint32_t qs = rig.CreateQp(a, options);
  ASSERT_EQ(0, a.nic->ModifyQp(a.process, qs, Rig::InitAttr(options), Rig::kInitMask));
  ASSERT_EQ(0, a.nic->PostSrqRecv(a.srq, {1, {}}));
  ASSERT_EQ(0, a.nic->ModifyQp(a.process, qs, attr, IBV_QP_STATE));
  EXPECT_TRUE(a.Completions().empty()) << "entries of a shared queue belong to nobody";
  EXPECT_EQ(std::vector{IBV_EVENT_QP_LAST_WQE_REACHED}, a.Events());
}

TEST_F(SoftModelErrors, CompletionQueueOverrun) {
  Node& small = rig.AddNode(2, 0, nullptr, 4);
  const auto [qs, qb] = rig.Connect(small, b);
  Buffer from = small.MakeBuffer(8, 1);
  Buffer to = b.MakeBuffer(8, 1);
  const auto post = [&](uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_EQ(0, small.Post(qs, i, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
    }
    rig.Run();
  };
  post(4);
  EXPECT_EQ(4u, small.Completions().size());
  post(4);
  EXPECT_EQ(IBV_QPS_RTS, small.State(qs)) << "taken entries make room";
  post(2);
  EXPECT_EQ(IBV_QPS_ERR, small.State(qs));
  EXPECT_EQ((std::vector{IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL}), small.Events());
  EXPECT_EQ(4u, small.Completions().size());
}

}  // namespace
}  // namespace sluice::soft
