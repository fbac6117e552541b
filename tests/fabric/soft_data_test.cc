// Data between two processes by every operation of RC, through the library as programs use it.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/fabric/soft_pair.h"

namespace sluice::soft {
namespace {

uint8_t Pattern(uint64_t i) {
  return static_cast<uint8_t>(i * 131 + (i >> 8) * 7 + 1);
}
void Fill(Endpoint& e, uint64_t offset, uint64_t size) {
  for (uint64_t i = 0; i < size; ++i) *e.at(offset + i) = Pattern(i);
}
bool Matches(Endpoint& e, uint64_t offset, uint64_t size) {
  for (uint64_t i = 0; i < size; ++i) {
    if (*e.at(offset + i) != Pattern(i)) return false;
  }
  return true;
}

// Connects, then waits until the other side is done with our memory.
SOFT_ROLE(Passive) {
  Endpoint e;
  e.ConnectOver(peer);
  peer.Barrier();
}

constexpr uint32_t kSizes[] = {0, 1, 7, 8, 255, 1024, 1025, 4096, 65536, 65537, 400'003};

SOFT_ROLE(Receiver) {
  Endpoint e;
  e.ConnectOver(peer);
  for (const uint32_t size : kSizes) {
    SOFT_CHECK(e.Recv(3, 500'000, size) == 0);
    peer.Barrier();
    const ibv_wc wc = e.Wait();
    SOFT_CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == size);
    SOFT_CHECK(wc.byte_len == size && wc.qp_num == e.qp->qp_num && (wc.wc_flags & IBV_WC_WITH_IMM) == 0);
    SOFT_CHECK(Matches(e, 3, size));
  }
  peer.Barrier();
}

TEST_F(SoftFabricTest, SendsOfManySizes) {
  Peer peer = StartPeer("Receiver");
  Endpoint e;
  e.ConnectOver(peer.link);
  Fill(e, 5, 500'000);
  for (const uint32_t size : kSizes) {
    peer.link.Barrier();
    ASSERT_EQ(e.Send(IBV_WR_SEND, 5, size, 0, IBV_SEND_SIGNALED, 77), 0);
    const ibv_wc wc = e.Wait();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_SEND);
    EXPECT_EQ(wc.wr_id, 77u);
  }
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

SOFT_ROLE(WriteTarget) {
  Endpoint e;
  e.ConnectOver(peer);
  for (const uint32_t size : kSizes) {
    SOFT_CHECK(e.Recv(0, 0, size) == 0);
    peer.Barrier();
    const ibv_wc wc = e.Wait();
    SOFT_CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == size);
    SOFT_CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0 && wc.imm_data == htobe32(0x12345678));
    SOFT_CHECK(Matches(e, 9, size));
    memset(e.at(9), 0, size);
  }
  peer.Barrier();
}

TEST_F(SoftFabricTest, WritesWithImmediate) {
  Peer peer = StartPeer("WriteTarget");
  Endpoint e;
  e.ConnectOver(peer.link);
  Fill(e, 2, 500'000);
  for (const uint32_t size : kSizes) {
    peer.link.Barrier();
    ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE_WITH_IMM, 2, size, 9), 0);
    const ibv_wc wc = e.Wait();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
  }
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

SOFT_ROLE(ReadSource) {
  Endpoint e;
  Fill(e, 1, 500'000);
  memset(e.at(600'000), 0, 16);
  e.ConnectOver(peer);
  peer.Barrier();
  uint64_t counter;
  memcpy(&counter, e.at(600'000), 8);
  SOFT_CHECK(counter == 99);
}

TEST_F(SoftFabricTest, ReadsAndAtomics) {
  Peer peer = StartPeer("ReadSource");
  Endpoint e;
  e.ConnectOver(peer.link);
  for (const uint32_t size : kSizes) {
    ASSERT_EQ(e.Send(IBV_WR_RDMA_READ, 4, size, 1), 0);
    const ibv_wc wc = e.Wait();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_RDMA_READ);
    EXPECT_TRUE(Matches(e, 4, size)) << size;
    memset(e.at(4), 0, size);
  }
  const auto atomic = [&](ibv_wr_opcode opcode, uint64_t compare_add, uint64_t swap) {
    ibv_sge sge{reinterpret_cast<uint64_t>(e.buffer), 8, e.mr->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.atomic.remote_addr = e.remote.buffer + 600'000;
    wr.wr.atomic.rkey = e.remote.rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    EXPECT_EQ(e.PostSend(wr), 0);
    const ibv_wc wc = e.Wait();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP);
    uint64_t before;
    memcpy(&before, e.buffer, 8);
    return before;
  };
  EXPECT_EQ(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0), 0u);
  EXPECT_EQ(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 7, 0), 5u);
  EXPECT_EQ(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 11, 1), 12u);
  EXPECT_EQ(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 12, 99), 12u);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

SOFT_ROLE(SharedReceiver) {
  Endpoint::Options options;
  options.srq = true;
  Endpoint e(options);
  e.ConnectOver(peer);
  for (uint64_t i = 0; i < 64; ++i) SOFT_CHECK(e.Recv(i * 64, 64, 1000 + i) == 0);
  SOFT_CHECK(e.Recv(0, 64) == ENOMEM);
  ibv_srq_attr limit{};
  limit.srq_limit = 8;
  SOFT_CHECK(ibv_modify_srq(e.srq, &limit, IBV_SRQ_LIMIT) == 0);
  peer.Barrier();
  for (uint64_t i = 0; i < 64; ++i) {
    const ibv_wc wc = e.Wait();
    SOFT_CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1000 + i && wc.byte_len == 16);
    SOFT_CHECK(*e.at(i * 64) == i);
  }
  ibv_async_event event = e.WaitEvent();
  SOFT_CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == e.srq);
  ibv_ack_async_event(&event);
  // Taken entries are free again.
  SOFT_CHECK(e.Recv(0, 64) == 0);
  peer.Barrier();
}

TEST_F(SoftFabricTest, SharedReceiveQueueAndInlineBursts) {
  Peer peer = StartPeer("SharedReceiver");
  Endpoint e;
  e.ConnectOver(peer.link);
  peer.link.Barrier();
  for (uint64_t i = 0; i < 64; ++i) {
    memset(e.buffer, static_cast<int>(i), 16);
    // The buffer is used again at once: inline data is taken when it is posted.
    ASSERT_EQ(e.Send(IBV_WR_SEND, 0, 16, 0, IBV_SEND_INLINE | (i % 8 == 7 ? IBV_SEND_SIGNALED : 0), i), 0);
  }
  for (uint64_t i = 7; i < 64; i += 8) {
    const ibv_wc wc = e.Wait();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, i);
  }
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(SoftFabricTest, SendQueueIsFullUntilCompletionsAreTaken) {
  Peer peer = StartPeer("Passive");
  Endpoint e;
  e.ConnectOver(peer.link);
  for (int round = 0; round < 3; ++round) {
    const uint32_t depth = [&] {
      ibv_qp_attr attr{};
      ibv_qp_init_attr init{};
      EXPECT_EQ(ibv_query_qp(e.qp, &attr, IBV_QP_CAP, &init), 0);
      return init.cap.max_send_wr;
    }();
    ASSERT_GE(depth, 64u);
    for (uint32_t i = 0; i < depth; ++i) {
      ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 64, 0, i + 1 == depth ? IBV_SEND_SIGNALED : 0, i), 0);
    }
    EXPECT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 64), ENOMEM);
    EXPECT_EQ(e.Wait().wr_id, depth - 1);
    // One signalled completion frees all before it.
  }
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

