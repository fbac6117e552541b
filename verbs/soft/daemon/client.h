// One program that uses the fabric: its shared rings on one side, a process of the model on the other.
//
// Copies, completions and events of the model become commands in the program's ring, executed there in order.
// A gather or atomic is done when the program's position in the ring has passed it: no message comes back.
//
// Thread rule: the thread that drives the Fabric.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "verbs/soft/calls/verb_calls.h"
#include "verbs/soft/ipc/protocol.h"
#include "verbs/soft/ipc/socket.h"
#include "verbs/soft/model/fabric.h"

namespace sluice::soft {

class Client;
// The programs by their process of the model.
using Neighbours = std::unordered_map<ProcessId, Client*>;

class Client : public ProcessMemory {
 public:
  Client(Fabric* fabric, Neighbours* neighbours, UniqueFd socket, int pid)
      : fabric_(fabric), neighbours_(neighbours), socket_(std::move(socket)), pid_(pid) {}
  ~Client() override;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Takes the session memory and the eventfd that came with Hello, and joins the model.
  Status Attach(std::vector<UniqueFd> fds, uint32_t host);

  // Executes up to `budget` requests; true when there was one.
  bool ServeRequests(int budget);
  // Takes note of the commands that the program has executed; true when there was one.
  bool ReapExecuted();
  // Lets completions go whose data is in place at the other end.
  void ReleaseHeld(int64_t now_ns);
  // Makes new commands visible and wakes the program's service thread if it sleeps and no thread of the
  // program polls.
  void Flush(int64_t now_ns);
  // Commands wait for a polling thread; without one the service thread is due at this time. 0: nothing waits.
  int64_t wake_due_ns() const { return wake_due_ns_; }

  // Before the fabric process sleeps. False: there is work, stay awake.
  bool PrepareSleep();
  void EndSleep();
  // The fabric process wants to hear of every executed batch: `starves`, or a neighbour waits for this
  // program.
  void SetStarves(bool starves);

  int socket() const { return socket_.get(); }
  int pid() const { return pid_; }
  uint32_t host() const { return host_; }
  bool attached() const { return process_ != 0; }
  // The program has scribbled over its ring.
  bool broken() const { return broken_ || requests_.broken(); }
  bool backlog() const { return !deferred_.empty(); }
  bool holds() const { return !held_.empty(); }

  // ProcessMemory.
  void Gather(DmaId id, std::span<const MemoryRange> ranges, const PayloadRef& into) override;
  void Scatter(uint64_t address, const PayloadRef& from, uint32_t offset, uint32_t length) override;
  void Atomic(DmaId id, AtomicOp op, uint64_t address, uint64_t compare_or_add, uint64_t swap) override;
  void PushCompletion(CqId cq, const Completion& completion) override;
  void PushAsyncEvent(const AsyncEvent& event) override;
  uint64_t CompletionsTaken(CqId cq) override;

 private:
  // A copy that the program has not executed yet.
  struct InFlight {
    uint64_t end = 0;  // ring position behind the command
    DmaId dma = 0;     // 0: a scatter
    PayloadRef payload;
    AtomicCommand* atomic = nullptr;
  };
  // A command that found the ring full.
  struct Deferred {
    std::vector<std::byte> bytes;
    bool tracked = false;
    InFlight in_flight;
  };
  // What the program learns only when the peer's memory shows it: a device acknowledges data that is placed,
  // a program here may still have the command to place it. Completions of sends and writes wait for that, and
  // what comes after them keeps its order. A peer that is stopped is not waited for without end.
  struct Held {
    std::variant<CompletionCommand, EventCommand, AnswerCommand> command;
    ProcessId behind = 0;  // 0: nobody
    uint64_t scatters = 0;
    int64_t give_up_ns = 0;
  };

  // Space for a command of this type, in the ring or behind what waits for it.
  template <typename T>
  T* NewCommand(uint16_t type, size_t extra_bytes = 0);
  // Keeps `payload` until the newest command is executed, and answers `dma` then.
  void Track(DmaId dma, const PayloadRef& payload, AtomicCommand* atomic);
  void DrainDeferred();
  template <typename T>
  void Emit(uint16_t type, const T& command);
  // Now, or behind what is held.
  template <typename T>
  void EmitInOrder(uint16_t type, const T& command);
  // The peer whose memory `completion` speaks of, if it has not caught up; nullptr: nothing to wait for.
  Client* PeerBehind(uint32_t nic, const Completion& completion);
  void Execute(const RecordHeader* record);
  void ExecuteCall(const CallRequest& request);
  void ExecutePostSend(const PostSendRequest& request);
  void ExecutePostRecv(const PostRecvRequest& request, bool shared);
  void Wake();

  Fabric* fabric_;
  Neighbours* neighbours_;
  UniqueFd socket_, memory_, wake_;
  int pid_;
  uint32_t host_ = 0;
  ProcessId process_ = 0;
  SessionHeader* header_ = nullptr;
  RingConsumer requests_;
  RingProducer commands_;
  bool broken_ = false;

  std::deque<InFlight> in_flight_;
  std::deque<Deferred> deferred_;
  uint64_t executed_ = 0;
  int64_t wake_due_ns_ = 0;
  std::deque<Held> held_;
  uint64_t scatters_issued_ = 0, scatters_done_ = 0;
  uint64_t awaited_scatters_ = 0;  // a neighbour waits until this many are done
  bool starves_ = false;
  // The newest command if it is a scatter that a next one can extend: not visible to the program yet.
  ScatterCommand* open_scatter_ = nullptr;

  std::unique_ptr<VerbCalls> calls_;  // from Attach on
};

template <typename T>
T* Client::NewCommand(uint16_t type, size_t extra_bytes) {
  open_scatter_ = nullptr;
  if (deferred_.empty()) {
    // Executed commands stay readable until ReapExecuted has seen them.
    if (RecordHeader* record = commands_.Reserve(type, sizeof(T) + extra_bytes, false)) {
      return reinterpret_cast<T*>(record);
    }
  }
  Deferred& deferred = deferred_.emplace_back();
  deferred.bytes.resize(RoundRecord(sizeof(T) + extra_bytes));
  auto* record = reinterpret_cast<RecordHeader*>(deferred.bytes.data());
  record->type = type;
  return reinterpret_cast<T*>(record);
}

template <typename T>
void Client::Emit(uint16_t type, const T& command) {
  T* target = NewCommand<T>(type);
  const RecordHeader header = target->header;
  *target = command;
  target->header = header;
}

template <typename T>
void Client::EmitInOrder(uint16_t type, const T& command) {
  if (held_.empty()) {
    Emit(type, command);
  } else {
    held_.push_back({command});
  }
}

}  // namespace sluice::soft
