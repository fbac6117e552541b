// Reads what a process publishes of its messages (plugin/statistics_layout.h).
//
//   Result<std::vector<StatisticsReader>> all = StatisticsReader::OpenProcess(getpid());
//   for (const StatisticsReader& reader : *all)
//     for (const ClaimedMessages& row : reader.Messages()) ...
//
// The counters go on while they are read; each number is right for some moment. A file stays readable after its
// process has removed it. Threads: any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plugin/statistics_layout.h"

namespace sluice {

// Messages of one engine that agree in everything.
struct ClaimedMessages {
  uint32_t engine = 0;  // row
  Direction direction = Direction::kSend;
  OperationSource source = OperationSource::kNone;
  Function function = Function::kUnknown;
  Protocol protocol = Protocol::kUnknown;
  uint8_t service_class = 0;
  uint64_t messages = 0;
  uint64_t bytes = 0;
};

class StatisticsReader {
 public:
  // Below SLUICE_SHARED_DIR of this process, or its default.
  static std::string Directory();
  static Result<StatisticsReader> Open(const std::string& path);
  // Every file of the process, in the order in which they were made; none is not an error.
  static Result<std::vector<StatisticsReader>> OpenProcess(pid_t pid);

  const StatisticsHeader& header() const { return *header_; }
  uint32_t engines() const { return Rows("engines"); }
  const EngineRow& engine(uint32_t row) const;
  const ProcessRow& process() const;
  // "class 5" where the plugin gave no name.
  std::string ClassName(uint8_t service_class) const;
  // Those that are not zero.
  std::vector<ClaimedMessages> Messages() const;
  // Of all engines, sources and, where service_class is negative, classes.
  uint64_t Count(Direction direction, Function function, Protocol protocol, int service_class = -1) const;

 private:
  struct Unmap {
    size_t bytes;
    void operator()(const StatisticsHeader* header) const;
  };
  const StatisticsTable* Table(std::string_view name) const;
  uint32_t Rows(std::string_view name) const;
  const void* Row(const StatisticsTable& table, uint32_t row) const;
  Status Check(size_t file_bytes) const;

  std::unique_ptr<const StatisticsHeader, Unmap> header_;
  const StatisticsTable* messages_ = nullptr;
};

// "attributes", "profiler", "callback", "connection", "none".
std::string_view Name(OperationSource source);

}  // namespace sluice