// ---- memory that nobody else can map, and the order of its bytes

SOFT_ROLE(PrivateFileTarget) {
  Endpoint e;
  const std::string path = std::string(getenv("TMPDIR")) + "/log";  // any file
  const int fd = open(path.c_str(), O_RDONLY);
  SOFT_CHECK(fd >= 0);
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  SOFT_CHECK(memory != MAP_FAILED);
  close(fd);
  ibv_mr* mr = ibv_reg_mr(e.pd, memory, 4096, e.options.access);
  SOFT_CHECK(mr != nullptr);
  Endpoint::Address address = e.address();
  address.buffer = reinterpret_cast<uint64_t>(memory);
  address.rkey = mr->rkey;
  e.ToInit();
  e.Connect(peer.Exchange(address));
  peer.Barrier();
  peer.Barrier();
  for (int i = 0; i < 4096; ++i)
    SOFT_CHECK(static_cast<uint8_t*>(memory)[i] == Pattern(static_cast<uint64_t>(i)));
  SOFT_CHECK(ibv_dereg_mr(mr) == 0);
  munmap(memory, 4096);
}

TEST_F(SoftFabricTest, WritesIntoPrivateFileMappings) {
  Peer peer = StartPeer("PrivateFileTarget");
  Endpoint e;
  e.ConnectOver(peer.link);
  Fill(e, 0, 4096);
  ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 4096), 0);
  EXPECT_EQ(e.Wait().status, IBV_WC_SUCCESS);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

