// The grammar of HCA lists, against NCCL's own meaning of each form (field cases H1 to H3).
#include "verbs/hca_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

namespace sluice {
namespace {

using ::testing::HasSubstr;

struct SelectCase {
  std::string list;
  std::vector<std::string> selected;  // of kPorts
};

void PrintTo(const SelectCase& c, std::ostream* os) {
  *os << "`" << c.list << "`";
}

struct PortName {
  const char* device;
  int port;
};
constexpr PortName kPorts[] = {{"mlx5_0", 1}, {"mlx5_1", 1}, {"mlx5_1", 2}, {"mlx5_11", 1}, {"rxe0", 1}};

std::vector<std::string> Select(const HcaFilter& filter) {
  std::vector<std::string> selected;
  for (const PortName& port : kPorts) {
    if (!filter.Matches(port.device, port.port)) continue;
    EXPECT_TRUE(filter.MayMatch(port.device)) << port.device;
    selected.push_back(std::string(port.device) + ":" + std::to_string(port.port));
  }
  return selected;
}

class HcaFilterSelects : public ::testing::TestWithParam<SelectCase> {};

TEST_P(HcaFilterSelects, AsNcclDoes) {
  Result<HcaFilter> filter = HcaFilter::Parse(GetParam().list, "NCCL_IB_HCA");
  ASSERT_TRUE(filter.ok()) << filter.status().message();
  EXPECT_EQ(Select(*filter), GetParam().selected);
}

const std::vector<std::string> kAll = {"mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_11:1", "rxe0:1"};

INSTANTIATE_TEST_SUITE_P(
    Forms, HcaFilterSelects,
    ::testing::Values(SelectCase{"", kAll}, SelectCase{"  ", kAll},
                      SelectCase{"mlx5_1", {"mlx5_1:1", "mlx5_1:2", "mlx5_11:1"}},
                      SelectCase{"=mlx5_1", {"mlx5_1:1", "mlx5_1:2"}},
                      SelectCase{"^mlx5_1", {"mlx5_0:1", "rxe0:1"}},
                      SelectCase{"^=mlx5_1,mlx5_0", {"mlx5_11:1", "rxe0:1"}},
                      SelectCase{"mlx5", {"mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_11:1"}},
                      SelectCase{"=mlx5_1:2", {"mlx5_1:2"}},
                      SelectCase{"mlx5_1:1", {"mlx5_1:1", "mlx5_11:1"}},
                      SelectCase{"^=mlx5_1:2", {"mlx5_0:1", "mlx5_1:1", "mlx5_11:1", "rxe0:1"}},
                      SelectCase{"mlx5_0,,rxe", {"mlx5_0:1", "rxe0:1"}}, SelectCase{",mlx5_0,", {"mlx5_0:1"}},
                      SelectCase{" mlx5_0 , rxe0 ", {"mlx5_0:1", "rxe0:1"}}, SelectCase{"=mlx5", {}},
                      SelectCase{"none", {}}, SelectCase{"=mlx5_0:1:3:2,rxe0", {"mlx5_0:1", "rxe0:1"}},
                      SelectCase{"mlx5_0:2", {}}));

struct RefuseCase {
  std::string list;
  std::string cause;
  std::string hint;
};

void PrintTo(const RefuseCase& c, std::ostream* os) {
  *os << "`" << c.list << "`";
}

class HcaFilterRefuses : public ::testing::TestWithParam<RefuseCase> {};

TEST_P(HcaFilterRefuses, WithCauseAndHint) {
  const RefuseCase& c = GetParam();
  const Result<HcaFilter> filter = HcaFilter::Parse(c.list, "NCCL_IB_HCA");
  ASSERT_FALSE(filter.ok());
  EXPECT_EQ(filter.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(filter.status().message(), HasSubstr("NCCL_IB_HCA=" + c.list + ": "));
  EXPECT_THAT(filter.status().message(), HasSubstr(c.cause));
  EXPECT_THAT(filter.status().message(), HasSubstr(c.hint));
  EXPECT_THAT(filter.status().message(), ::testing::Not(HasSubstr("\n")));
}

INSTANTIATE_TEST_SUITE_P(
    Malformed, HcaFilterRefuses,
    ::testing::Values(
        RefuseCase{"^=mlx5_8,^=mlx5_14", "modifier inside the list", "^=mlx5_8,mlx5_14"},
        RefuseCase{"=mlx5_0,=mlx5_1", "modifier inside the list", "apply to the whole list"},
        RefuseCase{"^mlx5_0,^mlx5_1", "modifier inside the list", "apply to the whole list"},
        RefuseCase{"mlx5_0,^mlx5_1", "modifier inside the list", "stand once"},
        RefuseCase{"=^mlx5_0", "out of order", "^= for both"},
        RefuseCase{"^^mlx5_0", "repeated", "^ to exclude"},
        RefuseCase{"==mlx5_0", "repeated", "= for whole names"},
        RefuseCase{"^", "names no device", "leave it empty"}, RefuseCase{"=", "names no device", ""},
        RefuseCase{"^=", "names no device", ""}, RefuseCase{",", "names no device", ""},
        RefuseCase{":1", "port without device name", "mlx5_0:1"},
        RefuseCase{"mlx5_0,:1", "port without device name", "device:port"},
        RefuseCase{"=:1", "port without device name", "device:port"},
        RefuseCase{"mlx5_0:", "empty port", "mlx5_0:1"}, RefuseCase{"mlx5_0::2", "empty port", "mlx5_0"},
        RefuseCase{"mlx5_0::", "empty port", ""}, RefuseCase{"mlx5_0:0", "port `0`", "1 to 255"},
        RefuseCase{"mlx5_0:256", "port `256`", "1 to 255"}, RefuseCase{"mlx5_0:-1", "port `-1`", ""},
        RefuseCase{"mlx5_0:one", "port `one`", "numbers"}, RefuseCase{"mlx5_0:1x", "port `1x`", ""},
        RefuseCase{"mlx5_0:99999999999", "port `99999999999`", ""},
        RefuseCase{"mlx5_0:1:rail", "rail or plane `rail`", "numbers"},
        RefuseCase{"mlx5_0:1:1:1:1", "too many colons", "device:port:rail:plane"},
        RefuseCase{"mlx5_0 mlx5_1", "no device name", "commas"}));

TEST(HcaFilter, CarriesRailAndPlaneOfTheEntryThatMatched) {
  Result<HcaFilter> filter = HcaFilter::Parse("=mlx5_0:1:3:2,mlx5_1:1::5,mlx5_2:1:4", "NCCL_IB_HCA");
  ASSERT_TRUE(filter.ok()) << filter.status().message();
  const HcaEntry* both = filter->Find("mlx5_0", 1);
  ASSERT_NE(both, nullptr);
  EXPECT_EQ(both->rail, 3);
  EXPECT_EQ(both->plane, 2);
  const HcaEntry* plane_only = filter->Find("mlx5_1", 1);
  ASSERT_NE(plane_only, nullptr);
  EXPECT_EQ(plane_only->rail, -1);
  EXPECT_EQ(plane_only->plane, 5);
  const HcaEntry* rail_only = filter->Find("mlx5_2", 1);
  ASSERT_NE(rail_only, nullptr);
  EXPECT_EQ(rail_only->rail, 4);
  EXPECT_EQ(rail_only->plane, -1);
  EXPECT_EQ(filter->Find("mlx5_3", 1), nullptr);
}

TEST(HcaFilter, AnExcludingListLabelsNothing) {
  Result<HcaFilter> filter = HcaFilter::Parse("^mlx5_0:1:3:2", "NCCL_IB_HCA");
  ASSERT_TRUE(filter.ok());
  EXPECT_EQ(filter->Find("mlx5_0", 1), nullptr);
  EXPECT_EQ(filter->Find("mlx5_1", 1), nullptr);
}

TEST(HcaFilter, RulesOutDevicesByNameOnlyWhenNoPortCanMatch) {
  Result<HcaFilter> excluding = HcaFilter::Parse("^=mlx5_0,mlx5_1:1", "NCCL_IB_HCA");
  ASSERT_TRUE(excluding.ok());
  EXPECT_FALSE(excluding->MayMatch("mlx5_0"));
  EXPECT_TRUE(excluding->MayMatch("mlx5_1"));  // port 2 remains
  EXPECT_TRUE(excluding->MayMatch("mlx5_2"));
  Result<HcaFilter> including = HcaFilter::Parse("mlx5_1:7", "NCCL_IB_HCA");
  ASSERT_TRUE(including.ok());
  EXPECT_FALSE(including->MayMatch("mlx5_0"));
  EXPECT_TRUE(including->MayMatch("mlx5_11"));
}

}  // namespace
}  // namespace sluice
