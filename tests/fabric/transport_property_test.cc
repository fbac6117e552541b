// Random traffic: groups of any size, tags in any order, 0 B to 2 MiB, several connections on one path and
// one in the other direction, connections closed and opened again while the others go on. Every byte is
// right, everything completes once.
#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <set>

#include "tests/fault/rig.h"

namespace sluice::fault {
namespace {

constexpr int kGroupsPerLife = 40;
constexpr int kLives = 3;

size_t RandomSize(std::mt19937& random) {
  switch (random() % 8) {
    case 0:
      return 0;
    case 1:
    case 2:
    case 3:
      return random() % 300;
    case 4:
    case 5:
      return random() % 70000;
    case 6:
      return 128 * (random() % 2000);
    default:
      return random() % (2u << 20);
  }
}

struct Message {
  int tag = 0;
  size_t bytes = 0;
  size_t capacity = 0;
  Buffer from;
  Buffer to;
  void* sending = nullptr;
  bool sent = false;
};

struct Group {
  std::vector<Message> messages;
  std::vector<size_t> order;  // of the sends
  void* receiving = nullptr;
  bool received = false;
  size_t sends_posted = 0;
};

// One connection with its planned traffic.
class Channel {
 public:
  Channel(void* from, void* to, std::mt19937& random) : from_(from), to_(to), random_(random) { Open(); }

  // One random thing; false: an error.
  bool Step() {
    switch (random_() % 4) {
      case 0:
        return PostReceive();
      case 1:
        return PostSend();
      case 2:
        return TestReceive();
      default:
        return TestSend();
    }
  }
  bool Finished() const { return first_open_ == groups_.size(); }
  int lives() const { return lives_; }
  void CloseNow() {
    groups_.clear();
    Close(wire_);
  }
  void Reopen() {
    CloseNow();
    Open();
  }

 private:
  void Open() {
    wire_ = Connect(from_, to_);
    groups_.clear();
    groups_.resize(kGroupsPerLife);
    next_receive_ = next_send_ = first_open_ = 0;
    ++lives_;
    for (Group& group : groups_) {
      group.messages.resize(random_() % 3 == 0 ? 1 : random_() % 8 + 1);
      for (size_t i = 0; i < group.messages.size(); ++i) {
        Message& message = group.messages[i];
        message.tag = static_cast<int>(random_() % 5 + i * 5) - 7;
        message.bytes = RandomSize(random_);
        message.capacity = message.bytes + random_() % 3 * 100;
      }
      group.order.resize(group.messages.size());
      std::iota(group.order.begin(), group.order.end(), size_t{0});
      std::shuffle(group.order.begin(), group.order.end(), random_);
    }
  }

  bool PostReceive() {
    if (next_receive_ == groups_.size()) return true;
    Group& group = groups_[next_receive_];
    std::array<void*, 8> data{}, handles{};
    std::array<size_t, 8> sizes{};
    std::array<int, 8> tags{};
    for (size_t i = 0; i < group.messages.size(); ++i) {
      Message& message = group.messages[i];
      if (message.to.handle() == nullptr) {
        message.to = Buffer(wire_.recv, message.capacity);
        memset(message.to.data(), 0xa5, message.to.size());
      }
      data[i] = message.to.data();
      handles[i] = message.to.handle();
      sizes[i] = message.capacity;
      tags[i] = message.tag;
    }
    if (Net().irecv(wire_.recv, static_cast<int>(group.messages.size()), data.data(), sizes.data(),
                    tags.data(), handles.data(), nullptr, &group.receiving) != kSuccess) {
      return false;
    }
    if (group.receiving != nullptr) ++next_receive_;
    return true;
  }

  bool PostSend() {
    if (next_send_ == groups_.size()) return true;
    Group& group = groups_[next_send_];
    Message& message = group.messages[group.order[group.sends_posted]];
    if (message.from.handle() == nullptr) message.from = Buffer(wire_.send, message.bytes, random_());
    AnnounceAnything();
    if (Isend(wire_.send, message.from, message.bytes, message.tag, &message.sending) != kSuccess)
      return false;
    if (message.sending == nullptr) return true;
    if (++group.sends_posted == group.messages.size()) ++next_send_;
    return true;
  }

  // Messages change their class at random: order and data must not care.
  void AnnounceAnything() {
    nccl::NetAttr attributes{};
    attributes.op = 1u << 4;  // AllReduce
    attributes.algo = 1u << random_() % 2;
    attributes.proto = 1u << random_() % 3;
    EXPECT_EQ(Net().setNetAttr(from_, &attributes), kSuccess);
  }