SOFT_ROLE(PromptReader) {
  Endpoint e;
  auto* word = reinterpret_cast<volatile uint64_t*>(e.buffer);
  *word = 0;
  e.ConnectOver(peer);
  for (uint64_t round = 1; round <= 300; ++round) {
    peer.Barrier();
    SOFT_CHECK(*word == round);
    peer.Barrier();
  }
}

// Programs tell each other over other ways that a write is complete.
TEST_F(SoftFabricTest, CompleteWritesAreInPlace) {
  Peer peer = StartPeer("PromptReader");
  Endpoint e;
  e.ConnectOver(peer.link);
  auto* word = reinterpret_cast<uint64_t*>(e.buffer);
  for (uint64_t round = 1; round <= 300; ++round) {
    *word = round;
    ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 8), 0);
    EXPECT_EQ(e.Wait().status, IBV_WC_SUCCESS);
    peer.link.Barrier();
    peer.link.Barrier();
  }
  EXPECT_EQ(peer.Wait(), 0);
}

// As LL does: 4 bytes of data and 4 bytes of flag in each word; as LL128: a flag word behind 120 bytes.
constexpr uint64_t kFlagBytes = 256 * 1024;
constexpr uint32_t kFlagRounds = 20;

SOFT_ROLE(FlagReader) {
  Endpoint e;
  memset(e.buffer, 0, kFlagBytes);
  e.ConnectOver(peer);
  auto* words = reinterpret_cast<std::atomic<uint64_t>*>(e.buffer);
  constexpr uint64_t kWords = kFlagBytes / 8;
  for (uint64_t round = 1; round <= kFlagRounds; ++round) {
    peer.Barrier();
    // When a word is new every word below it is new. Looking from the top finds any other order.
    uint64_t seen_top = 0;
    while (seen_top < kWords) {
      uint64_t top = kWords;
      while (top > seen_top && words[top - 1].load(std::memory_order_acquire) >> 32 != round) --top;
      for (uint64_t i = seen_top; i < top; ++i) {
        SOFT_CHECK(words[i].load(std::memory_order_relaxed) == (round << 32 | i));
      }
      seen_top = top;
    }
    peer.Barrier();
  }
}

TEST_F(SoftFabricTest, WordsArriveInAscendingOrder) {
  Peer peer = StartPeer("FlagReader");
  Endpoint e;
  e.ConnectOver(peer.link);
  auto* words = reinterpret_cast<uint64_t*>(e.buffer);
  for (uint64_t round = 1; round <= kFlagRounds; ++round) {
    for (uint64_t i = 0; i < kFlagBytes / 8; ++i) words[i] = round << 32 | i;
    peer.link.Barrier();
    ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, kFlagBytes), 0);
    EXPECT_EQ(e.Wait().status, IBV_WC_SUCCESS);
    peer.link.Barrier();
  }
  EXPECT_EQ(peer.Wait(), 0);
}

