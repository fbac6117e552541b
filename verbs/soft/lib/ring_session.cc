#include "verbs/soft/lib/ring_session.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <set>

#include "verbs/soft/ipc/memory_remedy.h"
#include "verbs/soft/ipc/schedule.h"
#include "verbs/soft/lib/objects.h"
#include "verbs/soft/lib/placed_copy.h"
#include "verbs/soft/lib/start_fabric.h"

namespace sluice::soft {
namespace {

// For a fabric process to start on a busy machine, beside others that try to be it.
constexpr int64_t kConnectTimeoutMs = 20'000;
constexpr int64_t kFirstPauseMs = 5, kLongestPauseMs = 100;
constexpr int kSpinsBeforeSleep = 64;
constexpr uint32_t kPollsPerYield = 64;
constexpr int kCommandBatch = 256;
// Copies that the fabric process waits for are told to it after at most so many commands.
constexpr int kCommandsPerWake = 8;
constexpr char kFilesRemedy[] = "raise the limit of open files (ulimit -n) or close some";

int64_t NowMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

void FutexWait(std::atomic<uint32_t>* word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// The process-wide session. Never destroyed: the service thread may run while the program exits.
struct Current {
  std::mutex mutex;
  std::weak_ptr<Session> session;
  pid_t owner = 0;
};
Current& TheCurrent() {
  static auto* current = new Current;
  return *current;
}

// nullptr before the first session. The newest one counts.
std::atomic<const std::string*>& TheSysfsRoot() {
  static std::atomic<const std::string*> root{nullptr};
  return root;
}

// Programs keep the pointer, so every text stays. Under the mutex of TheCurrent().
void SetSysfsRoot(const char* path) {
  static auto* roots = new std::set<std::string>;
  TheSysfsRoot().store(&*roots->insert(path).first, std::memory_order_release);
}

}  // namespace

struct RingSession::PendingCall {
  std::atomic<uint32_t> done{0};
  int result = 0;
  CallArguments* arguments = nullptr;
};

Result<std::shared_ptr<Session>> Session::Get() {
  return RingSession::Open();
}

const char* Session::SysfsRoot() {
  const std::string* root = TheSysfsRoot().load(std::memory_order_acquire);
  return root == nullptr ? "/sys" : root->c_str();
}

Result<std::shared_ptr<Session>> RingSession::Open() {
  static std::atomic<bool> fork_handler{false};
  if (!fork_handler.exchange(true)) {
    // A child starts without a session; the parent's memory, threads and descriptors are not the child's.
    pthread_atfork(nullptr, nullptr, [] { new (&TheCurrent()) Current; });
  }
  Current& current = TheCurrent();
  std::lock_guard lock(current.mutex);
  if (std::shared_ptr<Session> session = current.session.lock()) {
    if (!session->dead()) return session;
  }
  std::shared_ptr<RingSession> session(new RingSession);
  SLUICE_RETURN_IF_ERROR(session->Connect());
  current.session = session;
  SetSysfsRoot(session->welcome().sysfs_root);
  return std::shared_ptr<Session>(std::move(session));
}

RingSession::~RingSession() {
  // In a child made by fork the service thread does not exist and the descriptors are shared with the parent.
  if (owner_ == getpid() && service_runs_) {
    closing_.store(true, std::memory_order_seq_cst);
    Wake(wake_library_.get());
    // Who comes second does the rest: the thread may have ended by itself, and then has nothing left to join.
    if (!service_left_.exchange(true)) pthread_join(service_, nullptr);
  }
  if (header_ != nullptr && owner_ == getpid()) munmap(header_, kSessionBytes);
  if (pool_ != nullptr && owner_ == getpid()) munmap(pool_, kPoolBytes);
}

Status RingSession::Connect() {
  owner_ = getpid();
  Result<std::string> instance = InstanceName(getenv("SLUICE_FABRIC"));
  if (!instance.ok()) return instance.status();
  SLUICE_RETURN_IF_ERROR(ShareMemory());
  const int64_t deadline = NowMs() + kConnectTimeoutMs;
  int64_t pause_ms = 0;
  do {
    if (pause_ms > 0) usleep(static_cast<useconds_t>(pause_ms) * 1000);
    pause_ms = std::clamp(pause_ms * 2, kFirstPauseMs, kLongestPauseMs);
    socket_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!socket_.valid()) return SystemError("software fabric: no socket", errno, kFilesRemedy);
    const timeval timeout{30, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    sockaddr_un address;
    const socklen_t length = FabricAddress(*instance, &address);
    if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) {
      SLUICE_RETURN_IF_ERROR(CheckOwner(socket_.get(), geteuid(), *instance));
      Status status = Introduce(socket_.get());
      if (!status.ok()) return status;
      if (header_->magic == kProtocolMagic) return StartServiceThread();
      // The fabric process ended between our connect and its answer.
    } else if (errno == ECONNREFUSED || errno == ENOENT) {
      SLUICE_RETURN_IF_ERROR(StartFabric(*instance));
    } else {
      return SystemError("cannot connect to the fabric process of SLUICE_FABRIC=\"" + *instance + "\"", errno,
                         "end the process `sluice-fabric --instance=" + *instance + "` if it hangs");
    }
  } while (NowMs() < deadline);
  return SystemError("the fabric process of SLUICE_FABRIC=\"" + *instance +
                     "\" does not accept programs within " + std::to_string(kConnectTimeoutMs / 1000) +
                     " s: it starts and ends again and again, or another process holds its name; set "
                     "SLUICE_FABRIC_LOG to a file to see why, or SLUICE_FABRIC to another name");
}

Status RingSession::ShareMemory() {
  memory_.reset(memfd_create("sluice-session", MFD_CLOEXEC));
  if (!memory_.valid()) return SystemError("software fabric: no shared memory", errno, MemoryRemedy(errno));
  // Growing beyond the file size limit would raise SIGXFSZ in the program.
  rlimit limit{};
  const bool too_long = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kSessionBytes;
  const int error = too_long ? EFBIG : posix_fallocate(memory_.get(), 0, static_cast<off_t>(kSessionBytes));
  if (error != 0) {
    return SystemError(
        "software fabric: cannot reserve " + std::to_string(kSessionBytes >> 10) + " KiB of shared memory",
        error, MemoryRemedy(error));
  }
  void* memory = mmap(nullptr, kSessionBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  if (memory == MAP_FAILED) {
    return SystemError("software fabric: cannot map shared memory", errno, MemoryRemedy(errno));
  }
  madvise(memory, kSessionBytes, MADV_DONTFORK);
  header_ = static_cast<SessionHeader*>(memory);
  auto* bytes = static_cast<std::byte*>(memory);
  requests_ = RingProducer(&header_->requests, bytes + kRequestRingOffset, kRequestRingBytes);
  commands_ = RingConsumer(&header_->commands, bytes + kCommandRingOffset, kCommandRingBytes);
  wake_library_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_library_.valid()) return SystemError("software fabric: no event descriptor", errno, kFilesRemedy);
  return Status::Ok();
}

Status RingSession::Introduce(int socket) {
  HelloMessage hello{};
  hello.type = SocketMessage::kHello;
  hello.version = kProtocolVersion;
  hello.magic = kProtocolMagic;
  const char* host = getenv("SLUICE_FABRIC_HOST");
  if (host != nullptr) {
    if (strlen(host) >= sizeof(hello.host)) {
      return InvalidArgument("SLUICE_FABRIC_HOST=\"" + std::string(host) + "\" is longer than " +
                             std::to_string(sizeof(hello.host) - 1) +
                             " bytes; use a host name of the topology");
    }
    strcpy(hello.host, host);
  }
  Result<TopologySource> topology = ReadTopologySource(getenv("SLUICE_FABRIC_TOPOLOGY"));
  if (!topology.ok()) return topology.status();
  hello.names_topology = topology->named;
  hello.topology_hash = topology->hash;
  strncpy(hello.topology_name, topology->name.c_str(), sizeof(hello.topology_name) - 1);
  const int fds[] = {memory_.get(), wake_library_.get()};
  // A fabric process that cannot take this program says so without waiting for its hello.
  if (!SendMessage(socket, &hello, sizeof(hello), fds) && errno != EPIPE && errno != ECONNRESET) {
    return SystemError("cannot speak to the fabric process", errno);
  }
  std::vector<std::byte> buffer(std::max(sizeof(WelcomeMessage), sizeof(TextMessage)));
  std::vector<UniqueFd> received;
  ssize_t size = ReceiveMessage(socket, buffer.data(), buffer.size(), &received);
  // It has closed without reading the hello; what it said before comes after this error.
  if (size < 0 && errno == ECONNRESET) size = ReceiveMessage(socket, buffer.data(), buffer.size(), &received);
  if (size == 0 || (size < 0 && errno == ECONNRESET)) return Status::Ok();
  if (size < 0) {
    return SystemError("the fabric process does not answer", errno == EAGAIN ? ETIMEDOUT : errno,
                       "end the sluice-fabric process of this user and try again");
  }
  SocketMessage type{};
  if (size >= static_cast<ssize_t>(sizeof(type))) memcpy(&type, buffer.data(), sizeof(type));
  if (type == SocketMessage::kError && size == sizeof(TextMessage)) {
    TextMessage text;
    memcpy(&text, buffer.data(), sizeof(text));
    text.text[sizeof(text.text) - 1] = '\0';
    return SystemError(text.text);
  }
  if (type != SocketMessage::kWelcome || size != sizeof(WelcomeMessage)) {
    return SystemError(
        "the fabric process speaks another version; end the running sluice-fabric, then try again");
  }
  if (received.size() != 2) {
    return SystemError("software fabric: no room for the descriptors of the fabric process", EMFILE,
                       kFilesRemedy);
  }
  memcpy(&welcome_, buffer.data(), sizeof(welcome_));
  void* pool = mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_SHARED, received[0].get(), 0);
  if (pool == MAP_FAILED) {
    return SystemError("software fabric: cannot map the payload pool", errno, MemoryRemedy(errno));
  }
  madvise(pool, kPoolBytes, MADV_DONTFORK);
  pool_ = static_cast<std::byte*>(pool);
  wake_fabric_ = std::move(received[1]);
  header_->magic = kProtocolMagic;
  return Status::Ok();
}

