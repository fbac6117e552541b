// From setNetAttr, events and registrations to the claim of a message, and the counters that tools read.
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "plugin/classify/classifier.h"
#include "plugin/classify/communicator.h"
#include "plugin/private_directory.h"
#include "plugin/profiler.h"
#include "plugin/transport/biased_lock.h"
#include "tools/statistics/reader.h"

namespace sluice {
namespace {

constexpr char kPolicy[] = R"toml(
[[rule]]
name = "small reductions"
function = "all_reduce"
bytes = "[0, 64KiB)"
class = "latency"

[[rule]]
name = "sends"
function = "send"
class = "background"
)toml";

std::string MakeDirectory() {
  char path[] = "/tmp/sluice-classify-XXXXXX";
  return mkdtemp(path);
}

class StatisticsEnvironment : public testing::Environment {
 public:
  void SetUp() override {
    setenv("SLUICE_POLICY", kPolicy, 1);
    ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
    setenv("SLUICE_SHARED_DIR", shared.c_str(), 1);
    // Left over by a process that was killed; another one's, which lives; and somebody else's.
    std::ofstream(directory + "/1.0") << "x";
    std::ofstream(directory + "/2.0") << "x";
    std::ofstream(directory + "/notes.txt") << "x";
    held_ = open((directory + "/2.0").c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(flock(held_, LOCK_EX), 0);
  }
  const std::string shared = MakeDirectory();
  const std::string directory = PrivateDirectoryPath(shared);

 private:
  int held_ = -1;
};
auto* const kEnvironment =
    static_cast<StatisticsEnvironment*>(testing::AddGlobalTestEnvironment(new StatisticsEnvironment));

constexpr MemoryHint kRingSimple(ConnectionKind::kCollective, Protocol::kSimple);
constexpr MemoryHint kPairLl(ConnectionKind::kPointToPoint, Protocol::kLl);
constexpr MemoryHint kPairSimple(ConnectionKind::kPointToPoint, Protocol::kSimple);
constexpr auto kLatency = ClassIndex(BuiltInClass::kLatency);
constexpr auto kBackground = ClassIndex(BuiltInClass::kBackground);

NetAttributes Attributes(Function function, Algorithm algorithm, Protocol protocol) {
  return {1u << static_cast<int>(function), 1u << static_cast<int>(algorithm),
          1u << static_cast<int>(protocol), 1, 1};
}

struct Rig {
  explicit Rig(uint64_t hash) : communicator(CommunicatorState::Join(PluginHalf::kNet, {.hash = hash})) {
    Result<ProfilerContext*> created = ProfilerContext::Create(6, Communicator{.hash = hash}, nullptr);
    profiler = *created;
    classifier.Open(communicator, lock, "device", hash);
    DataGuard guard(lock);
    classifier.Bind();
  }
  ~Rig() { EXPECT_TRUE(profiler->Finalize().ok()); }

  Claim Send(MemoryHint hint, uint64_t bytes = 10) {
    DataGuard guard(lock);
    classifier.Bind();
    const Claim claim = classifier.OfSend(hint, nullptr);
    EngineClassifier::CountSent(claim, bytes);
    return claim;
  }
  // The profiler's way to the next isend.
  ProfilerEvent Tell(const Operation& operation, Function call = Function::kUnknown) {
    ProfilerTask task;
    task.operation = operation;
    if (call != Function::kUnknown) task.call = profiler->StartCall(call);
    const ProfilerEvent op = StartProxyOp({profiler->StartTask(task), getpid(), true});
    BeforeSend(StartStep(op));
    return op;
  }