// ---- extended interfaces and events

SOFT_ROLE(ImmediateReceiver) {
  Endpoint e;
  e.ConnectOver(peer);
  SOFT_CHECK(e.Recv(0, 64, 5) == 0);
  peer.Barrier();
  const ibv_wc wc = e.Wait();
  SOFT_CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 5 && wc.imm_data == htobe32(77));
  SOFT_CHECK(memcmp(e.buffer, "hello", 5) == 0 && *e.at(1000) == 0xee && *e.at(1015) == 0xff);
  peer.Barrier();
}

TEST_F(SoftFabricTest, ExtendedPostAndPoll) {
  Peer peer = StartPeer("ImmediateReceiver");
  Endpoint::Options options;
  options.send_ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ;
  Endpoint e(options);
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(e.qp);
  ASSERT_NE(qp, nullptr);
  e.ConnectOver(peer.link);
  peer.link.Barrier();
  memset(e.buffer, 0xee, 8);
  memset(e.at(8), 0xff, 8);
  ibv_wr_start(qp);
  qp->wr_id = 1;
  qp->wr_flags = 0;
  ibv_wr_rdma_write(qp, e.remote.rkey, e.remote.buffer + 1000);
  const ibv_sge list[] = {{reinterpret_cast<uint64_t>(e.buffer), 8, e.mr->lkey},
                          {reinterpret_cast<uint64_t>(e.buffer) + 8, 8, e.mr->lkey}};
  ibv_wr_set_sge_list(qp, 2, list);
  qp->wr_id = 2;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send_imm(qp, htobe32(77));
  char text[] = "hello";
  ibv_wr_set_inline_data(qp, text, 5);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  text[0] = 'X';
  EXPECT_EQ(e.Wait().wr_id, 2u);
  // Aborted requests leave nothing.
  ibv_wr_start(qp);
  ibv_wr_rdma_write(qp, e.remote.rkey, e.remote.buffer);
  ibv_wr_abort(qp);
  // What was not asked for at creation is refused.
  ibv_wr_start(qp);
  ibv_wr_send(qp);
  EXPECT_NE(ibv_wr_complete(qp), 0);
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(SoftFabricTest, CompletionTimestampsAscend) {
  Endpoint e;
  ibv_cq_init_attr_ex attr{};
  attr.cqe = 64;
  attr.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  ibv_cq_ex* cq = ibv_create_cq_ex(e.context, &attr);
  ASSERT_NE(cq, nullptr);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
  init.qp_type = IBV_QPT_RC;
  init.cap = {16, 16, 1, 1, 0};
  ibv_qp* old = std::exchange(e.qp, ibv_create_qp(e.pd, &init));
  ASSERT_NE(e.qp, nullptr);
  e.ToInit();
  e.Connect(e.address());  // to itself
  ibv_values_ex now{};
  now.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  ASSERT_EQ(ibv_query_rt_values_ex(e.context, &now), 0);
  uint64_t before = static_cast<uint64_t>(now.raw_clock.tv_nsec);
  for (int i = 0; i < 8; ++i) ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 4096, 8192, IBV_SEND_SIGNALED, i), 0);
  ibv_poll_cq_attr none{};
  uint64_t taken = 0;
  while (taken < 8) {
    if (ibv_start_poll(cq, &none) != 0) continue;
    do {
      EXPECT_EQ(cq->wr_id, taken++);
      EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
      EXPECT_EQ(ibv_wc_read_opcode(cq), IBV_WC_RDMA_WRITE);
      const uint64_t at = ibv_wc_read_completion_ts(cq);
      EXPECT_GT(at, before);
      before = at;
    } while (ibv_next_poll(cq) == 0);
    ibv_end_poll(cq);
  }
  EXPECT_EQ(ibv_destroy_qp(std::exchange(e.qp, old)), 0);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

