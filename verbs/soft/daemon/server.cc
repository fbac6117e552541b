#include "verbs/soft/daemon/server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "verbs/soft/calls/start_fabric.h"
#include "verbs/soft/daemon/log.h"

namespace sluice::soft {
namespace {

// Model time moves at most this far between two looks at the programs' rings, so that work posted meanwhile
// is late by no more.
constexpr Picos kMaxStep = 50 * kPicosPerUs;
constexpr uint64_t kEventsPerStep = 512;
constexpr int kRequestsPerStep = 256;
// Awake without work for this long before sleeping; events that are due sooner are waited for awake.
constexpr int64_t kSpinNs = 20'000;
constexpr int64_t kSocketsEveryNs = 500'000;
// While counters change they are written every 10 ms of model time, unless that would take more than one part
// in so many of the time there is.
constexpr int64_t kRefreshShare = 20;
constexpr int64_t kRefreshEveryNs = kCounterPeriod / kPicosPerNs;
constexpr int64_t kReportEveryNs = 1'000'000'000;
constexpr int64_t kHeldLookNs = 100'000'000;
constexpr int64_t kLingerNs = 400'000'000;
constexpr int kBacklog = 512;

enum : uint64_t {
  kTagListener = 1,
  kTagDoorbell,
  kTagSignals,
  kTagTenant = 1ull << 62,
  kTagClient = 1ull << 63
};

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

int OpenSpare() {
  return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void SendError(int socket, int error, const std::string& text) {
  TextMessage message{};
  message.type = SocketMessage::kError;
  message.error = error;
  strncpy(message.text, text.c_str(), sizeof(message.text) - 1);
  SendMessage(socket, &message, sizeof(message), {});
}

}  // namespace

bool Server::Watch(int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

Status Server::Start() {
  listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_.valid()) return SystemError("fabric process: no socket", errno);
  sockaddr_un address;
  const socklen_t length = FabricAddress(instance_, &address);
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EADDRINUSE) {
      already_running_ = true;
      return Status::Ok();
    }
    return SystemError("fabric process: cannot take the name of SLUICE_FABRIC=\"" + instance_ + "\"", errno);
  }
  SLUICE_RETURN_IF_ERROR(TopologyOf(topology_).status());
  SLUICE_RETURN_IF_ERROR(pool_.Open());
  Result<std::unique_ptr<Fabric>> fabric = StartFabric(topology_, nullptr, &pool_);
  if (!fabric.ok()) return fabric.status();
  fabric_ = std::move(*fabric);
  SLUICE_RETURN_IF_ERROR(sysfs_.Create(instance_));

  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signals_.reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  doorbell_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  spare_.reset(OpenSpare());
  if (!signals_.valid() || !doorbell_.valid() || !epoll_.valid() || !spare_.valid() ||
      !Watch(listener_.get(), kTagListener) || !Watch(doorbell_.get(), kTagDoorbell) ||
      !Watch(signals_.get(), kTagSignals)) {
    return SystemError("fabric process: no descriptors", errno, "raise the limit of open files (ulimit -n)");
  }
  if (listen(listener_.get(), kBacklog) != 0) return SystemError("fabric process: cannot listen", errno);
  last_wall_ns_ = started_ns_ = last_client_left_ns_ = last_activity_ns_ = NowNs();
  Log("instance \"%s\" runs, topology %s, tree %s", instance_.c_str(), topology_.name.c_str(),
      sysfs_.root().c_str());
  return Status::Ok();
}

void Server::Run(bool stay) {
  stay_ = stay;
  while (!stop_) {
    MoveTime();
    const bool worked = ServeClients();
    if (worked) {
      last_activity_ns_ = last_wall_ns_;
      counters_changed_ = true;
    }
    if (last_wall_ns_ - last_sockets_ns_ > kSocketsEveryNs) HandleSockets(0);
    // Also packets that move long after the work that caused them.
    const uint64_t hops = fabric_->statistics().packet_hops;
    if (hops != seen_hops_) counters_changed_ = true;
    seen_hops_ = hops;
    if (counters_changed_ && last_wall_ns_ >= next_refresh_ns_ && sysfs_.Due(*fabric_)) {
      sysfs_.Refresh(fabric_.get());
      const int64_t now = NowNs();
      next_refresh_ns_ = now + kRefreshShare * (now - last_wall_ns_);
      counters_changed_ = false;
    }
    if (!worked) Sleep();
  }
  // New programs start a new fabric process instead of waiting for this one.
  listener_.reset();
  clients_.clear();
  for (const auto& [pid, tenant] : tenants_) fabric_->DetachProcess(tenant->process);
  tenants_.clear();
  Log("instance \"%s\" ends", instance_.c_str());
}

