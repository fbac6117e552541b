// The verbs semantics that the fake library keeps: SEND, shared receive queues, inline, READ,
// receiver-not-ready waits, send queue limits, key checks and flushing. A fake that forgets one of them would
// make a faulty plugin look cheap.

#include <errno.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <string.h>

#include <initializer_list>
#include <thread>

namespace {

uint64_t Address(const void* p) {
  return reinterpret_cast<uint64_t>(p);
}

struct End {
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  char buf[4096] = {};
};

class NullverbsTest : public testing::Test {
 protected:
  void SetUp() override {
    int n = 0;
    list_ = ibv_get_device_list(&n);
    ASSERT_EQ(n, 2);
    context_ = ibv_open_device(list_[0]);
    ASSERT_NE(context_, nullptr);
    pd_ = ibv_alloc_pd(context_);
    ASSERT_NE(pd_, nullptr);
  }

  void TearDown() override {
    EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
    EXPECT_EQ(ibv_close_device(context_), 0);
    ibv_free_device_list(list_);
  }

  void Make(End& e, ibv_srq* srq = nullptr) {
    e.cq = ibv_create_cq(context_, 64, nullptr, nullptr, 0);
    ibv_qp_init_attr a = {};
    a.send_cq = a.recv_cq = e.cq;
    a.srq = srq;
    a.qp_type = IBV_QPT_RC;
    a.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64};
    e.qp = ibv_create_qp(pd_, &a);
    ASSERT_NE(e.qp, nullptr);
    e.mr = ibv_reg_mr(pd_, e.buf, sizeof e.buf,
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    ASSERT_NE(e.mr, nullptr);
    ASSERT_NE(e.mr->lkey, e.mr->rkey);
  }

  static void Destroy(End& e) {
    EXPECT_EQ(ibv_destroy_qp(e.qp), 0);
    EXPECT_EQ(ibv_destroy_cq(e.cq), 0);
    EXPECT_EQ(ibv_dereg_mr(e.mr), 0);
  }

  static void Join(End& a, End& b) {
    for (End* e : {&a, &b}) {
      ibv_qp_attr q = {};
      q.qp_state = IBV_QPS_INIT;
      q.port_num = 1;
      q.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
      ASSERT_EQ(
          ibv_modify_qp(e->qp, &q, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), 0);
      q.qp_state = IBV_QPS_RTS;
      ASSERT_EQ(ibv_modify_qp(e->qp, &q, IBV_QP_STATE), EINVAL) << "RTR may not be left out";
      q.qp_state = IBV_QPS_RTR;
      q.dest_qp_num = (e == &a ? b : a).qp->qp_num;
      ASSERT_EQ(ibv_modify_qp(e->qp, &q, IBV_QP_STATE | IBV_QP_DEST_QPN), 0);
      q.qp_state = IBV_QPS_RTS;
      ASSERT_EQ(ibv_modify_qp(e->qp, &q, IBV_QP_STATE), 0);
    }
  }

  static int Send(End& from, ibv_wr_opcode op, unsigned flags, ibv_sge* sge, int n, uint64_t remote = 0,
                  uint32_t rkey = 0, uint64_t id = 0) {
    ibv_send_wr w = {}, *bad;
    w.wr_id = id;
    w.opcode = op;
    w.send_flags = flags;
    w.sg_list = sge;
    w.num_sge = n;
    w.imm_data = 77;
    w.wr.rdma.remote_addr = remote;
    w.wr.rdma.rkey = rkey;
    return ibv_post_send(from.qp, &w, &bad);
  }

  static void Receive(End& e, uint64_t id, ibv_sge* sge = nullptr, int n = 0) {
    ibv_recv_wr w = {}, *bad;
    w.wr_id = id;
    w.sg_list = sge;
    w.num_sge = n;
    ASSERT_EQ(ibv_post_recv(e.qp, &w, &bad), 0);
  }

  // The only completion that waits.
  static ibv_wc One(End& e) {
    ibv_wc wc[2] = {};
    EXPECT_EQ(ibv_poll_cq(e.cq, 2, wc), 1);
    return wc[0];
  }
  static bool Quiet(End& e) {
    ibv_wc wc;
    return ibv_poll_cq(e.cq, 1, &wc) == 0;
  }

