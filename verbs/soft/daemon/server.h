// The fabric process: one thread that serves the programs' rings, moves model time and sleeps when there is
// nothing to do.
//
//   Server server(options);
//   Status ready = server.Start();     // listens; Ok with already_running() if another process does
//   server.Run();                      // until the last program has left, or a signal
//
// Model time follows the wall clock while the process keeps up; when it falls behind, model time runs slower
// and never skips: a delay or timeout of the model is never shorter in work done than it says.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/soft/daemon/client.h"
#include "verbs/soft/daemon/payload_pool.h"
#include "verbs/soft/daemon/sysfs_tree.h"
#include "verbs/soft/ipc/socket.h"
#include "verbs/soft/model/fabric.h"

namespace sluice::soft {

class Server {
 public:
  Server(std::string instance, TopologySource topology)
      : instance_(std::move(instance)), topology_(std::move(topology)) {}
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Status Start();
  bool already_running() const { return already_running_; }
  // `stay`: keep running without programs.
  void Run(bool stay);

  // For control commands.
  Fabric* fabric() { return fabric_.get(); }
  const std::string& instance() const { return instance_; }
  const TopologySource& topology() const { return topology_; }
  // Whether a living program has the host.
  bool HostInUse(uint32_t host) const;
  size_t client_count() const { return clients_.size(); }
  const SharedPayloadPool& pool() const { return pool_; }
  int64_t wall_ns() const { return last_wall_ns_; }  // up to which model time has been moved
  double dilation() const { return dilation_; }      // wall time per model time in the last second of work
  void RefreshSysfs() { sysfs_.RefreshNow(fabric_.get()); }

 private:
  // Keeps a host for a program while the program lives, also between two sessions.
  struct Tenant : ProcessMemory {
    UniqueFd pidfd;
    int pid = 0;
    uint32_t host = 0;
    std::string wanted;
    ProcessId process = 0;
    void Gather(DmaId, std::span<const MemoryRange>, const PayloadRef&) override {}
    void Scatter(uint64_t, const PayloadRef&, uint32_t, uint32_t) override {}
    void Atomic(DmaId, AtomicOp, uint64_t, uint64_t, uint64_t) override {}
    void PushCompletion(CqId, const Completion&) override {}
    void PushAsyncEvent(const AsyncEvent&) override {}
    uint64_t CompletionsTaken(CqId) override { return 0; }
  };

  void MoveTime();
  bool ServeClients();
  void Sleep();
  void HandleSockets(int64_t timeout_ns);  // INT64_MAX: until something happens
  void Accept();
  // Tells a program that there is no descriptor for it. False: no program waits.
  bool AcceptNoMore();
  void HandleMessage(Client* client);
  Status Welcome(Client* client, const HelloMessage& hello, std::vector<UniqueFd> fds);
  // Whether a program other than that of `client` uses the fabric now.
  bool UsedBesides(const Client* client) const;
  Result<uint32_t> HostFor(int pid, const std::string& wanted);
  void Remove(Client* client, const char* why);
  void RemoveTenant(int pid);
  bool Watch(int fd, uint64_t tag);

  std::string instance_;
  TopologySource topology_;
  bool already_running_ = false;
  SharedPayloadPool pool_;  // outlives the fabric
  std::unique_ptr<Fabric> fabric_;
  SysfsTree sysfs_;
  UniqueFd listener_, epoll_, doorbell_, signals_;
  UniqueFd spare_;  // given up for a moment to refuse a program when there is no other descriptor
  std::map<int, std::unique_ptr<Tenant>> tenants_;  // by process id
  Neighbours neighbours_;                           // outlives the clients
  std::vector<std::unique_ptr<Client>> clients_;
  bool stay_ = false;  // keeps running without programs
  bool stop_ = false;
  bool counters_changed_ = true;

  int64_t last_wall_ns_ = 0;
  int64_t started_ns_ = 0;
  int64_t last_client_left_ns_ = 0;
  int64_t last_activity_ns_ = 0;
  int64_t last_sockets_ns_ = 0;
  int64_t next_refresh_ns_ = 0;
  uint64_t seen_hops_ = 0;
  int64_t last_report_ns_ = 0;
  Picos report_model_ = 0;
  double dilation_ = 1;
};

// Text commands of the introspection tool: "status", "time", "port HOST DEVICE PORT up|down", "kill HOST DEVICE".
std::string ExecuteControl(Server* server, const std::string& command);
// The tool's side: sends one command to the running fabric process and prints the answer. Exit code.
int SendControl(const std::string& instance, const std::string& command);

}  // namespace sluice::soft