void Server::MoveTime() {
  const int64_t wall = NowNs();
  const Picos elapsed = (wall - last_wall_ns_) * kPicosPerNs;
  last_wall_ns_ = wall;
  const Picos now = fabric_->Now();
  const Picos next = fabric_->NextEventTime();
  // Up to the next event time may jump: nothing happens in between. From there it moves in steps.
  Picos target = now + elapsed;
  if (next <= target) target = std::max(now, std::min(target, std::max(next, now + kMaxStep)));
  fabric_->AdvanceBounded(target, kEventsPerStep);
  if (wall - last_report_ns_ > kReportEveryNs) {
    const Picos model = fabric_->Now() - report_model_;
    const int64_t real = wall - last_report_ns_;
    if (last_report_ns_ != 0 && model > 0) {
      dilation_ = static_cast<double>(real) * kPicosPerNs / static_cast<double>(model);
      if (dilation_ > 1.01) Log("model time runs %.1f times slower than the clock", dilation_);
    }
    last_report_ns_ = wall;
    report_model_ = fabric_->Now();
  }
}

bool Server::ServeClients() {
  bool worked = false;
  for (const auto& client : clients_) {
    if (!client->attached()) continue;
    worked |= client->ReapExecuted();
    // A paused host posts nothing; its program goes on and does not know.
    if (fabric_->HostPausedUntil(client->host()) > fabric_->Now()) continue;
    worked |= client->ServeRequests(kRequestsPerStep);
  }
  const bool starving = pool_.TakeStarved() || std::any_of(clients_.begin(), clients_.end(),
                                                           [](const auto& c) { return c->backlog(); });
  for (const auto& client : clients_) client->ReleaseHeld(last_wall_ns_);
  for (size_t i = 0; i < clients_.size();) {
    Client* client = clients_[i].get();
    if (client->attached()) {
      client->SetStarves(starving);
      client->Flush(last_wall_ns_);
      if (client->broken()) {
        Remove(client, "its ring is damaged");
        continue;
      }
    }
    ++i;
  }
  return worked;
}

void Server::Sleep() {
  const int64_t now = NowNs();
  const Picos next = fabric_->NextEventTime();
  int64_t until_event = INT64_MAX;
  if (next != kNever) {
    until_event = std::max<int64_t>(0, (next - fabric_->Now()) / kPicosPerNs - (now - last_wall_ns_));
    if (until_event < kSpinNs) return;
  }
  if (now - last_activity_ns_ < kSpinNs) return;
  bool quiet = true;
  for (const auto& client : clients_) {
    if (client->attached()) quiet &= client->PrepareSleep();
  }
  if (quiet) {
    int64_t timeout = until_event;
    if (clients_.empty() && !stay_) {
      const int64_t left = last_client_left_ns_ + kLingerNs - now;
      if (left <= 0) {
        stop_ = true;
        return;
      }
      timeout = std::min(timeout, left);
    }
    if (counters_changed_) timeout = std::min(timeout, kRefreshEveryNs);
    for (const auto& client : clients_) {
      if (client->holds()) timeout = std::min(timeout, kHeldLookNs);
      if (client->wake_due_ns() != 0) {
        timeout = std::min(timeout, std::max<int64_t>(0, client->wake_due_ns() - now));
      }
    }
    HandleSockets(timeout);
  }
  for (const auto& client : clients_) {
    if (client->attached()) client->EndSleep();
  }
}

