// A peer that has the secret and lies: every frame of the set-up, random and mutated, to the accepting and to
// the connecting side. Both end the link or answer with an error; the process lives, serves others, and keeps
// nothing.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "plugin/transport/frames.h"
#include "tests/fault/hello.h"
#include "tests/fault/rig.h"

namespace sluice::fault {
namespace {

using Bytes = std::vector<std::byte>;

// A TCP connection that speaks frames.
class Talker {
 public:
  explicit Talker(int fd) : fd_(fd) {}
  explicit Talker(const ListenHandle& target) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(target.port);
    memcpy(&address.sin_addr, target.address.data(), 4);
    SOFT_CHECK(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  }
  Talker(const Talker&) = delete;
  Talker& operator=(const Talker&) = delete;
  ~Talker() { close(fd_); }

  void Say(FrameType type, const Bytes& payload) {
    const FrameHeader header{type, kFrameVersion, static_cast<uint32_t>(payload.size())};
    Bytes bytes(sizeof(header));
    memcpy(bytes.data(), &header, sizeof(header));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  template <typename Frame>
  void Say(FrameType type, const Frame& frame) {
    Say(type, Encode(frame));
  }
  // The next frame; false: the other side closed, or said nothing for a moment.
  bool Hear(FrameType* type, Bytes* payload, int patience_ms) {
    FrameHeader header;
    if (!Read(&header, sizeof(header), patience_ms) || header.length > kMaxFrameBytes) return false;
    payload->resize(header.length);
    *type = header.type;
    return header.length == 0 || Read(payload->data(), header.length, patience_ms);
  }

 private:
  bool Read(void* to, size_t size, int patience_ms) {
    auto* next = static_cast<char*>(to);
    while (size > 0) {
      pollfd wait{fd_, POLLIN, 0};
      if (poll(&wait, 1, patience_ms) != 1) return false;
      const ssize_t got = recv(fd_, next, size, 0);
      if (got <= 0) return false;
      next += got;
      size -= static_cast<size_t>(got);
    }
    return true;
  }
  int fd_;
};

void Mutate(std::mt19937& random, Bytes& bytes) {
  for (uint32_t edits = random() % 3; edits > 0 && !bytes.empty(); --edits) {
    const size_t at = random() % bytes.size();
    switch (random() % 4) {
      case 0:
        bytes[at] = static_cast<std::byte>(random());
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(random() % 2 == 0 ? 0xff : 0);
        break;
      case 2:
        bytes.resize(at);
        break;
      default:
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), std::byte{1});
    }
  }
}

PortAddress Port(std::mt19937& random, bool wild) {
  PortAddress port;
  port.link_layer = static_cast<uint8_t>(wild ? random() : 2);
  port.mtu = static_cast<uint8_t>(wild ? random() : 5);
  for (uint8_t& byte : port.gid) byte = static_cast<uint8_t>(random());
  port.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, static_cast<uint8_t>(random() % 4)};
  port.name = "liar0";
  return port;
}

// A frame that the state of the link may or may not expect, with numbers that may or may not exist.
void SaySomething(Talker& talker, std::mt19937& random, const ListenHandle& target) {
  const auto small = [&] { return static_cast<uint32_t>(random() % 3); };
  Bytes bytes;
  const auto type = static_cast<FrameType>(random() % 16);
  switch (type) {
    case FrameType::kPath:
    case FrameType::kPathOk: {
      PathFrame frame;
      frame.path = small();
      frame.stripes = static_cast<uint16_t>(random() % 4);
      frame.max_message_bytes = random() % 2 == 0 ? 1u << 20 : static_cast<uint32_t>(random());
      frame.stripe_above_bytes = random() % 2 == 0 ? 1u << 17 : static_cast<uint32_t>(random());
      frame.classes.resize(random() % 4);
      uint32_t queues = 0;
      for (ClassFrame& c : frame.classes) {
        c.queue_pairs = static_cast<uint8_t>(random() % 5);
        c.sl = static_cast<uint8_t>(random() % 20);
      }
      // The first class has no queue pairs in a sound frame.
      if (!frame.classes.empty() && random() % 4 != 0) frame.classes[0].queue_pairs = 0;
      for (const ClassFrame& c : frame.classes) queues += c.queue_pairs;
      frame.pairs.resize(random() % 3);
      for (PairFrame& pair : frame.pairs) {
        pair.sender_port = static_cast<uint8_t>(small() / 2);
        pair.receiver_port = static_cast<uint8_t>(small() / 2);
        pair.control_qpn = static_cast<uint32_t>(random());
        pair.mtu = static_cast<uint8_t>(random() % 7);
        pair.data_qpns.resize(random() % 5 == 0 ? random() % 9 : queues, static_cast<uint32_t>(random()));
      }
      bytes = Encode(frame);
      break;
    }
    case FrameType::kOpen: {
      OpenFrame frame;
      frame.path = small();
      frame.sender_connection = small();
      frame.listen_id = target.listen_id;
      frame.secret = target.secret;
      frame.cts_ring = random();
      frame.max_recvs = static_cast<uint8_t>(random() % 4 == 0 ? random() : 1);
      frame.rkeys.resize(random() % 3, static_cast<uint32_t>(random()));
      bytes = Encode(frame);
      break;
    }
    case FrameType::kConn: {
      ConnFrame frame;
      frame.path = small();
      frame.sender_connection = small();
      frame.index = static_cast<uint16_t>(small());
      frame.max_recvs = 1;
      frame.record_ring = random();
      frame.rkeys.resize(random() % 3, 1);
      bytes = Encode(frame);
      break;
    }
    case FrameType::kClose:
      bytes = Encode(CloseFrame{small(), static_cast<uint16_t>(small()), static_cast<uint8_t>(small())});
      break;
    case FrameType::kPathUp:
    case FrameType::kBye:
    case FrameType::kByeOk:
      bytes = Encode(PathIdFrame{small()});
      break;
    case FrameType::kAbort:
    case FrameType::kPathFail:
    case FrameType::kOpenFail:
    case FrameType::kReject:
      bytes = Encode(TextFrame{small(), std::string(random() % 300, '%')});
      break;
    default:
      bytes.resize(random() % 200, static_cast<std::byte>(random()));
  }
  if (random() % 3 == 0) Mutate(random, bytes);
  talker.Say(type, bytes);
}