  BiasedLock lock;
  CommunicatorState& communicator;
  ProfilerContext* profiler;
  EngineClassifier classifier;
};

TEST(RegistrationTest, SizesAndOrderTellKindAndProtocol) {
  bool earlier = false;
  RegistrationPattern ring;
  EXPECT_EQ(ring.Register(524288, &earlier).protocol(), Protocol::kLl);
  EXPECT_FALSE(earlier);
  EXPECT_EQ(ring.Register(4915200, &earlier).protocol(), Protocol::kLl128);
  EXPECT_TRUE(earlier) << "now it is known what the first belongs to";
  EXPECT_EQ(ring.kind(), ConnectionKind::kCollective);
  EXPECT_EQ(ring.Register(4194304, &earlier).index(), kRingSimple.index());
  EXPECT_EQ(ring.Register(123, &earlier).index(), kRingSimple.index()) << "the user's";
  RegistrationPattern pair;
  EXPECT_EQ(pair.Register(16 << 20, &earlier).index(), kPairSimple.index());
  RegistrationPattern pair_with_ll;
  EXPECT_EQ(pair_with_ll.Register(524288, &earlier).protocol(), Protocol::kLl);
  EXPECT_EQ(pair_with_ll.Register(2 << 20, &earlier).index(), kPairSimple.index());
  EXPECT_TRUE(earlier);
}

TEST(ClassifierTest, AConnectionTellsKindAndProtocol) {
  Rig rig(1001);
  const Claim claim = rig.Send(kPairLl);
  EXPECT_EQ(claim.source, OperationSource::kConnection);
  EXPECT_EQ(FunctionOfHint(claim.op_hint), Function::kPointToPoint);
  EXPECT_EQ(ProtocolOfHint(claim.op_hint), Protocol::kLl);
  EXPECT_EQ(rig.Send(MemoryHint()).source, OperationSource::kNone);
}

TEST(ClassifierTest, AttributesNameTheOperation) {
  Rig rig(1002);
  Announce(rig.communicator, Attributes(Function::kReduceScatter, Algorithm::kTree, Protocol::kLl128));
  Claim claim = rig.Send(kRingSimple);
  EXPECT_EQ(claim.source, OperationSource::kAttributes);
  EXPECT_EQ(FunctionOfHint(claim.op_hint), Function::kReduceScatter);
  EXPECT_EQ(AlgorithmOfHint(claim.op_hint), Algorithm::kTree);
  EXPECT_EQ(ProtocolOfHint(claim.op_hint), Protocol::kLl128);
  // Algorithm and protocol are left over from the last collective.
  Announce(rig.communicator, Attributes(Function::kSend, Algorithm::kTree, Protocol::kLl128));
  claim = rig.Send(kPairLl);
  EXPECT_EQ(FunctionOfHint(claim.op_hint), Function::kSend);
  EXPECT_EQ(AlgorithmOfHint(claim.op_hint), Algorithm::kUnknown);
  EXPECT_EQ(ProtocolOfHint(claim.op_hint), Protocol::kLl) << "of the memory";
  EXPECT_EQ(claim.service_class, kBackground);
  // Connect time: many operations at once.
  Announce(rig.communicator, {0xffffffffu, 0xffffffffu, 0xffffffffu, 1, 1});
  EXPECT_EQ(FunctionOfHint(rig.Send(kPairLl).op_hint), Function::kSend);
}

TEST(ClassifierTest, AttributesOfAnotherThreadOrContextDoNotCount) {
  Rig rig(1003);
  Rig other(1004);
  Announce(rig.communicator, Attributes(Function::kAllGather, Algorithm::kRing, Protocol::kSimple));
  Announce(other.communicator, Attributes(Function::kBroadcast, Algorithm::kRing, Protocol::kSimple));
  std::thread service([&] {
    Announce(rig.communicator, Attributes(Function::kReduce, Algorithm::kRing, Protocol::kSimple));
  });
  service.join();
  EXPECT_EQ(FunctionOfHint(rig.Send(kRingSimple).op_hint), Function::kAllGather);
  EXPECT_EQ(FunctionOfHint(other.Send(kRingSimple).op_hint), Function::kBroadcast);
}

TEST(ClassifierTest, TwoThreadsOfOneEngineKeepTheirOperations) {
  Rig rig(1005);
  Announce(rig.communicator, Attributes(Function::kAllGather, Algorithm::kRing, Protocol::kSimple));
  std::thread second([&] {
    Announce(rig.communicator, Attributes(Function::kReduce, Algorithm::kRing, Protocol::kSimple));
    EXPECT_EQ(FunctionOfHint(rig.Send(kRingSimple).op_hint), Function::kReduce);
    Announce(rig.communicator, Attributes(Function::kBroadcast, Algorithm::kRing, Protocol::kSimple));
    EXPECT_EQ(FunctionOfHint(rig.Send(kRingSimple).op_hint), Function::kBroadcast);
  });
  second.join();
  EXPECT_EQ(FunctionOfHint(rig.Send(kRingSimple).op_hint), Function::kAllGather);
}

TEST(ClassifierTest, TheProfilerAddsBytes) {
  Rig rig(1006);
  Announce(rig.communicator, Attributes(Function::kAllReduce, Algorithm::kRing, Protocol::kSimple));
  EXPECT_NE(rig.Send(kRingSimple).service_class, kLatency) << "a rule on bytes does not match unknown ones";
  const ProfilerEvent op = rig.Tell({Function::kAllReduce, Algorithm::kRing, Protocol::kSimple, 1024});
  const Claim claim = rig.Send(kRingSimple);
  EXPECT_EQ(claim.service_class, kLatency);
  EXPECT_EQ(claim.source, OperationSource::kAttributes);
  EXPECT_NE(rig.Send(kRingSimple).service_class, kLatency) << "it was told of one isend";
  StopEvent(op);
}

TEST(ClassifierTest, TheProfilerAloneNamesEverything) {
  Rig rig(1007);
  const ProfilerEvent op = rig.Tell({Function::kAllReduce, Algorithm::kTree, Protocol::kLl, 1024});
  const Claim claim = rig.Send(kRingSimple);
  EXPECT_EQ(claim.source, OperationSource::kProfiler);
  EXPECT_EQ(FunctionOfHint(claim.op_hint), Function::kAllReduce);
  EXPECT_EQ(AlgorithmOfHint(claim.op_hint), Algorithm::kTree);
  EXPECT_EQ(claim.service_class, kLatency);
  EXPECT_EQ(rig.Send(kRingSimple).source, OperationSource::kConnection);
  StopEvent(op);
}

const EngineRow& RowOf(const StatisticsReader& reader, uint64_t hash) {
  for (uint32_t i = 0; i < reader.engines(); ++i) {
    if (reader.engine(i).communicator_hash == hash) return reader.engine(i);
  }
  ADD_FAILURE() << "no engine of " << hash;
  return reader.engine(0);
}

Result<StatisticsReader> Own() {
  Result<std::vector<StatisticsReader>> readers = StatisticsReader::OpenProcess(getpid());
  if (!readers.ok()) return readers.status();
  if (readers->size() != 1) return InternalError("no file");
  return std::move((*readers)[0]);
}

TEST(ClassifierTest, ContradictionsAreCountedAndAttributesWin) {
  Rig rig(1008);
  Result<StatisticsReader> reader = Own();
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const EngineRow& row = RowOf(*reader, 1008);
  Announce(rig.communicator, Attributes(Function::kAllReduce, Algorithm::kRing, Protocol::kSimple));
  StopEvent(rig.Tell({Function::kAllReduce, Algorithm::kRing, Protocol::kSimple, 1}));
  const ProfilerEvent op = rig.Tell({Function::kAllGather, Algorithm::kRing, Protocol::kSimple, 1});
  EXPECT_EQ(FunctionOfHint(rig.Send(kRingSimple).op_hint), Function::kAllReduce);
  EXPECT_EQ(row.compared.load(), 1u);
  EXPECT_EQ(row.disagreed.load(), 1u);
  StopEvent(op);
  // Of point-to-point calls in one group NCCL announces the first only; the user's call is known to the profiler.
  Announce(rig.communicator, Attributes(Function::kSend, Algorithm::kRing, Protocol::kSimple));
  const ProfilerEvent mixed =
      rig.Tell({Function::kSend, Algorithm::kUnknown, Protocol::kUnknown, 8}, Function::kAllToAll);
  EXPECT_EQ(FunctionOfHint(rig.Send(kPairSimple).op_hint), Function::kAllToAll);
  EXPECT_EQ(row.mixed_groups.load(), 1u);
  StopEvent(mixed);
  // Where it is not known, the announcement names it.
  Announce(rig.communicator, Attributes(Function::kGather, Algorithm::kRing, Protocol::kSimple));
  const ProfilerEvent made = rig.Tell({Function::kSend, Algorithm::kUnknown, Protocol::kUnknown, 8});
  EXPECT_EQ(FunctionOfHint(rig.Send(kPairSimple).op_hint), Function::kGather);
  EXPECT_EQ(row.disagreed.load(), 1u);
  StopEvent(made);
  // PXN: nothing but the announcement is known.
  const ProfilerEvent foreign = StartProxyOp({ProfilerEvent::kNone, getpid() + 1, true});
  BeforeSend(StartStep(foreign));
  EXPECT_EQ(FunctionOfHint(rig.Send(kPairSimple).op_hint), Function::kGather);
  EXPECT_EQ(row.without_operation.load(), 1u);
  StopEvent(foreign);
}

TEST(StatisticsTest, ToolsReadWhatWasCounted) {
  Rig rig(1009);
  Announce(rig.communicator, Attributes(Function::kSend, Algorithm::kRing, Protocol::kSimple));
  for (int i = 0; i < 3; ++i) rig.Send(kPairSimple, 100);
  Result<StatisticsReader> reader = Own();
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(reader->header().pid, static_cast<uint64_t>(getpid()));
  EXPECT_EQ(reader->ClassName(kBackground), "background");
  bool found = false;
  for (const ClaimedMessages& row : reader->Messages()) {
    if (reader->engine(row.engine).communicator_hash != 1009) continue;
    found = true;
    EXPECT_EQ(row.direction, Direction::kSend);
    EXPECT_EQ(row.source, OperationSource::kAttributes);
    EXPECT_EQ(row.function, Function::kSend);
    EXPECT_EQ(row.protocol, Protocol::kSimple);
    EXPECT_EQ(row.service_class, kBackground);
    EXPECT_EQ(row.messages, 3u);
    EXPECT_EQ(row.bytes, 300u);
  }
  EXPECT_TRUE(found);
}

TEST(StatisticsTest, OnlyLeftoversAreRemoved) {
  Rig rig(1010);
  EXPECT_NE(access((kEnvironment->directory + "/1.0").c_str(), F_OK), 0);
  EXPECT_EQ(access((kEnvironment->directory + "/2.0").c_str(), F_OK), 0);
  EXPECT_EQ(access((kEnvironment->directory + "/notes.txt").c_str(), F_OK), 0);
  struct stat info {};
  ASSERT_EQ(stat((kEnvironment->directory + "/" + std::to_string(getpid()) + ".0").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(StatisticsTest, OtherFilesAreRefusedWithTheirCause) {
  const Result<StatisticsReader> reader = StatisticsReader::Open(kEnvironment->directory + "/notes.txt");
  ASSERT_FALSE(reader.ok());
  EXPECT_NE(reader.status().message().find("notes.txt holds no statistics: 1 bytes"), std::string::npos)
      << reader.status().message();
}

TEST(StatisticsTest, MoreEnginesThanRowsCountForThemselves) {
  for (uint32_t i = 0; i < kMaxStatisticsEngines + 3; ++i) {
    const EngineStatistics added = Statistics::Get().AddEngine("many", i, 5000 + i);
    ASSERT_NE(added.engine, nullptr);
    added.messages->sent[0].messages.store(1);
  }
  Result<StatisticsReader> reader = Own();
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->engines(), kMaxStatisticsEngines);
}

}  // namespace
}  // namespace sluice