  ibv_device** list_ = nullptr;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
};

// Two connected ends.
class NullverbsPairTest : public NullverbsTest {
 protected:
  void SetUp() override {
    NullverbsTest::SetUp();
    Make(a_);
    Make(b_);
    Join(a_, b_);
  }
  void TearDown() override {
    Destroy(a_);
    Destroy(b_);
    NullverbsTest::TearDown();
  }
  ibv_sge Local(size_t offset, uint32_t length) { return {Address(a_.buf + offset), length, a_.mr->lkey}; }

  End a_, b_;
};

TEST_F(NullverbsTest, AnswersQueriesAndRefusesWhatItLacks) {
  ibv_port_attr port;
  EXPECT_EQ(ibv_query_port(context_, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_NE(ibv_query_port(context_, 2, &port), 0);
  ibv_gid_entry gid;
  EXPECT_EQ(ibv_query_gid_ex(context_, 1, 0, &gid, 0), 0);
  EXPECT_EQ(gid.port_num, 1u);
  ibv_cq_init_attr_ex extended = {};
  EXPECT_EQ(ibv_create_cq_ex(context_, &extended), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_reg_dmabuf_mr(pd_, 0, 0, 0, -1, 0), nullptr);
  EXPECT_EQ(errno, EBADF);
}

TEST_F(NullverbsPairTest, GatheredWriteAndWriteWithImmediate) {
  memcpy(a_.buf, "abc", 3);
  memcpy(a_.buf + 100, "defg", 4);
  ibv_sge two[2] = {Local(0, 3), Local(100, 4)};
  EXPECT_EQ(Send(a_, IBV_WR_RDMA_WRITE, 0, two, 2, Address(b_.buf), b_.mr->rkey), 0);
  EXPECT_TRUE(Quiet(a_)) << "unsignaled";
  EXPECT_EQ(memcmp(b_.buf, "abcdefg", 7), 0);
  Receive(b_, 5);
  EXPECT_EQ(Send(a_, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, nullptr, 0, 0, 0, 9), 0);
  const ibv_wc wc = One(b_);
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.imm_data, 77u);
  EXPECT_EQ(wc.byte_len, 0u);
  EXPECT_EQ(One(a_).wr_id, 9u);
}

TEST_F(NullverbsPairTest, InlineSendIntoScatteredReceive) {
  ibv_sge into[2] = {{Address(b_.buf + 200), 2, b_.mr->lkey}, {Address(b_.buf + 300), 50, b_.mr->lkey}};
  Receive(b_, 6, into, 2);
  char text[] = "hello";
  ibv_sge in = {Address(text), 5, 0};
  EXPECT_EQ(Send(a_, IBV_WR_SEND, IBV_SEND_INLINE | IBV_SEND_SIGNALED, &in, 1), 0);
  const ibv_wc wc = One(b_);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_EQ(wc.byte_len, 5u);
  EXPECT_EQ(memcmp(b_.buf + 200, "he", 2), 0);
  EXPECT_EQ(memcmp(b_.buf + 300, "llo", 3), 0);
  EXPECT_EQ(One(a_).opcode, IBV_WC_SEND);
}

TEST_F(NullverbsPairTest, Read) {
  memcpy(b_.buf, "abcdefg", 7);
  ibv_sge back = Local(500, 7);
  EXPECT_EQ(Send(a_, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, &back, 1, Address(b_.buf), b_.mr->rkey), 0);
  EXPECT_EQ(One(a_).opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(memcmp(a_.buf + 500, "abcdefg", 7), 0);
}

// The send waits, later work stays behind it, the send queue fills, and all resume in order.
TEST_F(NullverbsPairTest, ReceiverNotReady) {
  char text[] = "hello";
  ibv_sge in = {Address(text), 5, 0};
  ibv_sge data = Local(500, 7);
  memcpy(a_.buf + 500, "abcdefg", 7);
  EXPECT_EQ(Send(a_, IBV_WR_SEND_WITH_IMM, IBV_SEND_INLINE, &in, 1), 0);
  text[0] = 'J';  // inline data was taken by the call
  for (unsigned flags : {0u, 0u, unsigned{IBV_SEND_SIGNALED}}) {
    EXPECT_EQ(Send(a_, IBV_WR_RDMA_WRITE, flags, &data, 1, Address(b_.buf + 1000), b_.mr->rkey), 0);
    EXPECT_EQ(b_.buf[1000], 0);
  }
  EXPECT_EQ(Send(a_, IBV_WR_RDMA_WRITE, 0, &data, 1, Address(b_.buf), b_.mr->rkey), ENOMEM);
  EXPECT_TRUE(Quiet(a_));
  ibv_sge into = {Address(b_.buf + 300), 50, b_.mr->lkey};
  Receive(b_, 7, &into, 1);
  const ibv_wc wc = One(b_);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_TRUE(wc.wc_flags & IBV_WC_WITH_IMM);
  EXPECT_EQ(memcmp(b_.buf + 300, "hello", 5), 0);
  EXPECT_EQ(b_.buf[1000], 'a');
  EXPECT_EQ(One(a_).status, IBV_WC_SUCCESS);
}

TEST_F(NullverbsPairTest, WrongKeyBreaksTheConnectionAndFlushes) {
  Receive(a_, 11);
  ibv_sge data = Local(0, 7);
  EXPECT_EQ(Send(a_, IBV_WR_RDMA_WRITE, 0, &data, 1, Address(b_.buf), b_.mr->lkey), 0);
  ibv_wc both[4];
  ASSERT_EQ(ibv_poll_cq(a_.cq, 4, both), 2);
  EXPECT_EQ(both[0].wr_id, 11u);
  EXPECT_EQ(both[0].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(both[1].status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(Send(a_, IBV_WR_RDMA_WRITE, 0, &data, 1, Address(b_.buf), b_.mr->rkey), 0);
  EXPECT_EQ(One(a_).status, IBV_WC_WR_FLUSH_ERR);
}

// Two senders on one shared receive queue; then the same from two threads, with a third one posting receives
// and polling.
TEST_F(NullverbsTest, SharedReceiveQueue) {
  ibv_srq_init_attr init = {nullptr, {8, 1, 0}};
  ibv_srq* srq = ibv_create_srq(pd_, &init);
  End c[2], d[2];
  for (int i = 0; i < 2; ++i) {
    Make(c[i]);
    Make(d[i], srq);
    Join(c[i], d[i]);
  }
  for (End& e : c) EXPECT_EQ(Send(e, IBV_WR_RDMA_WRITE_WITH_IMM, 0, nullptr, 0), 0);
  EXPECT_TRUE(Quiet(d[0]) && Quiet(d[1]));
  ibv_recv_wr first = {}, second = {}, *bad;
  first.wr_id = 1;
  first.next = &second;
  second.wr_id = 2;
  EXPECT_EQ(ibv_post_srq_recv(srq, &first, &bad), 0);
  EXPECT_EQ(One(d[0]).wr_id, 1u);
  EXPECT_EQ(One(d[1]).wr_id, 2u);

  constexpr int kEach = 5000;
  std::thread senders[2];
  for (int i = 0; i < 2; ++i) {
    senders[i] = std::thread([&from = c[i]] {
      for (int sent = 0, done = 0; done < kEach;) {
        if (sent < kEach && !Send(from, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, nullptr, 0)) ++sent;
        ibv_wc got[4];
        done += ibv_poll_cq(from.cq, 4, got);
        std::this_thread::yield();
      }
    });
  }
  for (int got = 0, posted = 0; got < 2 * kEach;) {
    ibv_recv_wr w = {};
    if (posted < 2 * kEach && !ibv_post_srq_recv(srq, &w, &bad)) ++posted;
    ibv_wc wcs[4];
    got += ibv_poll_cq(d[0].cq, 4, wcs) + ibv_poll_cq(d[1].cq, 4, wcs);
    std::this_thread::yield();
  }
  for (std::thread& t : senders) t.join();
  for (End* e : {&c[0], &c[1], &d[0], &d[1]}) Destroy(*e);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

}  // namespace