void Server::HandleSockets(int64_t timeout_ns) {
  epoll_event events[64];
  timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  const int count =
      epoll_pwait2(epoll_.get(), events, 64, timeout_ns == INT64_MAX ? nullptr : &timeout, nullptr);
  last_sockets_ns_ = NowNs();
  for (int i = 0; i < count && !stop_; ++i) {
    const uint64_t tag = events[i].data.u64;
    uint64_t value = 0;
    if (tag == kTagListener) {
      Accept();
    } else if (tag == kTagDoorbell) {
      if (read(doorbell_.get(), &value, sizeof(value)) < 0) value = 0;
      last_activity_ns_ = last_sockets_ns_;
    } else if (tag == kTagSignals) {
      stop_ = true;
    } else if ((tag & kTagTenant) != 0) {
      RemoveTenant(static_cast<int>(tag & 0xffffffff));
    } else if ((tag & kTagClient) != 0) {
      const int fd = static_cast<int>(tag & 0xffffffff);
      const auto found =
          std::find_if(clients_.begin(), clients_.end(), [&](const auto& c) { return c->socket() == fd; });
      if (found != clients_.end()) HandleMessage(found->get());
    }
  }
}

bool Server::AcceptNoMore() {
  spare_.reset();
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool refused = socket.valid();
  if (refused) {
    SendError(socket.get(), EMFILE,
              SystemError("the fabric process has no descriptor for another program", EMFILE,
                          "raise the hard limit of open files (ulimit -Hn)")
                  .message());
  }
  socket.reset();
  spare_.reset(OpenSpare());
  return refused && spare_.valid();
}

void Server::Accept() {
  for (;;) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid() && (errno == EMFILE || errno == ENFILE) && AcceptNoMore()) continue;
    if (!socket.valid()) return;
    ucred credentials{};
    socklen_t length = sizeof(credentials);
    getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length);
    if (credentials.uid != geteuid()) {
      SendError(socket.get(), EPERM,
                "the fabric process belongs to another user; set SLUICE_FABRIC to another name");
      continue;
    }
    const int fd = socket.get();
    if (!Watch(fd, kTagClient | static_cast<uint64_t>(fd))) continue;
    clients_.push_back(
        std::make_unique<Client>(fabric_.get(), &neighbours_, std::move(socket), credentials.pid));
  }
}

void Server::HandleMessage(Client* client) {
  std::vector<std::byte> buffer(std::max(sizeof(HelloMessage), sizeof(TextMessage)));
  std::vector<UniqueFd> fds;
  const ssize_t size = ReceiveMessage(client->socket(), buffer.data(), buffer.size(), &fds);
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
  if (size <= 0) {
    Remove(client, "it has left");
    return;
  }
  SocketMessage type{};
  if (static_cast<size_t>(size) >= sizeof(type)) memcpy(&type, buffer.data(), sizeof(type));
  if (type == SocketMessage::kHello && size == sizeof(HelloMessage) && !client->attached()) {
    HelloMessage hello;
    memcpy(&hello, buffer.data(), sizeof(hello));
    hello.host[sizeof(hello.host) - 1] = '\0';
    hello.topology_name[sizeof(hello.topology_name) - 1] = '\0';
    const Status status = Welcome(client, hello, std::move(fds));
    if (status.ok() || stop_) return;
    SendError(client->socket(), EINVAL, status.message());
    Remove(client, status.message().c_str());
  } else if (type == SocketMessage::kControl && size == sizeof(TextMessage)) {
    TextMessage text;
    memcpy(&text, buffer.data(), sizeof(text));
    text.text[sizeof(text.text) - 1] = '\0';
    const std::string answer = ExecuteControl(this, text.text);
    send(client->socket(), answer.data(), answer.size(), MSG_NOSIGNAL);
  } else {
    SendError(
        client->socket(), EPROTO,
        "this program's software fabric library has another version than the running fabric process; end the "
        "programs that use it first");
    Remove(client, "it speaks another version");
  }
}

bool Server::HostInUse(uint32_t host) const {
  return std::any_of(tenants_.begin(), tenants_.end(),
                     [&](const auto& t) { return t.second->host == host; }) ||
         std::any_of(clients_.begin(), clients_.end(),
                     [&](const auto& c) { return c->attached() && c->host() == host; });
}

