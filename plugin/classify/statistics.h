// The statistics that this process publishes (plugin/statistics_layout.h), from the first engine to the exit.
//
//   EngineStatistics statistics = Statistics::Get().AddEngine("mlx5_0", uid, hash);
//   ++statistics.messages->sent[index]...
//
// Where the file cannot be made (no room, no permission, SLUICE_STATISTICS=0) the rows are memory of this process:
// counting goes on, nobody else sees it, and one line of the log says why.
//
// Threads: any; rows are never freed.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "plugin/statistics_layout.h"

namespace sluice {

struct EngineStatistics {
  EngineRow* engine = nullptr;
  MessageRow* messages = nullptr;
};

class Statistics {
 public:
  static Statistics& Get();
  // Makes the file if it is not there. Before the first use of process().
  void Start();
  // Not null; `name` is cut where it does not fit.
  EngineStatistics AddEngine(std::string_view name, uint64_t uid, uint64_t communicator_hash);
  ProcessRow& process() { return *process_; }
  // The file, empty without one.
  std::string path();

 private:
  Statistics();
  void Open();
  bool Reserve(const void* row, size_t bytes);
  void NameClasses(StatisticsTable& table);

  std::mutex mutex_;
  bool opened_ = false;                 // under mutex_
  int fd_ = -1;                         // under mutex_
  std::string path_;                    // under mutex_
  StatisticsHeader* header_ = nullptr;  // under mutex_
  std::unique_ptr<ProcessRow> own_process_;
  ProcessRow* process_;  // final after Start; own_process_ without a file
};

// Adds to a counter that only the calling thread writes: one instruction on the data path, no lock.
inline void AddRelaxed(std::atomic<uint64_t>& counter, uint64_t amount) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  // The same as below; compilers do not merge a relaxed load and store.
  asm("addq %1, %0" : "+m"(counter) : "er"(amount) : "cc");
#else
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
#endif
}

}  // namespace sluice