FAULT_ROLE(LyingSender) {
  const Holdings start = HeldAfterWarmUp();
  std::mt19937 random(static_cast<unsigned>(atoi(getenv("SLUICE_TEST_SEED"))));
  void* const ctx = Init();
  Handle handle;
  void* const listen = Listen(ctx, &handle);
  ListenHandle target;
  memcpy(&target, handle.data(), sizeof(target));
  std::vector<void*> accepted;
  const auto accept = [&] {
    void* recv = nullptr;
    EXPECT_EQ(Net().accept(listen, &recv, nullptr), kSuccess);
    if (recv != nullptr) accepted.push_back(recv);
  };
  for (int round = 0; round < 60; ++round) {
    {
      Talker talker(target);
      HelloFrame hello = HelloFor(target);
      hello.sender_uid = random();
      hello.ports.resize(random() % 3 + (round % 10 == 0 ? 8 : 0));
      for (PortAddress& port : hello.ports) port = Port(random, random() % 4 == 0);
      talker.Say(FrameType::kHello, hello);
      for (int i = 0; i < 40; ++i) {
        SaySomething(talker, random, target);
        accept();
      }
      // Wait for the end of what was said, or of the link.
      FrameType type;
      Bytes payload;
      while (talker.Hear(&type, &payload, 20)) accept();
    }
    accept();
    while (accepted.size() > 4) {
      EXPECT_EQ(Net().closeRecv(accepted.back()), kSuccess);
      accepted.pop_back();
    }
  }
  const Wire honest = Connect(ctx, ctx);
  Transfer(honest, 100000);
  Close(honest);
  for (void* recv : accepted) {
    Buffer buffer(recv, 100, 0, std::make_unique<NcclResult>().get());
    (void)buffer.Deregister();
    EXPECT_EQ(Net().closeRecv(recv), kSuccess);
  }
  EXPECT_EQ(Net().closeListen(listen), kSuccess);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
  ExpectBackTo(start, "a lying sender");
}

class LyingPeerTest : public FaultTest, public testing::WithParamInterface<int> {};

TEST_P(LyingPeerTest, Sender) {
  RunRole("LyingSender", {{"SLUICE_TEST_SEED", std::to_string(GetParam())}});
}

PathFrame HonestPath(uint32_t id) {
  PathFrame path;
  path.path = id;
  path.stripes = 1;
  path.max_message_bytes = 1u << 20;
  path.stripe_above_bytes = 1u << 17;
  path.classes = {{.name = "control"}, {.name = "bulk", .queue_pairs = 1}};
  PairFrame pair;
  pair.control_qpn = 17;
  pair.mtu = 5;
  pair.data_qpns = {18};
  path.pairs = {pair};
  return path;
}

