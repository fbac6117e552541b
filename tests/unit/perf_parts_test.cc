// Lines, options, verification and output of `sluice perf`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "tools/perf/descriptors.h"
#include "tools/perf/library_messages.h"
#include "tools/perf/lines.h"
#include "tools/perf/options.h"
#include "tools/perf/rank.h"
#include "tools/perf/reduce.h"
#include "tools/perf/report.h"
#include "tools/perf/verify.h"

namespace sluice::perf {
namespace {

using testing::HasSubstr;

class LinesTest : public testing::TestWithParam<Proto> {};

TEST_P(LinesTest, WhatIsPackedIsUnpacked) {
  for (size_t bytes : {0u, 1u, 4u, 8u, 12u, 120u, 124u, 1920u, 1924u, 32768u}) {
    std::vector<std::byte> data(bytes + 1), back(bytes + 256), wire(WireBytes(GetParam(), bytes) + 128);
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 131 + 7);
    PackLines(GetParam(), 41, data.data(), bytes, wire.data());
    EXPECT_TRUE(LinesReady(GetParam(), 41, wire.data(), WireBytes(GetParam(), bytes)));
    EXPECT_EQ(UnpackLines(GetParam(), 41, wire.data(), 0, bytes, back.data()), LinesFor(GetParam(), bytes));
    EXPECT_EQ(std::memcmp(data.data(), back.data(), bytes), 0) << bytes;
  }
}

TEST_P(LinesTest, LinesOfAnotherStepAreNotThere) {
  const size_t bytes = 4096;
  std::vector<std::byte> data(bytes, std::byte{1}), back(bytes + 256), wire(WireBytes(GetParam(), bytes));
  EXPECT_EQ(UnpackLines(GetParam(), 0, wire.data(), 0, bytes, back.data()), 0u);  // fresh memory
  PackLines(GetParam(), 3, data.data(), bytes, wire.data());
  EXPECT_EQ(UnpackLines(GetParam(), 11, wire.data(), 0, bytes, back.data()), 0u);
  EXPECT_FALSE(LinesReady(GetParam(), 11, wire.data(), wire.size()));
}

TEST_P(LinesTest, UnpackingGoesOnWhereItStopped) {
  const size_t bytes = 4096;
  std::vector<std::byte> data(bytes), back(bytes + 256), arriving(WireBytes(GetParam(), bytes)),
      wire(arriving.size());
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i);
  PackLines(GetParam(), 9, data.data(), bytes, arriving.data());
  size_t line = 0;
  for (size_t have = 0; have <= wire.size(); have += 8) {  // the network stores ascending words
    if (have != 0) std::memcpy(wire.data() + have - 8, arriving.data() + have - 8, 8);
    line = UnpackLines(GetParam(), 9, wire.data(), line, bytes, back.data());
    EXPECT_EQ(line, have / LineWireBytes(GetParam()));
  }
  EXPECT_EQ(line, LinesFor(GetParam(), bytes));
  EXPECT_EQ(std::memcmp(data.data(), back.data(), bytes), 0);
}

INSTANTIATE_TEST_SUITE_P(Both, LinesTest, testing::Values(Proto::kLl, Proto::kLl128));

TEST(LinesTest, WireSizesAreNccls) {
  EXPECT_EQ(WireBytes(Proto::kLl, 8), 16u);
  EXPECT_EQ(WireBytes(Proto::kLl, 32768), 65536u);
  EXPECT_EQ(WireBytes(Proto::kLl128, 4), 2048u);
  EXPECT_EQ(WireBytes(Proto::kLl128, 576000), 614400u);
  EXPECT_EQ(WireBytes(Proto::kSimple, 100), 100u);
}

