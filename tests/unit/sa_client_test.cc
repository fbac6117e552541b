// Questions to the subnet administrator: their bytes, and what the client makes of answers, silence and nonsense. A socket
// pair stands for the kernel's umad device.
#include "verbs/sa_client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "verbs/sa_mad.h"
#include "verbs/umad_port.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Clock = SaClient::Clock;

std::vector<uint8_t> Bytes(const Mad& mad, size_t at, size_t count) {
  std::vector<uint8_t> bytes(count);
  memcpy(bytes.data(), &mad[at], count);
  return bytes;
}

// By the layouts of the IBTA specification: common header, segmentation header, SA header, PathRecord.
TEST(SaMad, QuestionByLid) {
  const Mad mad = EncodePathQuestion({.slid = 0x0102, .dlid = 0x0304, .pkey = 0x8001, .sl = 5}, 0xaabbccdd);
  EXPECT_THAT(Bytes(mad, 0, 24), ElementsAre(1, 3, 2, 1, 0, 0, 0, 0,  // version, class, version, Get
                                             0, 0, 0, 0, 0xaa, 0xbb, 0xcc, 0xdd,  // transaction
                                             0, 0x35, 0, 0, 0, 0, 0, 0));         // PathRecord
  EXPECT_EQ(Bytes(mad, 24, 24), std::vector<uint8_t>(24));                        // not segmented, no key
  EXPECT_THAT(Bytes(mad, 48, 8), ElementsAre(0, 0, 0, 0, 0, 0, 0xb8, 0x30));      // bits 15, 13, 12, 11, 5, 4
  EXPECT_EQ(Bytes(mad, 56, 40), std::vector<uint8_t>(40));                        // service, GIDs
  EXPECT_THAT(Bytes(mad, 96, 16), ElementsAre(3, 4, 1, 2, 0, 0, 0, 0, 0, 0x81, 0x80, 1, 0, 5, 0, 0));
  EXPECT_EQ(Bytes(mad, 112, 144), std::vector<uint8_t>(144));
}

TEST(SaMad, QuestionByGid) {
  PathQuestion question{.slid = 7};
  for (uint8_t i = 0; i < 16; ++i) {
    question.sgid[i] = i;
    question.dgid[i] = static_cast<uint8_t>(0xf0 + i);
  }
  const Mad mad = EncodePathQuestion(question, 1);
  EXPECT_THAT(Bytes(mad, 48, 8), ElementsAre(0, 0, 0, 0, 0, 0, 0x18, 0x0c));
  EXPECT_THAT(Bytes(mad, 64, 4), ElementsAre(0xf0, 0xf1, 0xf2, 0xf3));
  EXPECT_THAT(Bytes(mad, 80, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Bytes(mad, 96, 8), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(question.Describe(),
            "from GID 1:203:405:607:809:a0b:c0d:e0f to GID f0f1:f2f3:f4f5:f6f7:f8f9:fafb:fcfd:feff");
}

Mad Answer(uint32_t transaction, uint16_t status, uint8_t sl) {
  Mad mad = EncodePathQuestion({.slid = 4, .dlid = 9, .sl = sl}, transaction);
  mad[3] = std::byte{0x81};
  mad[4] = static_cast<std::byte>(status >> 8);
  mad[5] = static_cast<std::byte>(status & 0xff);
  mad[8 + 3] = std::byte{0x17};  // the agent's number, which the kernel writes
  mad[108] = std::byte{0xab};    // class of service beside the SL
  mad[109] = static_cast<std::byte>(0xc0 | sl);
  return mad;
}

TEST(SaMad, ReplyIsReadWhateverStandsBesideIt) {
  const Mad mad = Answer(77, 0, 6);
  const std::optional<SaReply> reply = DecodeSaReply(mad);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->transaction, 77u);
  EXPECT_EQ(reply->status, kSaOk);
  EXPECT_EQ(reply->sl, 6);
  EXPECT_EQ(reply->slid, 4);
  EXPECT_EQ(reply->dlid, 9);
}

TEST(SaMad, WhatIsNoReplyIsNone) {
  const Mad good = Answer(1, 0, 0);
  for (size_t size = 0; size < 120; ++size) EXPECT_FALSE(DecodeSaReply({good.data(), size})) << size;
  const Mad refusal = Answer(1, kSaNoRecords, 0);
  EXPECT_FALSE(DecodeSaReply({refusal.data(), 23}));
  EXPECT_TRUE(DecodeSaReply({refusal.data(), 24}));
  for (const size_t at : {0, 1, 3, 16, 17}) {
    Mad bad = good;
    bad[at] ^= std::byte{0x20};
    EXPECT_FALSE(DecodeSaReply(bad)) << at;
  }
}

TEST(SaMad, StatusInWords) {
  EXPECT_EQ(DescribeSaStatus(0x0300), "0x0300 (no such path)");
  EXPECT_EQ(DescribeSaStatus(0x0001), "0x0001 (busy)");
  EXPECT_EQ(DescribeSaStatus(0x0700), "0x0700 (not allowed)");
  EXPECT_EQ(DescribeSaStatus(0x001c), "0x001c (the administrator does not know the question)");
}

// The administrator's end of the device.
class SaClientTest : public testing::Test {
 protected:
  static constexpr size_t kHeader = 64;
  static constexpr SaAddress kSa{.lid = 3, .sl = 2};

  void Make(SaClient::Options options = {}) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends), 0);
    sa_ = ends[1];
    client_ = std::make_unique<SaClient>(UmadPort(ends[0], 5, "mlx5_0:1"), options);
  }
  ~SaClientTest() override { close(sa_); }

  void Ask(const PathQuestion& question) {
    client_->Ask(question, kSa, now_, [this](const Result<SaPath>& path) {
      answers_.push_back(!path.ok()    ? path.status().message()
                         : path->found ? std::to_string(path->sl)
                                       : "none");
    });
  }
  // The next datagram of the client; an empty one when there is none.
  std::vector<std::byte> Sent() {
    std::vector<std::byte> bytes(1024);
    const ssize_t got = read(sa_, bytes.data(), bytes.size());
    bytes.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return bytes;
  }
  uint32_t Transaction(const std::vector<std::byte>& sent) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value << 8 | std::to_integer<uint32_t>(sent.at(kHeader + 12 + i));
    return value;
  }
  void Deliver(const Mad& mad, size_t bytes = kMadBytes, uint32_t status = 0) {
    std::vector<std::byte> packet(kHeader + bytes);
    memcpy(&packet[4], &status, sizeof(status));
    memcpy(&packet[kHeader], mad.data(), bytes);
    ASSERT_EQ(write(sa_, packet.data(), packet.size()), static_cast<ssize_t>(packet.size()));
    client_->OnReadable(now_);
  }
  void Wait(milliseconds time) {
    now_ += time;
    client_->OnTime(now_);
  }

  std::unique_ptr<SaClient> client_;
  int sa_ = -1;
  Clock::time_point now_{std::chrono::hours(1)};
  std::vector<std::string> answers_;
};

