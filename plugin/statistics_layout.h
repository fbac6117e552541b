// Layout of the statistics that a process publishes while it runs: one memory-mapped file, written by the plugin,
// read by tools.
//
//   <SLUICE_SHARED_DIR>/sluice-UID/<pid>.<n>     n: 0, or more where a process holds several plugins
//
// A header, a directory of tables, tables of fixed rows. A reader finds a table by its name and takes the size of a
// row from the directory; members are only ever appended. A row is valid from the moment that `rows` counts it, and
// is never reused. Counters only grow; each has one writer, and readers load them relaxed.
//
// The writer holds an exclusive flock on the file as long as it lives: a file that can be locked is left over.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tuner/operation.h"
#include "tuner/policy.h"

namespace sluice {

inline constexpr char kStatisticsMagic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'S', 'T'};
inline constexpr uint32_t kStatisticsVersion = 1;

struct StatisticsTable {
  char name[24];
  uint64_t offset;  // from the start of the file
  uint32_t row_bytes;
  uint32_t capacity;           // rows
  std::atomic<uint32_t> rows;  // valid ones
  uint32_t reserved;
};
static_assert(sizeof(StatisticsTable) == 48);

inline constexpr uint32_t kMaxStatisticsTables = 16;

struct StatisticsHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  std::atomic<uint32_t> ready;  // 1 when everything of the header and the directory is written
  uint32_t table_count;
  uint64_t pid;
  uint64_t start_ns;  // CLOCK_REALTIME
  char plugin_version[32];
  char host[64];
  StatisticsTable tables[kMaxStatisticsTables];
};

// Table "classes": service classes by index.
struct ClassRow {
  char name[40];
  uint64_t reserved[3];
};
static_assert(sizeof(ClassRow) == 64);

// Table "process": one row, written by several threads.
struct ProcessRow {
  std::atomic<uint64_t> tasks;              // collectives and point-to-point calls that the profiler half saw
  std::atomic<uint64_t> proxy_ops;          // their parts on channels
  std::atomic<uint64_t> foreign_proxy_ops;  // launched by another process (PXN)
  std::atomic<uint64_t> unknown_parents;    // proxy operations whose task was not found, foreign ones apart
  std::atomic<uint64_t> proxy_ops_dropped;  // more open at once than the profiler half can hold
  std::atomic<uint64_t> tuner_questions;
  std::atomic<uint64_t> profiler_contexts;
  std::atomic<uint64_t> tuner_contexts;
  std::atomic<uint64_t> questions[kFunctions];  // of the tuner, by function
  uint64_t reserved[6];
};
static_assert(sizeof(ProcessRow) == 8 * (8 + kFunctions + 6));

// Table "engines": what one data thread drives on one NET device. Same row number in "messages".
struct EngineRow {
  char device[96];
  uint64_t uid;
  uint64_t communicator_hash;  // 0: not known (NET v10 and older)
  // Messages whose operation both sources named.
  std::atomic<uint64_t> compared;
  std::atomic<uint64_t> disagreed;  // differently, which must not happen
  std::atomic<uint64_t>
      mixed_groups;  // point-to-point calls of different kinds in one group: NCCL announces one kind for all
  std::atomic<uint64_t> bytes_known;        // messages whose operation's size is known
  std::atomic<uint64_t> without_operation;  // messages of the profiler's foreign operations (PXN)
  uint64_t reserved[13];
};
static_assert(sizeof(EngineRow) == 256);

struct MessageCounter {
  std::atomic<uint64_t> messages;
  std::atomic<uint64_t> bytes;
};
static_assert(sizeof(MessageCounter) == 16);

// Table "messages": counters by direction, source, function, protocol and service class.
enum class Direction : uint8_t { kSend = 0, kReceive = 1 };

struct MessageRow {
  static constexpr size_t kCells = size_t{kOperationSources} * kFunctions * kProtocols * kMaxServiceClasses;
  static constexpr size_t Index(OperationSource source, Function function, Protocol protocol,
                                uint8_t service_class) {
    return ((static_cast<size_t>(source) * kFunctions + static_cast<size_t>(function)) * kProtocols +
            static_cast<size_t>(protocol)) *
               kMaxServiceClasses +
           service_class;
  }
  MessageCounter sent[kCells];
  MessageCounter received[kCells];
};
static_assert(sizeof(MessageRow) == 2 * 16 * MessageRow::kCells);
// From the counter of what is sent to that of what is received.
inline constexpr ptrdiff_t kReceivedOffset = MessageRow::kCells;

inline constexpr uint32_t kMaxStatisticsEngines = 256;

}  // namespace sluice