Status RingSession::StartServiceThread() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&service_, nullptr, &RingSession::ServiceMain, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return SystemError("software fabric: cannot start its thread", error,
                       "raise the limit of processes (ulimit -u)");
  }
  pthread_setname_np(service_, "sluice-soft");
  service_runs_ = true;
  return Status::Ok();
}

void RingSession::Wake(int eventfd) const {
  const uint64_t one = 1;
  while (write(eventfd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

// ---- requests

RecordHeader* RingSession::ReserveRequest(uint16_t type, size_t bytes) {
  for (int attempt = 0;; ++attempt) {
    if (RecordHeader* record = requests_.Reserve(type, bytes)) return record;
    if (dead()) return nullptr;
    PublishRequests();
    // The ring holds thousands of requests; a fabric process that is this far behind needs the processor.
    if (attempt < 1000) {
      sched_yield();
    } else {
      usleep(100);
    }
  }
}

void RingSession::PublishRequests() {
  posted_.fetch_add(1, std::memory_order_release);
  if (requests_.Publish()) Wake(wake_fabric_.get());
}

int RingSession::Invoke(Call call, uint32_t nic, CallArguments* arguments) {
  if (owner_ != getpid()) return EINVAL;  // an object of the parent, used in a child
  PendingCall pending;
  pending.arguments = arguments;
  {
    std::lock_guard lock(calls_mutex_);
    if (dead()) return EIO;
    calls_.insert(&pending);
  }
  LockRequests();
  if (auto* request = reinterpret_cast<CallRequest*>(ReserveRequest(kRequestCall, sizeof(CallRequest)))) {
    request->call = call;
    request->nic = nic;
    request->cookie = reinterpret_cast<uint64_t>(&pending);
    memcpy(&request->arguments, arguments, sizeof(*arguments));
    PublishRequests();
  }
  UnlockRequests();
  while (pending.done.load(std::memory_order_acquire) == 0) FutexWait(&pending.done, 0);
  // Until the answerer has let go of `pending`.
  std::lock_guard lock(calls_mutex_);
  return pending.result;
}

// ---- commands

void* RingSession::ServiceMain(void* self) {
  AskForShortSlices();
  auto* session = static_cast<RingSession*>(self);
  session->Serve();
  if (!session->service_left_.exchange(true))
    pthread_detach(pthread_self());  // the session may be gone from here on
  return nullptr;
}

void RingSession::Serve() {
  int idle = 0;
  while (!closing_.load(std::memory_order_seq_cst)) {
    LockCommands();
    const int executed = ExecuteCommands(kCommandBatch);
    if (executed == 0 && idle >= kSpinsBeforeSleep) {
      commands_.SetSleeps(true);
      if (!commands_.Empty()) {
        commands_.SetSleeps(false);
        idle = 0;
      }
    }
    const bool broken = commands_.broken();
    UnlockCommands();
    if (broken) break;
    if (executed > 0) {
      idle = 0;
      continue;
    }
    if (idle++ < kSpinsBeforeSleep) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      continue;
    }
    pollfd wait[] = {{wake_library_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
    if (!closing_.load(std::memory_order_seq_cst)) poll(wait, 2, -1);
    commands_.SetSleeps(false);
    uint64_t count = 0;
    if ((wait[0].revents & POLLIN) != 0 && read(wake_library_.get(), &count, sizeof(count)) < 0) count = 0;
    if (wait[1].revents != 0) break;  // the fabric process says nothing on the socket except by its end
    idle = 0;
  }
  if (!closing_.load(std::memory_order_seq_cst)) FabricDied();
}

// A thread that polls in vain lets others run now and then: on a machine with few processors it waits for one
// of them.
void RingSession::PolledInVain() {
  thread_local uint32_t vain_polls = 0;
  if (++vain_polls % kPollsPerYield == 0) sched_yield();
}

std::atomic<uint64_t>* RingSession::TakenCounter(Cq* cq) {
  return &header_->completions_taken[cq->handle];
}

void RingSession::ProgressSlow() {
  if (pthread_mutex_trylock(&command_mutex_) != 0) return;
  ExecuteCommands(kCommandBatch);
  pthread_mutex_unlock(&command_mutex_);
}

int RingSession::ExecuteCommands(int limit) {
  int executed = 0;
  bool wake_fabric = false;
  while (executed < limit) {
    RecordHeader* record = commands_.Front();
    if (record == nullptr) break;
    posted_.load(std::memory_order_acquire);
    Execute(record, &wake_fabric);
    commands_.Pop();
    commands_.PublishHead();
    ++executed;
    if (wake_fabric && executed % kCommandsPerWake == 0) {
      TellFabric();
      wake_fabric = false;
    }
  }
  if (executed == 0) return 0;
  commands_.PublishHeadInOrder();
  if (wake_fabric || header_->fabric_starves.load(std::memory_order_seq_cst) != 0) TellFabric();
  return executed;
}

void RingSession::TellFabric() {
  commands_.PublishHeadInOrder();
  if (header_->requests.consumer_sleeps.load(std::memory_order_seq_cst) != 0) Wake(wake_fabric_.get());
}

void RingSession::Execute(RecordHeader* record, bool* wake_fabric) {
  switch (record->type) {
    case kCommandGather: {
      const auto* gather = reinterpret_cast<const GatherCommand*>(record);
      const auto* range = reinterpret_cast<const GatherCommand::Range*>(gather + 1);
      std::byte* to = pool_ + gather->pool_offset;
      for (int i = 0; i < record->count; ++i) {
        CaptureBytes(to, reinterpret_cast<const void*>(range[i].address), range[i].length);
        to += range[i].length;
      }
      *wake_fabric = true;
      return;
    }
    case kCommandScatter: {
      const auto* scatter = reinterpret_cast<const ScatterCommand*>(record);
      PlaceAscending(reinterpret_cast<void*>(scatter->address), pool_ + scatter->pool_offset,
                     scatter->length);
      return;
    }
    case kCommandAtomic: {
      auto* atomic = reinterpret_cast<AtomicCommand*>(record);
      void* word = reinterpret_cast<void*>(atomic->address);
      atomic->before = atomic->is_compare_swap != 0
                           ? CompareSwapWord(word, atomic->compare_or_add, atomic->swap)
                           : FetchAddWord(word, atomic->compare_or_add);
      *wake_fabric = true;
      return;
    }
    case kCommandCompletion:
      DeliverCompletion(*reinterpret_cast<const CompletionCommand*>(record));
      return;
    case kCommandEvent:
      DeliverEvent(*reinterpret_cast<const EventCommand*>(record));
      return;
    case kCommandAnswer: {
      const auto* answer = reinterpret_cast<const AnswerCommand*>(record);
      std::lock_guard lock(calls_mutex_);
      auto* pending = reinterpret_cast<PendingCall*>(answer->cookie);
      if (calls_.erase(pending) == 0) return;
      pending->result = answer->result;
      memcpy(pending->arguments, &answer->arguments, sizeof(answer->arguments));
      pending->done.store(1, std::memory_order_release);
      FutexWake(&pending->done);
      return;
    }
    default:
      return;
  }
}

void RingSession::FabricDied() {
  dead_.store(true, std::memory_order_seq_cst);
  {
    // What the fabric process said before it died still holds.
    LockCommands();
    while (ExecuteCommands(kCommandBatch) > 0) {
    }
    UnlockCommands();
    std::lock_guard lock(calls_mutex_);
    for (PendingCall* pending : calls_) {
      pending->result = EIO;
      pending->done.store(1, std::memory_order_release);
      FutexWake(&pending->done);
    }
    calls_.clear();
  }
  ibv_async_event event{};
  event.event_type = IBV_EVENT_DEVICE_FATAL;
  ForEachContext(-1, [&](Context* context) {
    context->events.Push(event);
    std::lock_guard lock(context->objects_mutex);
    for (Qp* qp : context->queue_pairs) FlushQueuePair(qp);
  });
}

}  // namespace sluice::soft
