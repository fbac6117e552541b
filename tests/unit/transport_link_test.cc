#include "plugin/transport/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <future>

namespace sluice {
namespace {

// A link on one end of a socket pair; the test plays the peer on the other, with plain blocking calls.
class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<EventLoop*> loop = EventLoop::Get();
    ASSERT_TRUE(loop.ok()) << loop.status().message();
    loop_ = *loop;
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    peer_ = fds[1];
    loop_->Run([&] {
      link_ = std::make_unique<Link>(*loop_, Socket(fds[0]), "the test");
      const Status started = link_->Start(
          [this](FrameType type, std::span<const std::byte> payload) {
            const auto frame = Decode<TextFrame>(payload);
            if (type != FrameType::kAbort || !frame) return RemoteError("unexpected frame");
            texts_.push_back(frame->text);
            if (texts_.size() == expected_) all_.set_value();
            return Status::Ok();
          },
          [this](const Status& cause) { closed_.set_value(cause.message()); });
      EXPECT_TRUE(started.ok());
    });
  }
  void TearDown() override {
    loop_->Run([&] { link_.reset(); });
    if (peer_ >= 0) close(peer_);
  }
  static std::vector<std::byte> Bytes(const std::string& text) {
    const std::vector<std::byte> payload = Encode(TextFrame{1, text});
    const FrameHeader header{FrameType::kAbort, kFrameVersion, static_cast<uint32_t>(payload.size())};
    std::vector<std::byte> bytes(sizeof(header));
    memcpy(bytes.data(), &header, sizeof(header));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
  }

  EventLoop* loop_ = nullptr;
  std::unique_ptr<Link> link_;
  int peer_ = -1;
  size_t expected_ = 0;
  std::vector<std::string> texts_;
  std::promise<void> all_;
  std::promise<std::string> closed_;
};

TEST_F(LinkTest, FramesSurviveReadsOfOneByte) {
  expected_ = 3;
  for (const char* text : {"one", "", "three"}) {
    for (const std::byte byte : Bytes(text)) ASSERT_EQ(write(peer_, &byte, 1), 1);
  }
  all_.get_future().wait();
  EXPECT_EQ(texts_, (std::vector<std::string>{"one", "", "three"}));
}

TEST_F(LinkTest, LongOutputSurvivesAFullSocket) {
  constexpr int kFrames = 5000;
  loop_->Run([&] {
    for (int i = 0; i < kFrames; ++i)
      link_->Send(FrameType::kAbort, TextFrame{static_cast<uint32_t>(i), std::string(900, 'x')});
  });
  for (int i = 0; i < kFrames; ++i) {
    FrameHeader header;
    ASSERT_EQ(recv(peer_, &header, sizeof(header), MSG_WAITALL), static_cast<ssize_t>(sizeof(header)));
    std::vector<std::byte> payload(header.length);
    ASSERT_EQ(recv(peer_, payload.data(), payload.size(), MSG_WAITALL), static_cast<ssize_t>(payload.size()));
    const auto frame = Decode<TextFrame>(payload);
    ASSERT_TRUE(frame.has_value());
    EXPECT_EQ(frame->id, static_cast<uint32_t>(i));
  }
}

TEST_F(LinkTest, EndOfFileIsReportedOnce) {
  close(std::exchange(peer_, -1));
  EXPECT_THAT(closed_.get_future().get(), ::testing::HasSubstr("closed by the peer"));
}

TEST_F(LinkTest, OversizedFrameEndsTheLink) {
  const FrameHeader header{FrameType::kAbort, kFrameVersion, 1u << 30};
  ASSERT_EQ(write(peer_, &header, sizeof(header)), static_cast<ssize_t>(sizeof(header)));
  EXPECT_THAT(closed_.get_future().get(), ::testing::HasSubstr("exceeds 4096"));
}

TEST_F(LinkTest, HandlerErrorEndsTheLink) {
  FrameHeader header{FrameType::kBye, kFrameVersion, 0};
  ASSERT_EQ(write(peer_, &header, sizeof(header)), static_cast<ssize_t>(sizeof(header)));
  EXPECT_EQ(closed_.get_future().get(), "unexpected frame");
}

}  // namespace
}  // namespace sluice
