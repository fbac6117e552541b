// Every version table of the profiler and the tuner over a fake typed layer: arguments, outputs, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "plugin/abi/tables.h"
#include "tests/abi/fake_halves.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;

template <int kVersionNumber, typename TableType, const TableType& kTable>
struct ProfilerVersion {
  static constexpr int kVersion = kVersionNumber;
  using Table = TableType;
  using Descr = typename Table::Descriptor;
  static const Table& table() { return kTable; }
  static nccl::NcclResult Init(void** context, int* mask) {
    if constexpr (kVersion <= 3) {
      return table().init(context, mask);
    } else if constexpr (kVersion == 4) {
      return table().init(context, mask, "name", 42, 3, 12, 7, nullptr);
    } else {
      return table().init(context, 42, mask, "name", 3, 12, 7, nullptr);
    }
  }
};

template <typename V>
class ProfilerTablesTest : public testing::Test {
 protected:
  void SetUp() override {
    fake::ResetHalves();
    ASSERT_EQ(V::Init(&context_, &mask_), nccl::kSuccess);
    ASSERT_EQ(context_, &fake::GetHalves().profiler);
  }
  // Poisoned but for what every event has.
  typename V::Descr Describe(uint64_t type, void* parent) const {
    typename V::Descr descr;
    memset(static_cast<void*>(&descr), 0xa5, sizeof descr);
    descr.type = static_cast<decltype(descr.type)>(type);
    descr.parentObj = parent;
    descr.rank = 7;
    return descr;
  }
  void* Start(typename V::Descr descr) const {
    void* event = reinterpret_cast<void*>(1);
    EXPECT_EQ(V::table().startEvent(context_, &event, &descr), nccl::kSuccess);
    return event;
  }

  void* context_ = nullptr;
  int mask_ = -1;
};

using ProfilerVersions = testing::Types<ProfilerVersion<1, nccl::ProfilerV1, ncclProfiler_v1>,
                                        ProfilerVersion<2, nccl::ProfilerV2, ncclProfiler_v2>,
                                        ProfilerVersion<3, nccl::ProfilerV3, ncclProfiler_v3>,
                                        ProfilerVersion<4, nccl::ProfilerV4, ncclProfiler_v4>,
                                        ProfilerVersion<5, nccl::ProfilerV5, ncclProfiler_v5>,
                                        ProfilerVersion<6, nccl::ProfilerV6, ncclProfiler_v6>>;
TYPED_TEST_SUITE(ProfilerTablesTest, ProfilerVersions);

void* const kParent = reinterpret_cast<void*>(0x77);

TYPED_TEST(ProfilerTablesTest, InitTellsTheCommunicatorAndSetsTheMask) {
  const fake::Halves& halves = fake::GetHalves();
  EXPECT_EQ(halves.version, TypeParam::kVersion);
  EXPECT_EQ(this->mask_, 0x100 + TypeParam::kVersion);
  if (TypeParam::kVersion <= 3) return;
  EXPECT_EQ(halves.communicator.hash, 42u);
  EXPECT_EQ(halves.communicator.name, "name");
  EXPECT_EQ(halves.communicator.nodes, 3);
  EXPECT_EQ(halves.communicator.ranks, 12);
  EXPECT_EQ(halves.communicator.rank, 7);
}

TYPED_TEST(ProfilerTablesTest, AFailedOrUnwantedInitClearsTheMask) {
  fake::GetHalves().error = SystemError("no");
  int mask = -1;
  void* context = this;
  EXPECT_NE(TypeParam::Init(&context, &mask), nccl::kSuccess);
  EXPECT_EQ(mask, 0);
  EXPECT_EQ(context, nullptr);
  fake::GetHalves().error = Status::Ok();
  fake::GetHalves().off = true;
  mask = -1;
  EXPECT_EQ(TypeParam::Init(&context, &mask), nccl::kSuccess);
  EXPECT_EQ(mask, 0);
}

