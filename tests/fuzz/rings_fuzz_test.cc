// What a peer writes by RDMA: clear-to-send entries in the sender's ring, immediate data at the receiver.
// Whatever the bytes, the other end reports an error or ignores them; it never crashes, and never touches
// memory that it was not given.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "plugin/transport/engine.h"
#include "plugin/transport/path.h"

namespace sluice {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

template <typename Step>
bool Until(Step step) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!step()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

class RingsFuzzTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("SLUICE_FABRIC", ("rings-fuzz-" + std::to_string(getpid())).c_str(), 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("SLUICE_MAX_RECVS", "8", 1);
  }

  void SetUp() override {
    Result<NetContext*> context = NetContext::Create(1, CommConfig{}, nullptr);
    ASSERT_TRUE(context.ok()) << context.status().message();
    context_ = *context;
    Connect();
  }
  void TearDown() override {
    Disconnect();
    EXPECT_TRUE(context_->Finalize().ok());
  }

  void Connect() {
    ConnectionHandle handle{};
    Result<ListenComm*> listen = context_->Listen(0, &handle);
    ASSERT_TRUE(listen.ok()) << listen.status().message();
    ASSERT_TRUE(Until([&] {
      if (send_ == nullptr) {
        const Attempt<SendComm> attempt = context_->Connect(0, &handle, nullptr);
        EXPECT_EQ(attempt.error(), nullptr);
        send_ = attempt.value();
      }
      if (recv_ == nullptr) {
        const Attempt<RecvComm> attempt = (*listen)->Accept();
        EXPECT_EQ(attempt.error(), nullptr);
        recv_ = attempt.value();
      }
      return HasFailure() || (send_ != nullptr && recv_ != nullptr);
    }));
    EXPECT_TRUE((*listen)->Close().ok());
    Result<MemoryHandle*> from = send_->RegMr(from_.data(), from_.size(), MemoryKind::kHost);
    Result<MemoryHandle*> to = recv_->RegMr(to_.data(), to_.size(), MemoryKind::kHost);
    ASSERT_TRUE(from.ok() && to.ok());
    from_memory_ = *from;
    to_memory_ = *to;
  }
  void Disconnect() {
    EXPECT_TRUE(send_->DeregMr(from_memory_).ok());
    EXPECT_TRUE(recv_->DeregMr(to_memory_).ok());
    EXPECT_TRUE(send_->Close().ok());
    EXPECT_TRUE(recv_->Close().ok());
    send_ = nullptr;
    recv_ = nullptr;
  }

  SendConnection& sender() { return *static_cast<SendConnection*>(send_); }
  RecvConnection& receiver() { return *static_cast<RecvConnection*>(recv_); }

  NetContext* context_ = nullptr;
  SendComm* send_ = nullptr;
  RecvComm* recv_ = nullptr;
  std::vector<std::byte> from_ = std::vector<std::byte>(1 << 20, std::byte{1});
  std::vector<std::byte> to_ = std::vector<std::byte>(1 << 20, std::byte{2});
  MemoryHandle* from_memory_ = nullptr;
  MemoryHandle* to_memory_ = nullptr;
};

