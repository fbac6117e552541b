// What the dynamic linker sees of the plugin: symbols, dependencies, flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <vector>

namespace sluice {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSubsetOf;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::filesystem::path LibDir() {
  return std::filesystem::path(std::getenv("SLUICE_BUILD_DIR")) / "lib";
}

std::string Plugin() {
  return LibDir() / "libnccl-net-sluice.so";
}

std::string Output(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  std::string text;
  char chunk[4096];
  for (size_t n; pipe != nullptr && (n = fread(chunk, 1, sizeof(chunk), pipe.get())) > 0;)
    text.append(chunk, n);
  EXPECT_FALSE(text.empty()) << command;
  return text;
}

// The first group of every match, in order.
std::vector<std::string> All(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it)
    found.push_back((*it)[1]);
  return found;
}

std::string Dynamic() {
  return Output(std::string(SLUICE_READELF) + " -dW " + Plugin());
}

TEST(BinaryTest, ExportsOnlyWhatNcclLooksUp) {
  const std::string symbols = Output(std::string(SLUICE_NM) + " -D --defined-only " + Plugin());
  EXPECT_THAT(All(symbols, "[0-9a-f]+ [A-Za-z] (\\S+)"),
              UnorderedElementsAre("ncclNetPlugin_v7", "ncclNetPlugin_v8", "ncclNetPlugin_v9",
                                   "ncclNetPlugin_v10", "ncclNetPlugin_v11", "ncclNetPlugin_v12"));
}

TEST(BinaryTest, NeedsOnlyLibcAndVerbs) {
  std::vector<std::string> allowed = {"libibverbs.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"};
#ifdef SLUICE_SANITIZED
  for (const char* name :
       {"libasan.so.8", "libubsan.so.1", "libtsan.so.2", "libstdc++.so.6", "libgcc_s.so.1"}) {
    allowed.emplace_back(name);
  }
#endif
  const std::string dynamic = Dynamic();
  EXPECT_THAT(All(dynamic, "\\(NEEDED\\).*\\[(.*)\\]"), IsSubsetOf(allowed));
  EXPECT_THAT(dynamic, Not(HasSubstr("TEXTREL")));
  EXPECT_THAT(dynamic, Not(HasSubstr("RUNPATH")));
}

TEST(BinaryTest, StaysLoadedAndBindsAtOnce) {
  const std::string dynamic = Dynamic();
  EXPECT_THAT(dynamic, HasSubstr("NODELETE"));
  EXPECT_THAT(dynamic, HasSubstr("BIND_NOW"));
}

// What is undefined must come from the libraries above: no symbol of a C++ library of the process, whose
// version may differ.
TEST(BinaryTest, TakesNoCppSymbolFromTheProcess) {
#ifndef SLUICE_SANITIZED
  const std::string symbols = Output(std::string(SLUICE_NM) + " -D --undefined-only " + Plugin());
  EXPECT_THAT(All(symbols, "U (_Z\\S+)"), testing::IsEmpty());
  EXPECT_THAT(All(symbols, "@(\\S+)"), Not(Contains(MatchesRegex("@?(GLIBCXX|CXXABI).*"))));
#endif
}

TEST(BinaryTest, TunerAndProfilerNamesAreLinks) {
  for (const char* name : {"libnccl-tuner-sluice.so", "libnccl-profiler-sluice.so"}) {
    const std::filesystem::path link = LibDir() / name;
    ASSERT_TRUE(std::filesystem::is_symlink(link)) << link;
    EXPECT_EQ(std::filesystem::read_symlink(link), "libnccl-net-sluice.so");
  }
}

}  // namespace
}  // namespace sluice
