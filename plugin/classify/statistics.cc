#include "plugin/classify/statistics.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "base/status.h"
#include "plugin/lanes.h"
#include "plugin/log.h"
#include "plugin/params.h"
#include "plugin/private_directory.h"

namespace sluice {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t RoundUp(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

// Everything that is small and there from the start, then one row per engine on pages of its own.
constexpr size_t kClassesOffset = RoundUp(sizeof(StatisticsHeader));
constexpr size_t kProcessOffset = kClassesOffset + RoundUp(sizeof(ClassRow) * kMaxServiceClasses);
constexpr size_t kEnginesOffset = kProcessOffset + RoundUp(sizeof(ProcessRow));
constexpr size_t kMessagesOffset = kEnginesOffset + RoundUp(sizeof(EngineRow) * kMaxStatisticsEngines);
constexpr size_t kMessageRowBytes = RoundUp(sizeof(MessageRow));
constexpr size_t kFileBytes = kMessagesOffset + kMessageRowBytes * kMaxStatisticsEngines;

enum TableIndex : size_t { kClasses, kProcess, kEngines, kMessages, kTables };

template <size_t kSize>
void CopyText(std::string_view text, char (&to)[kSize]) {
  const size_t n = std::min(text.size(), kSize - 1);
  memcpy(to, text.data(), n);
  to[n] = '\0';
}

// Files of processes that ended without removing theirs: nobody holds their lock.
void RemoveLeftovers(const std::string& directory) {
  DIR* const dir = opendir(directory.c_str());
  if (dir == nullptr) return;
  while (const dirent* entry = readdir(dir)) {
    unsigned long pid = 0;
    unsigned copy = 0;
    char end = 0;
    if (sscanf(entry->d_name, "%lu.%u%c", &pid, &copy, &end) != 2) continue;
    const int fd = openat(dirfd(dir), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(dir), entry->d_name, 0);
    close(fd);
  }
  closedir(dir);
}

struct OpenFile {
  int fd = -1;
  std::string path;
};

Result<OpenFile> CreateFile(const std::string& directory) {
  constexpr int kMostCopies = 4096;
  for (int copy = 0; copy < kMostCopies; ++copy) {
    OpenFile file;
    file.path = directory + "/" + std::to_string(getpid()) + "." + std::to_string(copy);
    file.fd = open(file.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file.fd < 0 && errno == EEXIST) continue;
    if (file.fd < 0) return SystemError("cannot make " + file.path, errno);
    if (flock(file.fd, LOCK_EX | LOCK_NB) == 0 && ftruncate(file.fd, kFileBytes) == 0) return file;
    const int error = errno;
    unlink(file.path.c_str());
    close(file.fd);
    return SystemError("cannot size " + file.path, error);
  }
  return SystemError("no free name in " + directory);
}

// Of the process that made the file, not of its children. Nothing with a destructor: that would run before.
const char* removed_at_exit = nullptr;
pid_t removed_by = 0;
__attribute__((destructor)) void RemoveFile() {
  if (removed_at_exit != nullptr && getpid() == removed_by) unlink(removed_at_exit);
}

}  // namespace

Statistics& Statistics::Get() {
  static auto* const statistics = new Statistics;
  return *statistics;
}

Statistics::Statistics() : own_process_(std::make_unique<ProcessRow>()), process_(own_process_.get()) {}

std::string Statistics::path() {
  std::lock_guard lock(mutex_);
  return path_;
}

// Room for the row, so that a full file system is an error now and no signal later.
bool Statistics::Reserve(const void* row, size_t bytes) {
  const auto offset =
      static_cast<off_t>(static_cast<const char*>(row) - reinterpret_cast<const char*>(header_));
  return posix_fallocate(fd_, offset, static_cast<off_t>(bytes)) == 0;
}

void Statistics::NameClasses(StatisticsTable& table) {
  const Result<std::shared_ptr<const Policy>>& policy = GetPolicy();
  if (!policy.ok()) return;
  auto* const rows = reinterpret_cast<ClassRow*>(reinterpret_cast<char*>(header_) + table.offset);
  const std::vector<ServiceClass>& classes = (*policy)->classes();
  const size_t count = std::min(classes.size(), size_t{kMaxServiceClasses});
  for (size_t i = 0; i < count; ++i) CopyText(classes[i].name, rows[i].name);
  table.rows.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
}

void Statistics::Open() {
  opened_ = true;
  const Result<Params>& params = GetParams();
  if (!params.ok() || !params->statistics) return;
  const std::string directory = PrivateDirectoryPath(params->shared_dir);
  const Result<int> opened = OpenPrivateDirectory(params->shared_dir);
  Status status = opened.status();
  if (opened.ok()) close(*opened);
  OpenFile file;
  if (status.ok()) {
    RemoveLeftovers(directory);
    Result<OpenFile> created = CreateFile(directory);
    status = created.status();
    if (created.ok()) file = *created;
  }
  void* memory = MAP_FAILED;
  if (status.ok()) {
    const int error = posix_fallocate(file.fd, 0, kEnginesOffset);
    if (error != 0) status = SystemError("no room for " + file.path, error);
  }
  if (status.ok()) {
    memory = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (memory == MAP_FAILED) status = SystemError("cannot map " + file.path, errno);
  }
  if (!status.ok()) {
    SLUICE_INFO(kLogInit, "statistics are not published: %s", status.message().c_str());
    if (file.fd >= 0) {
      unlink(file.path.c_str());
      close(file.fd);
    }
    return;
  }
  fd_ = file.fd;
  path_ = file.path;
  header_ = static_cast<StatisticsHeader*>(memory);
  memcpy(header_->magic, kStatisticsMagic, sizeof header_->magic);
  header_->version = kStatisticsVersion;
  header_->header_bytes = sizeof(StatisticsHeader);
  header_->pid = static_cast<uint64_t>(getpid());
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  header_->start_ns = static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
  CopyText(SLUICE_VERSION, header_->plugin_version);
  char host[sizeof header_->host] = "";
  gethostname(host, sizeof host - 1);
  CopyText(host, header_->host);
  const struct {
    const char* name;
    uint64_t offset;
    size_t row_bytes;
    uint32_t capacity;
  } tables[kTables] = {{"classes", kClassesOffset, sizeof(ClassRow), kMaxServiceClasses},
                       {"process", kProcessOffset, sizeof(ProcessRow), 1},
                       {"engines", kEnginesOffset, sizeof(EngineRow), kMaxStatisticsEngines},
                       {"messages", kMessagesOffset, kMessageRowBytes, kMaxStatisticsEngines}};
  for (size_t i = 0; i < kTables; ++i) {
    StatisticsTable& table = header_->tables[i];
    CopyText(tables[i].name, table.name);
    table.offset = tables[i].offset;
    table.row_bytes = static_cast<uint32_t>(tables[i].row_bytes);
    table.capacity = tables[i].capacity;
  }
  header_->table_count = kTables;
  NameClasses(header_->tables[kClasses]);
  header_->tables[kProcess].rows.store(1, std::memory_order_relaxed);
  header_->ready.store(1, std::memory_order_release);
  process_ = reinterpret_cast<ProcessRow*>(static_cast<char*>(memory) + kProcessOffset);
  removed_at_exit = path_.c_str();  // Statistics is never destroyed
  removed_by = getpid();
}

void Statistics::Start() {
  std::lock_guard lock(mutex_);
  if (!opened_) Open();
}

EngineStatistics Statistics::AddEngine(std::string_view name, uint64_t uid, uint64_t communicator_hash) {
  std::lock_guard lock(mutex_);
  if (!opened_) Open();
  EngineStatistics added;
  if (header_ != nullptr) {
    StatisticsTable& engines = header_->tables[kEngines];
    const uint32_t row = engines.rows.load(std::memory_order_relaxed);
    char* const base = reinterpret_cast<char*>(header_);
    auto* const engine = reinterpret_cast<EngineRow*>(base + kEnginesOffset) + row;
    auto* const messages = reinterpret_cast<MessageRow*>(base + kMessagesOffset + row * kMessageRowBytes);
    if (row < engines.capacity && Reserve(engine, sizeof *engine) && Reserve(messages, sizeof *messages))
      added = {engine, messages};
  }
  const bool published = added.engine != nullptr;
  if (!published) added = {new EngineRow{}, new MessageRow{}};
  CopyText(name, added.engine->device);
  added.engine->uid = uid;
  added.engine->communicator_hash = communicator_hash;
  if (published) {
    for (const TableIndex table : {kMessages, kEngines})
      header_->tables[table].rows.fetch_add(1, std::memory_order_release);
  }
  return added;
}

}  // namespace sluice
