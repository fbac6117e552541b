#include "plugin/transport/activity_file.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "plugin/private_directory.h"

namespace sluice {
namespace {

constexpr int kLayoutVersion = 1;  // of ActivityBoard
constexpr int kPatienceMs = 1000;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Takes the lock under which boards are opened and removed. It is held for microseconds; a process that was stopped
// meanwhile must not stop others, so `patience_ms` bounds the wait.
bool LockDirectory(int fd, int patience_ms) {
  for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; ++waited) {
    if (waited == patience_ms) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

std::string FileName(const std::string& port) {
  char name[64];
  snprintf(name, sizeof name, "/port-%d-%012llx", kLayoutVersion,
           static_cast<unsigned long long>(PortShare::ClassKey(port)));
  return name;
}

// 0: not known.
uint64_t PidNamespace() {
  struct stat status;
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// Seats of processes that ended without leaving. Those of another pid namespace cannot be judged: their seats are taken
// over once they have been silent for long.
void FreeSeatsOfTheDead(ActivityBoard& board) {
  const uint64_t here = PidNamespace();
  if (here == 0) return;
  for (ActivityBoard::Seat& seat : board.seats) {
    uint64_t owner = seat.owner.load();
    const auto process = static_cast<pid_t>(seat.process.load());
    if (owner == 0 || process <= 0 || seat.pid_namespace.load() != here) continue;
    if (kill(process, 0) != 0 && errno == ESRCH) seat.owner.compare_exchange_strong(owner, 0);
  }
}

}  // namespace

PortShare::Owner ActivityFile::OwnerOf(uint64_t uid) {
  return {.engine = uid, .process = static_cast<uint64_t>(getpid()), .pid_namespace = PidNamespace()};
}

ActivityFile& ActivityFile::operator=(ActivityFile&& other) noexcept {
  if (this == &other) return *this;
  Close();
  board_ = std::exchange(other.board_, nullptr);
  path_ = std::exchange(other.path_, {});
  return *this;
}

std::string ActivityFile::NameOf(const Port& port) {
  return port.device->ibdev_path() + " " + std::to_string(port.device->attributes().node_guid) + " " +
         std::to_string(port.number);
}

Result<ActivityFile> ActivityFile::Open(const std::string& dir, const std::string& port) {
  Result<int> directory = OpenPrivateDirectory(dir);
  if (!directory.ok()) return directory.status();
  const Descriptor lock(*directory);
  if (!LockDirectory(lock.get(), kPatienceMs))
    return SystemError("another process holds the lock of " + PrivateDirectoryPath(dir) + " for more than " +
                       std::to_string(kPatienceMs) + " ms; is it stopped?");
  const std::string path = PrivateDirectoryPath(dir) + FileName(port);
  const Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0) return SystemError("opening " + path, errno);
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid())
    return SystemError(path + " is not a file of this user; remove it");
  if (status.st_size != sizeof(ActivityBoard) && ftruncate(file.get(), sizeof(ActivityBoard)) != 0)
    return SystemError("making room for " + path, errno);
  // Pages now rather than a signal later, when memory is full.
  if (const int error = posix_fallocate(file.get(), 0, sizeof(ActivityBoard)); error != 0)
    return SystemError("making room for " + path, error);
  void* address = mmap(nullptr, sizeof(ActivityBoard), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) return SystemError("mapping " + path, errno);
  ActivityFile opened;
  opened.board_ = static_cast<ActivityBoard*>(address);
  opened.path_ = path;
  FreeSeatsOfTheDead(*opened.board_);
  return opened;
}

Result<ActivityFile> ActivityFile::Private() {
  void* address =
      mmap(nullptr, sizeof(ActivityBoard), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return SystemError("no memory for the scheduler of a port", errno);
  ActivityFile made;
  made.board_ = static_cast<ActivityBoard*>(address);
  return made;
}

void ActivityFile::Close() {
  if (board_ == nullptr) return;
  if (!path_.empty()) {
    const Descriptor lock(
        open(path_.substr(0, path_.rfind('/')).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    FreeSeatsOfTheDead(*board_);
    const bool empty = std::all_of(board_->seats.begin(), board_->seats.end(),
                                   [](const ActivityBoard::Seat& seat) { return seat.owner.load() == 0; });
    if (lock.get() >= 0 && empty && LockDirectory(lock.get(), 0)) unlink(path_.c_str());
  }
  munmap(board_, sizeof(ActivityBoard));
  board_ = nullptr;
  path_.clear();
}

}  // namespace sluice