bool Server::UsedBesides(const Client* client) const {
  return std::any_of(clients_.begin(), clients_.end(), [&](const auto& other) {
    if (other.get() == client || !other->attached()) return false;
    const auto tenant = tenants_.find(other->pid());
    if (tenant == tenants_.end()) return true;
    pollfd ended{tenant->second->pidfd.get(), POLLIN, 0};
    return poll(&ended, 1, 0) != 1;
  });
}

Result<uint32_t> Server::HostFor(int pid, const std::string& wanted) {
  const auto found = tenants_.find(pid);
  if (found != tenants_.end()) {
    if (found->second->wanted == wanted) return found->second->host;
    return fabric_->AcquireHost(wanted);
  }
  Result<uint32_t> host = fabric_->AcquireHost(wanted);
  if (!host.ok()) return host;
  auto tenant = std::make_unique<Tenant>();
  tenant->pid = pid;
  tenant->host = *host;
  tenant->wanted = wanted;
  tenant->pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  // Without a descriptor for the process the host is free again when its connection ends.
  if (!tenant->pidfd.valid() || !Watch(tenant->pidfd.get(), kTagTenant | static_cast<uint64_t>(pid)))
    return host;
  tenant->process = fabric_->AttachProcess(*host, tenant.get());
  tenants_[pid] = std::move(tenant);
  return host;
}

Status Server::Welcome(Client* client, const HelloMessage& hello, std::vector<UniqueFd> fds) {
  if (hello.magic != kProtocolMagic || hello.version != kProtocolVersion) {
    return SystemError("this program's software fabric library has version " + std::to_string(hello.version) +
                       ", the running fabric process version " + std::to_string(kProtocolVersion) +
                       "; end the programs that use it first");
  }
  if (hello.names_topology && hello.topology_hash != topology_.hash) {
    // Between two jobs nobody needs this topology: the program finds no answer, and starts the one it wants.
    stop_ = !stay_ && !UsedBesides(client);
    return InvalidArgument("SLUICE_FABRIC=\"" + instance_ + "\" runs with the topology " + topology_.name +
                           ", but this program asks for " + hello.topology_name + "; " +
                           (stay_ ? "end sluice-fabric --foreground" : "end the programs that use it") +
                           ", or set SLUICE_FABRIC to another name");
  }
  Result<uint32_t> host = HostFor(client->pid(), hello.host);
  if (!host.ok()) return host.status();
  Result<std::string> root = sysfs_.HostRoot(fabric_.get(), *host);
  if (!root.ok()) return root.status();
  SLUICE_RETURN_IF_ERROR(client->Attach(std::move(fds), *host));
  WelcomeMessage welcome{};
  welcome.type = SocketMessage::kWelcome;
  welcome.fabric_pid = getpid();
  DescribeHost(fabric_.get(), *host, root->c_str(), &welcome);
  const int shared[] = {pool_.fd(), doorbell_.get()};
  if (!SendMessage(client->socket(), &welcome, sizeof(welcome), shared)) {
    return SystemError("fabric process: cannot answer", errno);
  }
  Log("pid %d joins on host %s", client->pid(), welcome.host_name);
  return Status::Ok();
}

void Server::Remove(Client* client, const char* why) {
  if (client->attached()) Log("pid %d is removed: %s", client->pid(), why);
  std::erase_if(clients_, [&](const auto& candidate) { return candidate.get() == client; });
  last_client_left_ns_ = NowNs();
  counters_changed_ = true;
}

// The process has ended: what it holds goes, even if a child still has its socket.
void Server::RemoveTenant(int pid) {
  const auto found = tenants_.find(pid);
  if (found == tenants_.end()) return;
  for (size_t i = 0; i < clients_.size();) {
    if (clients_[i]->pid() == pid && clients_[i]->attached()) {
      Remove(clients_[i].get(), "its process has ended");
    } else {
      ++i;
    }
  }
  fabric_->DetachProcess(found->second->process);
  tenants_.erase(found);
}

}  // namespace sluice::soft