SOFT_ROLE(SolicitingSender) {
  Endpoint e;
  e.ConnectOver(peer);
  for (const unsigned flags : {0u, 0u, static_cast<unsigned>(IBV_SEND_SOLICITED)}) {
    peer.Barrier();
    SOFT_CHECK(e.Send(IBV_WR_SEND, 0, 8, 0, IBV_SEND_SIGNALED | flags) == 0);
    SOFT_CHECK(e.Wait().status == IBV_WC_SUCCESS);
    peer.Barrier();
  }
}

TEST_F(SoftFabricTest, CompletionChannel) {
  Peer peer = StartPeer("SolicitingSender");
  ibv_comp_channel* channel = nullptr;
  Endpoint::Options options;
  options.channel = &channel;
  Endpoint e(options);
  e.ConnectOver(peer.link);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(e.Recv(0, 64), 0);
  const auto readable = [&](int timeout_ms) {
    pollfd wait{channel->fd, POLLIN, 0};
    return poll(&wait, 1, timeout_ms) == 1;
  };
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_req_notify_cq(e.cq, 0), 0);
  EXPECT_FALSE(readable(0));
  peer.link.Barrier();
  ASSERT_TRUE(readable(60'000));
  ASSERT_EQ(ibv_get_cq_event(channel, &cq, &context), 0);
  EXPECT_EQ(cq, e.cq);
  EXPECT_EQ(context, &e);
  EXPECT_FALSE(readable(0));
  EXPECT_EQ(e.Wait().status, IBV_WC_SUCCESS);
  peer.link.Barrier();
  // Armed for solicited completions: the second message makes no event, the third does.
  ASSERT_EQ(ibv_req_notify_cq(e.cq, 1), 0);
  peer.link.Barrier();
  EXPECT_EQ(e.Wait().status, IBV_WC_SUCCESS);
  peer.link.Barrier();
  EXPECT_FALSE(readable(0));
  peer.link.Barrier();
  ASSERT_TRUE(readable(60'000));
  ASSERT_EQ(ibv_get_cq_event(channel, &cq, &context), 0);
  peer.link.Barrier();
  // Non-blocking descriptors answer EAGAIN.
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(ibv_get_cq_event(channel, &cq, &context), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), EBUSY);
  ibv_ack_cq_events(e.cq, 2);
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(SoftFabricTest, ManyThreadsPostAndPoll) {
  constexpr int kThreads = 4, kPosts = 300;
  Endpoint::Options options;
  options.cqe = kThreads * kPosts;
  Endpoint e(options);
  e.ToInit();
  e.Connect(e.address());
  std::atomic<int> completed{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      ibv_wc wc[8];
      int posted = 0;
      while (posted < kPosts || completed.load() < kThreads * kPosts) {
        const auto offset = static_cast<uint64_t>(thread) * 4096;
        if (posted < kPosts) {
          const int error = e.Send(IBV_WR_RDMA_WRITE, offset, 64, 500'000 + offset);
          if (error == 0) ++posted;
          if (error != 0 && error != ENOMEM) ++wrong;
        }
        const int count = ibv_poll_cq(e.cq, 8, wc);
        for (int i = 0; i < count; ++i) wrong += wc[i].status != IBV_WC_SUCCESS ? 1 : 0;
        completed += count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(completed.load(), kThreads * kPosts);
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(SoftFabricTest, CountsBytesByServiceLevelAndTrafficClass) {
  Peer peer = StartPeer("Passive");
  Endpoint e;
  e.ConnectOver(peer.link);
  ASSERT_EQ(e.Send(IBV_WR_RDMA_WRITE, 0, 100'000), 0);
  EXPECT_EQ(e.Wait().status, IBV_WC_SUCCESS);
  const std::string status = RunFabricTool("--status");
  EXPECT_NE(status.find("tx_payload_bytes=100000"), std::string::npos) << status;
  EXPECT_NE(status.find(" tc104="), std::string::npos) << status;
  peer.link.Barrier();
  EXPECT_EQ(peer.Wait(), 0);
}

}  // namespace
}  // namespace sluice::soft