TEST(CombineTest, SumsAndCopies) {
  std::array<float, 5> a{1, 2, 3, 4, 5}, b{10, 20, 30, 40, 50}, c{100, 200, 300, 400, 500}, x{}, y{};
  auto bytes = [](std::array<float, 5>& v) { return reinterpret_cast<std::byte*>(v.data()); };
  const std::byte* sources[] = {bytes(a), bytes(b), bytes(c)};
  std::byte* targets[] = {bytes(x), bytes(y)};
  Combine(sources, targets, sizeof a);
  EXPECT_THAT(x, testing::ElementsAre(111, 222, 333, 444, 555));
  EXPECT_EQ(x, y);
  std::byte* in_place[] = {bytes(b)};
  Combine(std::span(sources, 2), in_place, sizeof a);
  EXPECT_THAT(b, testing::ElementsAre(11, 22, 33, 44, 55));
}

TEST(VerifyTest, CountsEveryWrongElement) {
  Shape shape{.op = Op::kAllReduce, .ranks = 3, .block_elements = 10000};
  std::vector<float> output(shape.block_elements);
  Poison(shape, output.data());
  EXPECT_EQ(CountWrong(shape, 1, output.data()), output.size());
  for (size_t i = 0; i < output.size(); ++i) {
    output[i] = InputValue(0, i, 1) + InputValue(1, i, 1) + InputValue(2, i, 1);
  }
  EXPECT_EQ(CountWrong(shape, 1, output.data()), 0u);
  EXPECT_GT(CountWrong(shape, 2, output.data()), 9000u);  // data of another round
  output[5000] += 1;
  EXPECT_EQ(CountWrong(shape, 1, output.data()), 1u);
  std::rotate(output.begin(), output.begin() + 1, output.end());
  EXPECT_GT(CountWrong(shape, 1, output.data()), 9000u);  // data of another place
}

