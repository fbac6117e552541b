// The profiler half: from events to what the next isend and irecv of a thread belong to.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <thread>
#include <vector>

#include "plugin/classify/communicator.h"
#include "plugin/classify/events.h"
#include "plugin/classify/profiler_state.h"
#include "plugin/classify/statistics.h"
#include "plugin/classify/thread_state.h"
#include "plugin/profiler.h"

namespace sluice {
namespace {

ProfilerTask Collective(Function function, uint64_t bytes) {
  ProfilerTask task;
  task.operation = {function, Algorithm::kRing, Protocol::kSimple, bytes};
  return task;
}

class EventsTest : public testing::Test {
 protected:
  void SetUp() override {
    this_thread.next_send = this_thread.next_receive = nullptr;
    this_thread.last_communicator = nullptr;
    Result<ProfilerContext*> context = ProfilerContext::Create(6, Communicator{.hash = 7}, nullptr);
    ASSERT_TRUE(context.ok()) << context.status().message();
    context_ = *context;
  }
  void TearDown() override { EXPECT_TRUE(context_->Finalize().ok()); }
  static ProfilerEvent Op(ProfilerEvent task, bool send = true, pid_t pid = getpid()) {
    return StartProxyOp({task, pid, send});
  }
  ProfilerContext* context_ = nullptr;
};

TEST_F(EventsTest, ASendBelongsToTheStepBeforeIt) {
  const ProfilerEvent task = context_->StartTask(Collective(Function::kAllGather, 4096));
  StopEvent(task);  // NCCL stops it before its proxy operations start
  const ProfilerEvent op = Op(task);
  const ProfilerEvent step = StartStep(op);
  EXPECT_EQ(this_thread.next_send, nullptr);
  EXPECT_EQ(this_thread.next_receive, nullptr) << "the step of a send starts long before its isend";
  BeforeSend(step);
  ASSERT_NE(this_thread.next_send, nullptr);
  EXPECT_TRUE(this_thread.next_send->known);
  EXPECT_EQ(this_thread.next_send->operation.function, Function::kAllGather);
  EXPECT_EQ(this_thread.next_send->operation.bytes, 4096u);
  StopEvent(step);
  StopEvent(op);
  EXPECT_EQ(this_thread.next_send, nullptr) << "the operation is over";
}

TEST_F(EventsTest, OldReleasesReportTheWaitOnTheOperation) {
  const ProfilerEvent op = Op(context_->StartTask(Collective(Function::kReduce, 1)));
  BeforeSend(op);
  ASSERT_NE(this_thread.next_send, nullptr);
  EXPECT_EQ(this_thread.next_send->operation.function, Function::kReduce);
  StopEvent(op);
}

TEST_F(EventsTest, ARefusedReceiveStartsItsStepAgainAtNoCost) {
  const ProfilerEvent op = Op(context_->StartTask(Collective(Function::kAllReduce, 1)), false);
  const ProfilerEvent first = StartStep(op);
  for (int i = 0; i < 100000; ++i) EXPECT_EQ(StartStep(op), first);
  EXPECT_NE(this_thread.next_receive, nullptr);
  StopEvent(first);
  StopEvent(op);
}

TEST_F(EventsTest, ForeignStaleAndInventedEventsAreUnknown) {
  const ProfilerEvent task = context_->StartTask(Collective(Function::kAllReduce, 1));
  const ProfilerEvent foreign = Op(task, true, getpid() + 1);  // PXN: the number is another process's
  BeforeSend(StartStep(foreign));
  ASSERT_NE(this_thread.next_send, nullptr);
  EXPECT_FALSE(this_thread.next_send->known);
  StopEvent(foreign);
  for (const uint64_t invented :
       {uint64_t{1}, uint64_t{2}, uint64_t{3}, ~uint64_t{0}, uint64_t{0xdeadbeef}}) {
    const auto event = static_cast<ProfilerEvent>(invented);
    EXPECT_EQ(StartStep(event), ProfilerEvent::kNone);
    BeforeSend(event);
    EXPECT_EQ(this_thread.next_send, nullptr);
    StopEvent(event);
    const ProfilerEvent op = Op(event);
    BeforeSend(op);
    ASSERT_NE(this_thread.next_send, nullptr) << "2.27 wants an event for every operation";
    EXPECT_FALSE(this_thread.next_send->known);
    StopEvent(op);
  }
  const ProfilerEvent op = Op(task);
  StopEvent(op);
  EXPECT_EQ(StartStep(op), ProfilerEvent::kNone) << "stopped";
  for (uint32_t i = 0; i < EventTables::kTaskSlots; ++i)
    context_->StartTask(Collective(Function::kReduce, i));
  EXPECT_FALSE(EventTables::Get().FindTask(task).has_value()) << "forgotten, not confused with a later one";
}

TEST_F(EventsTest, ManyOpenOperationsAreDistinctAndAFullTableDegrades) {
  const uint64_t dropped = Statistics::Get().process().proxy_ops_dropped.load();
  std::vector<ProfilerEvent> ops;
  std::set<ProfilerEvent> distinct;
  for (uint32_t i = 0; i < EventTables::kProxyOpSlots + 5; ++i) {
    ops.push_back(Op(context_->StartTask(Collective(Function::kAllReduce, i))));
    EXPECT_NE(ops.back(), ProfilerEvent::kNone);
    distinct.insert(ops.back());
  }
  EXPECT_GE(distinct.size(), EventTables::kProxyOpSlots);
  EXPECT_EQ(Statistics::Get().process().proxy_ops_dropped.load() - dropped, 5u);
  EXPECT_EQ(StartStep(ops.back()), ProfilerEvent::kNone);
  BeforeSend(ops[100]);
  EXPECT_EQ(this_thread.next_send->operation.bytes, 100u);
  // The rest is left to Finalize, as an aborted communicator leaves it.
}

TEST_F(EventsTest, FinalizeGivesBackWhatAnAbortLeft) {
  std::vector<ProfilerEvent> ops;
  for (int i = 0; i < 1000; ++i) ops.push_back(Op(context_->StartTask(Collective(Function::kAllReduce, 1))));
  ASSERT_TRUE(context_->Finalize().ok());
  for (const ProfilerEvent op : ops) EXPECT_EQ(StartStep(op), ProfilerEvent::kNone);
  EXPECT_EQ(context_->StartTask(Collective(Function::kAllReduce, 1)), ProfilerEvent::kNone) << "late";
  SetUp();
}

TEST_F(EventsTest, TheUsersCallNamesWhatNcclMadeOfIt) {
  const ProfilerEvent call = context_->StartCall(Function::kAllToAll);
  ProfilerTask task;
  task.operation.function = Function::kSend;
  task.call = call;
  const ProfilerEvent op = Op(context_->StartTask(task));
  BeforeSend(op);
  EXPECT_EQ(this_thread.next_send->operation.function, Function::kAllToAll);
  EXPECT_TRUE(this_thread.next_send->is_call);
  StopEvent(op);
  task.call = static_cast<ProfilerEvent>(12345);  // of a graph that is replayed
  const ProfilerEvent replayed = Op(context_->StartTask(task));
  BeforeSend(replayed);
  EXPECT_EQ(this_thread.next_send->operation.function, Function::kSend);
  EXPECT_FALSE(this_thread.next_send->is_call);
  StopEvent(replayed);
}

TEST_F(EventsTest, AForkedChildIsAnotherProcess) {
  const ProfilerEvent task = context_->StartTask(Collective(Function::kAllReduce, 1));
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    const ProfilerEvent of_parent = StartProxyOp({task, parent, true});
    BeforeSend(of_parent);
    const bool unknown = this_thread.next_send != nullptr && !this_thread.next_send->known;
    const ProfilerEvent of_child = StartProxyOp({task, getpid(), true});
    BeforeSend(of_child);
    _exit(unknown && this_thread.next_send->known ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Launching threads write tasks while progress threads read them: every task that is found is whole.
TEST_F(EventsTest, TasksAreReadWholeWhileTheRingTurns) {
  std::atomic<uint64_t> latest{0};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 0; i < 400000; ++i) {
      const auto function = static_cast<Function>(i % 5);
      latest.store(static_cast<uint64_t>(context_->StartTask(Collective(function, i))),
                   std::memory_order_release);
    }
    stop.store(true);
  });
  while (!stop.load()) {
    const auto event = static_cast<ProfilerEvent>(latest.load(std::memory_order_acquire));
    const auto task = EventTables::Get().FindTask(event);
    if (task.has_value()) {
      EXPECT_EQ(static_cast<uint64_t>(task->operation.function), task->operation.bytes % 5);
    }
  }
  writer.join();
}

TEST_F(EventsTest, QueriesAreAnsweredOnlyToOurselves) {
  const ProfilerEvent op = Op(context_->StartTask(Collective(Function::kBroadcast, 64)));
  ProfilerQuery query = MakeQuery();
  AnswerQuery(StartStep(op), &query);
  ASSERT_NE(ResolveQuery(query), nullptr);
  EXPECT_EQ(ResolveQuery(query)->operation.function, Function::kBroadcast);
  ProfilerQuery other;  // another plugin's data behind the same pointer
  AnswerQuery(StartStep(op), &other);
  EXPECT_EQ(other.operation, ProfilerEvent::kNone);
  AnswerQuery(StartStep(op), nullptr);
  StopEvent(op);
  EXPECT_FALSE(MayAskProfiler(nullptr));
}

TEST(CommunicatorJoinTest, HalvesOfOneCommunicatorMeetByHashAndThread) {
  this_thread.last_communicator = nullptr;
  // Two ranks of one process: the same hash, initialised on threads of their own.
  CommunicatorState* states[2];
  auto rank = [&](int r) {
    CommunicatorState& net = CommunicatorState::Join(PluginHalf::kNet, {.hash = 99, .traffic_class = 5});
    CommunicatorState& profiler = CommunicatorState::Join(PluginHalf::kProfiler, {.hash = 99, .rank = r});
    CommunicatorState& tuner =
        CommunicatorState::Join(PluginHalf::kTuner, {.hash = 99, .ranks = 2, .nodes = 1});
    EXPECT_EQ(&net, &profiler);
    EXPECT_EQ(&net, &tuner);
    const Communicator known = net.communicator();
    EXPECT_EQ(known.rank, r);
    EXPECT_EQ(known.ranks, 2);
    EXPECT_EQ(known.nodes, 1);
    EXPECT_EQ(known.traffic_class, 5);
    states[r] = &net;
  };
  std::thread first(rank, 0);
  first.join();
  std::thread second(rank, 1);
  second.join();
  EXPECT_NE(states[0], states[1]);
  // A child that shares its parent's connections has a profiler and a tuner of its own.
  CommunicatorState& child = CommunicatorState::Join(PluginHalf::kProfiler, {.hash = 100});
  EXPECT_NE(&child, states[0]);
  EXPECT_EQ(&CommunicatorState::Join(PluginHalf::kTuner, {.hash = 100}), &child);
  // Versions that tell no hash.
  CommunicatorState& old_profiler = CommunicatorState::Join(PluginHalf::kProfiler, {});
  EXPECT_NE(&old_profiler, &child);
  EXPECT_EQ(&CommunicatorState::Join(PluginHalf::kTuner, {.ranks = 4}), &old_profiler);
}

}  // namespace
}  // namespace sluice
