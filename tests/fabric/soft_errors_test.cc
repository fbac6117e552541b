// Every way in which work fails, seen from both ends, and how a program learns of it.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "tests/fabric/soft_pair.h"

namespace sluice::soft {
namespace {

SOFT_ROLE(Silent) {
  Endpoint e;
  e.ConnectOver(peer);
  peer.Barrier();
}

// The first failure of a queue pair, then a flush of everything behind it.
void ExpectFailureThenFlush(Endpoint& e, ibv_wc_status status) {
  const ibv_wc first = e.Wait();
  EXPECT_EQ(ibv_wc_status_str(first.status), std::string(ibv_wc_status_str(status)));
  EXPECT_EQ(first.wr_id, 1u);
  EXPECT_EQ(first.qp_num, e.qp->qp_num);
  EXPECT_EQ(e.State(), IBV_QPS_ERR);
  // Fields that an error leaves undefined hold nothing useful.
  EXPECT_NE(first.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_NE(first.byte_len, 0u);
  ASSERT_EQ(e.Send(IBV_WR_SEND, 0, 8, 0, 0, 2), 0);
  const ibv_wc flushed = e.Wait();
  EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(flushed.wr_id, 2u);
  ASSERT_EQ(e.Recv(0, 8, 3), 0);
  EXPECT_EQ(e.Wait().status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(SoftFabricTest, RemoteAccessByWrongKey) {
  Peer peer = StartPeer("Silent");
  Endpoint e;
  e.ConnectOver(peer.link);
  e.remote.rkey ^= 0x5500;
  ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 64), 0);
  ExpectFailureThenFlush(e, IBV_WC_REM_ACCESS_ERR);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(SoftFabricTest, RemoteAccessBeyondTheRegion) {
  Peer peer = StartPeer("Silent");
  Endpoint e;
  e.ConnectOver(peer.link);
  ASSERT_EQ(e.Send(IBV_WR_RDMA_READ, 0, 64, e.options.buffer_bytes - 63), 0);
  ExpectFailureThenFlush(e, IBV_WC_REM_ACCESS_ERR);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

SOFT_ROLE(ReadOnlyRegion) {
  Endpoint::Options options;
  options.access = IBV_ACCESS_REMOTE_READ;
  Endpoint e(options);
  e.ConnectOver(peer);
  ibv_async_event event = e.WaitEvent();
  SOFT_CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == e.qp);
  ibv_ack_async_event(&event);
  peer.Barrier();
}

TEST_F(SoftFabricTest, RemoteWriteWithoutPermission) {
  Peer peer = StartPeer("ReadOnlyRegion");
  Endpoint e;
  e.ConnectOver(peer.link);
  ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 64), 0);
  ExpectFailureThenFlush(e, IBV_WC_REM_ACCESS_ERR);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(SoftFabricTest, LocalProtection) {
  Peer peer = StartPeer("Silent");
  Endpoint e;
  e.ConnectOver(peer.link);
  ibv_sge sge{reinterpret_cast<uint64_t>(e.buffer), 64, e.mr->lkey ^ 0x3300};
  ibv_send_wr wr{};
  wr.wr_id = 1;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma.remote_addr = e.remote.buffer;
  wr.wr.rdma.rkey = e.remote.rkey;
  ASSERT_EQ(e.PostSend(wr), 0);
  ExpectFailureThenFlush(e, IBV_WC_LOC_PROT_ERR);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

SOFT_ROLE(ShortReceiver) {
  Endpoint e;
  e.ConnectOver(peer);
  SOFT_CHECK(e.Recv(0, 16, 1) == 0);
  SOFT_CHECK(e.Recv(0, 16, 2) == 0);
  peer.Barrier();
  const ibv_wc first = e.Wait();
  SOFT_CHECK(first.status == IBV_WC_LOC_LEN_ERR && first.wr_id == 1);
  const ibv_wc second = e.Wait();
  SOFT_CHECK(second.status == IBV_WC_WR_FLUSH_ERR && second.wr_id == 2);
  peer.Barrier();
}

TEST_F(SoftFabricTest, SendLongerThanTheReceive) {
  Peer peer = StartPeer("ShortReceiver");
  Endpoint e;
  e.ConnectOver(peer.link);
  peer.link.Barrier();
  ASSERT_EQ(e.Send(IBV_WR_SEND, 0, 64), 0);
  ExpectFailureThenFlush(e, IBV_WC_REM_INV_REQ_ERR);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

SOFT_ROLE(BadReceiver) {
  Endpoint e;
  e.ConnectOver(peer);
  e.mr->lkey ^= 0x7700;
  SOFT_CHECK(e.Recv(0, 64, 1) == 0);
  e.mr->lkey ^= 0x7700;
  peer.Barrier();
  SOFT_CHECK(e.Wait().status == IBV_WC_LOC_PROT_ERR);
  peer.Barrier();
}

TEST_F(SoftFabricTest, ReceiveIntoUnregisteredMemory) {
  Peer peer = StartPeer("BadReceiver");
  Endpoint e;
  e.ConnectOver(peer.link);
  peer.link.Barrier();
  ASSERT_EQ(e.Send(IBV_WR_SEND, 0, 64), 0);
  ExpectFailureThenFlush(e, IBV_WC_REM_OP_ERR);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(SoftFabricTest, ReceiverNotReady) {
  Peer peer = StartPeer("Silent");
  Endpoint::Options options;
  options.rnr_retry = 2;
  Endpoint e(options);
  e.ConnectOver(peer.link);
  ASSERT_EQ(e.Send(IBV_WR_SEND, 0, 64), 0);
  ExpectFailureThenFlush(e, IBV_WC_RNR_RETRY_EXC_ERR);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

SOFT_ROLE(LateReceiver) {
  Endpoint e;
  e.ConnectOver(peer);
  peer.Barrier();
  SOFT_CHECK(e.Recv(0, 64) == 0);
  SOFT_CHECK(e.Wait().status == IBV_WC_SUCCESS);
  peer.Barrier();
}

TEST_F(SoftFabricTest, ReceiverThatGetsReadyInTime) {
  Peer peer = StartPeer("LateReceiver");
  Endpoint e;
  e.ConnectOver(peer.link);
  ASSERT_EQ(e.Send(IBV_WR_SEND, 0, 64), 0);
  peer.link.Barrier();
  EXPECT_EQ(e.Wait().status, IBV_WC_SUCCESS);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(SoftFabricTest, KilledPeer) {
  Peer peer = StartPeer("Silent");
  Endpoint::Options options;
  options.timeout = 8;
  options.retry_cnt = 3;
  Endpoint e(options);
  e.ConnectOver(peer.link);
  peer.Kill();
  ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 64), 0);
  ExpectFailureThenFlush(e, IBV_WC_RETRY_EXC_ERR);
}

SOFT_ROLE(Flooded) {
  Endpoint e;
  e.ConnectOver(peer);
  pause();
}

TEST_F(SoftFabricTest, KilledPeerWhileDataFlows) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    Peer peer = StartPeer("Flooded");
    Endpoint::Options options;
    options.timeout = 8;
    options.retry_cnt = 3;
    Endpoint e(options);
    e.ConnectOver(peer.link);
    for (int i = 0; i < 16; ++i) ASSERT_EQ(e.Send(opcode, 0, 1 << 20), 0);
    EXPECT_EQ(e.Wait().status, IBV_WC_SUCCESS);
    peer.Kill();
    ibv_wc_status first_error = IBV_WC_SUCCESS;
    for (int i = 1; i < 16; ++i) {
      const ibv_wc_status status = e.Wait().status;
      if (first_error == IBV_WC_SUCCESS) first_error = status;
    }
    EXPECT_TRUE(first_error == IBV_WC_RETRY_EXC_ERR || first_error == IBV_WC_SUCCESS) << first_error;
  }
}

TEST_F(SoftFabricTest, KilledFabricProcess) {
  Peer peer = StartPeer("Flooded");
  ibv_comp_channel* channel = nullptr;
  {
    Endpoint::Options options;
    options.channel = &channel;
    Endpoint e(options);
    e.ConnectOver(peer.link);
    ASSERT_EQ(e.Recv(0, 64, 100), 0);
    ASSERT_EQ(ibv_req_notify_cq(e.cq, 0), 0);
    ASSERT_EQ(kill(FabricPid(), SIGKILL), 0);
    ibv_async_event event = e.WaitEvent();
    EXPECT_EQ(event.event_type, IBV_EVENT_DEVICE_FATAL);
    ibv_ack_async_event(&event);
    pollfd wait{channel->fd, POLLIN, 0};
    ASSERT_EQ(poll(&wait, 1, 60'000), 1) << "the flush wakes whoever waits for completions";
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(channel, &cq, &context), 0);
    ibv_ack_cq_events(cq, 1);
    const ibv_wc wc = e.Wait();
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, 100u);
    // Later work is flushed too; calls fail; nothing waits.
    EXPECT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 64, 0, 0, 200), 0);
    EXPECT_EQ(e.Wait().wr_id, 200u);
    ibv_port_attr port{};
    EXPECT_EQ(ibv_query_port(e.context, 1, &port), EIO);
    EXPECT_EQ(ibv_alloc_pd(e.context), nullptr);
    EXPECT_EQ(errno, EIO);
    EXPECT_EQ(ibv_destroy_cq(e.cq), EBUSY);
  }
  // A new fabric process serves the same program; the tree of the killed one goes.
  Endpoint again;
  again.ToInit();
  again.Connect(again.address());
  ASSERT_EQ(again.Send(IBV_WR_RDMA_WRITE, 0, 64, 4096), 0);
  EXPECT_EQ(again.Wait().status, IBV_WC_SUCCESS);
}

TEST_F(SoftFabricTest, PortGoesDownAndUp) {
  Peer peer = StartPeer("Silent");
  Endpoint::Options options;
  options.timeout = 12;
  Endpoint e(options);
  e.ConnectOver(peer.link);
  int code = 0;
  // Which of both processes came first, and is host0, is open: both ports change.
  const auto switch_ports = [&](const std::string& state) {
    for (const char* host : {"host0", "host1"}) {
      const std::string order = "--control 'port " + std::string(host) + " soft0 1 " + state + "'";
      EXPECT_EQ(RunFabricTool(order, &code), "ok\n");
    }
  };
  switch_ports("down");
  ibv_async_event event = e.WaitEvent();
  EXPECT_EQ(event.event_type, IBV_EVENT_PORT_ERR);
  EXPECT_EQ(event.element.port_num, 1);
  ibv_ack_async_event(&event);
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(e.context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 64), 0);
  switch_ports("up");
  event = e.WaitEvent();
  EXPECT_EQ(event.event_type, IBV_EVENT_PORT_ACTIVE);
  ibv_ack_async_event(&event);
  RunFabricTool("--control 'port host9 soft9 1 up'", &code);
  EXPECT_NE(code, 0);
  // Shorter than timeout times retries, or an error with a name.
  const ibv_wc_status status = e.Wait().status;
  EXPECT_TRUE(status == IBV_WC_SUCCESS || status == IBV_WC_RETRY_EXC_ERR) << ibv_wc_status_str(status);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(SoftFabricTest, CompletionQueueOverrun) {
  Endpoint::Options options;
  options.cqe = 4;
  Endpoint e(options);
  e.ToInit();
  e.Connect(e.address());
  for (int i = 0; i < 32; ++i) ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 8, 4096), 0);
  std::set<ibv_event_type> seen;
  while (!seen.contains(IBV_EVENT_CQ_ERR)) {
    ibv_async_event event = e.WaitEvent();
    seen.insert(event.event_type);
    EXPECT_TRUE(event.event_type != IBV_EVENT_CQ_ERR || event.element.cq == e.cq);
    ibv_ack_async_event(&event);
  }
}

}  // namespace
}  // namespace sluice::soft