  bool TestReceive() {
    // Any open group, not only the oldest.
    for (size_t i = first_open_; i < next_receive_; ++i) {
      Group& group = groups_[i];
      if (group.received || random_() % 3 == 0) continue;
      std::array<int, 8> sizes{};
      int done = 0;
      if (Net().test(group.receiving, &done, sizes.data()) != kSuccess) return false;
      if (done == 0) return true;
      group.received = true;
      for (size_t j = 0; j < group.messages.size(); ++j) {
        Message& message = group.messages[j];
        EXPECT_NE(message.sending, nullptr) << "a message arrived that was not sent";
        EXPECT_EQ(sizes[j], static_cast<int>(message.bytes));
        EXPECT_EQ(memcmp(message.to.data(), message.from.data(), message.bytes), 0)
            << "wrong data in " << message.bytes << " bytes";
        EXPECT_TRUE(std::all_of(message.to.data() + message.bytes, message.to.data() + message.to.size(),
                                [](unsigned char byte) { return byte == 0xa5; }))
            << "bytes behind a message of " << message.bytes << " were touched";
      }
      Retire();
      return true;
    }
    return true;
  }

  bool TestSend() {
    for (size_t i = first_open_; i <= next_send_ && i < groups_.size(); ++i) {
      for (Message& message : groups_[i].messages) {
        if (message.sending == nullptr || message.sent || random_() % 3 == 0) continue;
        int done = 0, size = -1;
        if (Net().test(message.sending, &done, &size) != kSuccess) return false;
        if (done == 0) return true;
        EXPECT_EQ(size, static_cast<int>(message.bytes));
        message.sent = true;
        Retire();
        return true;
      }
    }
    return true;
  }

  // Groups that are done at both ends give their memory back.
  void Retire() {
    while (first_open_ < groups_.size()) {
      Group& group = groups_[first_open_];
      const bool sent =
          std::all_of(group.messages.begin(), group.messages.end(), [](const Message& m) { return m.sent; });
      if (!group.received || !sent) return;
      group.messages.clear();
      ++first_open_;
    }
  }

  void* from_;
  void* to_;
  std::mt19937& random_;
  Wire wire_;
  std::vector<Group> groups_;
  size_t next_receive_ = 0, next_send_ = 0, first_open_ = 0;
  int lives_ = 0;
};

FAULT_ROLE(RandomTraffic) {
  const Holdings start = HeldAfterWarmUp();
  const auto seed = static_cast<unsigned>(atoi(getenv("SLUICE_TEST_SEED")));
  std::mt19937 random(seed);
  void* const a = Init();
  void* const b = Init();
  {
    std::vector<Channel> channels;
    channels.reserve(5);
    for (int i = 0; i < 3; ++i) channels.emplace_back(a, b, random);
    channels.emplace_back(b, a, random);
    channels.emplace_back(a, a, random);
    bool good = true;
    Until(
        [&] {
          Channel& channel = channels[random() % channels.size()];
          if (channel.Finished()) {
            if (channel.lives() < kLives) channel.Reopen();
          } else {
            good &= channel.Step();
          }
          return !good || std::all_of(channels.begin(), channels.end(),
                                      [](const Channel& c) { return c.Finished() && c.lives() == kLives; });
        },
        "all traffic");
    EXPECT_TRUE(good) << testing::PrintToString(Lines());
    for (Channel& channel : channels) channel.CloseNow();
  }
  EXPECT_EQ(Net().finalize(a), kSuccess);
  EXPECT_EQ(Net().finalize(b), kSuccess);
  ExpectBackTo(start, "random traffic");
}

class RandomTrafficTest : public FaultTest, public testing::WithParamInterface<int> {};

TEST_P(RandomTrafficTest, IsRightAndCompletesOnce) {
  const int seed = GetParam();
  Variables variables = {{"SLUICE_MAX_RECVS", "8"}, {"SLUICE_TEST_SEED", std::to_string(seed)}};
  if (seed % 2 == 0) {
    for (const char* variable : {"NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_ADAPTIVE_ROUTING"})
      variables.emplace_back(variable, "1");
    variables.emplace_back("NCCL_IB_QPS_PER_CONNECTION", "4");
    variables.emplace_back("SLUICE_STRIPE_MIN_BYTES", "1024");
  }
  if (seed % 3 == 0)
    variables.emplace_back("SLUICE_FABRIC_TOPOLOGY",
                           "hosts=1,max_qp_wr=64,max_srq_wr=32,max_cqe=96,max_inline=0");
  if (seed > 6) {
    // Four lanes with equal marks, each seen active all the time: messages go out in small pieces.
    variables.emplace_back("SLUICE_POLICY",
                           "[[class]]\nname = 'other'\nweight = 2\nqueue_pairs = 2\n"
                           "[[rule]]\nprotocol = 'll'\nclass = 'latency'\n"
                           "[[rule]]\nprotocol = 'll128'\nclass = 'background'\n"
                           "[[rule]]\nalgorithm = 'tree'\nclass = 'other'\n"
                           "[[rule]]\nclass = 'bulk'\n");
    variables.emplace_back("SLUICE_PIECE_BYTES", "4096");
    variables.emplace_back("SLUICE_SHARED_BUDGET_US", "1");
    variables.emplace_back("SLUICE_ACTIVITY_HOLD_US", "100000");
    variables.emplace_back("SLUICE_BACKGROUND_FLOOR", "50");
  }
  RunRole("RandomTraffic", variables);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomTrafficTest, testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9));

}  // namespace
}  // namespace sluice::fault
