// What NCCL's proxy progress thread does: moves slices between slots and the plugin. It never blocks and
// knows no clock; a thread (progress_thread.h) or the virtual clock (virtual_job.h) steps it.
//
//   ProgressEngine engine(context);
//   engine.Post(operation);
//   Result<ProgressEngine::Outcome> outcome = engine.Step();    // one pass over all connections
//
// It keeps NCCL's habits, which is what a plugin must live with: one action per connection and pass, a
// refused isend or irecv tried again with the same arguments in the next pass, only the oldest request of a
// connection tested, receives posted as far ahead as slots allow, new operations looked for when idle or
// every eight passes.
//
// Threads: Post from any thread; everything else, and so the plugin's isend, irecv, iflush and test, from
// one.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "tools/perf/net_plugin.h"
#include "tools/perf/operation.h"
#include "tools/perf/profiler_plugin.h"

namespace sluice::perf {

// What it needs to know of its communicator.
class ClaimCheck;

struct ProgressContext {
  NetPlugin* plugin = nullptr;
  Doorbell* doorbell = nullptr;  // rung when the GPU has something to do
  void* net_context = nullptr;
  int max_recvs = 1;                 // receives grouped per irecv; 1: never
  bool flush = false;                // the plugin asks for iflush after every receive
  std::byte* shared_send = nullptr;  // slots of point-to-point connections: kSharedSteps per channel
  std::byte* shared_receive = nullptr;
  const std::atomic<uint64_t>* foreign_attributes = nullptr;  // counts setNetAttr calls of the service thread
  ProfilerPlugin* profiler = nullptr;                         // null: none is loaded
  void* profiler_context = nullptr;
  ClaimCheck* claims = nullptr;  // told of every message; null: nobody looks
};

class ProgressEngine {
 public:
  enum class Outcome : uint8_t {
    kMoved,  // step again
    kIdle,   // operations are under way, and nothing could be done for them now
    kEmpty,  // no operation
  };

  explicit ProgressEngine(const ProgressContext& context) : context_(context) {}
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  void Post(const Operation& operation);
  Result<Outcome> Step();
  // Operations that Step has not begun to look at.
  bool HasPosted();
  // What is open, for somebody who wants to know why nothing moves: one line per connection, without a line
  // end.
  std::vector<std::string> DescribeOpen() const;

 private:
  // NCCL's struct behind `phandle`.
  struct ProfilerHandle {
    void* step_event = nullptr;
    void* sub = nullptr;
  };
  struct Sub {
    Connection* connection = nullptr;
    size_t strand = 0;
    int64_t base = 0;
    int64_t steps = 0;
    int64_t posted = 0;
    int64_t transmitted = 0;  // sending: given to the plugin; receiving: flushed and visible to the GPU
    int64_t received = 0;
    int64_t done = 0;
    int group = 1;             // first member of a group: its size
    int index_in_channel = 0;  // among the subs that share the channel's slots
    int subs_in_channel = 1;
    std::array<void*, kSteps> requests{};
    std::array<void*, kSteps> consumed{};  // requests still owed to irecvConsumed
    int group_posted = 1;                  // buffers of the last irecv
    void* op_event = nullptr;
    std::array<ProfilerHandle, kSteps> phandles{};  // of the messages under way
  };
  // The connections of one operation (of one batch, if shared) that progress together.
  struct Args {
    Operation op;
    bool send = false;
    int batch = 0;
    bool started = false;
    std::vector<Sub> subs;
    size_t subs_done = 0;
    int depth = kSteps;
  };
  using Key = std::tuple<bool, const void*, int>;  // sending, connection (null: shared), channel
  using Queue = std::deque<std::unique_ptr<Args>>;
  ProfilerHandle& HandleOf(const Args& args, Sub& sub, int64_t step) const {
    return sub.phandles[static_cast<size_t>(step / args.op.plan->schedule.slice_steps % kSteps)];
  }
  // Number of the message that a step belongs to.
  static int MessageOf(const Args& args, int64_t step) {
    return static_cast<int>(step / args.op.plan->schedule.slice_steps);
  }
  void StartStep(const Args& args, Sub& sub, int64_t step);
  void StopStep(const Args& args, Sub& sub, int64_t step);
  void EndSub(Sub& sub);

  bool TakePosted();
  void Append(const Operation& op);
  void AppendSub(const Operation& op, bool send, size_t strand, Connection* connection);
  Status ProgressAll(bool* idle);
  void Begin(Args& args);
  void FormGroups(Args& args);
  Status ProgressSend(Args& args, bool* idle);
  bool ReadyToSend(const Args& args, const Sub& sub) const;
  Status TrySend(Args& args, Sub& sub, bool* announced, bool* sent);
  Status ProgressReceive(Args& args, bool* idle);
  Status PostReceives(Args& args, bool* idle);
  Status PostGroup(Args& args, size_t first, bool* announced, bool* idle);
  Status TestReceives(Args& args, bool* idle);
  Status PublishReceived(Args& args, bool* idle);
  Status RetireReceived(Args& args, bool* idle);
  Status Announce(const Args& args);
  std::byte* SlotAddress(const Args& args, const Sub& sub, int64_t step) const;
  size_t SlotBytes(const Args& args) const;
  const Slice& ReceivedSlice(const Args& args, const Sub& sub, int64_t step) const;
  Status Explain(const char* what, const Connection& connection, size_t bytes, const Status& cause) const;

  const ProgressContext context_;
  std::mutex mutex_;
  std::deque<Operation> posted_;  // guarded by mutex_

  int passes_ = 0;  // since posted operations were looked for
  std::map<Key, Queue> queues_;
  std::vector<Queue*> active_;  // queues that are not empty, oldest first
  nccl::NetAttr announced_{};
  uint64_t foreign_seen_ = 0;
};

// Finds the registration of a user's buffer that covers [address, address + bytes).
void* UserHandle(const Connection& connection, const std::byte* address, size_t bytes);

}  // namespace sluice::perf