TEST(OptionsTest, Sizes) {
  EXPECT_EQ(*ParseBytes("8"), 8u);
  EXPECT_EQ(*ParseBytes("64K"), size_t{64} << 10);
  EXPECT_EQ(*ParseBytes("64MiB"), size_t{64} << 20);
  EXPECT_EQ(*ParseBytes("2g"), size_t{2} << 30);
  for (const char* bad : {"", "K", "8Q", "-1", "1.5M", "99999999999999999999", "2000000G"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

Status Try(std::vector<const char*> words) {
  Options options;
  CLI::App app;
  AddOptions(&app, &options);
  words.insert(words.begin(), "perf");
  app.parse(static_cast<int>(words.size()), words.data());
  return Validate(&options);
}

TEST(OptionsTest, ProblemsAreNamedInOneLine) {
  EXPECT_TRUE(Try({}).ok());
  EXPECT_TRUE(Try({"-b", "8", "-e", "64M", "-f", "2", "-n", "20", "-w", "5", "-c", "1"}).ok());
  EXPECT_TRUE(Try({"-b", "8", "-b", "16"}).ok());
  for (const auto& [words, text] : std::vector<std::pair<std::vector<const char*>, const char*>>{
           {{"--op", "gather_all"}, "--op gather_all"},
           {{"--algo", "star"}, "ring, tree"},
           {{"--proto", "ll256"}, "--proto ll256"},
           {{"--fabric", "hard"}, "--fabric hard"},
           {{"-b", "3"}, "-b 3"},
           {{"-b", "1M", "-e", "8"}, "-e 8"},
           {{"-f", "1"}, "-f"},
           {{"-n", "0"}, "-n 0"},
           {{"-i", "0"}, "-i 0"},
           {{"--channels", "65"}, "1 to 64"},
           {{"--api", "6"}, "7 to 12"},
           {{"--merge", "2", "--device", "1"}, "--merge"},
           {{"--timeout", "0"}, "--timeout"},
           {{"--topology", "x.toml", "--fabric", "verbs"}, "--topology"}}) {
    const Status status = Try(words);
    EXPECT_FALSE(status.ok()) << text;
    EXPECT_THAT(status.message(), HasSubstr(text));
    EXPECT_THAT(status.message(), testing::Not(HasSubstr("\n")));
  }
}

TEST(ReportTest, BandwidthsAreThoseOfNcclTests) {
  Row row;
  row.shape = {.op = Op::kAllReduce, .ranks = 4, .block_elements = 250000};
  row.bytes = 1000000;
  row.time_us = 1000;
  EXPECT_DOUBLE_EQ(AlgBandwidth(row), 1.0);
  EXPECT_DOUBLE_EQ(BusBandwidth(row), 1.5);
  row.shape.op = Op::kAllGather;
  EXPECT_DOUBLE_EQ(BusBandwidth(row), 0.75);
  row.shape.op = Op::kBroadcast;
  EXPECT_DOUBLE_EQ(BusBandwidth(row), 1.0);
  const auto json = nlohmann::json::parse(JsonLine(row));
  EXPECT_EQ(json["op"], "broadcast");
  EXPECT_EQ(json["wrong"], 0);
}

TEST(ReportTest, Percentiles) {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 1);
  EXPECT_EQ(Percentile(values, 0.5), 50);
  EXPECT_EQ(Percentile(values, 0.99), 99);
  EXPECT_EQ(Percentile({7}, 0.99), 7);
  EXPECT_EQ(Percentile({}, 0.5), 0);
}

TEST(FailureRecordTest, SurvivesTheLine) {
  const FailureRecord record{2, 1, 123456789012, "two\nlines"};
  FailureRecord back;
  std::string line = record.Encode();
  ASSERT_EQ(line.back(), '\n');
  line.pop_back();
  ASSERT_TRUE(FailureRecord::Decode(line, &back));
  EXPECT_EQ(back.rank, 2);
  EXPECT_EQ(back.origin, 1);
  EXPECT_EQ(back.time_ns, 123456789012);
  EXPECT_EQ(back.text, "two lines");
  EXPECT_FALSE(FailureRecord::Decode("rubbish", &back));
}

// Runs ReserveDescriptors under a limit; prints the soft limit after it, or why it cannot be.
void ReserveUnder(rlim_t soft, rlim_t hard, int ranks) {
  const rlimit before{soft, hard};
  if (setrlimit(RLIMIT_NOFILE, &before) != 0) _exit(2);
  Options options;
  options.ranks = ranks;
  const Status status = ReserveDescriptors(options);
  rlimit after{};
  getrlimit(RLIMIT_NOFILE, &after);
  fprintf(stderr, "%llu %s\n", static_cast<unsigned long long>(after.rlim_cur), status.message().c_str());
  _exit(status.ok() ? 0 : 1);
}

TEST(DescriptorsTest, TheLimitIsRaisedAsFarAsItHelps) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(ReserveUnder(200, 2048, 1024), testing::ExitedWithCode(0), "1288 \n");
  EXPECT_EXIT(ReserveUnder(200, 1100, 1024), testing::ExitedWithCode(0), "1100 \n");
  EXPECT_EXIT(ReserveUnder(1000, 2048, 2), testing::ExitedWithCode(0), "1000 \n");
  EXPECT_EXIT(
      ReserveUnder(200, 1024, 1024), testing::ExitedWithCode(1),
      "hard limit of open files is 1024, but a job of 1024 ranks needs 1048 or more; raise it .ulimit -n");
}

TEST(LibraryMessagesTest, TheLastLineIsTheCause) {
  LibraryMessages messages;
  EXPECT_EQ(messages.Take(), "");
  int pid = 0, fd = -1;
  ASSERT_EQ(sscanf(getenv("SLUICE_FABRIC_ERROR_FD"), "%d:%d", &pid, &fd), 2);
  EXPECT_EQ(pid, getpid());
  ASSERT_GT(dprintf(fd, "sluice: first\nsluice: the cause\n"), 0);
  EXPECT_EQ(messages.Take(), "the cause");
  EXPECT_EQ(messages.Take(), "");
  ASSERT_GT(dprintf(fd, "sluice: another\n"), 0);
  EXPECT_EQ(messages.Take(), "another");
}

}  // namespace
}  // namespace sluice::perf
