#include "tools/statistics/reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "plugin/params.h"
#include "plugin/private_directory.h"

namespace sluice {

std::string_view Name(OperationSource source) {
  constexpr std::string_view kNames[kOperationSources] = {"attributes", "profiler", "callback", "connection",
                                                          "none"};
  return kNames[static_cast<size_t>(source)];
}

void StatisticsReader::Unmap::operator()(const StatisticsHeader* header) const {
  munmap(const_cast<StatisticsHeader*>(header), bytes);
}

std::string StatisticsReader::Directory() {
  const char* const shared = getenv("SLUICE_SHARED_DIR");
  return PrivateDirectoryPath(shared != nullptr && *shared != '\0' ? shared : Params().shared_dir);
}

Result<StatisticsReader> StatisticsReader::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return SystemError("cannot open " + path, errno);
  struct stat info {};
  void* memory = MAP_FAILED;
  int error = fstat(fd, &info) == 0 ? 0 : errno;
  const auto bytes = static_cast<size_t>(info.st_size);
  if (error == 0 && bytes >= sizeof(StatisticsHeader)) {
    memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  close(fd);
  if (error != 0) return SystemError("cannot map " + path, error);
  if (memory == MAP_FAILED)
    return InvalidArgument(path + " holds no statistics: " + std::to_string(bytes) + " bytes");
  StatisticsReader reader;
  reader.header_ = {static_cast<const StatisticsHeader*>(memory), Unmap{bytes}};
  if (Status status = reader.Check(bytes); !status.ok())
    return InvalidArgument(path + ": " + status.message());
  reader.messages_ = reader.Table("messages");
  return reader;
}

// Another version, another program's file, or one that is just being made.
Status StatisticsReader::Check(size_t file_bytes) const {
  if (header_->ready.load(std::memory_order_acquire) != 1 ||
      memcmp(header_->magic, kStatisticsMagic, sizeof kStatisticsMagic) != 0) {
    return InvalidArgument("not a statistics file, or one that is just being made");
  }
  if (header_->version != kStatisticsVersion) {
    return InvalidArgument("version " + std::to_string(header_->version) + ", this program reads " +
                           std::to_string(kStatisticsVersion) + "; use the tools of the plugin's release");
  }
  if (header_->table_count > kMaxStatisticsTables)
    return InvalidArgument("more tables than a directory holds");
  for (uint32_t i = 0; i < header_->table_count; ++i) {
    const StatisticsTable& table = header_->tables[i];
    if (table.offset > file_bytes || uint64_t{table.row_bytes} * table.capacity > file_bytes - table.offset)
      return InvalidArgument("a table lies outside of the file");
  }
  const std::pair<const char*, size_t> wanted[] = {{"classes", sizeof(ClassRow)},
                                                   {"process", sizeof(ProcessRow)},
                                                   {"engines", sizeof(EngineRow)},
                                                   {"messages", sizeof(MessageRow)}};
  for (const auto& [name, bytes] : wanted) {
    const StatisticsTable* table = Table(name);
    if (table == nullptr || table->row_bytes < bytes) return InvalidArgument(std::string("no table ") + name);
  }
  return Status::Ok();
}

Result<std::vector<StatisticsReader>> StatisticsReader::OpenProcess(pid_t pid) {
  const std::string directory = Directory();
  std::vector<unsigned> copies;
  if (DIR* const dir = opendir(directory.c_str())) {
    while (const dirent* entry = readdir(dir)) {
      int of = 0;
      unsigned copy = 0;
      char end = 0;
      if (sscanf(entry->d_name, "%d.%u%c", &of, &copy, &end) == 2 && of == pid) copies.push_back(copy);
    }
    closedir(dir);
  }
  std::sort(copies.begin(), copies.end());
  std::vector<StatisticsReader> readers;
  for (const unsigned copy : copies) {
    Result<StatisticsReader> reader =
        Open(directory + "/" + std::to_string(pid) + "." + std::to_string(copy));
    if (!reader.ok()) return reader.status();
    readers.push_back(std::move(*reader));
  }
  return readers;
}

const StatisticsTable* StatisticsReader::Table(std::string_view name) const {
  for (uint32_t i = 0; i < header_->table_count; ++i) {
    const StatisticsTable& table = header_->tables[i];
    if (name == std::string_view(table.name, strnlen(table.name, sizeof table.name))) return &table;
  }
  return nullptr;
}

uint32_t StatisticsReader::Rows(std::string_view name) const {
  const StatisticsTable& table = *Table(name);
  return std::min(table.rows.load(std::memory_order_acquire), table.capacity);
}

const void* StatisticsReader::Row(const StatisticsTable& table, uint32_t row) const {
  return reinterpret_cast<const char*>(header_.get()) + table.offset + uint64_t{row} * table.row_bytes;
}

const EngineRow& StatisticsReader::engine(uint32_t row) const {
  return *static_cast<const EngineRow*>(Row(*Table("engines"), row));
}

const ProcessRow& StatisticsReader::process() const {
  return *static_cast<const ProcessRow*>(Row(*Table("process"), 0));
}

std::string StatisticsReader::ClassName(uint8_t service_class) const {
  if (service_class >= Rows("classes")) return "class " + std::to_string(service_class);
  const auto* row = static_cast<const ClassRow*>(Row(*Table("classes"), service_class));
  return std::string(row->name, strnlen(row->name, sizeof row->name));
}

std::vector<ClaimedMessages> StatisticsReader::Messages() const {
  std::vector<ClaimedMessages> all;
  const uint32_t rows = std::min(engines(), Rows("messages"));
  for (uint32_t row = 0; row < rows; ++row) {
    const auto* messages = static_cast<const MessageRow*>(Row(*messages_, row));
    for (const Direction direction : {Direction::kSend, Direction::kReceive}) {
      const MessageCounter* cells = direction == Direction::kSend ? messages->sent : messages->received;
      for (size_t i = 0; i < MessageRow::kCells; ++i) {
        const uint64_t count = cells[i].messages.load(std::memory_order_relaxed);
        if (count == 0) continue;
        const size_t rest = i / kMaxServiceClasses;
        all.push_back({row, direction, static_cast<OperationSource>(rest / kProtocols / kFunctions),
                       static_cast<Function>(rest / kProtocols % kFunctions),
                       static_cast<Protocol>(rest % kProtocols), static_cast<uint8_t>(i % kMaxServiceClasses),
                       count, cells[i].bytes.load(std::memory_order_relaxed)});
      }
    }
  }
  return all;
}

uint64_t StatisticsReader::Count(Direction direction, Function function, Protocol protocol,
                                 int service_class) const {
  const int first = service_class < 0 ? 0 : service_class;
  const int end = service_class < 0 ? kMaxServiceClasses : service_class + 1;
  const uint32_t rows = std::min(engines(), Rows("messages"));
  uint64_t sum = 0;
  for (uint32_t row = 0; row < rows; ++row) {
    const auto* messages = static_cast<const MessageRow*>(Row(*messages_, row));
    const MessageCounter* cells = direction == Direction::kSend ? messages->sent : messages->received;
    for (int source = 0; source < kOperationSources; ++source) {
      for (int c = first; c < end; ++c) {
        const size_t index = MessageRow::Index(static_cast<OperationSource>(source), function, protocol,
                                               static_cast<uint8_t>(c));
        sum += cells[index].messages.load(std::memory_order_relaxed);
      }
    }
  }
  return sum;
}

}  // namespace sluice