TEST_F(SaClientTest, HeaderForTheKernel) {
  Make();
  Ask({.slid = 4, .dlid = 9});
  const std::vector<std::byte> sent = Sent();
  ASSERT_EQ(sent.size(), kHeader + kMadBytes);
  std::vector<uint8_t> header(kHeader);
  memcpy(header.data(), sent.data(), kHeader);
  EXPECT_THAT(
      std::vector<uint8_t>(header.begin(), header.begin() + 34),
      ElementsAre(5, 0, 0, 0, 0, 0, 0, 0, 0xf4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // agent, 500 ms, no retries
                  0, 0, 0, 1, 0x80, 1, 0, 0, 0, 3, 2, 0, 0, 0));  // pair 1, its key, LID 3, SL 2
}

TEST_F(SaClientTest, AnswersAreKeptForAWhile) {
  Make();
  Ask({.slid = 4, .dlid = 9});
  Ask({.slid = 4, .dlid = 9});  // joins the first
  Deliver(Answer(Transaction(Sent()), 0, 6));
  EXPECT_TRUE(Sent().empty());
  EXPECT_THAT(answers_, ElementsAre("6", "6"));
  EXPECT_FALSE(client_->next());
  Ask({.slid = 4, .dlid = 9});
  EXPECT_TRUE(Sent().empty());
  EXPECT_EQ(answers_.size(), 3u);
  Ask({.slid = 4, .dlid = 9, .sl = 6});  // another question
  Deliver(Answer(Transaction(Sent()), kSaNoRecords, 0));
  EXPECT_EQ(answers_.back(), "none");
  now_ += milliseconds(60001);
  Ask({.slid = 4, .dlid = 9});
  EXPECT_FALSE(Sent().empty());
}

TEST_F(SaClientTest, AnotherSubnetManagerIsAskedAnew) {
  Make();
  Ask({.slid = 4, .dlid = 9});
  Deliver(Answer(Transaction(Sent()), 0, 6));
  client_->Ask({.slid = 4, .dlid = 9}, {.lid = 8}, now_, [](const Result<SaPath>&) {});
  EXPECT_FALSE(Sent().empty());
}

