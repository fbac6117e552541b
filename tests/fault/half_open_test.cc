// Set-up in every order that NCCL may produce, connections that nobody claims, and strangers at the set-up
// listener.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string_view>
#include <thread>

#include "plugin/transport/frames.h"
#include "tests/fault/hello.h"
#include "tests/fault/rig.h"

namespace sluice::fault {
namespace {

FAULT_ROLE(ManyConnections) {
  void* const sender = Init();
  void* const receiver = Init();
  std::vector<Wire> wires;
  int queue_pairs = 0;
  int made = 0;
  for (int channels = 1; channels <= 32; ++channels) {
    wires.push_back(Connect(sender, receiver));
    if (channels == 1) {
      queue_pairs = LiveObjects().queue_pairs;
      // Four data queue pairs for bulk, one for latency, and one for grants, at both ends.
      EXPECT_EQ(queue_pairs, 2 * 6);
      made = QueuePairsMade();
    }
    EXPECT_EQ(LiveObjects().queue_pairs, queue_pairs) << channels << " channels";
  }
  for (const Wire& wire : wires) Transfer(wire, 5000);
  EXPECT_EQ(QueuePairsMade(), made);
  // The other direction is a path of its own, also of constant size.
  for (int channels = 1; channels <= 4; ++channels) {
    wires.push_back(Connect(receiver, sender));
    EXPECT_EQ(LiveObjects().queue_pairs, 2 * queue_pairs);
  }
  for (const Wire& wire : wires) Close(wire);
  Until([] { return LiveObjects().queue_pairs == 0; }, "the queue pairs to go with the last connection");
  EXPECT_EQ(Net().finalize(sender), kSuccess);
  EXPECT_EQ(Net().finalize(receiver), kSuccess);
}

TEST_F(FaultTest, QueuePairsAreConstantFromOneTo32Channels) {
  RunRole("ManyConnections");
}

// Half-open connections are reclaimed without a close and without a word, also while the communicators live
// on.
FAULT_ROLE(HalfOpen) {
  const Holdings start = HeldAfterWarmUp();
  void* const sender = Init();
  void* const receiver = Init();
  const auto no_queue_pairs = [] { return LiveObjects().queue_pairs == 0; };

  {
    SCOPED_TRACE("listener closed before anybody came");
    Handle handle;
    void* const listen = Listen(receiver, &handle);
    EXPECT_EQ(Net().closeListen(listen), kSuccess);
    NcclResult result = kSuccess;
    void* comm = nullptr;
    Until(
        [&] {
          result = Net().connect(sender, 0, handle.data(), &comm, nullptr);
          return result != kSuccess || comm != nullptr;
        },
        "connect to fail");
    EXPECT_EQ(result, nccl::kRemoteError);
    Until(no_queue_pairs, "no queue pairs");
  }
  {
    SCOPED_TRACE("listener closed with a connection that was not accepted");
    Handle handle;
    void* const listen = Listen(receiver, &handle);
    void* comm = nullptr;
    Until(
        [&] {
          return Net().connect(sender, 0, handle.data(), &comm, nullptr) != kSuccess || comm != nullptr;
        },
        "connect");
    EXPECT_EQ(Net().closeListen(listen), kSuccess);
    Buffer buffer(comm, 1000);
    EXPECT_NE(FirstErrorOfSender(comm, buffer), kSuccess);
    EXPECT_EQ(buffer.Deregister(), kSuccess);
    EXPECT_EQ(Net().closeSend(comm), kSuccess);
    Until(no_queue_pairs, "no queue pairs");
  }
  {
    SCOPED_TRACE("connect called once and never again, the connection accepted");
    Handle handle;
    void* const listen = Listen(receiver, &handle);
    void* send = nullptr;
    void* recv = nullptr;
    EXPECT_EQ(Net().connect(sender, 0, handle.data(), &send, nullptr), kSuccess);
    Until([&] { return Net().accept(listen, &recv, nullptr) != kSuccess || recv != nullptr; }, "accept");
    // The sender's side is reclaimed when the set-up time is over, which the receiver notices.
    Buffer buffer(recv, 1000);
    EXPECT_EQ(FirstErrorOfReceiver(recv, buffer), nccl::kRemoteError);
    EXPECT_EQ(buffer.Deregister(), kSuccess);
    EXPECT_EQ(Net().closeRecv(recv), kSuccess);
    EXPECT_EQ(Net().closeListen(listen), kSuccess);
    Until(no_queue_pairs, "no queue pairs");
    // And a late connect is told so.
    EXPECT_NE(Net().connect(sender, 0, handle.data(), &send, nullptr), kSuccess);
  }
  {
    SCOPED_TRACE("connect abandoned, accept never called");
    Handle handle;
    void* const listen = Listen(receiver, &handle);
    void* send = nullptr;
    EXPECT_EQ(Net().connect(sender, 0, handle.data(), &send, nullptr), kSuccess);
    Until([] { return LiveObjects().queue_pairs != 0; }, "set-up to go on by itself");
    EXPECT_EQ(Net().closeListen(listen), kSuccess);
    Until(no_queue_pairs, "no queue pairs");
  }
  {
    SCOPED_TRACE("connected, never accepted, the sender goes");
    Handle handle;
    void* const listen = Listen(receiver, &handle);
    void* send = nullptr;
    Until(
        [&] {
          return Net().connect(sender, 0, handle.data(), &send, nullptr) != kSuccess || send != nullptr;
        },
        "connect");
    EXPECT_EQ(Net().closeSend(send), kSuccess);
    // Accept may still hand it out: then its first receive fails.
    void* recv = nullptr;
    EXPECT_EQ(Net().accept(listen, &recv, nullptr), kSuccess);
    if (recv != nullptr) {
      Buffer buffer(recv, 1000);
      EXPECT_EQ(FirstErrorOfReceiver(recv, buffer), nccl::kRemoteError);
      EXPECT_EQ(buffer.Deregister(), kSuccess);
      EXPECT_EQ(Net().closeRecv(recv), kSuccess);
    }
    EXPECT_EQ(Net().closeListen(listen), kSuccess);
    Until(no_queue_pairs, "no queue pairs");
  }
  EXPECT_EQ(Net().finalize(sender), kSuccess);
  EXPECT_EQ(Net().finalize(receiver), kSuccess);
  ExpectBackTo(start, "half-open connections");
}

TEST_F(FaultTest, HalfOpenConnectionsAreReclaimed) {
  RunRole("HalfOpen", {{"SLUICE_CONNECT_TIMEOUT_MS", "2000"}, {"SLUICE_ADMIT_TIMEOUT_MS", "1000"}});
}

FAULT_ROLE(EveryOrder) {
  const Holdings start = HeldAfterWarmUp();
  void* const a = Init();
  void* const b = Init();
  {
    SCOPED_TRACE("both sides connect to each other at once");
    Handle to_a, to_b;
    void* const listen_a = Listen(a, &to_a);
    void* const listen_b = Listen(b, &to_b);
    Wire ab, ba;
    Until(
        [&] {
          if (ab.send == nullptr) {
            EXPECT_EQ(Net().connect(a, 0, to_b.data(), &ab.send, nullptr), kSuccess);
          }
          if (ba.send == nullptr) {
            EXPECT_EQ(Net().connect(b, 0, to_a.data(), &ba.send, nullptr), kSuccess);
          }
          if (ab.recv == nullptr) {
            EXPECT_EQ(Net().accept(listen_b, &ab.recv, nullptr), kSuccess);
          }
          if (ba.recv == nullptr) {
            EXPECT_EQ(Net().accept(listen_a, &ba.recv, nullptr), kSuccess);
          }
          return ab.send != nullptr && ba.send != nullptr && ab.recv != nullptr && ba.recv != nullptr;
        },
        "both connections");
    Transfer(ab, 70000);
    Transfer(ba, 70000);
    Close(ab);
    Close(ba);
    EXPECT_EQ(Net().closeListen(listen_a), kSuccess);
    EXPECT_EQ(Net().closeListen(listen_b), kSuccess);
  }
  {
    SCOPED_TRACE("an engine connects to itself");
    const Wire wire = Connect(a, a);
    Transfer(wire, 123457);
    Close(wire);
  }
  {
    SCOPED_TRACE("one listener, many connections, accepted at the end");
    Handle handle;
    void* const listen = Listen(a, &handle);
    std::array<Handle, 12> handles;
    handles.fill(handle);
    std::array<void*, 12> sends{}, recvs{};
    for (size_t i = 0; i < sends.size(); ++i) {
      Until(
          [&] {
            return Net().connect(b, 0, handles[i].data(), &sends[i], nullptr) != kSuccess ||
                   sends[i] != nullptr;
          },
          "connect");
    }
    for (size_t i = 0; i < recvs.size(); ++i) {
      Until([&] { return Net().accept(listen, &recvs[i], nullptr) != kSuccess || recvs[i] != nullptr; },
            "accept");
      Transfer({sends[i], recvs[i]}, 1000 + i);  // in the order of the connects
    }
    EXPECT_EQ(Net().closeListen(listen), kSuccess);
    for (size_t i = 0; i < sends.size(); ++i) Close({sends[i], recvs[i]});
  }
  {
    SCOPED_TRACE("connects and accepts of many connections interleaved");
    constexpr size_t kCount = 16;
    std::array<Handle, kCount> handles;
    std::array<void*, kCount> listens{};
    std::array<Wire, kCount> wires;
    for (size_t i = 0; i < kCount; ++i) listens[i] = Listen(i % 2 == 0 ? a : b, &handles[i]);
    std::mt19937 random(7);
    Until(
        [&] {
          const size_t i = random() % kCount;
          Wire& wire = wires[i];
          if (random() % 2 == 0) {
            if (wire.send == nullptr) {
              EXPECT_EQ(Net().connect(i % 2 == 0 ? b : a, 0, handles[i].data(), &wire.send, nullptr),
                        kSuccess);
            }
          } else {
            if (wire.recv == nullptr) {
              EXPECT_EQ(Net().accept(listens[i], &wire.recv, nullptr), kSuccess);
            }
          }
          return std::all_of(wires.begin(), wires.end(),
                             [](const Wire& w) { return w.send != nullptr && w.recv != nullptr; });
        },
        "all connections");
    for (void* listen : listens) EXPECT_EQ(Net().closeListen(listen), kSuccess);
    for (const Wire& wire : wires) Transfer(wire, 4097);
    for (const Wire& wire : wires) Close(wire);
  }
  EXPECT_EQ(Net().finalize(a), kSuccess);
  EXPECT_EQ(Net().finalize(b), kSuccess);
  ExpectBackTo(start, "connections in every order");
}

TEST_F(FaultTest, ConnectionsInEveryOrder) {
  RunRole("EveryOrder");
}

FAULT_ROLE(ManyThreads) {
  const Holdings start = HeldAfterWarmUp();
  {
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
      threads.emplace_back([i] {
        void* const from = Init();
        void* const to = Init();
        std::vector<Wire> wires;
        for (int round = 0; round < 4; ++round)
          wires.push_back(round % 2 == 0 ? Connect(from, to) : Connect(to, from));
        for (const Wire& wire : wires) Transfer(wire, 1000 * static_cast<size_t>(i + 1));
        for (const Wire& wire : wires) Close(wire);
        EXPECT_EQ(Net().finalize(from), kSuccess);
        EXPECT_EQ(Net().finalize(to), kSuccess);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ExpectBackTo(start, "six threads");
}

TEST_F(FaultTest, ManyThreadsConnectAtOnce) {
  RunRole("ManyThreads");
}

// NET v8: one context for the process; its engines end with their last connection.
FAULT_ROLE(GlobalContext) {
  const Holdings start = HeldAfterWarmUp();
  const auto& net = Table<nccl::NetV8>("ncclNetPlugin_v8");
  EXPECT_EQ(net.init(Log), kSuccess);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&net] {
      for (int round = 0; round < 5; ++round) {
        Handle handle;
        void* listen = nullptr;
        Wire wire;
        EXPECT_EQ(net.listen(0, handle.data(), &listen), kSuccess);
        Until(
            [&] {
              if (wire.send == nullptr) {
                EXPECT_EQ(net.connect(0, handle.data(), &wire.send, nullptr), kSuccess);
              }
              if (wire.recv == nullptr) {
                EXPECT_EQ(net.accept(listen, &wire.recv, nullptr), kSuccess);
              }
              return wire.send != nullptr && wire.recv != nullptr;
            },
            "connect and accept");
        EXPECT_EQ(net.closeListen(listen), kSuccess);
        Transfer(wire, 3000);  // the tables share their connections
        EXPECT_EQ(net.closeSend(wire.send), kSuccess);
        EXPECT_EQ(net.closeRecv(wire.recv), kSuccess);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectBackTo(start, "the global context without connections");
}

TEST_F(FaultTest, GlobalContextLeavesNothingWithoutConnections) {
  RunRole("GlobalContext");
}

// A TCP connection to the set-up listener behind `handle`.
class Stranger {
 public:
  explicit Stranger(const Handle& handle) {
    memcpy(&target_, handle.bytes.data(), sizeof(target_));
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(target_.port);
    memcpy(&address.sin_addr, target_.address.data(), 4);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  Stranger(Stranger&& other) noexcept : target_(other.target_), fd_(std::exchange(other.fd_, -1)) {}
  ~Stranger() {
    if (fd_ >= 0) close(fd_);
  }
  const ListenHandle& target() const { return target_; }
  void Say(const void* bytes, size_t size) { (void)!send(fd_, bytes, size, MSG_NOSIGNAL); }
  template <typename Frame>
  void Say(FrameType type, const Frame& frame) {
    const std::vector<std::byte> payload = Encode(frame);
    const FrameHeader header{type, kFrameVersion, static_cast<uint32_t>(payload.size())};
    Say(&header, sizeof(header));
    Say(payload.data(), payload.size());
  }
  // The other side has closed, after any answer.
  void ExpectClosed() {
    char bytes[4096];
    for (;;) {
      pollfd wait{fd_, POLLIN, 0};
      ASSERT_EQ(poll(&wait, 1, 60'000), 1) << "the listener keeps a stranger";
      if (recv(fd_, bytes, sizeof(bytes), 0) <= 0) return;
    }
  }

 private:
  ListenHandle target_;
  int fd_;
};

FAULT_ROLE(Strangers) {
  const Holdings start = HeldAfterWarmUp();
  void* const sender = Init();
  void* const receiver = Init();
  Handle handle;
  void* const listen = Listen(receiver, &handle);
  ForgetLines();
  size_t expected = 0;
  // Everybody is sent away with one line of the log.
  const auto expect_line = [&](const char* part) {
    ++expected;
    Until([&] { return Lines("set-up link from").size() >= expected; }, "a line in the log");
    ASSERT_EQ(Lines("set-up link from").size(), expected) << testing::PrintToString(Lines());
    EXPECT_NE(Lines("set-up link from").back().find(part), std::string::npos)
        << Lines("set-up link from").back();
  };
  { Stranger closes_at_once(handle); }
  expect_line("closed");
  {
    Stranger talks_http(handle);
    constexpr std::string_view request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    talks_http.Say(request.data(), request.size());
    talks_http.ExpectClosed();
  }
  expect_line("exceeds 4096");
  {
    Stranger sends_half_a_header(handle);
    sends_half_a_header.Say("\1\0\1", 3);
    sends_half_a_header.ExpectClosed();
  }
  expect_line("no secret in time");
  {
    Stranger oversized(handle);
    const FrameHeader header{FrameType::kHello, kFrameVersion, 0xffffffff};
    oversized.Say(&header, sizeof(header));
    oversized.ExpectClosed();
  }
  expect_line("exceeds 4096");
  {
    Stranger knows_no_secret(handle);
    HelloFrame hello = HelloFor(knows_no_secret.target());
    hello.secret[3] ^= 1;
    knows_no_secret.Say(FrameType::kHello, hello);
    knows_no_secret.ExpectClosed();
  }
  expect_line("wrong or late secret");
  {
    Stranger wants_another_listener(handle);
    HelloFrame hello = HelloFor(wants_another_listener.target());
    ++hello.listen_id;
    wants_another_listener.Say(FrameType::kHello, hello);
    wants_another_listener.ExpectClosed();
  }
  expect_line("wrong or late secret");
  {
    Stranger wants_another_engine(handle);
    HelloFrame hello = HelloFor(wants_another_engine.target());
    ++hello.receiver_uid;
    wants_another_engine.Say(FrameType::kHello, hello);
    wants_another_engine.ExpectClosed();
  }
  expect_line("has ended");
  {
    Stranger skips_hello(handle);
    skips_hello.Say(FrameType::kOpen, OpenFrame{});
    skips_hello.ExpectClosed();
  }
  expect_line("no valid HELLO");
  {
    Stranger from_the_future(handle);
    HelloFrame hello = HelloFor(from_the_future.target());
    hello.min_version = hello.max_version = 77;
    hello.library = "9.9.9";
    from_the_future.Say(FrameType::kHello, hello);
    from_the_future.ExpectClosed();
  }
  expect_line("9.9.9 here speaks 77 to 77");
  {
    SCOPED_TRACE("one byte at a time");
    Stranger slow(handle);
    const char nothing = 1;
    for (int i = 0; i < 5; ++i) slow.Say(&nothing, 1);
    slow.ExpectClosed();
  }
  expect_line("no secret in time");

  // Two hundred that say nothing, and the real peer all the same.
  std::vector<Stranger> idle;
  for (int i = 0; i < 200; ++i) idle.emplace_back(handle);
  Wire wire;
  Until(
      [&] {
        if (wire.send == nullptr) {
          EXPECT_EQ(Net().connect(sender, 0, handle.data(), &wire.send, nullptr), kSuccess);
        }
        if (wire.recv == nullptr) {
          EXPECT_EQ(Net().accept(listen, &wire.recv, nullptr), kSuccess);
        }
        return wire.send != nullptr && wire.recv != nullptr;
      },
      "the real peer to connect");
  Transfer(wire, 50000);
  for (Stranger& stranger : idle) stranger.ExpectClosed();
  // They do not fill the log: one line each for the first sixteen, then at 32, 64 and 128.
  ASSERT_LT(expected, 16u);
  Until([] { return !Lines("(128 so far)").empty(); }, "the last line");
  EXPECT_EQ(Lines("set-up link from").size(), 16u + 3u);
  idle.clear();
  Close(wire);
  EXPECT_EQ(Net().closeListen(listen), kSuccess);
  EXPECT_EQ(Net().finalize(sender), kSuccess);
  EXPECT_EQ(Net().finalize(receiver), kSuccess);
  ExpectBackTo(start, "strangers");
}

TEST_F(FaultTest, StrangersAreSentAway) {
  RunRole("Strangers", {{"SLUICE_ADMIT_TIMEOUT_MS", "500"}});
}

// Handles that no listener of this release wrote.
FAULT_ROLE(BadHandles) {
  const Holdings start = HeldAfterWarmUp();
  void* const ctx = Init();
  Handle good;
  void* const listen = Listen(ctx, &good);
  const auto connect = [&](Handle handle) {
    void* comm = nullptr;
    NcclResult result = kSuccess;
    Until(
        [&] {
          result = Net().connect(ctx, 0, handle.data(), &comm, nullptr);
          return result != kSuccess || comm != nullptr;
        },
        "connect to end");
    EXPECT_EQ(comm, nullptr);
    return result;
  };
  std::mt19937 random(11);
  for (int i = 0; i < 200; ++i) {
    Handle noise;
    for (std::byte& byte : noise.bytes) byte = static_cast<std::byte>(random());
    EXPECT_NE(connect(noise), kSuccess);
  }
  EXPECT_NE(connect(Handle()), kSuccess);
  {
    Handle truncated = good;
    std::fill(truncated.bytes.begin() + 2, truncated.bytes.end(), std::byte{0});
    EXPECT_EQ(connect(truncated), nccl::kInvalidArgument);
  }
  EXPECT_THAT(Lines("every rank must load the same network plugin"), testing::Not(testing::IsEmpty()));
  ListenHandle target;
  memcpy(&target, good.data(), sizeof(target));
  const auto with = [&](auto change) {
    ListenHandle changed = target;
    change(changed);
    Handle handle;
    memcpy(handle.data(), &changed, sizeof(changed));
    return handle;
  };
  ForgetLines();
  EXPECT_EQ(connect(with([](ListenHandle& h) { h.version = 9; })), nccl::kInvalidUsage);
  EXPECT_THAT(Lines("speaks protocol 9"), testing::SizeIs(1));
  EXPECT_EQ(connect(with([](ListenHandle& h) { h.family = 77; })), nccl::kInvalidArgument);
  EXPECT_NE(connect(with([](ListenHandle& h) { h.attempt = 12345; })), kSuccess);
  EXPECT_EQ(connect(with([](ListenHandle& h) { h.secret[0] ^= 1; })), nccl::kRemoteError);
  EXPECT_EQ(connect(with([](ListenHandle& h) { h.listen_id += 100; })), nccl::kRemoteError);
  EXPECT_EQ(connect(with([](ListenHandle& h) { h.engine_uid += 1; })), nccl::kRemoteError);
  EXPECT_EQ(connect(with([](ListenHandle& h) { h.link_layer = 200; })), nccl::kInvalidUsage);
  EXPECT_NE(connect(with([](ListenHandle& h) { h.port = 1; })), kSuccess);
  // And the real one still works, also after a wrong secret opened and lost the link.
  Wire wire;
  Until(
      [&] {
        if (wire.send == nullptr) {
          EXPECT_EQ(Net().connect(ctx, 0, good.data(), &wire.send, nullptr), kSuccess);
        }
        if (wire.recv == nullptr) {
          EXPECT_EQ(Net().accept(listen, &wire.recv, nullptr), kSuccess);
        }
        return wire.send != nullptr && wire.recv != nullptr;
      },
      "the real connection");
  Transfer(wire, 1000);
  // A handle is for one connect.
  void* again = nullptr;
  EXPECT_NE(Net().connect(ctx, 0, good.data(), &again, nullptr), kSuccess);
  // With a link there, the secret of each connection is still checked.
  EXPECT_EQ(connect(with([](ListenHandle& h) { h.secret[15] ^= 128; })), nccl::kRemoteError);
  Transfer(wire, 1000);
  Close(wire);
  EXPECT_EQ(Net().closeListen(listen), kSuccess);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
  ExpectBackTo(start, "bad handles");
}

TEST_F(FaultTest, BadHandlesAreRefused) {
  RunRole("BadHandles");
}

}  // namespace
}  // namespace sluice::fault