// The first path keeps the link for two seconds, as its sender lives on; what comes by it then comes too
// late.
FAULT_ROLE(LateSender) {
  const Holdings start = HeldAfterWarmUp();
  void* const ctx = Init();
  Handle handle;
  void* const listen = Listen(ctx, &handle);
  ListenHandle target;
  memcpy(&target, handle.data(), sizeof(target));
  Talker talker(target);
  const auto expect = [&](FrameType wanted) {
    FrameType type;
    Bytes payload;
    ASSERT_TRUE(talker.Hear(&type, &payload, 60'000));
    EXPECT_EQ(static_cast<int>(type), static_cast<int>(wanted));
  };
  HelloFrame hello = HelloFor(target);
  std::mt19937 random(1);
  hello.ports = {Port(random, false)};
  talker.Say(FrameType::kHello, hello);
  expect(FrameType::kHelloOk);
  talker.Say(FrameType::kPath, HonestPath(1));
  expect(FrameType::kPathOk);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
  talker.Say(FrameType::kPath, HonestPath(2));
  expect(FrameType::kPathFail);
  EXPECT_NE(Net().closeListen(listen), kSuccess);
  ExpectBackTo({start.descriptors + 1, start.objects}, "a sender that came too late");  // the talker's own
}

TEST_F(FaultTest, NoPathAfterFinalize) {
  RunRole("LateSender");
}

FAULT_ROLE(LyingReceiver) {
  const Holdings start = HeldAfterWarmUp();
  std::mt19937 random(static_cast<unsigned>(atoi(getenv("SLUICE_TEST_SEED"))));
  void* const ctx = Init();
  // A handle of ours, bent towards a listener that lies.
  Handle handle;
  void* const listen = Listen(ctx, &handle);
  ListenHandle target;
  memcpy(&target, handle.data(), sizeof(target));
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  SOFT_CHECK(bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
             ::listen(server, 16) == 0 &&
             getsockname(server, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  target.port = ntohs(address.sin_port);
  memcpy(target.address.data(), &address.sin_addr, 4);
  for (int round = 0; round < 40; ++round) {
    target.engine_uid = random() | 1;  // a link of its own
    memcpy(handle.data(), &target, sizeof(target));
    void* send = nullptr;
    EXPECT_EQ(Net().connect(ctx, 0, handle.data(), &send, nullptr), kSuccess);
    const int fd = accept(server, nullptr, nullptr);
    SOFT_CHECK(fd >= 0);
    std::thread liar([&random, &target, fd] {
      Talker talker(fd);
      FrameType type;
      Bytes payload;
      for (int said = 0; said < 60 && talker.Hear(&type, &payload, 100); ++said) {
        Bytes answer;
        FrameType answer_type = FrameType::kAbort;
        if (type == FrameType::kHello) {
          HelloOkFrame ok;
          ok.version = target.version;
          ok.host = "liar:2";
          ok.ports.resize(random() % 8 == 0 ? random() % 10 : 1);
          for (PortAddress& port : ok.ports) port = Port(random, random() % 6 == 0);
          answer_type = FrameType::kHelloOk;
          answer = Encode(ok);
        } else if (type == FrameType::kPath) {
          answer_type = FrameType::kPathOk;  // our own numbers back
          answer = payload;
        } else if (type == FrameType::kOpen) {
          const auto open = Decode<OpenFrame>(payload);
          ConnFrame conn;
          conn.path = open->path;
          conn.sender_connection = open->sender_connection;
          conn.max_recvs = open->max_recvs;
          conn.rkeys = {static_cast<uint32_t>(random())};
          answer_type = FrameType::kConn;
          answer = Encode(conn);
        } else {
          SaySomething(talker, random, target);
          continue;
        }
        if (random() % 4 == 0) Mutate(random, answer);
        talker.Say(answer_type, answer);
        if (random() % 3 == 0) SaySomething(talker, random, target);
      }
      // Closing is the last lie.
    });
    NcclResult result = kSuccess;
    Until(
        [&] {
          result = Net().connect(ctx, 0, handle.data(), &send, nullptr);
          return result != kSuccess || send != nullptr;
        },
        "connect to end");
    liar.join();
    if (send != nullptr) {
      NcclResult registered = kSuccess;
      Buffer buffer(send, 100, 0, &registered);
      if (registered == kSuccess) {
        EXPECT_NE(FirstErrorOfSender(send, buffer), kSuccess);
      }
      EXPECT_EQ(buffer.Deregister(), kSuccess);
      EXPECT_EQ(Net().closeSend(send), kSuccess);
    }
  }
  close(server);
  const Wire honest = Connect(ctx, ctx);
  Transfer(honest, 100000);
  Close(honest);
  EXPECT_EQ(Net().closeListen(listen), kSuccess);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
  ExpectBackTo(start, "a lying receiver");
}

TEST_P(LyingPeerTest, Receiver) {
  RunRole("LyingReceiver", {{"SLUICE_TEST_SEED", std::to_string(GetParam())},
                            {"SLUICE_CONNECT_TIMEOUT_MS", "3000"},
                            {"SLUICE_ADMIT_TIMEOUT_MS", "1000"}});
}

INSTANTIATE_TEST_SUITE_P(Seeds, LyingPeerTest, testing::Values(1, 2, 3));

}  // namespace
}  // namespace sluice::fault