TEST_F(SaClientTest, SilenceIsAskedAgainAndThenAnError) {
  Make({.deadline = milliseconds(5000)});
  Ask({.slid = 4, .dlid = 9, .sl = 1});
  std::vector<uint32_t> transactions;
  int waited_ms = 0;
  while (answers_.empty()) {
    if (const auto sent = Sent(); !sent.empty()) transactions.push_back(Transaction(sent));
    const auto step = std::chrono::ceil<milliseconds>(*client_->next() - now_);
    waited_ms += static_cast<int>(step.count());
    Wait(step);
  }
  EXPECT_EQ(waited_ms, 5000);
  EXPECT_THAT(transactions, ElementsAre(1u, 2u, 3u, 4u));  // at 0, 500, 1500 and 3500 ms
  EXPECT_EQ(answers_[0],
            "port mlx5_0:1: the subnet administrator at LID 3 told no path from LID 4 to LID 9 with SL 1 "
            "within 5000 ms, "
            "asked 4 times (no answer); check that the subnet manager runs (sminfo) and is not overloaded");
  Deliver(Answer(transactions.back(), 0, 3));  // too late
  EXPECT_EQ(answers_.size(), 1u);
}

TEST_F(SaClientTest, BusyIsAskedAgain) {
  Make();
  for (const uint16_t busy : {kMadBusy, kSaNoResources}) {
    answers_.clear();
    Ask({.slid = 4, .dlid = busy});
    const uint32_t first = Transaction(Sent());
    Deliver(Answer(first, busy, 0));
    EXPECT_TRUE(answers_.empty());
    Wait(milliseconds(499));
    EXPECT_TRUE(Sent().empty());
    Wait(milliseconds(1));
    Deliver(Answer(Transaction(Sent()), 0, 2));
    EXPECT_THAT(answers_, ElementsAre("2"));
  }
}

TEST_F(SaClientTest, ARefusalIsAnErrorAtOnce) {
  Make();
  Ask({.slid = 4, .dlid = 9});
  Deliver(Answer(Transaction(Sent()), 0x0700, 0));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_THAT(answers_[0],
              HasSubstr("refuses to tell the path from LID 4 to LID 9: status 0x0700 (not allowed)"));
  Ask({.slid = 4, .dlid = 9});  // errors are not kept
  EXPECT_FALSE(Sent().empty());
}

TEST_F(SaClientTest, NonsenseIsDroppedAndNamedInTheEnd) {
  Make({.deadline = milliseconds(1000)});
  Ask({.slid = 4, .dlid = 9});
  const uint32_t transaction = Transaction(Sent());
  Deliver(Answer(transaction + 1, 0, 3));              // another transaction
  Deliver(Answer(transaction, 0, 3), kMadBytes, 110);  // the kernel gave up
  Deliver(Answer(transaction, 0, 3), 100);             // truncated
  Deliver({}, 0);
  EXPECT_TRUE(answers_.empty());
  const std::byte half[10] = {};
  ASSERT_EQ(write(sa_, half, sizeof(half)), 10);  // not even a header
  client_->OnReadable(now_);
  client_->OnReadable(now_);  // nothing there
  Wait(milliseconds(1000));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_THAT(answers_[0], HasSubstr("(malformed answers, the last of 0 bytes)"));
}

TEST_F(SaClientTest, FewAreOpenAtATime) {
  Make({.in_flight = 2});
  for (uint16_t i = 1; i <= 5; ++i) Ask({.slid = 4, .dlid = i});
  std::deque<uint32_t> open;
  for (size_t done = 0; done < 5; ++done) {
    for (std::vector<std::byte> sent = Sent(); !sent.empty(); sent = Sent())
      open.push_back(Transaction(sent));
    EXPECT_EQ(open.size(), std::min<size_t>(2, 5 - done));
    Deliver(Answer(open.front(), 0, 1));
    open.pop_front();
  }
  EXPECT_THAT(answers_, ElementsAre("1", "1", "1", "1", "1"));
}

TEST_F(SaClientTest, ACallbackMayAskAgain) {
  Make();
  client_->Ask({.slid = 4, .dlid = 9}, kSa, now_,
               [this](const Result<SaPath>&) { Ask({.slid = 9, .dlid = 4}); });
  Deliver(Answer(Transaction(Sent()), 0, 1));
  Deliver(Answer(Transaction(Sent()), 0, 2));
  EXPECT_THAT(answers_, ElementsAre("2"));
}

TEST_F(SaClientTest, ADeviceThatGoesAwayFailsEverything) {
  Make({.in_flight = 1});
  Ask({.slid = 4, .dlid = 9});
  Ask({.slid = 4, .dlid = 8});
  EXPECT_FALSE(Sent().empty());
  close(std::exchange(sa_, -1));
  client_->OnReadable(now_);
  EXPECT_TRUE(client_->dead());
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_THAT(answers_[0], HasSubstr("reading from the subnet administrator: No such device"));
  Ask({.slid = 4, .dlid = 9});
  EXPECT_EQ(answers_.size(), 3u);
}

TEST(UmadPort, WithoutADeviceTheRemedyIsNamed) {
  const Result<UmadPort> port = UmadPort::Open("/nonexistent", "mlx5_7", 2);
  ASSERT_FALSE(port.ok());
  EXPECT_EQ(port.status().message(),
            "port mlx5_7:2 has no umad device in /nonexistent; load the module (modprobe ib_umad)");
}

}  // namespace
}  // namespace sluice
