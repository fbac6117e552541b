#include "tests/fabric/soft_pair.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

extern char** environ;

namespace sluice::soft {
namespace {

constexpr int kPeerFd = 3;
constexpr auto kPatience = std::chrono::seconds(60);

std::map<std::string, Role>& Roles() {
  static std::map<std::string, Role> roles;
  return roles;
}

bool FabricListens() {
  std::ifstream sockets("/proc/net/unix");
  const std::string suffix = "/" + std::string(getenv("SLUICE_FABRIC"));
  for (std::string line; std::getline(sockets, line);) {
    if (line.ends_with(suffix) && line.find("@sluice-fabric/") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

RoleRegistration::RoleRegistration(const char* name, Role role) {
  Roles()[name] = role;
}

Link::~Link() {
  if (fd_ >= 0) close(fd_);
}

void Link::Send(const void* bytes, size_t size) {
  const auto* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t sent = send(fd_, next, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    SOFT_CHECK(sent > 0);
    next += sent;
    size -= static_cast<size_t>(sent);
  }
}

void Link::Receive(void* bytes, size_t size) {
  auto* next = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t got = recv(fd_, next, size, 0);
    if (got < 0 && errno == EINTR) continue;
    SOFT_CHECK(got > 0);
    next += got;
    size -= static_cast<size_t>(got);
  }
}

Peer::~Peer() {
  if (pid > 0) Kill();
}

void Peer::Kill() {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  pid = -1;
}

int Peer::Wait() {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  pid = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Peer StartPeer(const std::string& role, const Variables& variables) {
  int fds[2];
  SOFT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  const int theirs = fcntl(fds[1], F_DUPFD_CLOEXEC, 100);
  close(fds[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs, kPeerFd);
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    bool replaced = false;
    for (const auto& [name, value] : variables) replaced |= text.starts_with(name + "=");
    if (!replaced) environment.push_back(text);
  }
  std::vector<char*> pointers;
  for (std::string& text : environment) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  std::string option = "--role=" + role;
  std::string program = "soft-peer";
  char* arguments[] = {program.data(), option.data(), nullptr};
  Peer peer;
  const int error = posix_spawn(&peer.pid, "/proc/self/exe", &actions, nullptr, arguments, pointers.data());
  posix_spawn_file_actions_destroy(&actions);
  close(theirs);
  errno = error;
  SOFT_CHECK(error == 0);
  peer.link = Link(fds[0]);
  return peer;
}

// ---- Endpoint

ibv_context* OpenFirst() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr || count < 1) return nullptr;
  ibv_context* context = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  return context;
}

Endpoint::Endpoint(Options wanted) : options(wanted) {
  context = OpenFirst();
  SOFT_CHECK(context != nullptr);
  SOFT_CHECK((pd = ibv_alloc_pd(context)) != nullptr);
  if (options.channel != nullptr) {
    SOFT_CHECK((channel = ibv_create_comp_channel(context)) != nullptr);
    *options.channel = channel;
  }
  SOFT_CHECK((cq = ibv_create_cq(context, options.cqe, this, channel, 0)) != nullptr);
  void* memory =
      mmap(nullptr, options.buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  SOFT_CHECK(memory != MAP_FAILED);
  buffer = static_cast<uint8_t*>(memory);
  SOFT_CHECK((mr = ibv_reg_mr(pd, buffer, options.buffer_bytes, options.access)) != nullptr);
  if (options.srq) {
    ibv_srq_init_attr attr{};
    attr.attr.max_wr = options.recv_wr;
    attr.attr.max_sge = 1;
    SOFT_CHECK((srq = ibv_create_srq(pd, &attr)) != nullptr);
  }
  ibv_qp_init_attr_ex attr{};
  attr.send_cq = attr.recv_cq = cq;
  attr.srq = srq;
  attr.qp_type = IBV_QPT_RC;
  attr.cap = {options.send_wr, options.srq ? 0 : options.recv_wr, 4, 4, options.inline_bytes};
  attr.sq_sig_all = options.sig_all;
  attr.comp_mask = IBV_QP_INIT_ATTR_PD;
  attr.pd = pd;
  if (options.send_ops != 0) {
    attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = options.send_ops;
  }
  SOFT_CHECK((qp = ibv_create_qp_ex(context, &attr)) != nullptr);
  ibv_port_attr port{};
  SOFT_CHECK(ibv_query_port(context, 1, &port) == 0);
  gid_index = port.link_layer == IBV_LINK_LAYER_ETHERNET ? 3 : 0;
}

Endpoint::~Endpoint() {
  if (qp != nullptr) SOFT_CHECK(ibv_destroy_qp(qp) == 0);
  if (srq != nullptr) SOFT_CHECK(ibv_destroy_srq(srq) == 0);
  if (cq != nullptr) SOFT_CHECK(ibv_destroy_cq(cq) == 0);
  if (channel != nullptr) SOFT_CHECK(ibv_destroy_comp_channel(channel) == 0);
  if (mr != nullptr) SOFT_CHECK(ibv_dereg_mr(mr) == 0);
  if (pd != nullptr) SOFT_CHECK(ibv_dealloc_pd(pd) == 0);
  munmap(buffer, options.buffer_bytes);
  EXPECT_EQ(ibv_close_device(context), 0);
}

Endpoint::Address Endpoint::address() const {
  Address address{};
  ibv_port_attr port{};
  SOFT_CHECK(ibv_query_port(context, 1, &port) == 0);
  SOFT_CHECK(ibv_query_gid(context, 1, gid_index, &address.gid) == 0);
  address.lid = port.lid;
  address.qp_num = qp->qp_num;
  address.psn = 0xfffff0;  // wraps soon
  address.buffer = reinterpret_cast<uint64_t>(buffer);
  address.rkey = mr->rkey;
  return address;
}

void Endpoint::ToInit() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = options.access;
  SOFT_CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ==
             0);
}

void Endpoint::Connect(const Address& to) {
  remote = to;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = to.qp_num;
  attr.rq_psn = to.psn;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = options.min_rnr_timer;
  attr.ah_attr.dlid = to.lid;
  attr.ah_attr.sl = 3;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = to.gid;
  attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index);
  attr.ah_attr.grh.hop_limit = 64;
  attr.ah_attr.grh.traffic_class = 104;
  SOFT_CHECK(ibv_modify_qp(qp, &attr,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = options.timeout;
  attr.retry_cnt = options.retry_cnt;
  attr.rnr_retry = options.rnr_retry;
  attr.sq_psn = 0xfffff0;
  attr.max_rd_atomic = 4;
  SOFT_CHECK(ibv_modify_qp(qp, &attr,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

void Endpoint::ConnectOver(Link& link) {
  ToInit();
  Connect(link.Exchange(address()));
  link.Barrier();
}

ibv_qp_state Endpoint::State() {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  SOFT_CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
  return attr.qp_state;
}

int Endpoint::PostSend(ibv_send_wr wr) {
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad);
}

int Endpoint::Send(ibv_wr_opcode opcode, uint64_t offset, uint32_t length, uint64_t remote_offset,
                   unsigned flags, uint64_t wr_id) {
  ibv_sge sge{reinterpret_cast<uint64_t>(buffer + offset), length, mr->lkey};
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.sg_list = &sge;
  wr.num_sge = length != 0 ? 1 : 0;
  wr.opcode = opcode;
  wr.send_flags = flags;
  wr.imm_data = htobe32(0x12345678);
  wr.wr.rdma.remote_addr = remote.buffer + remote_offset;
  wr.wr.rdma.rkey = remote.rkey;
  return PostSend(wr);
}

int Endpoint::Recv(uint64_t offset, uint32_t length, uint64_t wr_id) {
  ibv_sge sge{reinterpret_cast<uint64_t>(buffer + offset), length, mr->lkey};
  ibv_recv_wr wr{};
  wr.wr_id = wr_id;
  wr.sg_list = &sge;
  wr.num_sge = length != 0 ? 1 : 0;
  ibv_recv_wr* bad = nullptr;
  return srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
}

ibv_wc Endpoint::Wait() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  ibv_wc wc{};
  while (std::chrono::steady_clock::now() < deadline) {
    const int count = ibv_poll_cq(cq, 1, &wc);
    SOFT_CHECK(count >= 0);
    if (count == 1) return wc;
  }
  SOFT_CHECK(!"a completion came");
  return wc;
}

ibv_async_event Endpoint::WaitEvent() {
  pollfd wait{context->async_fd, POLLIN, 0};
  SOFT_CHECK(poll(&wait, 1, 60'000) == 1);
  ibv_async_event event{};
  SOFT_CHECK(ibv_get_async_event(context, &event) == 0);
  return event;
}

// ---- the fabric process

std::string RunFabricTool(const std::string& arguments, int* code) {
  const std::string command =
      std::string(getenv("SLUICE_BUILD_DIR")) + "/lib/soft/sluice-fabric " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "re");
  SOFT_CHECK(pipe != nullptr);
  std::string output;
  char buffer[4096];
  while (const size_t got = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, got);
  const int status = pclose(pipe);
  if (code != nullptr) *code = WEXITSTATUS(status);
  return output;
}

pid_t FabricPid() {
  int code = 0;
  const std::string status = RunFabricTool("--status", &code);
  const size_t at = status.find(" pid=");
  return code != 0 || at == std::string::npos ? -1 : atoi(status.c_str() + at + 5);
}

void SoftFabricTest::SetUp() {
  static int count = 0;
  const std::string name = "test-" + std::to_string(getpid()) + "-" + std::to_string(++count);
  char directory[] = "/tmp/sluice-soft-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  directory_ = directory;
  setenv("SLUICE_FABRIC", name.c_str(), 1);
  setenv("TMPDIR", directory, 1);
  setenv("SLUICE_FABRIC_LOG", (directory_ + "/log").c_str(), 1);
  for (const char* variable : {"XDG_RUNTIME_DIR", "SLUICE_FABRIC_TOPOLOGY", "SLUICE_FABRIC_HOST"})
    unsetenv(variable);
}

void SoftFabricTest::TearDown() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (FabricListens() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(FabricListens()) << "the fabric process stays after its last program";
  // The name is free a moment before the tree is gone.
  const auto left = [&] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      if (entry.path().filename() != "log") ++count;
    }
    return count;
  };
  while (left() != 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(left(), 0) << "files stay in " << directory_;
  if (HasFailure()) {
    std::ifstream log(directory_ + "/log");
    for (std::string line; std::getline(log, line);) fprintf(stderr, "  %s\n", line.c_str());
  }
  std::filesystem::remove_all(directory_);
}

}  // namespace sluice::soft

int main(int count, char** arguments) {
  const std::string prefix = "--role=";
  if (count == 2 && std::string(arguments[1]).starts_with(prefix)) {
    const auto role = sluice::soft::Roles().find(arguments[1] + prefix.size());
    if (role == sluice::soft::Roles().end()) return 99;
    sluice::soft::Link peer(sluice::soft::kPeerFd);
    role->second(peer);
    return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
  }
  testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
