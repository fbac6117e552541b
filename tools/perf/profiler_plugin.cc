#include "tools/perf/profiler_plugin.h"

#include <dlfcn.h>

#include <atomic>
#include <type_traits>
#include <utility>

namespace sluice::perf {
namespace {

const char* FunctionName(Op op) {
  switch (op) {
    case Op::kAllReduce:
      return "AllReduce";
    case Op::kAllGather:
      return "AllGather";
    case Op::kReduceScatter:
      return "ReduceScatter";
    case Op::kBroadcast:
      return "Broadcast";
    case Op::kReduce:
      return "Reduce";
    case Op::kAllToAll:
      return "AlltoAll";
    case Op::kSendRecv:
      return "SendRecv";
  }
  return "Unknown";
}
uint8_t FunctionNumber(Op op) {
  constexpr uint8_t kNumbers[] = {nccl::kFuncAllReduce, nccl::kFuncAllGather, nccl::kFuncReduceScatter,
                                  nccl::kFuncBroadcast, nccl::kFuncReduce,    nccl::kFuncAllToAll,
                                  nccl::kFuncSendRecv};
  return kNumbers[static_cast<size_t>(op)];
}
constexpr const char* kAlgorithms[] = {"TREE", "RING"};
constexpr const char* kProtocolNames[] = {"LL", "LL128", "SIMPLE"};
constexpr uint8_t kFloat32 = 7;  // ncclDataType_t

void Log(int, unsigned long, const char*, int, const char*, ...) {}

struct LibraryCloser {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, LibraryCloser>;

// One word of the process, as NCCL has it.
int activation_mask = 0;

template <typename Table, int kVersion>
class Versioned final : public ProfilerPlugin {
  using Descr = typename Table::Descriptor;
  using Args = typename Table::StateArgs;

 public:
  Versioned(Library library, const Table* table) : library_(std::move(library)), table_(table) {}

  int version() const override { return kVersion; }

  Status Init(const sluice::Communicator& communicator, void** context) override {
    *context = nullptr;
    communicator_ = communicator;
    nccl::NcclResult result = nccl::kSuccess;
    const char* name = communicator_.name.empty() ? nullptr : communicator_.name.c_str();
    if constexpr (kVersion <= 3) {
      result = table_->init(context, &activation_mask);
    } else if constexpr (kVersion == 4) {
      result = table_->init(context, &activation_mask, name, communicator.hash, communicator.nodes,
                            communicator.ranks, communicator.rank, Log);
    } else {
      result = table_->init(context, communicator.hash, &activation_mask, name, communicator.nodes,
                            communicator.ranks, communicator.rank, Log);
    }
    if (result != nccl::kSuccess)
      return RemoteError("the profiler's init returned " + std::to_string(static_cast<int>(result)));
    return Status::Ok();
  }
  Status Finalize(void* context) override {
    return table_->finalize(context) == nccl::kSuccess ? Status::Ok()
                                                       : RemoteError("the profiler's finalize failed");
  }

  void* StartCall(void* context, const ProfilerTaskInfo& info) override {
    if constexpr (kVersion >= 5) {
      if (!Wants(nccl::kProfileP2pApi | nccl::kProfileP2p | kProxy)) return nullptr;
      Descr descr = Describe(nccl::kProfileP2pApi, nullptr);
      descr.p2pApi.func = info.shape.op == Op::kAllToAll ? "AlltoAll" : info.send ? "Send" : "Recv";
      descr.p2pApi.count = info.count;
      descr.p2pApi.datatype = "ncclFloat32";
      return Start(context, descr);
    } else {
      return nullptr;
    }
  }

  void* StartTask(void* context, const ProfilerTaskInfo& info, void* call) override {
    const bool p2p = info.point_to_point;
    if (!Wants((p2p ? nccl::kProfileP2p : nccl::kProfileColl) | kProxy)) return nullptr;
    Descr descr = Describe(p2p ? nccl::kProfileP2p : nccl::kProfileColl, call);
    if (p2p) {
      descr.p2p.count = info.count;
      descr.p2p.peer = info.peer;
      if constexpr (kVersion == 1) {
        descr.p2p.func = info.send ? nccl::kFuncSend : nccl::kFuncRecv;
        descr.p2p.datatype = kFloat32;
      } else {
        descr.p2p.func = info.send ? "Send" : "Recv";
        descr.p2p.datatype = "ncclFloat32";
      }
      if constexpr (kVersion <= 3) NameCommunicator(descr.p2p);
    } else {
      const auto algorithm = static_cast<size_t>(info.shape.algo);
      const auto protocol = static_cast<size_t>(info.shape.proto);
      descr.coll.count = info.count;
      descr.coll.root = info.shape.root;
      descr.coll.seqNumber = info.sequence;
      if constexpr (kVersion == 1) {
        descr.coll.func = FunctionNumber(info.shape.op);
        descr.coll.algo = static_cast<uint8_t>(algorithm);
        descr.coll.proto = static_cast<uint8_t>(protocol);
        descr.coll.datatype = kFloat32;
      } else {
        descr.coll.func = FunctionName(info.shape.op);
        descr.coll.algo = kAlgorithms[algorithm];
        descr.coll.proto = kProtocolNames[protocol];
        descr.coll.datatype = "ncclFloat32";
      }
      if constexpr (kVersion <= 3) NameCommunicator(descr.coll);
    }
    return Start(context, descr);
  }