TYPED_TEST(ProfilerTablesTest, CollectivesAndPointToPointCallsAreTasks) {
  auto coll = this->Describe(nccl::kProfileColl, kParent);
  coll.coll.count = 1000;
  coll.coll.seqNumber = 5;
  auto p2p = this->Describe(nccl::kProfileP2p, kParent);
  p2p.p2p.count = 10;
  if constexpr (TypeParam::kVersion == 1) {
    coll.coll.func = nccl::kFuncReduceScatter;
    coll.coll.algo = nccl::kAlgoRing;
    coll.coll.proto = nccl::kProtoLl128;
    coll.coll.datatype = 6;  // ncclFloat16
    p2p.p2p.func = nccl::kFuncRecv;
    p2p.p2p.datatype = 8;  // ncclFloat64
  } else {
    coll.coll.func = "ReduceScatter";
    coll.coll.algo = "RING";
    coll.coll.proto = "LL128";
    coll.coll.datatype = "ncclFloat16";
    p2p.p2p.func = "Recv";
    p2p.p2p.datatype = "ncclFloat64";
  }
  if constexpr (TypeParam::kVersion <= 3) {
    coll.coll.name = p2p.p2p.name = "name";
    coll.coll.commHash = p2p.p2p.commHash = 42;
  }
  EXPECT_EQ(this->Start(coll), reinterpret_cast<void*>(fake::kTask));
  EXPECT_EQ(this->Start(p2p), reinterpret_cast<void*>(fake::kTask));
  const auto& tasks = fake::GetHalves().tasks;
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[0].operation.function, Function::kReduceScatter);
  EXPECT_EQ(tasks[0].operation.algorithm, Algorithm::kRing);
  EXPECT_EQ(tasks[0].operation.protocol, Protocol::kLl128);
  EXPECT_EQ(tasks[0].operation.bytes, 2000u);
  EXPECT_EQ(tasks[0].sequence, 5u);
  EXPECT_EQ(tasks[1].operation.function, Function::kRecv);
  EXPECT_EQ(tasks[1].operation.bytes, 80u);
  for (const ProfilerTask& task : tasks) {
    EXPECT_EQ(task.rank, 7);
    EXPECT_EQ(task.communicator_hash, TypeParam::kVersion <= 3 ? 42u : 0u);
  }
  EXPECT_EQ(tasks[1].call,
            TypeParam::kVersion >= 5 ? static_cast<ProfilerEvent>(0x77) : ProfilerEvent::kNone);
}

TYPED_TEST(ProfilerTablesTest, ProxyOpsAndStepsNeedNoContext) {
  auto op = this->Describe(nccl::kProfileProxyOp, kParent);
  op.proxyOp.pid = 1234;
  op.proxyOp.isSend = 1;
  auto step = this->Describe(nccl::kProfileProxyStep, kParent);
  this->context_ = reinterpret_cast<void*>(0xdead0000);  // another process's: must not be followed
  EXPECT_EQ(this->Start(op), reinterpret_cast<void*>(fake::kOp));
  EXPECT_EQ(this->Start(step), reinterpret_cast<void*>(fake::kStep));
  const fake::Halves& halves = fake::GetHalves();
  ASSERT_EQ(halves.ops.size(), 1u);
  EXPECT_EQ(halves.ops[0].pid, 1234);
  EXPECT_TRUE(halves.ops[0].is_send);
  EXPECT_EQ(halves.ops[0].parent, static_cast<ProfilerEvent>(0x77));
  EXPECT_THAT(halves.steps, ElementsAre(static_cast<ProfilerEvent>(0x77)));
}

TYPED_TEST(ProfilerTablesTest, OnlyTheWaitBeforeIsendIsAState) {
  const int state = TypeParam::kVersion <= 3 ? nccl::kProxyOpSendRemFifoWait : nccl::kProxyStepSendPeerWaitV4;
  for (int other = 0; other < 32; ++other) {
    EXPECT_EQ(TypeParam::table().recordEventState(kParent, other, nullptr), nccl::kSuccess);
  }
  EXPECT_THAT(fake::GetHalves().sends, ElementsAre(static_cast<ProfilerEvent>(0x77)));
  fake::GetHalves().sends.clear();
  EXPECT_EQ(TypeParam::table().recordEventState(kParent, state, nullptr), nccl::kSuccess);
  EXPECT_EQ(fake::GetHalves().sends.size(), 1u);
}

TYPED_TEST(ProfilerTablesTest, EverythingElseGetsNoEvent) {
  for (int bit = 0; bit < (TypeParam::kVersion >= 5 ? 15 : 8); ++bit) {
    const uint64_t type = uint64_t{1} << bit;
    if ((type & (nccl::kProfileColl | nccl::kProfileP2p | nccl::kProfileProxyOp | nccl::kProfileProxyStep |
                 nccl::kProfileP2pApi | nccl::kProfileNetPlugin)) != 0)
      continue;
    EXPECT_EQ(this->Start(this->Describe(type, kParent)), nullptr) << bit;
  }
  EXPECT_TRUE(fake::GetHalves().tasks.empty());
}

TYPED_TEST(ProfilerTablesTest, NullIsTolerated) {
  EXPECT_EQ(TypeParam::table().startEvent(this->context_, nullptr, nullptr), nccl::kSuccess);
  void* event = this;
  EXPECT_EQ(TypeParam::table().startEvent(this->context_, &event, nullptr), nccl::kSuccess);
  EXPECT_EQ(event, nullptr);
  this->context_ = nullptr;  // what NCCL passes when init has failed
  EXPECT_EQ(this->Start(this->Describe(nccl::kProfileColl, nullptr)), nullptr);
  EXPECT_EQ(this->Start(this->Describe(nccl::kProfileP2p, nullptr)), nullptr);
  EXPECT_EQ(TypeParam::table().stopEvent(nullptr), nccl::kSuccess);
  EXPECT_EQ(TypeParam::table().finalize(nullptr), nccl::kSuccess);
  EXPECT_EQ(fake::GetHalves().finalized, 0);
}

