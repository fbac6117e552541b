#include "plugin/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Variables = std::map<std::string, std::string>;

Result<Params> Parse(const Variables& variables) {
  return ParseParams([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Params ParseOk(const Variables& variables) {
  const Result<Params> params = Parse(variables);
  EXPECT_TRUE(params.ok()) << params.status().message();
  return *params;
}

std::string ErrorOf(const Variables& variables) {
  const Result<Params> params = Parse(variables);
  EXPECT_FALSE(params.ok());
  EXPECT_EQ(params.status().code(), Code::kInvalidArgument);
  return params.status().message();
}

TEST(ParamsTest, EmptyEnvironmentGivesTheDefaultsOfTheRegistry) {
  const Params params = ParseOk({});
  for (const ParamSpec& spec : ParamRegistry()) {
    const auto* type = std::get_if<IntParam>(&spec.type);
    if (type == nullptr || spec.name == std::string("NCCL_IB_AR_THRESHOLD")) continue;
    std::visit(
        [&](auto member) {
          if constexpr (!std::is_same_v<decltype(member), std::monostate>) {
            EXPECT_EQ(static_cast<int64_t>(params.*member), type->default_value) << spec.name;
          }
        },
        type->field);
    EXPECT_LE(type->min, type->default_value) << spec.name;
    EXPECT_GE(type->max, type->default_value) << spec.name;
  }
  EXPECT_EQ(params.ib_ar_threshold_bytes, 8192);
  EXPECT_THAT(params.notes, IsEmpty());
}

// Every number takes the ends of its range and nothing beyond.
TEST(ParamsTest, EveryNumberKeepsItsRange) {
  for (const ParamSpec& spec : ParamRegistry()) {
    const auto* type = std::get_if<IntParam>(&spec.type);
    if (type == nullptr || spec.status != ParamStatus::kHonoured) continue;
    // The admission deadline may not exceed the other one.
    Variables base;
    if (spec.name == std::string("SLUICE_ADMIT_TIMEOUT_MS")) base["SLUICE_CONNECT_TIMEOUT_MS"] = "3600000";
    if (spec.name == std::string("SLUICE_CONNECT_TIMEOUT_MS")) base["SLUICE_ADMIT_TIMEOUT_MS"] = "100";
    const auto with = [&](const std::string& value) {
      Variables variables = base;
      variables[spec.name] = value;
      return variables;
    };
    EXPECT_TRUE(Parse(with(std::to_string(type->min))).ok()) << spec.name;
    EXPECT_TRUE(Parse(with(std::to_string(type->max))).ok()) << spec.name;
    for (const std::string& bad :
         {std::to_string(type->min - 1), std::to_string(type->max + 1), std::string("99999999999999999999"),
          std::string("-99999999999999999999")}) {
      EXPECT_THAT(ErrorOf(with(bad)),
                  AllOf(HasSubstr(std::string(spec.name) + "=" + bad), HasSubstr("out of range"),
                        HasSubstr(std::to_string(type->min) + ".." + std::to_string(type->max))));
    }
    for (const std::string bad : {"abc", "1x", "1 2", "0x", "--1", "1.5"}) {
      EXPECT_THAT(ErrorOf(with(bad)),
                  AllOf(HasSubstr(std::string(spec.name) + "=" + bad), HasSubstr("not a number")));
    }
  }
}

TEST(ParamsTest, NumbersAreReadAsNcclReadsThem) {
  EXPECT_EQ(ParseOk({{"NCCL_IB_TIMEOUT", "0x16"}}).ib_timeout, 22);
  EXPECT_EQ(ParseOk({{"NCCL_IB_TIMEOUT", "026"}}).ib_timeout, 22);
  EXPECT_EQ(ParseOk({{"NCCL_IB_TIMEOUT", " 22 "}}).ib_timeout, 22);
  EXPECT_EQ(ParseOk({{"NCCL_IB_TIMEOUT", "+22"}}).ib_timeout, 22);
  EXPECT_EQ(ParseOk({{"NCCL_IB_TIMEOUT", ""}}).ib_timeout, 20);
  EXPECT_EQ(ParseOk({{"NCCL_IB_AR_THRESHOLD", "-2"}}).ib_ar_threshold_bytes, 8192);
  EXPECT_EQ(ParseOk({{"NCCL_IB_AR_THRESHOLD", "0"}}).ib_ar_threshold_bytes, 0);
}

TEST(ParamsTest, ServiceLevelAndTrafficClassHaveTheirOwnRanges) {
  for (const char* name : {"NCCL_IB_SL", "SLUICE_SL"}) {
    for (const char* good : {"-1", "0", "15"}) EXPECT_TRUE(Parse({{name, good}}).ok()) << name << good;
    for (const char* bad : {"16", "135", "-2"}) EXPECT_THAT(ErrorOf({{name, bad}}), HasSubstr("-1..15"));
  }
  for (const char* name : {"NCCL_IB_TC", "NCCL_IB_FIFO_TC", "SLUICE_TC"}) {
    for (const char* good : {"-1", "0", "106", "255"})
      EXPECT_TRUE(Parse({{name, good}}).ok()) << name << good;
    for (const char* bad : {"256", "300", "-2147483648"})
      EXPECT_THAT(ErrorOf({{name, bad}}), HasSubstr("-1..255"));
  }
}

TEST(ParamsTest, Texts) {
  EXPECT_EQ(ParseOk({{"NCCL_IB_HCA", "^=mlx5_1:1,mlx5_2"}}).ib_hca, "^=mlx5_1:1,mlx5_2");
  EXPECT_THAT(ErrorOf({{"NCCL_IB_HCA", "^=mlx5_8,^=mlx5_14"}}), HasSubstr("NCCL_IB_HCA=^=mlx5_8,^=mlx5_14"));
  EXPECT_EQ(ParseOk({{"NCCL_IB_ADDR_FAMILY", "AF_INET6"}}).ib_addr_family, AddressFamily::kIpv6);
  EXPECT_EQ(ParseOk({{"NCCL_SOCKET_FAMILY", "AF_INET"}}).socket_family, AddressFamily::kIpv4);
  EXPECT_THAT(ErrorOf({{"NCCL_IB_ADDR_FAMILY", "IPv6"}}),
              AllOf(HasSubstr("NCCL_IB_ADDR_FAMILY=IPv6"), HasSubstr("AF_INET6")));
  EXPECT_FALSE(ParseOk({{"NCCL_IB_ADDR_RANGE", "10.1.0.0/16"}}).ib_addr_range.empty());
  EXPECT_THAT(ErrorOf({{"NCCL_IB_ADDR_RANGE", "10.1.0.0"}}), HasSubstr("NCCL_IB_ADDR_RANGE"));
}

TEST(ParamsTest, InterfaceNames) {
  const auto filter = [](const char* text) { return ParseOk({{"NCCL_SOCKET_IFNAME", text}}).socket_ifname; };
  EXPECT_TRUE(ParseOk({}).socket_ifname.Matches("eth0"));
  EXPECT_TRUE(filter("eth").Matches("eth0"));
  EXPECT_TRUE(filter("eth,ib").Matches("ib1"));
  EXPECT_FALSE(filter("eth").Matches("veth0"));
  EXPECT_TRUE(filter("bond0").Matches("bond0.2973"));
  EXPECT_FALSE(filter("=bond0").Matches("bond0.2973"));
  EXPECT_TRUE(filter("=eth0,eth1").Matches("eth1"));
  EXPECT_FALSE(filter("^docker,lo").Matches("docker0"));
  EXPECT_TRUE(filter("^docker,lo").Matches("eth0"));
  EXPECT_FALSE(filter("^=eth0").Matches("eth0"));
  EXPECT_TRUE(filter("^=eth0").Matches("eth01"));
  EXPECT_TRUE(filter("eth0,,ib0,").Matches("ib0"));
  EXPECT_THAT(ErrorOf({{"NCCL_SOCKET_IFNAME", "^eth0,^eth1"}}), HasSubstr("apply to the whole list"));
  for (const char* bad : {"^", "=", "^=", ","}) {
    EXPECT_THAT(ErrorOf({{"NCCL_SOCKET_IFNAME", bad}}), HasSubstr("names no interface"));
  }
}

TEST(ParamsTest, SettingsWithoutEffectLeaveANote) {
  EXPECT_THAT(ParseOk({{"NCCL_IB_OOO_RQ", "1"}}).notes,
              ElementsAre(AllOf(HasSubstr("NCCL_IB_OOO_RQ=1"), HasSubstr("no effect"))));
  EXPECT_THAT(ParseOk({{"NCCL_IB_OOO_RQ", "0"}}).notes, IsEmpty());
  EXPECT_THAT(ParseOk({{"NCCL_IB_OOO_RQ", "maybe"}}).notes, ElementsAre(HasSubstr("NCCL_IB_OOO_RQ=maybe")));
  EXPECT_THAT(ParseOk({{"NCCL_IBVERBS_LIB", "/opt/lib.so"}}).notes,
              ElementsAre(HasSubstr("LD_LIBRARY_PATH")));
}

TEST(ParamsTest, WhatIsNotDoneIsRefused) {
  EXPECT_THAT(ErrorOf({{"NCCL_IB_RESILIENCY_PORT_FAILOVER", "1"}}),
              AllOf(HasSubstr("NCCL_IB_RESILIENCY_PORT_FAILOVER=1"), HasSubstr("refused")));
  EXPECT_TRUE(Parse({{"NCCL_IB_RESILIENCY_PORT_FAILOVER", "0"}}).ok());
}

TEST(ParamsTest, Contradictions) {
  EXPECT_THAT(ErrorOf({{"SLUICE_FORCE_FLUSH", "1"}, {"NCCL_GDR_FLUSH_DISABLE", "1"}}),
              HasSubstr("contradicts"));
  EXPECT_EQ(Parse({{"SLUICE_CONNECT_TIMEOUT_MS", "400"}})->admit_timeout_ms, 400);
  EXPECT_THAT(ParseOk({{"SLUICE_SL", "3"}, {"NCCL_IB_SL", "5"}}).notes,
              ElementsAre("SLUICE_SL=3 wins over NCCL_IB_SL=5"));
  EXPECT_THAT(ParseOk({{"SLUICE_SL", "3"}, {"NCCL_IB_SL", "3"}}).notes, IsEmpty());
  EXPECT_THAT(ParseOk({{"NCCL_IB_GID_INDEX", "3"}, {"NCCL_IB_ADDR_FAMILY", "AF_INET"}}).notes,
              ElementsAre(HasSubstr("NCCL_IB_GID_INDEX=3 wins")));
}

TEST(MisspeltTest, NamesTheVariableThatWasMeant) {
  const char* const environment[] = {"SLUICE_SPEED_MPBS=1", "NCCL_IB_TIMEOUTS=22", "NCCL_IB_GIDINDEX=3",
                                     nullptr};
  EXPECT_THAT(FindMisspelt(environment),
              ElementsAre(HasSubstr("SLUICE_SPEED_MBPS"), HasSubstr("NCCL_IB_TIMEOUT?"),
                          HasSubstr("NCCL_IB_GID_INDEX?")));
}

TEST(MisspeltTest, LeavesOthersAlone) {
  const char* const environment[] = {
      "PATH=/bin",    "SLUICE_FABRIC=x", "SLUICE_TOPOLOGY=t.toml", "SLUICE_HOST=a", "SLUICE_BUILD_DIR",
      "NCCL_IB_HCA=", "NCCL_DEBUG=INFO", "SLUICE_MAX_RECVS=8",     nullptr};
  EXPECT_THAT(FindMisspelt(environment), IsEmpty());
  EXPECT_THAT(FindMisspelt(nullptr), IsEmpty());
}

TEST(RegistryTest, NamesAreUniqueAndDescribed) {
  std::set<std::string> names;
  for (const ParamSpec& spec : ParamRegistry()) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    EXPECT_GT(std::strlen(spec.text), 20u) << spec.name;
    EXPECT_EQ(spec.status == ParamStatus::kHonoured, *spec.field != '\0') << spec.name;
  }
}

}  // namespace
}  // namespace sluice
