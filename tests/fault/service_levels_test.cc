// SLUICE_SL_SOURCE=path: lanes take the service levels that a subnet administrator tells, or do without it in words.
#include <atomic>

#include "tests/fault/fake_administrator.h"
#include "tests/fault/rig.h"

namespace sluice::fault {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kPolicy =
    "class = [{name = \"latency\", sl = 2}, {name = \"background\", queue_pairs = 2}]\n"
    "rule = [{bytes = \"[0, 4096]\", unknown_bytes = true, kind = \"collective\", class = \"latency\"}, "
    "{communicator = \"io*\", class = \"background\"}]\n";

const Variables kPath = {{"SLUICE_FABRIC_TOPOLOGY", "hosts=1,link=infiniband"},
                         {"SLUICE_SL_SOURCE", "path"},
                         {"SLUICE_POLICY", kPolicy}};

std::string Device() {
  nccl::NetPropertiesV12 properties{};
  EXPECT_EQ(Net().getProperties(0, &properties), kSuccess);
  return properties.name;
}

std::string Lanes() {
  const std::vector<std::string> lines = Lines("path to");
  if (lines.empty()) return "";
  const size_t at = lines.back().find("lanes ");
  return lines.back().substr(at, lines.back().find(" data + 1") - at);
}

// The route's level for lanes that name none; a named one that the route allows.
FAULT_ROLE(RouteAndNamed) {
  void* const ctx = Init();
  std::atomic<int> questions{0};
  FakeAdministrator administrator(Device(), [&](int, int, int sl) {
    ++questions;
    return sl < 0 || sl == 2 ? (sl < 0 ? 3 : sl) : FakeAdministrator::kNoPath;
  });
  const Wire wire = Connect(ctx, ctx);
  EXPECT_EQ(Lanes(),
            "lanes control SL 3 TC 0, bulk SL 3 TC 0 x4, latency SL 2 TC 0 x1, background SL 3 TC 0 x2, 7");
  // Both directions of one port are one question here, and answers serve later paths.
  EXPECT_EQ(questions.load(), 2);
  Transfer(wire, 1000);
  Transfer(wire, 1 << 20);
  const Wire second = Connect(ctx, ctx);
  Transfer(second, 1000);
  EXPECT_EQ(questions.load(), 2);
  Close(wire);
  Close(second);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}
TEST_F(FaultTest, LanesTakeTheLevelOfTheRoute) {
  RunRole("RouteAndNamed", kPath);
}

// The route does not allow the level that the policy names: no lane, one warning, and the class still works.
FAULT_ROLE(RefusedLane) {
  void* const ctx = Init();
  FakeAdministrator administrator(Device(),
                                  [](int, int, int sl) { return sl < 0 ? 1 : FakeAdministrator::kNoPath; });
  const Wire wire = Connect(ctx, ctx);
  EXPECT_THAT(Lanes(), HasSubstr("latency SL 0 TC 0, background SL 1 TC 0 x2"));
  EXPECT_EQ(LiveObjects().queue_pairs, 2 * (1 + 4 + 2));
  EXPECT_THAT(Lines("does not allow"),
              ElementsAre(HasSubstr(
                  "the route does not allow SL 2, which policy gives class latency; its operations use "
                  "the lane of the default class. Name an SL that")));
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{1} << 20}) Transfer(wire, bytes);
  Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}
TEST_F(FaultTest, ALaneThatTheRouteDoesNotAllowFallsBack) {
  RunRole("RefusedLane", kPath);
}

// Control and the default class always are: the route's level stands in for the one that a variable names.
FAULT_ROLE(DefaultClass) {
  void* const ctx = Init();
  FakeAdministrator administrator(Device(),
                                  [](int, int, int sl) { return sl < 0 ? 6 : FakeAdministrator::kNoPath; });
  const Wire wire = Connect(ctx, ctx);
  EXPECT_THAT(Lanes(), HasSubstr("lanes control SL 6 TC 0, bulk SL 6 TC 0 x4"));
  EXPECT_THAT(Lines("does not allow"),
              ElementsAre(HasSubstr("which NCCL_IB_SL gives class control; it takes the route's")));
  Transfer(wire, 100000);
  Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}
TEST_F(FaultTest, TheDefaultClassTakesTheRoutesLevel) {
  Variables variables = kPath;
  variables.emplace_back("NCCL_IB_SL", "4");
  RunRole("DefaultClass", variables);
}

FAULT_ROLE(SilentAdministrator) {
  void* const ctx = Init();
  FakeAdministrator administrator(Device(), [](int, int, int) { return FakeAdministrator::kSilence; });
  Wire none;
  EXPECT_NE(TryConnect(ctx, ctx, &none), kSuccess);
  EXPECT_THAT(Lines("check that the subnet manager runs"), SizeIs(testing::Ge(1u)))
      << testing::PrintToString(Lines());
  EXPECT_EQ(LiveObjects().queue_pairs, 0);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}
TEST_F(FaultTest, ASilentAdministratorIsAnError) {
  Variables variables = kPath;
  variables.emplace_back("SLUICE_CONNECT_TIMEOUT_MS", "4000");
  RunRole("SilentAdministrator", variables);
}

FAULT_ROLE(NoUmad) {
  void* const ctx = Init();
  Wire none;
  EXPECT_NE(TryConnect(ctx, ctx, &none), kSuccess);
  EXPECT_THAT(Lines("has no umad device in"), SizeIs(testing::Ge(1u))) << testing::PrintToString(Lines());
  EXPECT_THAT(Lines("load the module (modprobe ib_umad), or set SLUICE_SL_SOURCE=static"),
              SizeIs(testing::Ge(1u)));
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}
TEST_F(FaultTest, WithoutAUmadDeviceTheRemedyIsNamed) {
  RunRole("NoUmad", kPath);
}

FAULT_ROLE(OnRoce) {
  void* const ctx = Init();
  const Wire wire = Connect(ctx, ctx);
  EXPECT_THAT(Lines("SLUICE_SL_SOURCE=path has no effect on RoCE"), SizeIs(1));
  EXPECT_THAT(Lines("does not allow"), IsEmpty());
  Transfer(wire, 1000);
  Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}
TEST_F(FaultTest, OnRoceItHasNoEffectAndSaysSo) {
  RunRole("OnRoce", {{"SLUICE_FABRIC_TOPOLOGY", "hosts=1"}, {"SLUICE_SL_SOURCE", "path"}});
}

}  // namespace
}  // namespace sluice::fault