  void* StartProxyOp(void* context, void* task, int pid, int channel, int peer, int messages,
                     bool send) override {
    if (!Wants(kProxy)) return nullptr;
    Descr descr = Describe(nccl::kProfileProxyOp, task);
    descr.proxyOp.pid = pid;
    descr.proxyOp.channelId = static_cast<uint8_t>(channel);
    descr.proxyOp.peer = peer;
    descr.proxyOp.nSteps = messages;
    descr.proxyOp.isSend = send ? 1 : 0;
    return Start(context, descr);
  }

  void StartStep(void* context, void* op, int number, void** step) override {
    if (!Wants(nccl::kProfileProxyStep | nccl::kProfileNetPlugin)) return;
    Descr descr = Describe(nccl::kProfileProxyStep, op);
    descr.proxyStep.step = number;
    table_->startEvent(context, step, &descr);
  }

  void BeforeSend(void* op, void* step, int number) override {
    Record(op, step, number, nccl::kProxyOpSendRemFifoWait, nccl::kProxyStepSendPeerWaitV4);
  }
  void AfterSend(void* op, void* step, int number) override {
    Record(op, step, number, nccl::kProxyOpSendTransmitted, nccl::kProxyStepSendWait);
  }
  void ReceivePosted(void* op, void* step, int number) override {
    Record(op, step, number, nccl::kProxyOpRecvPosted, nccl::kProxyStepRecvWait);
  }
  void Received(void* op, void* step, int number) override {
    Record(op, step, number, nccl::kProxyOpRecvReceived, nccl::kProxyStepRecvFlushWait);
  }
  void Stop(void* event) override {
    if (event != nullptr) table_->stopEvent(event);
  }

  void NetEvent(void* step, int64_t id, void* data) override {
    if constexpr (kVersion >= 3) {
      if (!Wants(nccl::kProfileNetPlugin)) return;
      Descr descr = Describe(nccl::kProfileNetPlugin, step);
      descr.netPlugin = {id, data};
      void* event = nullptr;
      table_->startEvent(nullptr, &event, &descr);
      Stop(event);
    }
  }

 private:
  static constexpr uint64_t kProxy =
      nccl::kProfileProxyOp | nccl::kProfileProxyStep | nccl::kProfileNetPlugin;

  static bool Wants(uint64_t events) {
    return (static_cast<uint64_t>(__atomic_load_n(&activation_mask, __ATOMIC_RELAXED)) & events) != 0;
  }
  Descr Describe(uint64_t type, void* parent) const {
    Descr descr{};
    descr.type = static_cast<decltype(descr.type)>(type);
    descr.parentObj = parent;
    descr.rank = communicator_.rank;
    return descr;
  }
  template <typename Task>
  void NameCommunicator(Task& task) const {
    task.name = communicator_.name.empty() ? nullptr : communicator_.name.c_str();
    task.commHash = communicator_.hash;
  }
  void* Start(void* context, Descr& descr) const {
    void* event = nullptr;
    table_->startEvent(context, &event, &descr);
    return event;
  }
  // Up to version 3 the operation has these states, later the step.
  void Record(void* op, void* step, int number, int op_state, int step_state) const {
    Args args{};
    if constexpr (kVersion <= 3) {
      args.proxyOp.steps = number;
      if (op != nullptr) table_->recordEventState(op, op_state, &args);
    } else {
      if (op != nullptr && step != nullptr) table_->recordEventState(step, step_state, &args);
    }
  }

  Library library_;
  const Table* table_;
  sluice::Communicator communicator_;
};

template <typename Table, int kVersion>
std::unique_ptr<ProfilerPlugin> TryVersion(Library& library, int version) {
  if (version != kVersion) return nullptr;
  const std::string symbol = "ncclProfiler_v" + std::to_string(kVersion);
  const void* table = dlsym(library.get(), symbol.c_str());
  if (table == nullptr) return nullptr;
  return std::make_unique<Versioned<Table, kVersion>>(std::move(library), static_cast<const Table*>(table));
}

}  // namespace

int ProfilerOfNet(int net_version) {
  switch (net_version) {
    case 8:
      return 1;
    case 9:
      return 2;
    case 10:
      return 4;
    case 11:
      return 5;
    case 12:
      return 6;
    default:
      return 0;
  }
}

Result<std::unique_ptr<ProfilerPlugin>> ProfilerPlugin::Load(const std::string& path, int version) {
  Library library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) {
    const char* error = dlerror();
    return SystemError("cannot load the profiler " + path + ": " + (error == nullptr ? "?" : error));
  }
  std::unique_ptr<ProfilerPlugin> plugin;
  if (!plugin) plugin = TryVersion<nccl::ProfilerV6, 6>(library, version);
  if (!plugin) plugin = TryVersion<nccl::ProfilerV5, 5>(library, version);
  if (!plugin) plugin = TryVersion<nccl::ProfilerV4, 4>(library, version);
  if (!plugin) plugin = TryVersion<nccl::ProfilerV3, 3>(library, version);
  if (!plugin) plugin = TryVersion<nccl::ProfilerV2, 2>(library, version);
  if (!plugin) plugin = TryVersion<nccl::ProfilerV1, 1>(library, version);
  if (!plugin)
    return InvalidArgument("the plugin " + path + " does not export ncclProfiler_v" +
                           std::to_string(version));
  return plugin;
}

}  // namespace sluice::perf