TEST(ProfilerCallTest, PointToPointApiCallsNameTheUsersCall) {
  fake::ResetHalves();
  nccl::ProfilerEventDescrV6 descr{};
  descr.type = nccl::kProfileP2pApi;
  descr.p2pApi.func = "AlltoAll";
  void* event = nullptr;
  ncclProfiler_v6.startEvent(&fake::GetHalves().profiler, &event, &descr);
  EXPECT_EQ(event, reinterpret_cast<void*>(fake::kCall));
  EXPECT_THAT(fake::GetHalves().calls, ElementsAre(Function::kAllToAll));
}

template <typename Table>
constexpr bool kNamesCommunicator = requires(const Table& t) {
  t.finalize;
};

template <typename Table>
void CheckTuner(const Table& table, int version) {
  SCOPED_TRACE(version);
  fake::ResetHalves();
  void* context = nullptr;
  nccl::NcclResult (*end)(void*) = nullptr;
  if constexpr (kNamesCommunicator<Table>) {
    nccl::TunerNvlDomainInfo domains{};
    nccl::TunerConstants constants;
    memset(&constants, 0x5a, sizeof constants);
    const nccl::TunerConstants before = constants;
    ASSERT_EQ(table.init(&context, 42, 16, 4, nullptr, &domains, &constants), nccl::kSuccess);
    EXPECT_EQ(memcmp(&before, &constants, sizeof before), 0);
    EXPECT_EQ(fake::GetHalves().communicator.hash, 42u);
    end = table.finalize;
  } else {
    ASSERT_EQ(table.init(16, 4, nullptr, &context), nccl::kSuccess);
    end = table.destroy;
  }
  EXPECT_EQ(context, &fake::GetHalves().tuner);
  EXPECT_EQ(fake::GetHalves().communicator.ranks, 16);
  EXPECT_EQ(fake::GetHalves().communicator.nodes, 4);
  float costs[nccl::kTunerAlgorithms * nccl::kTunerProtocols];
  std::fill(std::begin(costs), std::end(costs), -1.0f);
  auto* const flat = reinterpret_cast<float**>(costs);
  int channels = 0, algorithm = -1, protocol = -1;
  for (void* ctx : {context, static_cast<void*>(nullptr)}) {
    if constexpr (requires { table.getCollInfo(ctx, 4, 8, 0, 0, 1, &algorithm, &protocol, &channels); }) {
      EXPECT_EQ(table.getCollInfo(ctx, 4, 1 << 20, 0, 0, 2, &algorithm, &protocol, &channels),
                nccl::kSuccess);
    } else if constexpr (requires { table.getCollInfo(ctx, 4, 8, 1, flat, 7, 3, &channels); }) {
      EXPECT_EQ(table.getCollInfo(ctx, 4, 1 << 20, 2, flat, 7, 3, &channels), nccl::kSuccess);
    } else {
      EXPECT_EQ(table.getCollInfo(ctx, 4, 1 << 20, 2, flat, 7, 3, 1, &channels), nccl::kSuccess);
    }
  }
  for (const float cost : costs) EXPECT_EQ(cost, -1.0f);
  EXPECT_EQ(channels, 0);
  EXPECT_EQ(algorithm, -1);
  EXPECT_EQ(protocol, -1);
  ASSERT_EQ(fake::GetHalves().questions.size(), 1u);
  EXPECT_EQ(fake::GetHalves().questions[0].function, Function::kAllReduce);
  EXPECT_EQ(fake::GetHalves().questions[0].bytes, size_t{1} << 20);
  EXPECT_EQ(fake::GetHalves().questions[0].pipe_ops, 2);
  EXPECT_EQ(end(context), nccl::kSuccess);
  EXPECT_EQ(end(nullptr), nccl::kSuccess);
  EXPECT_EQ(fake::GetHalves().finalized, 1);
}

TEST(TunerTablesTest, DecideNothingAndAlwaysSucceed) {
  CheckTuner(ncclTunerPlugin_v2, 2);
  CheckTuner(ncclTunerPlugin_v3, 3);
  CheckTuner(ncclTunerPlugin_v4, 4);
  CheckTuner(ncclTunerPlugin_v5, 5);
  CheckTuner(ncclTunerPlugin_v6, 6);
  EXPECT_EQ(ncclTunerPlugin_v6.getChunkSize, nullptr);
  int algorithm = -1, protocol = -1, channels = 0;
  EXPECT_EQ(ncclTunerPlugin_v1.init(16, 4, nullptr), nccl::kSuccess);
  EXPECT_EQ(ncclTunerPlugin_v1.getCollInfo(4, 8, 0, 0, 1, &algorithm, &protocol, &channels), nccl::kSuccess);
  EXPECT_EQ(algorithm, -1);
  EXPECT_EQ(ncclTunerPlugin_v1.destroy(), nccl::kSuccess);
}

TEST(TunerTablesTest, SwitchedOffItHasNoContext) {
  fake::ResetHalves();
  fake::GetHalves().off = true;
  void* context = fake::GetHalves().questions.data();
  EXPECT_EQ(ncclTunerPlugin_v4.init(2, 2, nullptr, &context), nccl::kSuccess);
  EXPECT_EQ(context, nullptr);
}

}  // namespace
}  // namespace sluice
