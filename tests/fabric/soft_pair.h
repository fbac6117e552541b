// Tests of the software fabric's library with several processes: a test runs in this process and starts
// peers, which are this program again with a role.
//
//   SOFT_ROLE(Echo) { ... peer.Send(&x, sizeof(x)); }                     // runs in the peer
//   TEST_F(SoftFabricTest, Echoes) { Peer peer = StartPeer("Echo"); peer.link.Receive(&x, sizeof(x)); ... }
//
// The fixture gives each test a fabric of its own and checks at the end that nothing of it is left.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace sluice::soft {

// Ends a role or a test process that cannot go on.
#define SOFT_CHECK(condition)                                                                         \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      fprintf(stderr, "%s:%d: %s does not hold (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
      _exit(42);                                                                                      \
    }                                                                                                 \
  } while (0)

// A connected socket to the other process. Every call waits for all its bytes.
class Link {
 public:
  explicit Link(int fd = -1) : fd_(fd) {}
  Link(Link&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Link& operator=(Link&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Link();
  void Send(const void* bytes, size_t size);
  void Receive(void* bytes, size_t size);
  template <typename T>
  T Exchange(const T& mine) {
    T theirs;
    Send(&mine, sizeof(mine));
    Receive(&theirs, sizeof(theirs));
    return theirs;
  }
  void Barrier() { Exchange<char>('.'); }

 private:
  int fd_;
};

struct Peer {
  pid_t pid = -1;
  Link link;
  Peer() = default;
  Peer(Peer&& other) noexcept : pid(std::exchange(other.pid, -1)), link(std::move(other.link)) {}
  Peer& operator=(Peer&& other) noexcept {
    std::swap(pid, other.pid);
    link = std::move(other.link);
    return *this;
  }
  ~Peer();
  void Kill();
  // Exit code of the role: 0 when all its checks held.
  int Wait();
};

using Variables = std::vector<std::pair<std::string, std::string>>;
// Starts this program with a role; `variables` are added to its environment.
Peer StartPeer(const std::string& role, const Variables& variables = {});

using Role = void (*)(Link& peer);
struct RoleRegistration {
  RoleRegistration(const char* name, Role role);
};
#define SOFT_ROLE(name)                                                           \
  static void name(::sluice::soft::Link& peer);                                   \
  static const ::sluice::soft::RoleRegistration name##_registration(#name, name); \
  static void name([[maybe_unused]] ::sluice::soft::Link& peer)

// One device of this process with everything for one queue pair.
struct Endpoint {
  struct Address {
    ibv_gid gid;
    uint32_t qp_num;
    uint32_t psn;
    uint16_t lid;
    uint64_t buffer;
    uint32_t rkey;
  };
  struct Options {
    int cqe = 256;
    uint32_t send_wr = 64, recv_wr = 64;
    uint32_t inline_bytes = 64;
    size_t buffer_bytes = 1 << 20;
    unsigned access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    ibv_comp_channel** channel = nullptr;  // created and used when set
    bool srq = false;
    int sig_all = 0;
    uint64_t send_ops = 0;  // not 0: an extended queue pair
    uint8_t timeout = 10, retry_cnt = 7, rnr_retry = 7, min_rnr_timer = 1;
  };
  Endpoint() : Endpoint(Options{}) {}
  explicit Endpoint(Options options);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  Address address() const;
  void ToInit();
  void Connect(const Address& remote);  // to RTS
  void ConnectOver(Link& link);         // exchanges addresses first
  ibv_qp_state State();

  int PostSend(ibv_send_wr wr);
  // One element of the buffer.
  int Send(ibv_wr_opcode opcode, uint64_t offset, uint32_t length, uint64_t remote_offset = 0,
           unsigned flags = IBV_SEND_SIGNALED, uint64_t wr_id = 1);
  int Recv(uint64_t offset, uint32_t length, uint64_t wr_id = 1);
  // The next completion; gives up after a minute.
  ibv_wc Wait();
  ibv_async_event WaitEvent();
  uint8_t* at(uint64_t offset) { return buffer + offset; }

  Options options;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_srq* srq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  uint8_t* buffer = nullptr;
  Address remote{};
  int gid_index = 0;
};

ibv_context* OpenFirst();
// Runs a program on this fabric and returns what it prints; `code` receives the exit code.
std::string RunFabricTool(const std::string& arguments, int* code = nullptr);
// Process id of the running fabric process; -1: none.
pid_t FabricPid();

class SoftFabricTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  std::string directory_;
};

}  // namespace sluice::soft