TEST_F(RingsFuzzTest, ClearToSendEntries) {
  std::mt19937 random(5);
  for (int round = 0; round < 150; ++round) {
    SendConnection& connection = sender();
    // A valid head entry, then some fields of it, or of the whole ring, are anything.
    for (uint32_t i = 0; i < kSlots * connection.max_recvs; ++i) {
      CtsEntry& entry = connection.cts_ring[i];
      if (round % 3 == 0) {
        for (size_t at = 0; at < sizeof(entry); ++at)
          reinterpret_cast<std::byte*>(&entry)[at] = static_cast<std::byte>(random());
      }
    }
    CtsEntry& head = const_cast<CtsEntry&>(connection.head[0]);
    head.address = reinterpret_cast<uint64_t>(to_.data());
    head.capacity_bytes = 1000;
    head.tag = 7;
    head.rkeys = to_memory_->rkeys();
    head.granted_bytes = 1000;
    head.chunks = 1;
    head.group_size = 1;
    switch (random() % 8) {
      case 0:
        head.group_size = static_cast<uint8_t>(random());
        break;
      case 1:
        head.chunks = static_cast<uint16_t>(random() % 2 == 0 ? 0 : 65535);
        break;
      case 2:
        head.capacity_bytes = static_cast<uint32_t>(random());
        break;
      case 3:
        head.address = random() * 4096ULL;
        break;
      case 4:
        head.rkeys.fill(static_cast<uint32_t>(random()));
        break;
      case 5:
        head.group_size = 8;
        break;
      default:
        head.tag = static_cast<int32_t>(random() % 3) + 6;
    }
    __atomic_store_n(&head.seq, connection.seq, __ATOMIC_RELEASE);
    const size_t bytes = random() % 3 == 0 ? from_.size() : random() % 2000;
    const Attempt<Request> attempt = send_->Isend(from_.data(), bytes, 7, from_memory_, nullptr);
    if (attempt.value() != nullptr) {
      // It was posted: done, or an error of the network. An immediate that nobody waits for fails the path at
      // the receiver.
      ASSERT_TRUE(Until([&] {
        const TestOutcome outcome = attempt.value()->Test(nullptr);
        return outcome.done || outcome.error != nullptr;
      })) << "round "
          << round;
    }
    Disconnect();
    Connect();
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST_F(RingsFuzzTest, ImmediateData) {
  std::mt19937 random(6);
  // What the receiver has open: one group of two buffers at slot 0, one chunk each.
  for (int round = 0; round < 60; ++round) {
    const ReceiveBuffer buffers[2] = {{to_.data(), 1000, 1, to_memory_},
                                      {to_.data() + 4096, 1000, 2, to_memory_}};
    const Attempt<Request> receiving = recv_->Irecv(buffers);
    ASSERT_NE(receiving.value(), nullptr);
    const uint16_t index = receiver().index;
    std::vector<uint32_t> immediates;
    switch (round % 8) {
      case 0:
        immediates = {static_cast<uint32_t>(random())};
        break;
      case 1:  // no such connection
        immediates = {
            Immediate::Pack(ImmKind::kSingle, 0, static_cast<uint16_t>(index + 1 + random() % 1000), 0)};
        break;
      case 2:  // a slot that is not open
        immediates = {Immediate::Pack(ImmKind::kSingle, 5, index, 0)};
        break;
      case 3:  // another round of the slot
        immediates = {Immediate::Pack(ImmKind::kSingle, 32, index, 0)};
        break;
      case 4:  // no such buffer
        immediates = {Immediate::Pack(ImmKind::kSingle, 0, index, 2 + static_cast<uint32_t>(random() % 6))};
        break;
      case 5:  // a last chunk without a record
        immediates = {Immediate::Pack(ImmKind::kLast, 0, index, 1)};
        break;
      case 6:  // more chunks than granted
        immediates = {Immediate::Pack(ImmKind::kChunk, 0, index, 0),
                      Immediate::Pack(ImmKind::kChunk, 0, index, 0)};
        break;
      default:  // the same message twice
        immediates = {Immediate::Pack(ImmKind::kSingle, 0, index, 0),
                      Immediate::Pack(ImmKind::kSingle, 0, index, 0)};
    }
    alignas(64) static ControlQueue nobody;
    {
      ControlGuard guard(sender().engine->lock);
      for (const uint32_t immediate : immediates) {
        ibv_send_wr wr{};
        // Should it be flushed, its completion retires nothing of anybody.
        wr.wr_id = WorkId::Pack(WorkKind::kControl, &nobody, 0, 0);
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = htonl(immediate);
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(sender().path->queues[0].qp, &wr, &bad), 0);
      }
    }
    const Status* error = nullptr;
    bool done = false;
    ASSERT_TRUE(Until([&] {
      const TestOutcome outcome = receiving.value()->Test(nullptr);
      error = outcome.error;
      done = outcome.done;
      return done || error != nullptr;
    })) << "round "
        << round;
    EXPECT_FALSE(done) << "round " << round;
    ASSERT_NE(error, nullptr);
    EXPECT_NE(error->message().find("protocol defect"), std::string::npos) << error->message();
    Disconnect();
    Connect();
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

}  // namespace
}  // namespace sluice
